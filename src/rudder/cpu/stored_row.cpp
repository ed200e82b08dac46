#include "rudder/cpu/stored_row.h"

#include <algorithm>
#include <bit>

#include "rudder/base/check.h"
#include "rudder/cpu/device_memory.h"

namespace rudder::cpu {
namespace {

using ops::Codes;
using ops::CodeTable;
using ops::Offset;
using tensor::DType;
using tensor::View;

// OCP Microscaling Formats 1.0, table 5: sign, two bits of exponent, one of mantissa.
constexpr float kE2M1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

void read_pairs(const uint8_t* codes, CodeTable table, int64_t count, float* to) {
  const auto number = [&](int code) {
    return table == CodeTable::kE2M1 ? kE2M1[code] : static_cast<float>(code);
  };
  for (int64_t i = 0; i < count; ++i) {
    to[2 * i] = number(codes[i] & 15);
    to[2 * i + 1] = number(codes[i] >> 4);
  }
}

// What the codes of a row stand for, before they are scaled.
void read_codes(const View& row, const ops::WeightFormat& format, float* to) {
  const int64_t count = row.shape[1];
  switch (format.codes) {
    case Codes::kF32:
    case Codes::kF16:
    case Codes::kBF16:
      RUDDER_CHECK(convert_values(row.data, row.dtype, to, DType::kF32, count).has_value());
      return;
    case Codes::kF8E4M3:
      std::transform(row.as<tensor::F8E4M3>(), row.as<tensor::F8E4M3>() + count, to,
                     [](tensor::F8E4M3 code) { return tensor::to_float(code); });
      return;
    case Codes::kI8:
      std::copy_n(row.as<int8_t>(), count, to);
      return;
    case Codes::kU4:
      read_pairs(row.as<uint8_t>(), format.table, count, to);
      return;
  }
  RUDDER_CHECK(false, "codes {}", static_cast<int>(format.codes));
}

// 2^(code - 127); 255 is NaN.
float of_e8m0(uint8_t code) {
  if (code == 0) return 0x1p-127f;
  return std::bit_cast<float>(code == 255 ? 0x7fc00000u : uint32_t{code} << 23);
}

float number_at(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF16:
      return tensor::to_float(view.as<tensor::F16>()[i]);
    case DType::kBF16:
      return tensor::to_float(view.as<tensor::BF16>()[i]);
    case DType::kU8:
      return of_e8m0(view.as<uint8_t>()[i]);
    default:
      return view.as<float>()[i];
  }
}

}  // namespace

void read_stored_row(const ops::LinearPart& part, int64_t row, float* to) {
  const ops::WeightFormat& format = part.format;
  read_codes(part.codes.rows(row, 1), format, to);
  if (format.is_wide()) return;
  const int64_t in = part.in();
  const int64_t group = format.group == 0 ? in : format.group;
  int64_t index = row / format.block_rows * part.scales.shape[1];
  for (int64_t begin = 0; begin < in; begin += group, ++index) {
    const float scale = number_at(part.scales, index);
    const float zero = format.offset == Offset::kZero ? part.offsets.as<uint8_t>()[index] : 0;
    const float minimum = format.offset == Offset::kMinimum ? number_at(part.offsets, index) : 0;
    for (int64_t i = begin; i < std::min(begin + group, in); ++i) {
      to[i] = (to[i] - zero) * scale - minimum;
    }
  }
}

}  // namespace rudder::cpu
