#include "rudder/model/quantised/stored_weight.h"

#include <algorithm>
#include <cmath>

#include "rudder/base/check.h"
#include "rudder/ops/stored_row.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

View piece_of(const ops::StoredPart& part, std::vector<std::vector<std::byte>>& memory) {
  if (part.rows == 0) return {};
  auto& piece = memory.emplace_back(static_cast<size_t>(std::max<int64_t>(part.bytes(), 1)));
  return {piece.data(), part.dtype, {part.rows, part.columns}};
}

}  // namespace

StoredWeight::StoredWeight(const ops::WeightFormat& format, int64_t rows, int64_t inputs,
                           std::vector<std::vector<std::byte>>& memory) {
  const ops::StoredParts parts = ops::stored_parts(format, rows, inputs);
  part_.format = format;
  part_.codes = piece_of(parts.codes, memory);
  part_.scales = piece_of(parts.scales, memory);
  part_.offsets = piece_of(parts.offsets, memory);
  codes_ = static_cast<uint8_t*>(part_.codes.data);
  code_columns_ = parts.codes.columns;
  is_four_bits_ = format.codes == ops::Codes::kU4;
}

void StoredWeight::set(const View& view, int64_t row, int64_t column, float value) {
  const int64_t at = row * view.shape[1] + column;
  switch (view.dtype) {
    case DType::kF16:
      view.as<tensor::F16>()[at] = tensor::to_f16(value);
      return;
    case DType::kBF16:
      view.as<tensor::BF16>()[at] = tensor::to_bf16(value);
      return;
    case DType::kU8:
      view.as<uint8_t>()[at] =
          static_cast<uint8_t>(std::isfinite(value) ? std::ilogb(value) + 127 : 255);
      return;
    default:
      view.as<float>()[at] = value;
  }
}

ops::LinearPart multiply_out(const ops::LinearPart& part, DType dtype,
                             std::vector<std::vector<std::byte>>& memory) {
  const int64_t rows = part.out();
  const int64_t inputs = part.in();
  const View out = piece_of({dtype, rows, inputs}, memory);
  std::vector<float> row(static_cast<size_t>(inputs));
  for (int64_t r = 0; r < rows; ++r) {
    ops::read_stored_row(part, r, row.data());
    if (dtype == DType::kF32) {
      std::ranges::copy(row, out.as<float>() + r * inputs);
    } else {
      RUDDER_CHECK(dtype == DType::kBF16);
      std::ranges::transform(row, out.as<tensor::BF16>() + r * inputs,
                             [](float value) { return tensor::to_bf16(value); });
    }
  }
  return ops::wide_part(out, part.bias);
}

}  // namespace rudder::model
