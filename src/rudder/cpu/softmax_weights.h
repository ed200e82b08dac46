// Online softmax over the steps of a tile. Source: FlashAttention-2's recurrence, Dao 2023,
// algorithm
// 1. Included by kernels_<isa>.cpp through simd.h.
#pragma once

#include "rudder/cpu/row_kernels.h"
#include "rudder/cpu/tile_step.h"
#include "rudder/cpu/vector_math.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

inline constexpr float kMinusInfinity = -__builtin_inff();
inline constexpr float kLowest = -__FLT_MAX__;  // of the finite numbers

template <Element kElement>
class SoftmaxWeights {
 public:
  static constexpr bool kSetsKeysAgainstOneAnother = true;

  explicit SoftmaxWeights(const AttentionTile& tile) : tile_(tile) {
    store(highest_, set(kMinusInfinity));
  }

  // Turns the step's scores into weights, and rescales each row's sums to its new maximum.
  void weigh(const TileStep& step) {
    alignas(64) float tops[kTileRows];
    for (int r = 0; r < tile_.rows; ++r) tops[r] = scale_scores(step, r);
    for (int r = tile_.rows; r < kTileRows; ++r) tops[r] = kMinusInfinity;
    const Vec before = load(highest_);
    const Vec now = max(load(tops), before);
    // A row that has seen nothing yet: all its weights are exp(-inf - 0) = 0.
    const Vec shift = where_less(now, set(kLowest), set(0.0f), now);
    const Vec factor = exp(before - shift);
    alignas(64) float shifts[kTileRows];
    alignas(64) float factors[kTileRows];
    alignas(64) float sums[kTileRows] = {};
    store(shifts, shift);
    store(factors, factor);
    store(highest_, now);
    for (int r = 0; r < tile_.rows; ++r) {
      sums[r] = store_exponentials(step, r, shifts[r]);
      if (factors[r] == 1.0f) continue;
      scale(step.sums + r * tile_.kv.head_dim, factors[r], tile_.kv.head_dim);
    }
    store(total_, load(total_) * factor + load(sums));
  }

  void finish(const float* sums) const {
    // A sink is one more score: it counts in the sum of the weights alone. Without one it is -inf,
    // and exp(-inf) = 0 changes no sum.
    alignas(64) float sinks[kTileRows];
    store(sinks, exp(load(tile_.sink) - load(highest_)));
    const int64_t head_dim = tile_.kv.head_dim;
    for (int r = 0; r < tile_.rows; ++r) {
      const Vec total = set(total_[r] + sinks[r]);
      for (int64_t i = 0; i < head_dim; i += kLanes) {
        store(tile_.out[r] + i, load(sums + r * head_dim + i) / total);
      }
    }
  }

 private:
  // Scales, caps and masks row r's scores of the step; the highest of them.
  float scale_scores(const TileStep& step, int r) {
    Vec top = set(kMinusInfinity);
    for (int g = step.lo; g < step.hi; ++g) {
      float* scores = step.scores + r * kSpan + g * kGroup;
      Vec s = load(scores) * set(tile_.scale);
      if (tile_.softcap != 0.0f) s = capped(s, tile_.softcap);
      store(scores, s);
      if (hide(tile_, r, step.begin + g * kGroup, kMinusInfinity, scores)) s = load(scores);
      top = max(top, s);
    }
    return highest(top);
  }

  // exp(score - shift) of row r; their sum is of the unrounded.
  float store_exponentials(const TileStep& step, int r, float shift) {
    Vec total = set(0.0f);
    for (int g = step.lo; g < step.hi; ++g) {
      const Vec weight = exp(load(step.scores + r * kSpan + g * kGroup) - set(shift));
      total = total + weight;
      store_weights<kElement>(step, r, g, weight);
    }
    return sum(total);
  }

  const AttentionTile& tile_;
  alignas(64) float highest_[kTileRows];
  alignas(64) float total_[kTileRows] = {};
};

}  // namespace rudder::cpu::RUDDER_CPU_ISA
