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

constexpr float kThemselves[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// By code of four bits.
const float* numbers_of(CodeTable table) {
  switch (table) {
    case CodeTable::kNone:
      return kThemselves;
    case CodeTable::kE2M1:
      return ops::kE2M1Numbers;
    case CodeTable::kIq4Nl:
      return ops::kIq4NlNumbers;
    case CodeTable::kNf4:
      return ops::kNf4Numbers;
  }
  RUDDER_CHECK(false, "table {}", static_cast<int>(table));
}

void read_pairs(const uint8_t* codes, CodeTable table, int64_t count, float* to) {
  const float* numbers = numbers_of(table);
  for (int64_t i = 0; i < count; ++i) {
    to[2 * i] = numbers[codes[i] & 15];
    to[2 * i + 1] = numbers[codes[i] >> 4];
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

float zero_at(const ops::LinearPart& part, int64_t index) {
  if (part.format.offset == Offset::kMiddle) return ops::kMiddleCode;
  return part.format.offset == Offset::kZero ? part.offsets.as<uint8_t>()[index] : 0;
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
    const float zero = zero_at(part, index);
    const float minimum = format.offset == Offset::kMinimum ? number_at(part.offsets, index) : 0;
    for (int64_t i = begin; i < std::min(begin + group, in); ++i) {
      to[i] = (to[i] - zero) * scale - minimum;
    }
  }
}

}  // namespace rudder::cpu
