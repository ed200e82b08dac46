// Kernels: the functions of the fast backend for one instruction set, as a table. Each table comes
// from one kernels_<isa>.cpp, compiled with that instruction set's flags; callers get it from
// kernels_for(). The backend's threads call the functions; they allocate nothing and keep no state.
//
// Products of wide weights and of the KV cache use two layouts; those of low-bit weights have their
// own (code_panels.h). A *step* is one k of f32 or two of bf16: 4 bytes of a row.
//   row tile  [steps / 16][16 rows][16 steps]         1 KiB a tile: the left side, T rows of x
//   panel     [steps][16 columns] of 4-byte steps     the right side, 16 columns of a matrix
// A product adds the steps of each output in one order in fp32, by themselves 64 at a time
// (panel_product.h). So the bits of a row depend neither on its index in a tile nor on how many
// rows or panels a call has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rudder/cpu/code_panels.h"
#include "rudder/cpu/isa.h"
#include "rudder/ops/args.h"

namespace rudder::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileSteps = 16;
inline constexpr int kPanelWidth = 16;
inline constexpr int64_t kStepBytes = kPanelWidth * 4;          // of a panel
inline constexpr int64_t kTileBytes = kTileSteps * kStepBytes;  // of a row tile and a panel tile

// The element type of the operands of a product; sums are always fp32.
enum class Element : uint8_t { kBf16, kF32 };
inline constexpr int kNumElements = 2;
inline constexpr int64_t element_bytes(Element element) {
  return element == Element::kBf16 ? 2 : 4;
}

// out[r, 16 * p + c] = sum over steps of row r times column c of panel p.
struct PanelProduct {
  const std::byte* a = nullptr;  // row tiles of `rows` rows, one group of 16 after another
  int64_t rows = 0;
  const std::byte* panels = nullptr;  // one after another
  int64_t num_panels = 0;
  int64_t steps = 0;     // a multiple of 16
  float* out = nullptr;  // [rows, ld], 16 columns a panel
  int64_t ld = 0;
};

// One head's part of the KV cache. For each block of the table: k at `cache + block * block_stride`
// and v `value_offset` behind it, all in bytes. Positions come in groups of 16:
//   k  [block_size / 16] panels of 16 positions, head_dim deep
//   v  [block_size / 16][head_dim / 16] panels of 16 dimensions, 16 positions deep
struct HeadCache {
  const std::byte* cache = nullptr;
  int64_t block_stride = 0;
  int64_t value_offset = 0;
  const int32_t* blocks = nullptr;
  int32_t block_size = 0;  // a multiple of 16
  int32_t head_dim = 0;    // a multiple of 16, at most kMaxHeadDim
  int32_t kv_len = 0;      // positions that have been written
  // From this position on, which begins a group, the groups lie one behind another here instead, k
  // and v as in a block: the path of a token of a tree. Null: none do.
  int32_t tail_begin = 0;
  const std::byte* tail_keys = nullptr;
  const std::byte* tail_values = nullptr;
};
inline constexpr int kMaxHeadDim = 256;

// A gate (ops::FirGate) with the sigma and gamma of each row's head.
struct TileGate {
  int32_t length = 0;  // 0: the weights are a softmax
  bool relu_pre = false;
  float low = 0;
  float high = 1;
  float sigma[kTileRows] = {};
  float gamma[kTileRows] = {};
};

// Attention of up to 16 query rows that share a KV head.
struct AttentionTile {
  HeadCache kv;
  int rows = 0;
  const float* q[kTileRows] = {};  // [head_dim]
  float* out[kTileRows] = {};      // [head_dim]
  int32_t first[kTileRows] = {};   // visible positions are [first, last]
  int32_t last[kTileRows] = {};
  alignas(64) float sink[kTileRows] = {};  // AttentionArgs.sinks of the row's head; -inf: none
  float scale = 1.0f;
  float softcap = 0.0f;
  TileGate gate;
};

struct Kernels {
  // x [rows, width] f32 into row tiles of `steps` steps; steps behind `width` are zero.
  void (*pack_rows[kNumElements])(const float* x, int64_t rows, int64_t width, int64_t steps,
                                  std::byte* a);
  void (*product[kNumElements])(const PanelProduct& args);
  void (*attend[kNumElements])(const AttentionTile& tile);

  // x [rows, width] f32 into tiles of RowBlock for panels of that layout, and products with them.
  void (*round_rows)(const CodeLayout& layout, const float* x, int64_t rows, int64_t width,
                     std::byte* a);
  void (*code_product)(const CodeProduct& args);

  // Formulas of one row, f32: ops/args.h. `out` may be `x`.
  void (*add)(float* x, const float* delta, int64_t width);
  void (*scale)(float* x, float by, int64_t width);
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t width, float* out);
  void (*uclip_norm)(const float* x, const float* alpha, const float* weight, int64_t width,
                     float* out);
  void (*rotate)(float* x, const float* table, int64_t half);
  void (*gated_act)(const float* gate, const float* up, int64_t width, ops::Activation activation,
                    float* out);
  void (*soft_cap)(float* x, int64_t width, float cap);

  // Reads `bytes` (a multiple of 256) as fast as loads go; the result only keeps them from being
  // optimised away.
  float (*read)(const std::byte* from, int64_t bytes);
};

// The norm of x [width], of either kind; out may be x.
inline void norm_row(const Kernels& kernels, const float* x, const ops::NormSpec& norm,
                     int64_t width, float* out) {
  const float* const weight = norm.weight.as<float>();
  if (norm.alpha.empty()) {
    kernels.rms_norm(x, weight, norm.eps, width, out);
  } else {
    kernels.uclip_norm(x, norm.alpha.as<float>(), weight, width, out);
  }
}

// `isa` is one of available_isas().
const Kernels& kernels_for(Isa isa);

// The tables; only kernels.cpp calls these.
namespace portable {
const Kernels& kernels();
}
namespace avx2 {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
}
namespace avx512_bf16 {
const Kernels& kernels();
}
namespace amx {
const Kernels& kernels();
}

}  // namespace rudder::cpu
