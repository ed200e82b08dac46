#include "rudder/testing/device_tensors.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "rudder/base/check.h"

namespace rudder::testing {

using tensor::DType;
using tensor::View;

HostTensor::HostTensor(DType dtype, tensor::Shape shape)
    : bytes_(View{nullptr, dtype, shape}.bytes()), dtype_(dtype), shape_(shape) {}

HostTensor::HostTensor(std::span<const float> from, DType dtype, tensor::Shape shape)
    : HostTensor(dtype, shape) {
  RUDDER_CHECK(static_cast<int64_t>(from.size()) == shape.numel());
  for (size_t i = 0; i < from.size(); ++i) {
    if (dtype == DType::kF32) values<float>()[i] = from[i];
    if (dtype == DType::kF16) values<tensor::F16>()[i] = tensor::to_f16(from[i]);
    if (dtype == DType::kBF16) values<tensor::BF16>()[i] = tensor::to_bf16(from[i]);
  }
}

View Device::staging(size_t bytes) {
  if (staging_.empty() || staging_.bytes() < bytes) {
    staging_ =
        ops_->allocate_staging(static_cast<int64_t>(std::max(bytes, size_t{1} << 20))).value();
  }
  return staging_.rows(0, static_cast<int64_t>(bytes));
}

void Device::wait() {
  const std::unique_ptr<ops::Event> event = ops_->make_event();
  ops_->record(*event);
  if (const auto done = event->wait(); !done) throw std::runtime_error(done.error().to_string());
}

View Device::put(const HostTensor& values) {
  return put_as(values.bytes(), values.view().dtype, values.view().shape);
}

View Device::put(std::span<const int32_t> values) {
  return put_as(values, DType::kI32, {static_cast<int64_t>(values.size())});
}

void Device::write(const View& device, std::span<const std::byte> bytes) {
  RUDDER_CHECK(device.bytes() == bytes.size());
  const View from = staging(bytes.size());
  std::copy(bytes.begin(), bytes.end(), from.as<std::byte>());
  ops_->copy_in(device, from);
  wait();  // the staging memory is used again
}

HostTensor Device::get(const View& device) {
  HostTensor out(device.dtype, device.shape);
  const View to = staging(device.bytes());
  ops_->copy_out(to, device);
  wait();
  std::copy_n(to.as<std::byte>(), device.bytes(), out.values<std::byte>().data());
  return out;
}

Matrix Device::matrix(const View& device) {
  return device.empty() ? Matrix() : to_matrix(get(device).view());
}

}  // namespace rudder::testing
