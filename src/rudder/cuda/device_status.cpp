#include "rudder/cuda/device_status.h"

#include <fmt/format.h>

namespace rudder::cuda {

Error device_error(cudaError_t error, std::string_view op, std::string_view detail) {
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::kOverloaded : ErrorCode::kInternal;
  return Error{code,
               fmt::format("CUDA error {} ({}) in {}{}{}", static_cast<int>(error),
                           cudaGetErrorString(error), op, detail.empty() ? "" : ": ", detail),
               "device"};
}

void DeviceStatus::note(const char* op) {
  const size_t index = next_.load(std::memory_order_relaxed);
  recent_[index % recent_.size()].store(op, std::memory_order_relaxed);
  next_.store(index + 1, std::memory_order_relaxed);
  if (op == std::string_view("embed")) attentions_.store(0, std::memory_order_relaxed);
  if (op == std::string_view("attention")) attentions_.fetch_add(1, std::memory_order_relaxed);
}

std::string DeviceStatus::place() const {
  std::string text;
  const size_t next = next_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < recent_.size(); ++i) {
    const char* op = recent_[(next + i) % recent_.size()].load(std::memory_order_relaxed);
    if (op != nullptr) text += fmt::format("{}{}", text.empty() ? "" : " ", op);
  }
  return fmt::format("; stream {}, after the attention of {} layers, last ops: {}", stream_,
                     attentions_.load(std::memory_order_relaxed), text);
}

void DeviceStatus::keep(cudaError_t error, const char* op, const std::string& shapes) {
  keep(device_error(error, op, shapes));
}

void DeviceStatus::keep(Error error) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  error_ = std::move(error);
  error_.message += place();
  failed_.store(true, std::memory_order_release);
}

Result<void> DeviceStatus::status() const {
  if (!failed()) return {};
  const std::lock_guard lock(mutex_);
  return tl::unexpected(error_);
}

}  // namespace rudder::cuda
