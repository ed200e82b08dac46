#include "rudder/steer/capture/consumer.h"

#include <cstring>

#include "rudder/base/check.h"

namespace rudder::steer::capture {
namespace {

template <typename T>
T element(std::span<const std::byte> row, size_t i) {
  T value;
  std::memcpy(&value, row.data() + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

std::string_view dtype_spelling(tensor::DType dtype) {
  if (dtype == tensor::DType::kBF16) return "bfloat16";
  return dtype == tensor::DType::kF16 ? "float16" : "float32";
}

void decode_row(std::span<const std::byte> row, tensor::DType dtype, std::span<float> out) {
  RUDDER_CHECK(row.size() == out.size() * tensor::dtype_bytes(dtype));
  switch (dtype) {
    case tensor::DType::kF32:
      std::memcpy(out.data(), row.data(), row.size());
      return;
    case tensor::DType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = tensor::to_float(element<tensor::BF16>(row, i));
      }
      return;
    case tensor::DType::kF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = tensor::to_float(element<tensor::F16>(row, i));
      }
      return;
    default:
      RUDDER_CHECK(false, "activations of dtype {}", tensor::dtype_name(dtype));
  }
}

void decode_row(const tap::CapturedRows& rows, int64_t begin, std::span<float> out) {
  const size_t item_bytes = tensor::dtype_bytes(rows.dtype);
  const auto* data = static_cast<const std::byte*>(rows.data);
  decode_row({data + static_cast<size_t>(begin) * item_bytes, out.size() * item_bytes}, rows.dtype,
             out);
}

}  // namespace rudder::steer::capture
