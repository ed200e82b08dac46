// What capture costs the host: time of the engine thread in push(), and rows a second that reach
// the disk. Not run by tests: capture_bench FOLDER
#include <fmt/core.h>

#include <boost/json.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/steer/capture/dispatcher.h"

namespace rudder::steer::capture {
namespace {

using std::chrono::steady_clock;

constexpr int32_t kHidden = 2560;
constexpr int32_t kLayers = 36;
constexpr int32_t kSequences = 128;
constexpr int32_t kSteps = 200;

tap::Geometry geometry() {
  tap::Geometry made;
  made.num_layers = kLayers;
  made.hidden = kHidden;
  made.mlp_width.assign(kLayers, 9728);
  made.heads.assign(kLayers, {32, 128});
  made.sites.assign(kLayers, 0x1ff);
  return made;
}

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// kSteps decode steps of kSequences sequences.
void run(const std::string& label, const std::string& consumer, const std::string& field) {
  CaptureSettings settings;
  if (!consumer.empty()) settings.consumers = {consumer};
  settings.overload_policy = "block";
  settings.queue_bytes = int64_t{512} << 20;
  settings.max_response_bytes = int64_t{4} << 30;
  auto made = Dispatcher::create({geometry(),
                                  {.num_rows = 0,
                                   .num_ops = 0,
                                   .num_floats = 0,
                                   .num_capture_sets = 4,
                                   .capture_elements = int64_t{1} << 40},
                                  {},
                                  {}},
                                 settings);
  if (!made) {
    fmt::print("{}: {}\n", label, made.error().to_string());
    return;
  }
  Dispatcher& dispatcher = **made;
  const auto parsed = parse_json(field, "bench");
  const auto spec = dispatcher.spec(&*parsed);
  if (!spec) {
    fmt::print("{}: {}\n", label, spec.error().to_string());
    return;
  }
  std::mutex mutex;
  std::condition_variable changed;
  int32_t num_done = 0;
  const auto on_results = [&](CaptureResults&& results) {
    if (results[0].status != Status::kOk) fmt::print("{}: {}\n", label, results[0].error);
    std::lock_guard lock(mutex);
    ++num_done;
    changed.notify_all();
  };
  std::vector<CaptureId> ids;
  ids.reserve(kSequences);
  for (int32_t i = 0; i < kSequences; ++i) {
    ids.push_back(dispatcher.begin({.spec = *spec,
                                    .request_id = "r" + std::to_string(i),
                                    .choice = 0,
                                    .prompt_len = 1,
                                    .stream = false,
                                    .wait = true,
                                    .on_results = on_results,
                                    .on_event = {}}));
  }
  const auto record = static_cast<size_t>(tap::record_elements(*(*spec)->set, geometry()));
  std::vector<uint16_t> data(record * kSequences);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint16_t>(i * 40503u >> 3u);
  double in_push = 0;
  const auto begin = steady_clock::now();
  for (int32_t step = 0; step < kSteps; ++step) {
    auto rows = std::make_shared<tap::CapturedRows>();
    rows->data = data.data();
    for (int32_t i = 0; i < kSequences; ++i) {
      rows->tokens.push_back({i, step + 1, 0, static_cast<int64_t>(record) * i});
    }
    const auto before = steady_clock::now();
    dispatcher.push(std::move(rows), ids);
    in_push += seconds_since(before);
  }
  for (const CaptureId id : ids) dispatcher.end(id);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return num_done == kSequences; });
  const double total = seconds_since(begin);
  const double num_rows =
      double{kSteps} * kSequences * static_cast<double>((*spec)->set->points.size());
  const double megabytes = num_rows * kHidden * 2 / 1e6;
  const double waited = static_cast<double>(dispatcher.stats().block_us) * 1e-6;
  fmt::print("{:<34} {:>7.2f} us/step in push (+ {:.0f} waited)  {:>9.0f} rows/s  {:>7.0f} MB/s\n",
             label, (in_push - waited) / kSteps * 1e6, waited / kSteps * 1e6, num_rows / total,
             megabytes / total);
}

}  // namespace
}  // namespace rudder::steer::capture

int main(int argc, char** argv) {
  using rudder::steer::capture::run;
  const std::string root = argc > 1 ? argv[1] : "/tmp/capture_bench";
  const std::string files = "filesystem:on_collision=overwrite,root=" + root;
  fmt::print("decode of 128 sequences, one row of 2560 bf16 each, 200 steps\n");
  const std::string one = R"({"sites": {"resid_post": [17]}, "positions": "all")";
  run("files", files, R"({"filesystem": )" + one + "}}");
  run("files, fsync=false", files + ",fsync=false", R"({"filesystem": )" + one + "}}");
  run("shards", files + ",layout=shards", R"({"filesystem": )" + one + "}}");
  run("shards, all layers", files + ",layout=shards",
      R"({"filesystem": {"sites": {"resid_post": "all"}, "positions": "all"}})");
  run("response, rows", "", R"({"response": )" + one + "}}");
  run("response, norms", "", R"({"response": )" + one + R"(, "values": ["norms"]}})");
  return 0;
}
