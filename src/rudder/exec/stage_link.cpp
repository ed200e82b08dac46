#include "rudder/exec/stage_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "rudder/tensor/dtype.h"

namespace rudder::exec {

StageLink::StageLink(int32_t num_stages, int32_t max_in_flight, int32_t patience_ms)
    : patience_(std::max(1, patience_ms / kLookMs)),
      progress_(static_cast<size_t>(num_stages)),
      is_running_(static_cast<size_t>(num_stages)),
      hidden_(static_cast<size_t>(num_stages)),
      sampled_(static_cast<size_t>(max_in_flight)),
      handed_over_(static_cast<size_t>(num_stages)) {}

ops::View StageLink::allocate(int64_t bytes) {
  return {memory_.emplace_back(static_cast<size_t>(bytes)).data(), tensor::DType::kU8, {bytes}};
}

void StageLink::allocate_hidden(int32_t stage, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < sampled_.size(); ++i) {
    hidden_[static_cast<size_t>(stage)].push_back(allocate(bytes));
  }
}

void StageLink::allocate_sampled(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (Sampled& sampled : sampled_) sampled.bytes = allocate(bytes);
}

ops::View StageLink::hidden(int32_t stage, size_t flight) const {
  const std::lock_guard lock(mutex_);
  return hidden_[static_cast<size_t>(stage)][flight];
}

void StageLink::watch(int32_t stage, std::function<uint64_t()> progress) {
  const std::lock_guard lock(mutex_);
  progress_[static_cast<size_t>(stage)] = std::move(progress);
}

void StageLink::begin(int32_t stage) {
  const std::lock_guard lock(mutex_);
  is_running_[static_cast<size_t>(stage)] = true;
}

void StageLink::hand_over(int32_t stage) {
  const std::lock_guard lock(mutex_);
  is_running_[static_cast<size_t>(stage)] = false;
  ++handed_over_[static_cast<size_t>(stage)];
  changed_.notify_all();
}

Result<void> StageLink::await(int32_t stage, uint64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return fault_ || handed_over_[static_cast<size_t>(stage)] >= count; });
  if (fault_) return tl::unexpected<Error>(*fault_);
  return {};
}

void StageLink::report() {
  const std::lock_guard lock(mutex_);
  is_running_.back() = false;
  ++num_reports_;
  changed_.notify_all();
}

Result<uint64_t> StageLink::await_reports(uint64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return fault_ || num_reports_ >= count; });
  if (fault_) return tl::unexpected<Error>(*fault_);
  return num_reports_;
}

void StageLink::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = error;
  changed_.notify_all();
}

// Sums of numbers that only grow.
uint64_t StageLink::progress() const {
  uint64_t sum = num_reports_;
  for (const uint64_t count : handed_over_) sum += count;
  for (const auto& of_stage : progress_) sum += of_stage ? of_stage() : 0;
  return sum;
}

Error StageLink::stillness() const {
  std::string stages;
  for (size_t i = 0; i < is_running_.size(); ++i) {
    if (is_running_[i]) stages += fmt::format("{}{}", stages.empty() ? "" : ", ", i);
  }
  return {ErrorCode::kInternal,
          fmt::format("stage {} of {} stood still for {} ms", stages.empty() ? "?" : stages,
                      is_running_.size(), patience_ * kLookMs),
          "pipeline-parallel-size"};
}

Result<void> StageLink::look() {
  const std::lock_guard lock(mutex_);
  const uint64_t now = progress();
  num_still_ = now == last_progress_ ? num_still_ + 1 : 0;
  last_progress_ = now;
  if (!fault_ && num_still_ >= patience_) {
    fault_ = stillness();
    changed_.notify_all();
  }
  if (fault_) return tl::unexpected<Error>(*fault_);
  return {};
}

}  // namespace rudder::exec
