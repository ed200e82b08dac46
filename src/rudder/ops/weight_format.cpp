#include "rudder/ops/weight_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace rudder::ops {
namespace {

using tensor::DType;

struct CodeKind {
  std::string_view name;
  DType dtype;  // of one code, or of what several share
};

CodeKind kind_of(Codes codes) {
  switch (codes) {
    case Codes::kF32:
      return {"F32", DType::kF32};
    case Codes::kF16:
      return {"F16", DType::kF16};
    case Codes::kBF16:
      return {"BF16", DType::kBF16};
    case Codes::kF8E4M3:
      return {"F8_E4M3", DType::kF8E4M3};
    case Codes::kI8:
      return {"I8", DType::kI8};
    case Codes::kU4:
      return {"U4", DType::kU8};
  }
  RUDDER_CHECK(false, "codes {}", static_cast<int>(codes));
}

DType dtype_of(ScaleType type) {
  switch (type) {
    case ScaleType::kF16:
      return DType::kF16;
    case ScaleType::kBF16:
      return DType::kBF16;
    case ScaleType::kE8M0:
      return DType::kU8;
    case ScaleType::kNone:
    case ScaleType::kF32:
      return DType::kF32;
  }
  RUDDER_CHECK(false, "scales {}", static_cast<int>(type));
}

std::string_view table_name(CodeTable table) {
  switch (table) {
    case CodeTable::kNone:
      return "";
    case CodeTable::kE2M1:
      return " of E2M1";
    case CodeTable::kIq4Nl:
      return " of IQ4_NL";
    case CodeTable::kNf4:
      return " of NF4";
  }
  RUDDER_CHECK(false, "table {}", static_cast<int>(table));
}

std::string_view offset_name(Offset offset) {
  switch (offset) {
    case Offset::kNone:
      return "";
    case Offset::kMinimum:
      return " with minima";
    case Offset::kZero:
      return " with zeros";
    case Offset::kMiddle:
      return " around 8";
  }
  RUDDER_CHECK(false, "offset {}", static_cast<int>(offset));
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Result<void> check_bounds(const WeightFormat& format, const Share& share, int64_t stored,
                          int64_t unit, std::string_view what) {
  const int64_t end = share.begin + share.count;
  for (const int64_t bound : {share.begin, end}) {
    if (bound % unit == 0 || bound == stored) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("a part that {} at {} {} cuts a scale of {}",
                            bound == end ? "ends" : "begins", what, bound, format_name(format)));
  }
  return {};
}

}  // namespace

Result<WeightFormat> wide_format(DType dtype) {
  for (const Codes codes : {Codes::kF32, Codes::kF16, Codes::kBF16}) {
    if (kind_of(codes).dtype == dtype) return WeightFormat{.codes = codes};
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("weights of type {} are not supported", tensor::dtype_name(dtype)));
}

int64_t StoredPart::bytes() const {
  return rows * columns * static_cast<int64_t>(tensor::dtype_bytes(dtype));
}

StoredParts stored_parts(const WeightFormat& format, int64_t rows, int64_t inputs) {
  StoredParts parts;
  rows = ceil_div(rows, format.tile_rows) * format.tile_rows;
  inputs = ceil_div(inputs, format.tile_inputs) * format.tile_inputs;
  parts.codes = {kind_of(format.codes).dtype, rows, inputs / codes_per_element(format.codes)};
  if (format.is_wide()) return parts;
  const int64_t blocks = ceil_div(rows, format.block_rows);
  const int64_t groups = format.group == 0 ? 1 : ceil_div(inputs, format.group);
  parts.scales = {dtype_of(format.scale), blocks, groups};
  if (format.offset == Offset::kMinimum) parts.offsets = parts.scales;
  if (format.offset == Offset::kZero) parts.offsets = {DType::kU8, blocks, groups};
  return parts;
}

Result<void> check_rows(const WeightFormat& format, const Share& rows, int64_t stored) {
  return check_bounds(format, rows, stored, format.block_rows, "row");
}

Result<void> check_inputs(const WeightFormat& format, const Share& inputs, int64_t stored) {
  const int64_t unit = std::max<int64_t>(format.group, 1);
  return check_bounds(format, inputs, stored, std::lcm(unit, codes_per_element(format.codes)),
                      "input");
}

std::string format_name(const WeightFormat& format) {
  std::string name(kind_of(format.codes).name);
  name += table_name(format.table);
  if (format.block_rows > 1) {
    name += fmt::format(" in blocks of {} x {}", format.block_rows, format.group);
  } else if (format.group > 0) {
    name += fmt::format(" in groups of {}", format.group);
  }
  name += offset_name(format.offset);
  return name;
}

}  // namespace rudder::ops
