// The values of blocks, bit for bit as the package `gguf` reads them (tools/golden/gguf_blocks.py).
#include "rudder/weights/block_type.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::weights {
namespace {

uint64_t digest_of(const std::vector<float>& values) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += std::bit_cast<uint32_t>(values[i]) * (i + 1);
  return sum;
}

TEST(BlockType, ValuesHaveTheBitsOfTheReference) {
  const auto file = MappedFile::open("tests/gguf/blocks.safetensors");
  ASSERT_TRUE(file) << file.error().to_string();
  const auto golden = parse_safetensors((*file)->bytes(), "blocks");
  ASSERT_TRUE(golden) << golden.error().to_string();
  size_t compared = 0;
  for (const BlockType& type : block_types()) {
    const TensorEntry* const stored = golden->find(std::string(type.name) + ".blocks");
    EXPECT_EQ(stored != nullptr, type.expand != nullptr && type.name != "F32") << type.name;
    if (stored == nullptr) continue;
    ++compared;
    const auto blocks = golden->bytes_of(*stored);
    const auto shown = golden->bytes_of(*golden->find(std::string(type.name) + ".values"));
    const auto digest = golden->bytes_of(*golden->find(std::string(type.name) + ".digest"));
    ASSERT_EQ(blocks.size() % type.bytes, 0U) << type.name;
    const size_t count = blocks.size() / type.bytes;
    std::vector<float> values(count * type.values);
    type.expand(blocks.data(), static_cast<int64_t>(count), values.data());
    ASSERT_GE(values.size() * sizeof(float), shown.size()) << type.name;
    for (size_t i = 0; i < shown.size() / sizeof(float); ++i) {
      uint32_t wanted = 0;
      std::memcpy(&wanted, shown.data() + i * sizeof(wanted), sizeof(wanted));
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), wanted) << type.name << " value " << i;
    }
    uint64_t sum = 0;
    std::memcpy(&sum, digest.data(), sizeof(sum));
    EXPECT_EQ(digest_of(values), sum) << type.name;
  }
  EXPECT_EQ(compared, 25U);
}

TEST(BlockType, NumbersAndNamesAreOfOneType) {
  std::set<uint32_t> numbers;
  std::set<std::string_view> names;
  for (const BlockType& type : block_types()) {
    EXPECT_TRUE(numbers.insert(type.number).second) << type.name;
    EXPECT_TRUE(names.insert(type.name).second) << type.name;
    EXPECT_EQ(find_block_type(type.number), &type);
    EXPECT_EQ(find_block_type(type.name), &type);
    EXPECT_EQ(type.row_bytes(type.values * 3), type.bytes * 3);
  }
  EXPECT_EQ(find_block_type(4), nullptr);
  EXPECT_EQ(find_block_type("Q9_9"), nullptr);
}

}  // namespace
}  // namespace rudder::weights
