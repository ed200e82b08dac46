// Block types: how GGUF files store the numbers of a tensor, as their name, number and sizes, and
// the exact values of their blocks. A block has some numbers of one row; a row is whole blocks.
// Constant data and pure functions; any thread.
//
// The layouts are those of ggml (ggml-common.h, "QK_K 256"); each value is computed in f32 in the
// order in which gguf.quants of PyPI's `gguf` computes it, so that both have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::weights {

struct BlockType {
  using Expand = void (*)(const std::byte* blocks, int64_t count, float* out);

  uint32_t number = 0;    // in files
  std::string_view name;  // "Q4_K"
  uint32_t values = 1;    // of a block
  uint32_t bytes = 0;
  Expand expand = nullptr;  // null: of integers, and of types whose values are not known here

  int64_t row_bytes(int64_t columns) const { return columns / values * bytes; }
};

// Null for a number that no type has.
const BlockType* find_block_type(uint32_t number);
// For tests and tools; null for a name that no type has.
const BlockType* find_block_type(std::string_view name);
std::span<const BlockType> block_types();

inline constexpr uint32_t kGgufF32 = 0;
inline constexpr uint32_t kGgufF16 = 1;
inline constexpr uint32_t kGgufF64 = 28;
inline constexpr uint32_t kGgufBF16 = 30;

}  // namespace rudder::weights
