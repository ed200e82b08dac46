#include "rudder/model/quantised/stored_blocks.h"

#include <cmath>

#include "rudder/base/check.h"
#include "rudder/model/quantised/stored_weight.h"

namespace rudder::model {
namespace {

using ops::Codes;
using ops::CodeTable;
using ops::Offset;
using ops::ScaleType;
using weights::BlockCodes;
using weights::BlockType;

CodeTable table_of(BlockCodes codes) {
  if (codes == BlockCodes::kE2M1) return CodeTable::kE2M1;
  return codes == BlockCodes::kIq4Nl ? CodeTable::kIq4Nl : CodeTable::kNone;
}

Offset offset_of(const BlockType& type) {
  if (type.has_minima) return Offset::kMinimum;
  return type.codes == BlockCodes::kMiddle ? Offset::kMiddle : Offset::kNone;
}

ScaleType scale_of(const BlockType& type) {
  if (type.codes == BlockCodes::kE2M1) return ScaleType::kE8M0;
  return type.has_half_scales ? ScaleType::kF16 : ScaleType::kF32;
}

}  // namespace

std::optional<ops::WeightFormat> format_of_blocks(const BlockType& type) {
  if (type.split == nullptr) return {};
  return ops::WeightFormat{.codes = type.is_four_bits ? Codes::kU4 : Codes::kI8,
                           .scale = scale_of(type),
                           .group = static_cast<int32_t>(type.group),
                           .offset = offset_of(type),
                           .table = table_of(type.codes)};
}

ops::LinearPart split_blocks(const weights::PackedTensor& packed,
                             std::vector<std::vector<std::byte>>& memory) {
  const BlockType& type = *packed.type;
  const auto format = format_of_blocks(type);
  RUDDER_CHECK(format && packed.add == 0, "blocks of {}", type.name);
  StoredWeight out(*format, packed.rows, packed.columns, memory);
  std::vector<int8_t> codes(type.values);
  std::vector<float> scales(type.values / type.group);
  std::vector<float> minima(scales.size());
  const int64_t blocks = packed.columns / type.values;
  const auto groups = static_cast<int64_t>(scales.size());
  for (int64_t row = 0; row < packed.rows; ++row) {
    const std::byte* block = packed.blocks_of(row);
    for (int64_t b = 0; b < blocks; ++b, block += type.bytes) {
      type.split(block, codes.data(), scales.data(), minima.data());
      for (size_t i = 0; i < codes.size(); ++i) {
        out.set_code(row, b * type.values + static_cast<int64_t>(i), codes[i]);
      }
      for (int64_t g = 0; g < groups; ++g) {
        const float scale = scales[static_cast<size_t>(g)];
        // The numbers of these blocks are twice as large, and their scale half as large.
        out.set_scale(row, b * groups + g,
                      type.codes == BlockCodes::kE2M1 ? std::ldexp(scale, 1) : scale);
        if (type.has_minima) out.set_minimum(row, b * groups + g, minima[static_cast<size_t>(g)]);
      }
    }
  }
  return out.part();
}

}  // namespace rudder::model
