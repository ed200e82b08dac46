#include "rudder/steer/capture/capture_fixture.h"

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>

#include "rudder/base/json.h"

#include "rudder/tap/passage.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer::capture {

namespace json = boost::json;

tap::Geometry small_geometry() {
  tap::Geometry geometry;
  geometry.num_layers = 4;
  geometry.hidden = 24;
  geometry.mlp_width = {48, 48, 40, 48};
  geometry.heads = {{4, 6}, {4, 6}, {2, 8}, {4, 6}};
  const uint16_t inner = tap::dense_sites_but(tap::Site::kFinalNorm);
  geometry.sites = {inner, inner, inner, tap::dense_sites_but(tap::Site::kResidMid)};
  geometry.dtype = tensor::DType::kBF16;
  return geometry;
}

tap::Geometry routed_geometry() {
  tap::Geometry geometry = small_geometry();
  geometry.routing = {{}, {.experts = 70, .chosen = 3}, {}, {.experts = 9, .chosen = 2}};
  for (const size_t layer : {1, 3}) {
    geometry.sites[layer] = static_cast<uint16_t>(geometry.sites[layer] | tap::kRouterSites);
  }
  return geometry;
}

float router_value(uint64_t sequence, int32_t position, const tap::CapturePoint& point, int32_t i) {
  const uint16_t bits = row_value(sequence, position, point, i);
  if (point.point.site == tap::Site::kRoutedExperts) return static_cast<float>(bits % 9);
  return tensor::to_float(tensor::BF16{bits}) + 0x1p-20f;  // no bf16 has that
}

tap::Limits small_limits() {
  return {.num_rows = 0,
          .num_ops = 0,
          .num_floats = 0,
          .num_capture_sets = 8,
          .capture_elements = 1 << 16,
          .patterns = true};
}

uint16_t row_value(uint64_t sequence, int32_t position, const tap::CapturePoint& point, int32_t i) {
  uint64_t x = sequence * 0x9e3779b97f4a7c15ULL +
               static_cast<uint64_t>(position) * 0xbf58476d1ce4e5b9ULL +
               static_cast<uint64_t>(point.point.index() * 2 + (point.after ? 1 : 0)) *
                   0x94d049bb133111ebULL +
               static_cast<uint64_t>(i);
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  // A bf16 of magnitude 2^-2 to 2^2: never NaN.
  return static_cast<uint16_t>((x & 0x8000u) | ((125 + x % 5) << 7) | ((x >> 16) & 0x7fu));
}

uint16_t pattern_value(int32_t position, int32_t layer, int32_t head, int32_t key) {
  // A bf16 of magnitude 2^-2 to 2^2, like those of rows.
  const int32_t mantissa = (position * 37 + layer * 11 + head * 29 + key * 3) & 0x7f;
  return static_cast<uint16_t>(((125 + key % 5) << 7) | mantissa);
}

FakeStep& FakeStep::add(CaptureId id, uint64_t sequence, const CaptureSpec& spec, int32_t begin,
                        int32_t end) {
  const auto seq = static_cast<int32_t>(by_seq_.size());
  by_seq_.push_back(id);
  const auto record = static_cast<size_t>(tap::record_elements(*spec.set, geometry_));
  for (int32_t position = begin; position < end; ++position) {
    tokens_.push_back({seq, position, 0, static_cast<int64_t>(data_.size())});
    const size_t at = data_.size();
    data_.resize(at + record, 0xffff);
    for (size_t p = 0; p < spec.set->points.size(); ++p) {
      const tap::CapturePoint& point = spec.set->points[p];
      if (tap::passage(point.point.site) == tap::kRouter) {
        put_router(sequence, position, point, at + static_cast<size_t>(spec.offsets[p]));
        continue;
      }
      for (int32_t i = 0; i < geometry_.width(point.point); ++i) {
        data_[at + static_cast<size_t>(spec.offsets[p] + i)] =
            row_value(sequence, position, point, i);
      }
    }
    for (size_t p = 0; p < spec.set->patterns.size(); ++p) {
      const tap::CapturePattern& pattern = spec.set->patterns[p];
      size_t to = at + static_cast<size_t>(spec.offsets[spec.set->points.size() + p]);
      for (const int32_t head : pattern.heads) {
        for (int32_t key = 0; key < pattern.keys; ++key) {
          data_[to++] = pattern_value(position, pattern.layer, head, key);
        }
      }
    }
  }
  return *this;
}

void FakeStep::put_router(uint64_t sequence, int32_t position, const tap::CapturePoint& point,
                          size_t at) {
  for (int32_t i = 0; i < geometry_.width(point.point); ++i) {
    const float value = router_value(sequence, position, point, i);
    if (point.point.site == tap::Site::kRoutedExperts) {
      data_[at + static_cast<size_t>(i)] = static_cast<uint16_t>(value);
    } else {
      std::memcpy(data_.data() + at + 2 * static_cast<size_t>(i), &value, sizeof(value));
    }
  }
}

std::shared_ptr<bool> FakeStep::watch_lease() {
  is_given_back_ = std::make_shared<bool>(false);
  return is_given_back_;
}

std::shared_ptr<tap::CapturedRows> FakeStep::rows() {
  auto rows = std::make_shared<tap::CapturedRows>();
  auto data = std::make_shared<std::vector<uint16_t>>(std::move(data_));
  rows->data = data->data();
  rows->dtype = tensor::DType::kBF16;
  rows->tokens = std::move(tokens_);
  rows->lease =
      std::shared_ptr<const void>(data->data(), [data, flag = is_given_back_](const void*) {
        if (flag != nullptr) *flag = true;
      });
  return rows;
}

void FakeStep::push_to(Dispatcher& dispatcher) {
  dispatcher.push(rows(), by_seq_);
}

void FakeStep::push_lost_to(Dispatcher& dispatcher) {
  const std::shared_ptr<tap::CapturedRows> lost = rows();
  lost->data = nullptr;
  lost->lease.reset();
  dispatcher.push(lost, by_seq_);
}

std::function<void(CaptureResults&&)> Inbound::results() {
  return [this](CaptureResults&& results) {
    std::lock_guard lock(mutex_);
    results_.push_back(std::move(results));
    changed_.notify_all();
  };
}

std::function<void(CaptureEvent&&)> Inbound::events() {
  return [this](CaptureEvent&& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  };
}

CaptureResults Inbound::wait() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !results_.empty(); })) {
    ADD_FAILURE() << "no results came";
    return {};
  }
  CaptureResults first = std::move(results_.front());
  results_.erase(results_.begin());
  return first;
}

bool Inbound::is_empty() {
  std::lock_guard lock(mutex_);
  return results_.empty();
}

std::vector<CaptureEvent> Inbound::take_events() {
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

std::shared_ptr<const CaptureSpec> make_spec(Dispatcher& dispatcher, const std::string& text) {
  const Result<json::value> field = parse_json(text, "test");
  EXPECT_TRUE(field.has_value());
  Result<std::shared_ptr<const CaptureSpec>> spec = dispatcher.spec(&*field);
  EXPECT_TRUE(spec.has_value()) << spec.error().to_string();
  return spec ? *spec : nullptr;
}

class TestSession final : public Session {
 public:
  TestSession(SessionInfo info, TestConsumer& consumer)
      : info_(std::move(info)), consumer_(consumer) {}
  Result<void> take(RowBatch batch) override {
    if (consumer_.on_take) RUDDER_TRY_VOID(consumer_.on_take(info_));
    std::lock_guard lock(consumer_.mutex_);
    for (const Record& record : batch.records) {
      for (const RowLayout& layout : info_.rows) {
        const auto row = batch.row(record, layout);
        consumer_.rows_.push_back(
            {info_.request_id, record.position, layout.point, {row.begin(), row.end()}});
      }
    }
    return {};
  }
  void finish(bool, SessionDone done) override {
    if (consumer_.on_finish) consumer_.on_finish(info_);
    done({});
  }

 private:
  const SessionInfo info_;
  TestConsumer& consumer_;
};

Result<std::shared_ptr<const ConsumerOptions>> TestConsumer::parse_options(
    const json::object&, const AskedRows&, const std::string&) const {
  return std::make_shared<ConsumerOptions>();
}

Result<std::shared_ptr<Session>> TestConsumer::open(SessionInfo info) {
  if (on_open) on_open(info);
  return std::make_shared<TestSession>(std::move(info), *this);
}

std::vector<TestConsumer::Row> TestConsumer::rows() {
  std::lock_guard lock(mutex_);
  return rows_;
}

size_t TestConsumer::num_rows() {
  std::lock_guard lock(mutex_);
  return rows_.size();
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "rudder-capture-XXXXXX").string();
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::read(const std::string& name) const {
  std::ifstream file(path_ / name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> TempFolder::files() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    const std::string name = std::filesystem::relative(entry.path(), path_).string();
    if (entry.is_regular_file() && !name.starts_with(".partial")) files.push_back(name);
  }
  std::ranges::sort(files);
  return files;
}

bool eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "what was waited for did not come";
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void Gate::wait() const {
  const std::shared_future<void> opened = opened_;
  if (opened.wait_for(patience_) == std::future_status::ready) return;
  ADD_FAILURE() << "a gate that somebody waits at was not opened";
}

}  // namespace rudder::steer::capture
