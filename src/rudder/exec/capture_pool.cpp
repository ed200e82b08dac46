#include "rudder/exec/capture_pool.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

namespace rudder::exec {

// What is free, as ranges that do not touch each other.
class CapturePool::Ranges {
 public:
  explicit Ranges(int64_t bytes) { free_[0] = bytes; }

  // The beginning of the first range that is long enough.
  std::optional<int64_t> take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto range = std::ranges::find_if(
        free_, [&](const auto& candidate) { return candidate.second >= bytes; });
    if (range == free_.end()) return std::nullopt;
    const auto [begin, length] = *range;
    free_.erase(range);
    if (length > bytes) free_[begin + bytes] = length - bytes;
    return begin;
  }

  void give_back(int64_t begin, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    auto range = free_.emplace(begin, bytes).first;
    const auto next = std::next(range);
    if (next != free_.end() && begin + bytes == next->first) {
      range->second += next->second;
      free_.erase(next);
    }
    if (range == free_.begin()) return;
    const auto before = std::prev(range);
    if (before->first + before->second != begin) return;
    before->second += range->second;
    free_.erase(range);
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // length by beginning, in bytes
};

Result<std::unique_ptr<CapturePool>> CapturePool::make(ops::Ops& ops, int64_t bytes) {
  RUDDER_TRY(const ops::View memory, ops.allocate_staging(bytes));
  return std::unique_ptr<CapturePool>(new CapturePool(memory, std::make_shared<Ranges>(bytes)));
}

CapturePool::Lease CapturePool::take(int64_t bytes) {
  const int64_t aligned = (bytes + 63) / 64 * 64;
  const std::optional<int64_t> begin = free_->take(aligned);
  if (!begin) return {};
  ops::View memory = memory_.rows(*begin, bytes);
  const auto give_back = [ranges = free_, at = *begin, aligned](const void*) {
    ranges->give_back(at, aligned);
  };
  return {memory, std::shared_ptr<const void>(memory.data, give_back)};
}

}  // namespace rudder::exec
