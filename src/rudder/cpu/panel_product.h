// Products of row tiles with panels (layouts: kernels.h) on vector registers. Included by
// kernels_<isa>.cpp through simd.h.
#pragma once

#include <cstddef>

#include "rudder/cpu/kernels.h"
#include "rudder/cpu/simd.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

inline uint32_t load_word(const std::byte* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
inline float float_of(uint32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// One step: sixteen columns of a panel times one row's 4 bytes, added to the row's sums.
struct F32Step {
  static constexpr Element kElement = Element::kF32;
  using Columns = Vec;
  static Columns load_columns(const std::byte* from) {
    return load(reinterpret_cast<const float*>(from));
  }
  static Vec add(const std::byte* row, const Columns& columns, Vec acc) {
    return fma(set(float_of(load_word(row))), columns, acc);
  }
};

#if defined(__AVX512BF16__)
struct Bf16Step {
  static constexpr Element kElement = Element::kBf16;
  using Columns = __m512bh;
  static Columns load_columns(const std::byte* from) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
  }
  static Vec add(const std::byte* row, const Columns& columns, Vec acc) {
    const __m512i pair = _mm512_set1_epi32(static_cast<int>(load_word(row)));
    return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(pair), columns)};
  }
};
#else
struct Bf16Step {
  static constexpr Element kElement = Element::kBf16;
  struct Columns {
    Vec low, high;
  };
  static Columns load_columns(const std::byte* from) {
    return {load_low_bf16(from), load_high_bf16(from)};
  }
  static Vec add(const std::byte* row, const Columns& columns, Vec acc) {
    const uint32_t pair = load_word(row);
    acc = fma(set(float_of(pair << 16)), columns.low, acc);
    return fma(set(float_of(pair & 0xffff0000u)), columns.high, acc);
  }
};
#endif

// A product whose steps come in segments, each with row tiles and panels of its own: attention's
// probabilities times the values of several groups of positions.
struct SegmentedProduct {
  const std::byte* a = nullptr;
  int64_t a_segment_bytes = 0;
  const std::byte* const* panels = nullptr;  // [segments, num_panels]
  int64_t segments = 1;
  int64_t num_panels = 0;
  int64_t steps = 0;     // of each segment; a multiple of 8
  float* out = nullptr;  // [rows, ld]
  int64_t ld = 0;
  bool accumulate = false;  // add to what `out` holds
};

// A sum of products is one of short sums: the rounding of a long one grows with its length, and
// what one large product loses would be lost from all behind it.
inline constexpr int64_t kSumSteps = 64;
static_assert(kSumSteps % kTileSteps == 0);

// Adds the short sums of a block to `out`, or begins it with them.
template <int kRows, int kPanels>
void flush(Vec (&acc)[kRows][kPanels], float* out, int64_t ld, bool accumulate) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      float* const to = out + r * ld + p * kPanelWidth;
      store(to, accumulate ? load(to) + acc[r][p] : acc[r][p]);
      acc[r][p] = set(0.0f);
    }
  }
}

// Rows [row, row + kRows) of one row tile, panels [panel, panel + kPanels).
template <typename Step, int kRows, int kPanels>
void product_block(const SegmentedProduct& args, int64_t row, int64_t panel) {
  Vec acc[kRows][kPanels];
  float* out = args.out + row * args.ld + panel * kPanelWidth;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) acc[r][p] = set(0.0f);
  }
  bool accumulate = args.accumulate;
  int64_t summed = 0;
  for (int64_t segment = 0; segment < args.segments; ++segment) {
    const std::byte* a = args.a + segment * args.a_segment_bytes + row * kStepBytes;
    const std::byte* columns[kPanels];
    for (int p = 0; p < kPanels; ++p)
      columns[p] = args.panels[segment * args.num_panels + panel + p];
    for (int64_t first = 0; first < args.steps; first += kTileSteps) {
      const int64_t count = args.steps - first < kTileSteps ? args.steps - first : kTileSteps;
      if (summed >= kSumSteps) {
        flush(acc, out, args.ld, accumulate);
        accumulate = true;
        summed = 0;
      }
      for (int64_t s = 0; s < count; ++s) {
        typename Step::Columns right[kPanels];
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p)
          right[p] = Step::load_columns(columns[p] + s * kStepBytes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
          for (int p = 0; p < kPanels; ++p) {
            acc[r][p] = Step::add(a + r * kStepBytes + s * 4, right[p], acc[r][p]);
          }
        }
      }
      summed += count;
      a += kTileBytes;
      for (int p = 0; p < kPanels; ++p) columns[p] += kTileBytes;
    }
  }
  flush(acc, out, args.ld, accumulate);
}

// How many rows and panels stay in registers.
#if defined(__AVX512F__)
inline constexpr int kBlockRows = 4;
inline constexpr int kBlockPanels = 4;
#else
inline constexpr int kBlockRows = 2;
inline constexpr int kBlockPanels = 2;
#endif

template <typename Step, int kPanels>
void product_rows(const SegmentedProduct& args, int64_t rows, int64_t panel) {
  int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows) {
    product_block<Step, kBlockRows, kPanels>(args, row, panel);
  }
  for (; row < rows; ++row) product_block<Step, 1, kPanels>(args, row, panel);
}

// The whole product of one row tile of `rows` rows.
template <typename Step>
void segmented_product(const SegmentedProduct& args, int64_t rows) {
  int64_t panel = 0;
  for (; panel + kBlockPanels <= args.num_panels; panel += kBlockPanels) {
    product_rows<Step, kBlockPanels>(args, rows, panel);
  }
  for (; panel < args.num_panels; ++panel) product_rows<Step, 1>(args, rows, panel);
}

// Kernels::product: every row passes over a few panels before the next panels are read, so weights
// come from memory once.
template <typename Step>
void panel_product(const PanelProduct& args) {
  const int64_t panel_bytes = args.steps * kStepBytes;
  const int64_t tile_bytes = args.steps / kTileSteps * kTileBytes;
  for (int64_t panel = 0; panel < args.num_panels; panel += kBlockPanels) {
    const std::byte* panels[kBlockPanels];
    for (int p = 0; p < kBlockPanels; ++p) panels[p] = args.panels + (panel + p) * panel_bytes;
    SegmentedProduct tile;
    tile.panels = panels;
    tile.num_panels =
        args.num_panels - panel < kBlockPanels ? args.num_panels - panel : kBlockPanels;
    tile.steps = args.steps;
    tile.ld = args.ld;
    for (int64_t row = 0; row < args.rows; row += kTileRows) {
      tile.a = args.a + row / kTileRows * tile_bytes;
      tile.out = args.out + row * args.ld + panel * kPanelWidth;
      segmented_product<Step>(tile, args.rows - row < kTileRows ? args.rows - row : kTileRows);
    }
  }
}

// The engine of attention (attend.h) on vector registers.
template <typename Step>
class VectorEngine {
 public:
  static constexpr Element kElement = Step::kElement;
  explicit VectorEngine(int rows) : rows_(rows) {}
  void product(const SegmentedProduct& args) const { segmented_product<Step>(args, rows_); }

 private:
  int rows_;
};

}  // namespace rudder::cpu::RUDDER_CPU_ISA
