// Writes and reads tensors of a backend under test as exec does it, through staging memory and
// events, so that a test works wherever the backend's memory is. Tests only; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/ops/ops.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

// A tensor in host memory of its own, zeroed.
class HostTensor {
 public:
  HostTensor(tensor::DType dtype, tensor::Shape shape);
  // f32 values, rounded to `dtype` (f32, f16, bf16).
  HostTensor(std::span<const float> values, tensor::DType dtype, tensor::Shape shape);

  tensor::View view() const { return {const_cast<std::byte*>(bytes_.data()), dtype_, shape_}; }
  template <typename T>
  std::span<T> values() {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  tensor::DType dtype_;
  tensor::Shape shape_;
};

class Device {
 public:
  explicit Device(std::unique_ptr<ops::Ops> ops) : ops_(std::move(ops)) {}

  ops::Ops& ops() { return *ops_; }
  const ops::Ops& ops() const { return *ops_; }

  // A new device tensor with these values; put_as also gives it a dtype and shape.
  tensor::View put(const HostTensor& values);
  tensor::View put(std::span<const int32_t> values);
  template <typename T>
  tensor::View put_as(std::span<const T> values, tensor::DType dtype, tensor::Shape shape) {
    const tensor::View view = ops_->allocate(dtype, shape).value();
    write(view, std::as_bytes(values));
    return view;
  }
  void write(const tensor::View& device, std::span<const std::byte> bytes);

  // Waits for all that was enqueued.
  HostTensor get(const tensor::View& device);
  Matrix matrix(const tensor::View& device);  // empty for an empty view
  template <typename T>
  std::vector<T> values(const tensor::View& device) {
    HostTensor host = get(device);
    const std::span<T> all = host.values<T>();
    return {all.begin(), all.end()};
  }

 private:
  tensor::View staging(size_t bytes);
  void wait();

  std::unique_ptr<ops::Ops> ops_;
  tensor::View staging_;
};

}  // namespace rudder::testing
