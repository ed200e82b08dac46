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

// What a code stands for: itself; of four bits, itself less 8; of four bits, an index into the
// table of IQ4_NL, or into E2M1 twice as large (half_of_e8m0 is its scale).
enum class BlockCodes : uint8_t { kInteger, kMiddle, kIq4Nl, kE2M1 };

struct BlockType {
  using Expand = void (*)(const std::byte* blocks, int64_t count, float* out);
  // Of one block: `values` codes, and a scale and a minimum for each group of them. A number is
  // scale * code - minimum.
  using Split = void (*)(const std::byte* block, int8_t* codes, float* scales, float* minima);

  uint32_t number = 0;    // in files
  std::string_view name;  // "Q4_K"
  uint32_t values = 1;    // of a block
  uint32_t bytes = 0;
  Expand expand = nullptr;  // null: of integers, and of types whose values are not known here
  Split split = nullptr;    // null as well where a number is a code by itself
  BlockCodes codes = BlockCodes::kInteger;
  uint32_t group = 0;       // values that share a scale
  bool has_minima = false;  // else they are 0
  bool is_four_bits = false;
  bool has_half_scales = false;  // f16 holds every scale and minimum

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
