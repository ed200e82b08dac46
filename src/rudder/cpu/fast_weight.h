// FastWeight: a linear weight of the fast backend, in panels of 16 rows, and the product with it.
// Made once at load by the backend, which owns the scratch; read by all its threads.
#pragma once

#include <algorithm>
#include <span>

#include "rudder/base/thread_pool.h"
#include "rudder/cpu/device_memory.h"
#include "rudder/cpu/kernels.h"
#include "rudder/ops/args.h"

namespace rudder::cpu {

// What a product needs beside its operands; grows to the largest call and is kept.
struct ProductScratch {
  Buffer row_tiles;
  Buffer last_panel;
};

class FastWeight : public ops::PackedWeight {
 public:
  // Row `index` of [out, in] as f32.
  virtual void read_row(int64_t index, float* to) const = 0;
  // out[r, i] = row r of x [rows, in] times row i, plus its bias; `ld` floats from row to row. An
  // Error leaves `out` as it was: there is no memory for the scratch.
  virtual Result<void> multiply(const Kernels& kernels, ThreadPool& pool, ProductScratch& scratch,
                                const float* x, int64_t rows, float* out, int64_t ld) const = 0;
  // Of memory that a product reads.
  virtual int64_t bytes() const = 0;
};

// Some panels of a weight times packed rows.
struct PanelCall {
  const std::byte* a = nullptr;
  int64_t rows = 0;
  int64_t panel = 0;
  int64_t count = 0;
  float* out = nullptr;  // [rows, ld], 16 columns a panel
  int64_t ld = 0;
};

// One whose panels are alike: how work is shared among threads.
class PanelledWeight : public FastWeight {
 public:
  Result<void> multiply(const Kernels& kernels, ThreadPool& pool, ProductScratch& scratch,
                        const float* x, int64_t rows, float* out, int64_t ld) const final;
  int64_t bytes() const final { return static_cast<int64_t>(panels_.bytes() + bias_.bytes()); }

 protected:
  // Zeroed panels, and the bias of the parts where they have one.
  Result<void> allocate(std::span<const ops::LinearPart> parts, int64_t panel_bytes);

  // Packs `count` rows, at most kTileRows, into `row_bytes` each.
  virtual void pack_rows(const Kernels& kernels, const float* x, int64_t count,
                         std::byte* to) const = 0;
  virtual int64_t row_bytes() const = 0;
  virtual void product(const Kernels& kernels, const PanelCall& call) const = 0;

  int64_t in() const { return in_; }
  int64_t num_panels() const { return num_panels_; }
  std::byte* panel(int64_t index) const {
    return static_cast<std::byte*>(panels_.data()) + index * panel_bytes_;
  }

 private:
  void run(const Kernels& kernels, const PanelCall& call, float* last_panel) const;
  void add_bias(const Kernels& kernels, const PanelCall& call, int64_t column, int64_t width) const;

  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t num_panels_ = 0;  // the last panel's columns behind `out` are zero
  int64_t panel_bytes_ = 0;
  Buffer panels_;
  Buffer bias_;  // [num_panels * 16] f32, or empty
};

// f(part, row of the part, column of the panel, count) for each run of the panel's columns.
template <typename F>
void for_columns(std::span<const ops::LinearPart> parts, int64_t panel, F f) {
  const int64_t begin = panel * kPanelWidth;
  int64_t first = 0;  // of the part, in rows of the whole
  for (const ops::LinearPart& part : parts) {
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(begin + kPanelWidth, first + part.out());
    if (from < to) f(part, from - first, from - begin, to - from);
    first += part.out();
  }
}

}  // namespace rudder::cpu
