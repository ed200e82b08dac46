#include "rudder/exec/stage_link.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

constexpr int32_t kMostLooks = StageLink::kStarvedPatienceMs / StageLink::kLookMs;

}  // namespace

StageLink::StageLink(int32_t num_stages, int32_t max_in_flight, int32_t patience_ms)
    : patience_(std::max(1, patience_ms / kLookMs)),
      progress_(static_cast<size_t>(num_stages)),
      is_running_(static_cast<size_t>(num_stages)),
      messages_(static_cast<size_t>(num_stages)),
      reports_(static_cast<size_t>(max_in_flight)),
      handed_over_(static_cast<size_t>(num_stages)) {}

void StageLink::add_messages(int32_t stage, Messages messages) {
  const std::lock_guard lock(mutex_);
  RUDDER_CHECK(messages.size() == reports_.size(), "{} messages of stage {}", messages.size(),
               stage);
  Messages& kept = messages_[static_cast<size_t>(stage)] = std::move(messages);
  if (static_cast<size_t>(stage) + 1 < messages_.size()) return;
  for (size_t flight = 0; flight < kept.size(); ++flight) {
    reports_[flight].message = kept[flight].get();
  }
}

ops::Message& StageLink::hidden(int32_t stage, size_t flight) const {
  const std::lock_guard lock(mutex_);
  return *messages_[static_cast<size_t>(stage)][flight];
}

void StageLink::watch(int32_t stage, std::function<uint64_t()> progress) {
  const std::lock_guard lock(mutex_);
  progress_[static_cast<size_t>(stage)] = std::move(progress);
}

void StageLink::begin(int32_t stage) {
  const std::lock_guard lock(mutex_);
  is_running_[static_cast<size_t>(stage)] = true;
}

// Wakes who waits once the lock is free: they may get this worker's core, and a look must not wait
// until it has one again.
void StageLink::hand_over(int32_t stage) {
  {
    const std::lock_guard lock(mutex_);
    is_running_[static_cast<size_t>(stage)] = false;
    ++handed_over_[static_cast<size_t>(stage)];
  }
  changed_.notify_all();
}

// A failure wakes nobody, each waiter looks for it: to wake them could take as long as a worker
// stands still that was woken before.
Result<void> StageLink::wait(std::unique_lock<std::mutex>& lock,
                             const std::function<bool()>& is_over) {
  while (!fault_ && !is_over()) changed_.wait_for(lock, std::chrono::milliseconds(kLookMs));
  if (fault_) return tl::unexpected<Error>(*fault_);
  return {};
}

Result<void> StageLink::await(int32_t stage, uint64_t count) {
  std::unique_lock lock(mutex_);
  return wait(lock, [&] { return handed_over_[static_cast<size_t>(stage)] >= count; });
}

void StageLink::hand_back() {
  {
    const std::lock_guard lock(mutex_);
    is_running_.back() = false;
    ++num_reports_;
  }
  changed_.notify_all();
}

Result<uint64_t> StageLink::await_reports(uint64_t count) {
  std::unique_lock lock(mutex_);
  RUDDER_TRY_VOID(wait(lock, [&] { return num_reports_ >= count; }));
  return num_reports_;
}

void StageLink::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = error;
}

// Sums of numbers that only grow.
uint64_t StageLink::progress() const {
  uint64_t sum = num_reports_;
  for (const uint64_t count : handed_over_) sum += count;
  for (const auto& of_stage : progress_) sum += of_stage ? of_stage() : 0;
  return sum;
}

// Those that run an iteration. Where each has enqueued all that it can, the first whose device has
// not come to the end of it: those behind wait for that one.
std::vector<size_t> StageLink::still_stages() const {
  std::vector<size_t> still;
  for (size_t i = 0; i < is_running_.size(); ++i) {
    if (is_running_[i]) still.push_back(i);
  }
  const auto computes = [](const Messages& messages) {
    return std::ranges::any_of(messages, [](const auto& one) { return !one->has_arrived(); });
  };
  const auto first = std::ranges::find_if(messages_, computes);
  if (still.empty() && first != messages_.end()) {
    still.push_back(static_cast<size_t>(first - messages_.begin()));
  }
  return still;
}

Error StageLink::stillness() const {
  const std::vector<size_t> still = still_stages();
  const std::string stages = still.empty() ? "?" : fmt::format("{}", fmt::join(still, ", "));
  return {ErrorCode::kInternal,
          fmt::format("stage {} of {} stood still for {} ms", stages, is_running_.size(),
                      patience_ * kLookMs),
          "pipeline-parallel-size"};
}

Result<void> StageLink::look() {
  const std::lock_guard lock(mutex_);
  const uint64_t now = progress();
  if (now == last_progress_) {
    ++num_still_;
    if (starvation_ == nullptr) starvation_ = std::make_unique<Starvation>();
    num_starved_ += starvation_->look() ? 1 : 0;
  } else {
    num_still_ = num_starved_ = 0;
    starvation_ = nullptr;
  }
  last_progress_ = now;
  const bool is_over = num_still_ - num_starved_ >= patience_ || num_still_ >= kMostLooks;
  if (!fault_ && is_over) fault_ = stillness();
  if (fault_) return tl::unexpected<Error>(*fault_);
  return {};
}

}  // namespace rudder::exec
