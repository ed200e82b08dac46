#include "rudder/exec/stage_link.h"

#include "rudder/tensor/dtype.h"

namespace rudder::exec {

StageLink::StageLink(int32_t num_stages, int32_t max_in_flight)
    : hidden_(static_cast<size_t>(num_stages)),
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

void StageLink::hand_over(int32_t stage) {
  const std::lock_guard lock(mutex_);
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

}  // namespace rudder::exec
