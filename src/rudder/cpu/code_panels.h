// How the codes of a low-bit weight lie in panels, and rows of x beside them, for the products of
// code_product.h. A *block* is 32 inputs: they share one scale of x.
//   panel   [blocks][steps of 4 inputs][16 columns][4] codes of 8 bits, or [blocks][pairs of steps]
//           [16][4] of 4 bits: the first step of a pair in the low ones; then the scales [groups]
//           [16], then the offsets [groups][16], each as its file stores it
//   rows    tiles of up to 8 rows, [blocks][rows] of RowBlock
// A number is (code - middle) * unit * scale - offset, its code 0..255 (of 4 bits: 0..15, or what
// `table` has for that). A row is rounded to I8 with one scale for 32 inputs, so the products of a
// block are sums of integers, exact in any order; the blocks are added in fp32 one after the other.
// So the bits of a row depend neither on its place in a tile nor on how many rows a call has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rudder/ops/weight_format.h"

namespace rudder::cpu {

inline constexpr int kCodeTileRows = 8;
inline constexpr int64_t kCodeBlock = ops::kI8InputGroup;

enum class CodeKind : uint8_t { kU4, kTable, kU8 };

struct CodeLayout {
  CodeKind kind = CodeKind::kU4;
  ops::ScaleType scale = ops::ScaleType::kF32;
  ops::Offset offset = ops::Offset::kNone;  // kMinimum or kZero; another is in `middle`
  bool halves = false;                      // a group is half a block
  int32_t middle = 0;
  float unit = 1.0f;  // a power of two
  uint8_t table[16] = {};
  int64_t blocks = 0;
  int64_t group_blocks = 1;  // of a group that is no half
  // Bytes: of a panel, of it in front of its scales and its offsets, and of a row.
  int64_t panel_bytes = 0;
  int64_t scales_at = 0;
  int64_t offsets_at = 0;
  int64_t row_bytes = 0;
};

// One row's 32 inputs: x = scale * codes.
template <int kHalves>
struct RowBlock {
  int8_t codes[kCodeBlock];
  float scale;             // times CodeLayout::unit
  int32_t start[kHalves];  // what a sum of products begins with: -middle * the sum of the codes
  float sum[kHalves];      // of x
  int32_t unused[kHalves == 1 ? 1 : 3];
};
static_assert(sizeof(RowBlock<1>) == 48 && sizeof(RowBlock<2>) == 64);

// out[r, 16 * p + c] = row r times column c of panel p.
struct CodeProduct {
  const CodeLayout* layout = nullptr;
  const std::byte* a = nullptr;  // tiles of `rows` rows, one behind another
  int64_t rows = 0;
  const std::byte* panels = nullptr;  // likewise
  int64_t num_panels = 0;
  float* out = nullptr;  // [rows, ld]
  int64_t ld = 0;
};

}  // namespace rudder::cpu
