// PanelWeight: a linear weight in panels (layout: kernels.h), and the product with it.
// Made once at load by the fast backend, which owns the scratch; read by all its threads.
#pragma once

#include <span>

#include "rudder/base/thread_pool.h"
#include "rudder/cpu/device_memory.h"
#include "rudder/cpu/kernels.h"
#include "rudder/ops/args.h"

namespace rudder::cpu {

struct PanelWeight final : ops::PackedWeight {
  Element element = Element::kBf16;
  int64_t in = 0;
  int64_t out = 0;
  int64_t steps = 0;       // `in` in steps, a multiple of 16; what lies behind `in` is zero
  int64_t num_panels = 0;  // the last panel's columns behind `out` are zero
  Buffer panels;
  Buffer bias;  // [num_panels * 16] f32, or empty

  const std::byte* panel(int64_t index) const {
    return static_cast<const std::byte*>(panels.data()) + index * steps * kStepBytes;
  }
  // Row `index` of [out, in] as f32.
  void read_row(int64_t index, float* to) const;
};

// Stacks the parts along `out`; values, those of F8E4M3 parts times their scales, are rounded to
// `element`.
Result<ops::LinearWeight> pack_linear(std::span<const ops::LinearPart> parts, Element element,
                                      ThreadPool& pool);

// What product() needs beside its operands; grows to the largest call and is kept.
struct ProductScratch {
  Buffer row_tiles;
  Buffer last_panel;
};

// out[rows, weight.out] = x[rows, weight.in] times the weight, plus its bias. An Error leaves `out`
// as it was: there is no memory for the scratch.
Result<void> multiply(const Kernels& kernels, ThreadPool& pool, ProductScratch& scratch,
                      const float* x, int64_t rows, const PanelWeight& weight, float* out);

}  // namespace rudder::cpu
