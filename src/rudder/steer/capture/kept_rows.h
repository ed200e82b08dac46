// KeptRows: captured rows of requests that have finished, which later requests of the same tenant
// name by the request's id. Bounded: what was kept longest ago goes first. The consumer `kept`
// fills it; the parser of patches reads it. Any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "rudder/steer/op_spec.h"
#include "rudder/tap/capture.h"

namespace rudder::steer::capture {

// The rows of one choice, as f32. Immutable once kept; who uses a row keeps its buffer.
struct KeptRun {
  int32_t prompt_len = 0;
  std::vector<tap::CapturePoint> points;  // ascending
  std::vector<int32_t> widths;            // by point
  std::vector<int32_t> positions;         // ascending
  // A list of floats [sum of widths] for each position.
  std::vector<std::shared_ptr<const float[]>> records;

  // The row before the ops of the point or, where that was not captured, the one behind them;
  // nothing where neither was.
  std::optional<Row> row(tap::Point point, int32_t position) const;
  bool has(tap::Point point) const;
  int64_t bytes() const;
};

class KeptRows {
 public:
  explicit KeptRows(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Room for rows that are still being captured, at the expense of those kept longest; false where
  // even without them there is none. It is given back, or becomes that of a kept run.
  bool reserve(int64_t bytes);
  void give_back(int64_t bytes);
  // `run` has reserved its bytes. One that the tenant has kept under this name before goes.
  void keep(int32_t tenant, std::string request, int32_t choice, KeptRun run);
  // Null: there is none, or none any more, or another tenant has it.
  std::shared_ptr<const KeptRun> find(int32_t tenant, std::string_view request,
                                      int32_t choice) const;
  int64_t max_bytes() const { return max_bytes_; }

 private:
  using Key = std::tuple<int32_t, std::string, int32_t>;  // tenant, request, choice

  void drop_locked(const Key& key);

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;  // kept and reserved
  std::map<Key, std::shared_ptr<const KeptRun>> runs_;
  std::deque<Key> order_;  // of runs_, the oldest first
};

// Where a request's patches find the rows of others: those of its own tenant.
struct KeptView {
  const KeptRows* rows = nullptr;  // null: the server keeps none
  int32_t tenant = 0;
};

}  // namespace rudder::steer::capture
