// A hundred thousand rows of requests that come and go, through every consumer at once: each gets
// the bytes that were captured, as hashes of what arrived show.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <random>

#include "rudder/base/json.h"
#include "rudder/base/log.h"
#include "rudder/steer/capture/capture_fixture.h"
#include "rudder/steer/capture/sha256.h"

namespace rudder::steer::capture {
namespace {

struct Running {
  CaptureId id;
  uint64_t sequence = 0;
  int32_t next = 0;
  int32_t end = 0;
};

std::string hash_of_rows(const tap::Geometry& geometry, uint64_t sequence,
                         const tap::CapturePoint& point, int32_t count) {
  Sha256 hash;
  std::vector<uint16_t> row(static_cast<size_t>(geometry.width(point.point)));
  for (int32_t p = 0; p < count; ++p) {
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = row_value(sequence, p, point, static_cast<int32_t>(i));
    }
    hash.update(std::as_bytes(std::span(row)));
  }
  return hash.finish_hex();
}

TEST(Volume, AHundredThousandRowsThroughEveryConsumer) {
  set_log_level(LogLevel::kWarn);
  const tap::Geometry geometry = small_geometry();
  TempFolder folder;
  std::ofstream(folder.path() + "/probe.f32", std::ios::binary) << std::string(96, '?');
  const auto remember = std::make_shared<TestConsumer>("remember");
  CaptureSettings settings;
  settings.consumers = {"filesystem:fsync=false,root=" + folder.path() + "/rows", "logging"};
  settings.plugins = {"reward:file=" CAPTURE_REWARD ",probe=" + folder.path() + "/probe.f32"};
  settings.queue_bytes = 256 << 10;  // spills at times
  settings.spill_dir = folder.path();
  settings.result_timeout_seconds = 60;
  auto made = Dispatcher::create({geometry, small_limits(), {}, {remember}}, settings);
  ASSERT_TRUE(made.has_value()) << made.error().to_string();
  Dispatcher& dispatcher = **made;
  constexpr const char* kField = R"({
    "filesystem": {"sites": {"resid_post": [0, 2], "mlp_act": [2]}, "positions": "all"},
    "remember": {"sites": {"resid_post": [2], "attn_out": [1]}, "positions": "all"},
    "response": {"sites": {"resid_post": [0]}, "positions": "all", "values": ["norms"]},
    "logging": {"sites": {"resid_post": [0]}, "positions": "last_prompt"},
    "reward": {"sites": {"resid_post": [2]}, "positions": "all"}})";
  const auto spec = make_spec(dispatcher, kField);
  constexpr uint64_t kSequences = 120;
  Inbound inbound;
  std::mt19937 random(7);
  std::vector<Running> running;
  std::map<uint64_t, int32_t> lengths;
  uint64_t started = 0;
  int64_t rows = 0;
  while (started < kSequences || !running.empty()) {
    while (started < kSequences && running.size() < 16) {
      const auto length = static_cast<int32_t>(50 + random() % 250);
      lengths[started] = length;
      running.push_back({dispatcher.begin({.spec = spec,
                                           .request_id = "s" + std::to_string(started),
                                           .choice = 0,
                                           .prompt_len = 50,
                                           .stream = false,
                                           .wait = true,
                                           .on_results = inbound.results(),
                                           .on_event = {}}),
                         started, 0, length});
      ++started;
    }
    FakeStep step(geometry);
    for (Running& one : running) {
      const auto chunk = static_cast<int32_t>(one.next < 50 ? 1 + random() % 40 : 1);
      const int32_t end = std::min(one.next + chunk, one.end);
      step.add(one.id, one.sequence, *spec, one.next, end);
      rows += (end - one.next) * 7;  // consumers' points together
      one.next = end;
    }
    step.push_to(dispatcher);
    for (auto one = running.begin(); one != running.end();) {
      if (one->next < one->end) {
        ++one;
        continue;
      }
      dispatcher.end(one->id);
      one = running.erase(one);
    }
  }
  for (uint64_t i = 0; i < kSequences; ++i) {
    for (const ConsumerResult& result : inbound.wait()) {
      EXPECT_EQ(result.status, Status::kOk) << result.consumer << ": " << result.error;
    }
  }
  EXPECT_GT(rows, 100'000);
  std::map<std::pair<std::string, int32_t>, Sha256> remembered;  // by request and point
  for (const TestConsumer::Row& row : remember->rows()) {
    remembered[{row.request, row.point.point.index()}].update(row.bytes);
  }
  for (const auto& [sequence, length] : lengths) {
    const std::string id = "s" + std::to_string(sequence);
    for (const tap::Point point :
         {tap::Point{0, tap::Site::kResidPost}, tap::Point{2, tap::Site::kResidPost},
          tap::Point{2, tap::Site::kMlpAct}}) {
      const std::string stem = "rows/default/" + id + "/" + std::to_string(point.layer) + "_" +
                               std::string(tap::site_name(point.site));
      const std::string expected = hash_of_rows(geometry, sequence, {point, false}, length);
      Sha256 held;
      const std::string bytes = folder.read(stem + ".bin");
      held.update(std::as_bytes(std::span(bytes)));
      ASSERT_EQ(held.finish_hex(), expected) << stem;
      const auto sidecar = parse_json(folder.read(stem + ".json"), stem);
      ASSERT_EQ(sidecar->at("sha256"), boost::json::string(expected)) << stem;
    }
    for (const tap::Point point :
         {tap::Point{2, tap::Site::kResidPost}, tap::Point{1, tap::Site::kAttnOut}}) {
      const std::string held = remembered[{id, point.index()}].finish_hex();
      ASSERT_EQ(held, hash_of_rows(geometry, sequence, {point, false}, length)) << id;
    }
  }
  for (const ConsumerStats& stats : dispatcher.stats().consumers) {
    EXPECT_EQ(stats.dropped_rows, 0u) << stats.name;
    EXPECT_EQ(stats.results_ok, kSequences) << stats.name;
  }
}

}  // namespace
}  // namespace rudder::steer::capture
