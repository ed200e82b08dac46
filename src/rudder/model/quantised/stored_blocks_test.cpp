// Blocks as weights: the numbers of codes, scales and minima have the bits of the blocks' values.
#include "rudder/model/quantised/stored_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "rudder/ops/stored_row.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::model {
namespace {

TEST(StoredBlocks, NumbersHaveTheBitsOfTheValues) {
  const auto file = weights::MappedFile::open("tests/gguf/blocks.safetensors").value();
  const auto golden = weights::parse_safetensors(file->bytes(), "blocks").value();
  int compared = 0;
  for (const weights::BlockType& type : weights::block_types()) {
    const auto format = format_of_blocks(type);
    // Types of tables of vectors, and of two scales, are multiplied out.
    const bool has_numbers = type.expand != nullptr && type.values > 1;
    const bool is_multiplied_out =
        (type.name.starts_with("IQ") && !type.name.starts_with("IQ4")) || type.name == "NVFP4";
    EXPECT_EQ(format.has_value(), has_numbers && !is_multiplied_out) << type.name;
    if (!format) continue;
    const auto blocks = golden.bytes_of(*golden.find(std::string(type.name) + ".blocks"));
    // Rows of two blocks; a head has four, in the order of pairs.
    weights::PackedTensor packed{.type = &type, .bytes = blocks};
    packed.columns = 2 * type.values;
    packed.rows = static_cast<int64_t>(blocks.size()) / type.row_bytes(packed.columns) / 4 * 4;
    packed.head_rows = 4;
    std::vector<std::vector<std::byte>> memory;
    const ops::LinearPart part = split_blocks(packed, memory);
    ASSERT_EQ(part.out(), packed.rows);
    ASSERT_EQ(part.in(), packed.columns);
    std::vector<float> got(static_cast<size_t>(packed.columns));
    std::vector<float> wanted(got.size());
    for (int64_t row = 0; row < packed.rows; ++row) {
      // A scale of 255 is NaN by the standard of these formats, and 2^128 in GGUF.
      if (format->scale == ops::ScaleType::kE8M0 &&
          (part.scales.as<uint8_t>()[2 * row] == 255 ||
           part.scales.as<uint8_t>()[2 * row + 1] == 255)) {
        continue;
      }
      ops::read_stored_row(part, row, got.data());
      packed.unpack_row(row, wanted.data());
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == 0 && wanted[i] == 0) continue;  // E2M1 has a zero with a sign
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(wanted[i]))
            << type.name << ", row " << row << ", value " << i;
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 300);
}

TEST(StoredBlocks, FormatsOfTheCommonTypes) {
  const auto name = [](std::string_view type) {
    return ops::format_name(*format_of_blocks(*weights::find_block_type(type)));
  };
  EXPECT_EQ(name("Q4_0"), "U4 in groups of 32 around 8");
  EXPECT_EQ(name("Q4_K"), "U4 in groups of 32 with minima");
  EXPECT_EQ(name("Q6_K"), "I8 in groups of 16");
  EXPECT_EQ(name("IQ4_XS"), "U4 of IQ4_NL in groups of 32");
  EXPECT_EQ(name("MXFP4"), "U4 of E2M1 in groups of 32");
  EXPECT_FALSE(format_of_blocks(*weights::find_block_type("F16")));
}

}  // namespace
}  // namespace rudder::model
