// What capture costs the host: time of the engine thread in push(), and rows a second that reach
// the disk, or a client as features. Not run by tests: capture_bench FOLDER, then "features" for
// these alone.
#include <fmt/core.h>

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/cpu_time.h"
#include "rudder/base/json.h"
#include "rudder/features/feature_reader.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/capture/result_json.h"
#include "rudder/steer/features/test_dictionary.h"

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
  made.sites.assign(kLayers, tap::dense_sites_but(tap::Site::kFinalNorm));
  return made;
}

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// A device that costs the host nothing: eight features of each row.
class IdleReader final : public features::FeatureReader {
 public:
  Result<void> check(const features::Dictionary& /*dictionary*/) const override { return {}; }
  Result<void> read(std::span<const features::FeatureRow> rows, tensor::DType /*dtype*/,
                    std::vector<std::vector<features::FeatureValue>>& told) override {
    rows_ += rows.size();
    ++batches_;
    told.assign(rows.size(), {});
    for (std::vector<features::FeatureValue>& row : told) {
      for (int32_t i = 0; i < 8; ++i) row.push_back({2000 * i, 8.5f - static_cast<float>(i)});
    }
    return {};
  }
  size_t rows_together() const override { return 256; }
  features::FeatureReaderStats stats() const override {
    return {.rows = rows_, .batches = batches_};
  }

 private:
  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> batches_{0};
};

// What is done with captures, but for the field.
struct Way {
  std::string consumer;
  std::shared_ptr<features::FeatureReader> reader = nullptr;
  int32_t num_features = 0;  // of a dictionary "d"
  int32_t num_steps = kSteps;
};

// Decode steps of kSequences sequences. With a dictionary they stream, each event as its text.
void run(const std::string& label, const Way& way, const std::string& field) {
  CaptureSettings settings;
  if (!way.consumer.empty()) settings.consumers = {way.consumer};
  settings.overload_policy = "block";
  settings.queue_bytes = int64_t{512} << 20;
  settings.max_response_bytes = int64_t{4} << 30;
  Dispatcher::Parts parts{.geometry = geometry(),
                          .limits = {.num_rows = 0,
                                     .num_ops = 0,
                                     .num_floats = 0,
                                     .num_capture_sets = 4,
                                     .capture_elements = int64_t{1} << 40},
                          .lookup = {},
                          .consumers = {}};
  const bool streams = way.num_features > 0;
  if (streams) {
    const tap::Point point{17, tap::Site::kResidPost};
    std::shared_ptr<const features::DictionarySet> set = named_set(
        "d",
        random_dictionary(
            {.width = kHidden, .num_features = way.num_features, .read = point, .write = point},
            1));
    parts.dictionaries = [set](std::string_view) { return set; };
    parts.features = way.reader;
  }
  auto made = Dispatcher::create(std::move(parts), settings);
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
  std::string text;
  std::function<void(CaptureEvent &&)> on_event;
  if (streams) {
    on_event = [&text](CaptureEvent&& event) {
      text.clear();
      append_event_values(text, event);
    };
  }
  std::vector<CaptureId> ids;
  ids.reserve(kSequences);
  for (int32_t i = 0; i < kSequences; ++i) {
    ids.push_back(dispatcher.begin({.spec = *spec,
                                    .request_id = "r" + std::to_string(i),
                                    .choice = 0,
                                    .prompt_len = 1,
                                    .stream = streams,
                                    .wait = true,
                                    .on_results = on_results,
                                    .on_event = on_event}));
  }
  const auto record = static_cast<size_t>(tap::record_elements(*(*spec)->set, geometry()));
  std::vector<uint16_t> data(record * kSequences);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint16_t>(i * 40503u >> 3u);
  double in_push = 0;
  const auto begin = steady_clock::now();
  const int64_t cpu_before = process_cpu_us();
  for (int32_t step = 0; step < way.num_steps; ++step) {
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
  const auto cpu_us = static_cast<double>(process_cpu_us() - cpu_before);
  const double num_rows =
      double(way.num_steps) * kSequences * static_cast<double>((*spec)->set->points.size());
  const double megabytes = num_rows * kHidden * 2 / 1e6;
  const double waited = static_cast<double>(dispatcher.stats().block_us) * 1e-6;
  fmt::print("{:<34} {:>7.2f} us/step in push (+ {:.0f} waited)  {:>9.0f} rows/s  {:>7.0f} MB/s\n",
             label, (in_push - waited) / way.num_steps * 1e6, waited / way.num_steps * 1e6,
             num_rows / total, megabytes / total);
  const features::FeatureReaderStats read = dispatcher.stats().features;
  if (read.batches == 0) return;
  fmt::print("{:<34} {:>7.2f} us of processor a row, {:.1f} rows together\n", "", cpu_us / num_rows,
             static_cast<double>(read.rows) / static_cast<double>(read.batches));
}

void run_rows(const std::string& root) {
  const std::string files = "filesystem:on_collision=overwrite,root=" + root;
  const std::string one = R"({"sites": {"resid_post": [17]}, "positions": "all")";
  run("files", {files}, R"({"filesystem": )" + one + "}}");
  run("files, fsync=false", {files + ",fsync=false"}, R"({"filesystem": )" + one + "}}");
  run("shards", {files + ",layout=shards"}, R"({"filesystem": )" + one + "}}");
  run("shards, all layers", {files + ",layout=shards"},
      R"({"filesystem": {"sites": {"resid_post": "all"}, "positions": "all"}})");
  run("response, rows", {}, R"({"response": )" + one + "}}");
  run("response, norms", {}, R"({"response": )" + one + R"(, "values": ["norms"]}})");
}

void run_features() {
  const std::string top = R"({"response": {"dictionary": "d", "top": 8, "positions": "all"}})";
  run("features, read elsewhere",
      {.consumer = "", .reader = std::make_shared<IdleReader>(), .num_features = 16384}, top);
  run("features, 16,384 on the host", {.consumer = "", .num_features = 16384, .num_steps = 4}, top);
}

}  // namespace
}  // namespace rudder::steer::capture

int main(int argc, char** argv) {
  fmt::print("decode of 128 sequences, one row of 2560 bf16 each, 200 steps\n");
  if (argc < 3) rudder::steer::capture::run_rows(argc > 1 ? argv[1] : "/tmp/capture_bench");
  rudder::steer::capture::run_features();
  return 0;
}
