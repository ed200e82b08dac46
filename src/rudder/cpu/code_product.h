// Products of rows in I8 with panels of codes (layouts: code_panels.h) on vector registers.
// Included by kernels_<isa>.cpp through simd.h.
#pragma once

#include <cstddef>

#include "rudder/cpu/code_bytes.h"
#include "rudder/cpu/code_panels.h"
#include "rudder/cpu/row_kernels.h"
#include "rudder/cpu/simd.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

inline Vec load_scales(ops::ScaleType type, const std::byte* from) {
  switch (type) {
    case ops::ScaleType::kF16:
      return load_halfs(from);
    case ops::ScaleType::kBF16:
      return load_bf16s(from);
    case ops::ScaleType::kE8M0:
      return load_e8m0s(from);
    default:
      return load(reinterpret_cast<const float*>(from));
  }
}
inline int64_t scale_bytes(ops::ScaleType type) {
  return type == ops::ScaleType::kE8M0 ? 1 : type == ops::ScaleType::kF32 ? 4 : 2;
}

// The scales and offsets of one panel's columns, group after group.
class GroupReader {
 public:
  GroupReader() = default;
  GroupReader(const CodeLayout& layout, const std::byte* panel)
      : layout_(&layout), scales_(panel + layout.scales_at), offsets_(panel + layout.offsets_at) {}

  // `less`: what is taken from a product, as a factor of the sum of x, below zero.
  void next(Vec& scale, Vec& less) {
    const int64_t bytes = kLanes * scale_bytes(layout_->scale);
    scale = load_scales(layout_->scale, scales_);
    scales_ += bytes;
    if (layout_->offset == ops::Offset::kMinimum) {
      less = set(0) - load_scales(layout_->scale, offsets_);
      offsets_ += bytes;
    } else if (layout_->offset == ops::Offset::kZero) {
      less = set(0) - load_u8s(offsets_) * scale;
      offsets_ += kLanes;
    }
  }

 private:
  const CodeLayout* layout_ = nullptr;
  const std::byte* scales_ = nullptr;
  const std::byte* offsets_ = nullptr;
};

// Both steps of a pair.
template <CodeKind kKind>
void load_pair(const CodeLayout& layout, const std::byte* from, Bytes& first, Bytes& second) {
  if constexpr (kKind == CodeKind::kU8) {
    first = load_bytes(from);
    second = load_bytes(from + 64);
  } else {
    const Bytes both = load_bytes(from);
    first = low_nibbles(both);
    second = high_nibbles(both);
    if constexpr (kKind == CodeKind::kTable) {
      first = look_up(layout.table, first);
      second = look_up(layout.table, second);
    }
  }
}

// Weights come from memory at few rows, and one stream of loads does not keep enough lines in
// flight.
inline constexpr int64_t kBytesAhead = 16384;

inline void prefetch(const std::byte* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) {
    __builtin_prefetch(from + line, 0, 2);
  }
}

// kRows rows from `a` on, whose tile has `tile_rows`, times one panel. `streams`: it comes from
// memory, and so will the panel behind it.
template <CodeKind kKind, int kHalves, int kRows>
void code_block(const CodeProduct& args, const RowBlock<kHalves>* a, int64_t tile_rows,
                const std::byte* panel, bool streams, float* out) {
  using Sum = Dot<kKind == CodeKind::kU4>;
  constexpr int64_t kPairBytes = kKind == CodeKind::kU8 ? 128 : 64;
  constexpr int kPairs = 4 / kHalves;
  const CodeLayout& layout = *args.layout;
  const bool has_offsets = layout.offset != ops::Offset::kNone;
  const int64_t block_bytes = layout.panel_bytes / layout.blocks;
  const std::byte* ahead = panel + kBytesAhead;
  GroupReader groups(layout, panel);
  Vec scale, less;
  Vec acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = set(0.0f);
  int64_t left = 0;  // blocks of the group
  for (int64_t block = 0; block < layout.blocks; ++block, a += tile_rows) {
    if (streams) {
      prefetch(ahead, block_bytes);
      ahead += block_bytes;
    }
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      if (kHalves == 2 || left == 0) {
        left = layout.group_blocks;
        groups.next(scale, less);
      }
      Sum sums[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sums[r].begin(a[r].start[half]);
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair, panel += kPairBytes) {
        Bytes low, high;
        load_pair<kKind>(layout, panel, low, high);
        const typename Sum::Operand first = Sum::operand(low);
        const typename Sum::Operand second = Sum::operand(high);
        const int at = half * 16 + pair * 8;
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          sums[r].add(first, a[r].codes + at);
          sums[r].add(second, a[r].codes + at + 4);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        acc[r] = fma(sums[r].value(a[r].start[half]), scale * set(a[r].scale), acc[r]);
      }
      if (!has_offsets) continue;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[r] = fma(less, set(a[r].sum[half]), acc[r]);
    }
    --left;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store(out + r * args.ld, acc[r]);
}

// How many rows stay in registers.
#if defined(__AVX512F__)
inline constexpr int kMostRows = 8;
#else
inline constexpr int kMostRows = 2;
#endif

// The rows of one tile from `row` on, kRows at a time, and those that are left over fewer at a
// time.
template <CodeKind kKind, int kHalves, int kRows>
void code_rows(const CodeProduct& args, const RowBlock<kHalves>* tile, int64_t rows, int64_t row,
               bool streams) {
  for (; row + kRows <= rows; row += kRows) {
    for (int64_t p = 0; p < args.num_panels; ++p) {
      code_block<kKind, kHalves, kRows>(args, tile + row, rows,
                                        args.panels + p * args.layout->panel_bytes, streams,
                                        args.out + row * args.ld + p * kPanelWidth);
    }
    streams = false;
  }
  if constexpr (kRows > 1) code_rows<kKind, kHalves, kRows / 2>(args, tile, rows, row, streams);
}

// Every row passes over a few panels before the next panels are read, so weights come from memory
// once.
template <CodeKind kKind, int kHalves>
void code_panels(const CodeProduct& args) {
  constexpr int64_t kTogether = 4;
  CodeProduct some = args;
  for (int64_t panel = 0; panel < args.num_panels; panel += kTogether) {
    const int64_t left = args.num_panels - panel;
    some.panels = args.panels + panel * args.layout->panel_bytes;
    some.num_panels = left < kTogether ? left : kTogether;
    for (int64_t row = 0; row < args.rows; row += kCodeTileRows) {
      const int64_t rows = args.rows - row < kCodeTileRows ? args.rows - row : kCodeTileRows;
      some.out = args.out + row * args.ld + panel * kPanelWidth;
      const auto* tile =
          reinterpret_cast<const RowBlock<kHalves>*>(args.a + row * args.layout->row_bytes);
      code_rows<kKind, kHalves, kMostRows>(some, tile, rows, 0, row == 0);
    }
  }
}

template <CodeKind kKind>
void code_halves(const CodeProduct& args) {
  return args.layout->halves ? code_panels<kKind, 2>(args) : code_panels<kKind, 1>(args);
}

inline void code_product(const CodeProduct& args) {
  switch (args.layout->kind) {
    case CodeKind::kU4:
      return code_halves<CodeKind::kU4>(args);
    case CodeKind::kTable:
      return code_halves<CodeKind::kTable>(args);
    case CodeKind::kU8:
      return code_halves<CodeKind::kU8>(args);
  }
}

// ops::kI8InputGroup has the formula.
template <int kHalves>
void round_block(const CodeLayout& layout, const float* x, int64_t count, RowBlock<kHalves>& to) {
  const Vec values[2] = {count >= kLanes ? load(x) : load_first(x, count),
                         count >= 2 * kLanes ? load(x + kLanes)
                         : count > kLanes    ? load_first(x + kLanes, count - kLanes)
                                             : set(0)};
  const auto size = [](Vec v) { return max(v, set(0) - v); };
  const float largest = highest(max(size(values[0]), size(values[1])));
  const float wrong = sum((values[0] - values[0]) + (values[1] - values[1]));  // NaN, or 0
  const bool is_seen = largest >= ops::kLeastI8Input;
  const float scale = (is_seen ? largest / 127.0f : 0.0f) + wrong;
  const Vec by = set(is_seen ? 127.0f / largest : 0.0f);
  store_codes(to.codes, values[0] * by);
  store_codes(to.codes + kLanes, values[1] * by);
  to.scale = scale * layout.unit;
  for (int half = 0; half < kHalves; ++half) {
    constexpr int kCount = static_cast<int>(kCodeBlock) / kHalves;
    int32_t total = 0;
    for (int i = 0; i < kCount; ++i) total += to.codes[half * kCount + i];
    to.start[half] = -layout.middle * total;
    to.sum[half] = scale * static_cast<float>(total);
  }
}

template <int kHalves>
void round_tile(const CodeLayout& layout, const float* x, int64_t rows, int64_t width,
                std::byte* a) {
  auto* to = reinterpret_cast<RowBlock<kHalves>*>(a);
  for (int64_t block = 0; block < layout.blocks; ++block) {
    const int64_t at = block * kCodeBlock;
    const int64_t count = width - at < kCodeBlock ? width - at : kCodeBlock;
    for (int64_t r = 0; r < rows; ++r, ++to) {
      round_block(layout, x + r * width + at, count, *to);
    }
  }
}

// Kernels::round_rows
inline void round_rows(const CodeLayout& layout, const float* x, int64_t rows, int64_t width,
                       std::byte* a) {
  for (int64_t row = 0; row < rows; row += kCodeTileRows) {
    const int64_t count = rows - row < kCodeTileRows ? rows - row : kCodeTileRows;
    std::byte* const to = a + row * layout.row_bytes;
    if (layout.halves) {
      round_tile<2>(layout, x + row * width, count, width, to);
    } else {
      round_tile<1>(layout, x + row * width, count, width, to);
    }
  }
}

}  // namespace rudder::cpu::RUDDER_CPU_ISA
