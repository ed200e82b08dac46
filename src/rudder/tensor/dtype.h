// Element types of tensors, and conversions of the small float types on the host. Plain values; any
// thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::tensor {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF64,  // in files alone
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool
};

size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  // safetensors' spelling: "F32", "BF16", "F8_E4M3"
Result<DType> parse_dtype(std::string_view name);

struct BF16 {
  uint16_t bits = 0;
};
struct F16 {
  uint16_t bits = 0;
};

// OCP FP8 E4M3: no infinities, the largest value is 448.
struct F8E4M3 {
  uint8_t bits = 0;
};

inline float to_float(BF16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

// Round to nearest even; NaN stays NaN.
inline BF16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return BF16{static_cast<uint16_t>((bits >> 16) | 0x40)};
  return BF16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}

float to_float(F16 value);
F16 to_f16(float value);  // round to nearest even; overflow becomes infinity

inline constexpr float kMaxF8E4M3 = 448.0f;
float to_float(F8E4M3 value);
F8E4M3 to_f8e4m3(float value);  // round to nearest even; overflow becomes 448, NaN stays NaN

}  // namespace rudder::tensor
