// bf16 products on AMX tiles; the rest as on AVX-512. TDPBF16PS adds, to each fp32 of C [rows, 16],
// 32 products of a row of A with a column of B: rows never meet, and a tile set to fewer rows does
// the same to each. Intel SDM volume 2 (TDPBF16PS) and the Optimization Reference Manual, 20.5.
#define RUDDER_CPU_ISA amx
#include "rudder/cpu/kernel_table.h"

namespace rudder::cpu::amx {
namespace {

// LDTILECFG's operand: palette 1, eight tiles of at most 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// The tile intrinsics do not tell the compiler that they read memory: what was stored before must
// have been stored.
inline void settle_memory() {
  asm volatile("" ::: "memory");
}

// Configures the tiles of this thread for its lifetime.
class TileScope {
 public:
  explicit TileScope(const TileConfig& config) {
    settle_memory();
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Weights come from memory at few rows, and tile loads alone do not keep enough lines in flight.
constexpr int64_t kTilesAhead = 4;

inline void prefetch_tile(const std::byte* tile) {
#pragma GCC unroll 16
  for (int64_t line = 0; line < kTileBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(tile + line), _MM_HINT_T0);
  }
}

// Two row tiles (16 and `rows - 16` rows) by two panels. C in tiles 0 (top left), 1, 2, 3.
class TwoRowTiles {
 public:
  static constexpr int64_t kRows = 2 * kTileRows;

  explicit TwoRowTiles(int64_t rows) : scope_(config(rows)) {}

  // `a` and `b` are at the first of two neighbours, `a_bytes` and `b_bytes` apart. kStream: the
  // panels come from memory, not from an earlier row tile's pass over them.
  template <bool kStream>
  void pair(const std::byte* a, int64_t a_bytes, const std::byte* b, int64_t b_bytes, int64_t tiles,
            float* out, int64_t ld) const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t t = 0; t < tiles; ++t) {
      if constexpr (kStream) {
        prefetch_tile(b + (t + kTilesAhead) * kTileBytes);
        prefetch_tile(b + b_bytes + (t + kTilesAhead) * kTileBytes);
      }
      _tile_loadd(6, b + t * kTileBytes, kStepBytes);
      _tile_loadd(4, a + t * kTileBytes, kStepBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + b_bytes + t * kTileBytes, kStepBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + a_bytes + t * kTileBytes, kStepBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    const int64_t stride = ld * 4;
    _tile_stored(0, out, stride);
    _tile_stored(1, out + kPanelWidth, stride);
    _tile_stored(2, out + kTileRows * ld, stride);
    _tile_stored(3, out + kTileRows * ld + kPanelWidth, stride);
  }

  void single(const std::byte* a, int64_t a_bytes, const std::byte* b, int64_t tiles, float* out,
              int64_t ld) const {
    _tile_zero(0);
    _tile_zero(2);
    for (int64_t t = 0; t < tiles; ++t) {
      _tile_loadd(6, b + t * kTileBytes, kStepBytes);
      _tile_loadd(4, a + t * kTileBytes, kStepBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a + a_bytes + t * kTileBytes, kStepBytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stored(0, out, ld * 4);
    _tile_stored(2, out + kTileRows * ld, ld * 4);
  }

 private:
  static TileConfig config(int64_t rows) {
    TileConfig config;
    config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(rows - kTileRows);
    return config;
  }
  TileScope scope_;
};

// One row tile of `rows` rows by up to four panels. C in tiles 0 to 3, A in 4, B in 5 and 6.
class OneRowTile {
 public:
  static constexpr int64_t kPanels = 4;

  explicit OneRowTile(int64_t rows) : scope_(config(rows)) {}

  template <int kCount>
  void panels(const std::byte* a, const std::byte* b, int64_t b_bytes, int64_t tiles, float* out,
              int64_t ld) const {
    _tile_zero(0);
    if constexpr (kCount > 1) _tile_zero(1);
    if constexpr (kCount > 2) _tile_zero(2);
    if constexpr (kCount > 3) _tile_zero(3);
    for (int64_t t = 0; t < tiles; ++t) {
      const std::byte* right = b + t * kTileBytes;
      for (int p = 0; p < kCount; ++p)
        prefetch_tile(right + p * b_bytes + kTilesAhead * kTileBytes);
      _tile_loadd(4, a + t * kTileBytes, kStepBytes);
      _tile_loadd(5, right, kStepBytes);
      _tile_dpbf16ps(0, 4, 5);
      if constexpr (kCount > 1) _tile_loadd(6, right + b_bytes, kStepBytes);
      if constexpr (kCount > 1) _tile_dpbf16ps(1, 4, 6);
      if constexpr (kCount > 2) _tile_loadd(5, right + 2 * b_bytes, kStepBytes);
      if constexpr (kCount > 2) _tile_dpbf16ps(2, 4, 5);
      if constexpr (kCount > 3) _tile_loadd(6, right + 3 * b_bytes, kStepBytes);
      if constexpr (kCount > 3) _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, out, ld * 4);
    if constexpr (kCount > 1) _tile_stored(1, out + kPanelWidth, ld * 4);
    if constexpr (kCount > 2) _tile_stored(2, out + 2 * kPanelWidth, ld * 4);
    if constexpr (kCount > 3) _tile_stored(3, out + 3 * kPanelWidth, ld * 4);
  }

 private:
  static TileConfig config(int64_t rows) {
    TileConfig config;
    for (int tile = 0; tile <= 4; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
    return config;
  }
  TileScope scope_;
};

void two_row_tiles(const PanelProduct& args, int64_t begin, int64_t rows) {
  const TwoRowTiles engine(rows < TwoRowTiles::kRows ? rows : TwoRowTiles::kRows);
  const int64_t tiles = args.steps / kTileSteps;
  const int64_t depth = tiles * kTileBytes;  // of one row tile and of one panel
  for (int64_t panel = 0; panel < args.num_panels; panel += 2) {
    const std::byte* b = args.panels + panel * depth;
    for (int64_t row = begin; row < begin + rows; row += TwoRowTiles::kRows) {
      const std::byte* a = args.a + row / kTileRows * depth;
      float* out = args.out + row * args.ld + panel * kPanelWidth;
      if (panel + 1 < args.num_panels && row == 0) {
        engine.pair<true>(a, depth, b, depth, tiles, out, args.ld);
      } else if (panel + 1 < args.num_panels) {
        engine.pair<false>(a, depth, b, depth, tiles, out, args.ld);
      } else {
        engine.single(a, depth, b, tiles, out, args.ld);
      }
    }
  }
}

void one_row_tile(const PanelProduct& args, int64_t begin, int64_t rows) {
  const OneRowTile engine(rows);
  const int64_t tiles = args.steps / kTileSteps;
  const int64_t depth = tiles * kTileBytes;
  const std::byte* a = args.a + begin / kTileRows * depth;
  float* out = args.out + begin * args.ld;
  int64_t panel = 0;
  for (; panel + OneRowTile::kPanels <= args.num_panels; panel += OneRowTile::kPanels) {
    engine.panels<4>(a, args.panels + panel * depth, depth, tiles, out + panel * kPanelWidth,
                     args.ld);
  }
  for (; panel < args.num_panels; ++panel) {
    engine.panels<1>(a, args.panels + panel * depth, depth, tiles, out + panel * kPanelWidth,
                     args.ld);
  }
}

void tile_product(const PanelProduct& args) {
  const int64_t whole = args.rows / TwoRowTiles::kRows * TwoRowTiles::kRows;
  const int64_t rest = args.rows - whole;
  if (whole > 0) two_row_tiles(args, 0, whole);
  if (rest > kTileRows) two_row_tiles(args, whole, rest);
  if (rest > 0 && rest <= kTileRows) one_row_tile(args, whole, rest);
}

// Attention's products. C in tiles 0 to 3; A in 4 and B in 5 for whole tiles of 16 steps, 6 and 7
// for halves: the values of 16 positions are 8 steps.
class TileEngine {
 public:
  static constexpr Element kElement = Element::kBf16;

  explicit TileEngine(int rows) : scope_(config(rows)) {}

  void product(const SegmentedProduct& args) const {
    settle_memory();
    int64_t panel = 0;
    for (; panel + 4 <= args.num_panels; panel += 4) panels<4>(args, panel);
    for (; panel < args.num_panels; ++panel) panels<1>(args, panel);
  }

 private:
  static constexpr int64_t kHalfSteps = kTileSteps / 2;

  static TileConfig config(int rows) {
    TileConfig config;
    for (const int tile : {0, 1, 2, 3, 4, 6}) config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[6] = kHalfSteps * 4;
    config.rows[7] = kHalfSteps;
    return config;
  }

  template <int kCount>
  static void begin(const float* out, int64_t stride, bool accumulate) {
    if (!accumulate) {
      _tile_zero(0);
      if constexpr (kCount > 1) _tile_zero(1);
      if constexpr (kCount > 1) _tile_zero(2);
      if constexpr (kCount > 1) _tile_zero(3);
      return;
    }
    _tile_loadd(0, out, stride);
    if constexpr (kCount > 1) _tile_loadd(1, out + kPanelWidth, stride);
    if constexpr (kCount > 1) _tile_loadd(2, out + 2 * kPanelWidth, stride);
    if constexpr (kCount > 1) _tile_loadd(3, out + 3 * kPanelWidth, stride);
  }

  template <int kCount>
  static void whole(const std::byte* a, const std::byte* const* b, int64_t at) {
    _tile_loadd(4, a + at, kStepBytes);
    _tile_loadd(5, b[0] + at, kStepBytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kCount > 1) {
      _tile_loadd(5, b[1] + at, kStepBytes);
      _tile_dpbf16ps(1, 4, 5);
      _tile_loadd(5, b[2] + at, kStepBytes);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(5, b[3] + at, kStepBytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  }

  template <int kCount>
  static void half(const std::byte* a, const std::byte* const* b, int64_t at) {
    _tile_loadd(6, a + at, kStepBytes);
    _tile_loadd(7, b[0] + at, kStepBytes);
    _tile_dpbf16ps(0, 6, 7);
    if constexpr (kCount > 1) {
      _tile_loadd(7, b[1] + at, kStepBytes);
      _tile_dpbf16ps(1, 6, 7);
      _tile_loadd(7, b[2] + at, kStepBytes);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, b[3] + at, kStepBytes);
      _tile_dpbf16ps(3, 6, 7);
    }
  }

  template <int kCount>
  static void panels(const SegmentedProduct& args, int64_t panel) {
    float* out = args.out + panel * kPanelWidth;
    const int64_t stride = args.ld * 4;
    begin<kCount>(out, stride, args.accumulate);
    for (int64_t segment = 0; segment < args.segments; ++segment) {
      const std::byte* a = args.a + segment * args.a_segment_bytes;
      const std::byte* const* b = args.panels + segment * args.num_panels + panel;
      int64_t step = 0;
      for (; step + kTileSteps <= args.steps; step += kTileSteps) {
        whole<kCount>(a, b, step * kStepBytes);
      }
      if (step < args.steps) half<kCount>(a, b, step * kStepBytes);
    }
    _tile_stored(0, out, stride);
    if constexpr (kCount > 1) _tile_stored(1, out + kPanelWidth, stride);
    if constexpr (kCount > 1) _tile_stored(2, out + 2 * kPanelWidth, stride);
    if constexpr (kCount > 1) _tile_stored(3, out + 3 * kPanelWidth, stride);
  }

  TileScope scope_;
};

Kernels tile_kernels() {
  Kernels table = vector_kernels();
  table.product[static_cast<int>(Element::kBf16)] = tile_product;
  table.attend[static_cast<int>(Element::kBf16)] = attend<TileEngine>;
  return table;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels table = tile_kernels();
  return table;
}

}  // namespace rudder::cpu::amx
