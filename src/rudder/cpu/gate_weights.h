// The weights of a gate (ops::FirGate) over the steps of a tile. Nothing is normalised, so sums are
// never rescaled; from one step to the next a row keeps the scores that the filter still reads.
// Included by kernels_<isa>.cpp through simd.h.
#pragma once

#include <cstring>

#include "rudder/cpu/row_kernels.h"
#include "rudder/cpu/tile_step.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

template <Element kElement>
class GateWeights {
 public:
  static constexpr bool kSetsKeysAgainstOneAnother = false;

  explicit GateWeights(const AttentionTile& tile) : tile_(tile) {}

  void weigh(const TileStep& step) {
    for (int r = 0; r < tile_.rows; ++r) weigh_row(step, r);
  }

  void finish(const float* sums) const {
    const int64_t head_dim = tile_.kv.head_dim;
    for (int r = 0; r < tile_.rows; ++r) {
      for (int64_t i = 0; i < head_dim; i += kLanes) {
        store(tile_.out[r] + i, load(sums + r * head_dim + i) * set(tile_.gate.gamma[r]));
      }
    }
  }

 private:
  static constexpr int kTail = ops::kMaxFirLength;

  void weigh_row(const TileStep& step, int r) {
    const TileGate& gate = tile_.gate;
    // r_j of the step (args.h), behind those of the last positions before it.
    float inputs[kTail + kSpan] = {};
    std::memcpy(inputs, tails_[r], sizeof(tails_[r]));
    for (int g = step.lo; g < step.hi; ++g) {
      float* const scores = step.scores + r * kSpan + g * kGroup;
      float* const group = inputs + kTail + g * kGroup;
      const Vec s = load(scores) * set(tile_.scale);
      store(scores, s);
      store(group, gate.relu_pre ? relu(s) : s);
      hide(tile_, r, step.begin + g * kGroup, 0.0f, group);
    }
    std::memcpy(tails_[r], inputs + kSpan, sizeof(tails_[r]));
    const Vec share = set(gate.sigma[r] / static_cast<float>(gate.length));
    for (int g = step.lo; g < step.hi; ++g) {
      float* const scores = step.scores + r * kSpan + g * kGroup;
      const float* const group = inputs + kTail + g * kGroup;
      Vec total = load(group);
      for (int i = 1; i < gate.length; ++i) total = total + load(group - i);
      store(scores, clip(load(scores) - share * total, set(gate.low), set(gate.high)));
      hide(tile_, r, step.begin + g * kGroup, 0.0f, scores);
      store_weights<kElement>(step, r, g, load(scores));
    }
  }

  const AttentionTile& tile_;
  float tails_[kTileRows][kTail] = {};
};

}  // namespace rudder::cpu::RUDDER_CPU_ISA
