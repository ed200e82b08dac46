#include "rudder/tensor/dtype.h"

#include <array>
#include <string>
#include <utility>

namespace rudder::tensor {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<DTypeInfo, 12> kTypes = {{{DType::kF32, "F32", 4},
                                               {DType::kF16, "F16", 2},
                                               {DType::kBF16, "BF16", 2},
                                               {DType::kF8E4M3, "F8_E4M3", 1},
                                               {DType::kF8E5M2, "F8_E5M2", 1},
                                               {DType::kF64, "F64", 8},
                                               {DType::kI64, "I64", 8},
                                               {DType::kI32, "I32", 4},
                                               {DType::kI16, "I16", 2},
                                               {DType::kI8, "I8", 1},
                                               {DType::kU8, "U8", 1},
                                               {DType::kBool, "BOOL", 1}}};

}  // namespace

size_t dtype_bytes(DType dtype) {
  return kTypes[static_cast<size_t>(dtype)].bytes;
}

std::string_view dtype_name(DType dtype) {
  return kTypes[static_cast<size_t>(dtype)].name;
}

Result<DType> parse_dtype(std::string_view name) {
  for (const DTypeInfo& info : kTypes) {
    if (info.name == name) return info.dtype;
  }
  return fail(ErrorCode::kCorruptFile, "unknown dtype '" + std::string(name) + "'");
}

float to_float(F16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

F16 to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return F16{static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return F16{static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 aligns the value so that the float unit rounds at the right bit.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return F16{static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1);
  return F16{static_cast<uint16_t>(sign | (rounded >> 13))};
}

float to_float(F8E4M3 value) {
  const uint32_t sign = uint32_t{value.bits & 0x80u} << 24;
  const uint32_t exponent = (value.bits >> 3) & 0xfu;
  const uint32_t mantissa = value.bits & 0x7u;
  if ((value.bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-9f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

F8E4M3 to_f8e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return F8E4M3{static_cast<uint8_t>(sign | 0x7fu)};
  if (magnitude >= 0x43e00000u) return F8E4M3{static_cast<uint8_t>(sign | 0x7eu)};
  if (magnitude < 0x3c800000u) {
    // Subnormal: as in to_f16, with a unit of 2^-9.
    const float aligned = std::bit_cast<float>(magnitude) + 0x1.0p14f;
    return F8E4M3{static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x46800000u))};
  }
  const uint32_t rounded = magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1);
  return F8E4M3{static_cast<uint8_t>(sign | (rounded >> 20))};
}

}  // namespace rudder::tensor
