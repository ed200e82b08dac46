// Shared by the tests on a device: one backend for each test, copies of tensors to and from the
// host, and a comparison that prints where values differ and by how much. Tests only.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rudder/cuda/cuda_ops.h"
#include "rudder/ops/ops.h"

namespace rudder::cuda {

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().to_string());
  return std::move(*result);
}

class DeviceTest : public ::testing::Test {
 protected:
  void start(CudaOpsSettings settings) { ops_ = value_of(make_cuda_ops(settings)); }

  // Values of a normal distribution times `scale`, rounded as `dtype` stores them.
  std::vector<float> random(int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = tensor::to_float(tensor::to_bf16(normal(random_)));
    return out;
  }

  tensor::View to_device(const std::vector<float>& values, tensor::Shape shape,
                         tensor::DType dtype = tensor::DType::kBF16) {
    auto* data = const_cast<float*>(values.data());
    return value_of(ops_->upload({data, tensor::DType::kF32, shape}, dtype));
  }
  tensor::View to_device(const std::vector<int32_t>& values) {
    auto* data = const_cast<int32_t*>(values.data());
    return value_of(ops_->upload({data, tensor::DType::kI32, {static_cast<int64_t>(values.size())}},
                                 tensor::DType::kI32));
  }
  // Filled with bytes that are NaN as bf16 and as f32.
  tensor::View poisoned(tensor::Shape shape, tensor::DType dtype = tensor::DType::kBF16) {
    tensor::View host{nullptr, dtype, shape};
    std::vector<uint8_t> bytes(host.bytes(), 0xFF);
    host.data = bytes.data();
    return value_of(ops_->upload(host, dtype));
  }

  std::vector<uint8_t> bytes_of(const tensor::View& device) {
    const tensor::View staging =
        value_of(ops_->allocate_staging(static_cast<int64_t>(device.bytes())));
    ops_->copy_out(staging, device);
    const auto event = ops_->make_event();
    ops_->record(*event);
    if (const Result<void> done = event->wait(); !done) {
      throw std::runtime_error(done.error().to_string());
    }
    const auto* data = static_cast<const uint8_t*>(staging.data);
    return {data, data + device.bytes()};
  }
  // f32, bf16 or fp8.
  std::vector<float> to_host(const tensor::View& device) {
    const std::vector<uint8_t> bytes = bytes_of(device);
    std::vector<float> out(static_cast<size_t>(device.shape.numel()));
    for (size_t i = 0; i < out.size(); ++i) {
      if (device.dtype == tensor::DType::kF32) {
        std::memcpy(&out[i], bytes.data() + 4 * i, 4);
      } else if (device.dtype == tensor::DType::kF8E4M3) {
        out[i] = tensor::to_float(tensor::F8E4M3{bytes[i]});
      } else {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * i, 2);
        out[i] = tensor::to_float(tensor::BF16{bits});
      }
    }
    return out;
  }

  // Every element within its tolerance; says how many are not, and the first of them.
  static void expect_near(const std::vector<float>& got, const std::vector<double>& want,
                          const std::vector<double>& tolerance, int64_t width,
                          const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    size_t wrong = 0;
    size_t first = 0;
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(double{got[i]} - want[i]);
      if (error <= tolerance[i]) continue;  // a NaN goes on
      if (wrong++ == 0) first = i;
      worst = std::max(worst, error / tolerance[i]);
    }
    if (wrong == 0) return;
    const auto row = static_cast<int64_t>(first) / width;
    ADD_FAILURE() << fmt::format(
        "{}: {} of {} wrong, up to {:.3g} times the tolerance; first at row {}, column {}: got {}, "
        "want {}",
        what, wrong, got.size(), worst, row, static_cast<int64_t>(first) % width, got[first],
        want[first]);
  }

  std::unique_ptr<ops::Ops> ops_;
  std::mt19937_64 random_{1};
};

}  // namespace rudder::cuda
