// Attention and a state space side by side: both read the layer's normed input, and the sum of what
// they make is added to the residual. One of the mixers that a layer may have (spec.h). What is
// particular to it is that it has two output projections: that of the state space runs in its own
// pass, and the decoder adds what it makes to that of attention (Mixed.added). The site attn_z and
// attention patterns are those of attention.
#pragma once

#include <array>
#include <cstdint>

#include "rudder/model/attention.h"
#include "rudder/model/state_space.h"

namespace rudder::model {

struct Parallel {
  int32_t hidden = 0;  // of a row
  Attention attention;
  StateSpace space;

  struct Names {
    Attention::Names attention;
    StateSpace::Names space;
  };

  struct Weights {
    Attention::Weights attention;
    StateSpace::Weights space;

    const ops::LinearWeight& input() const { return attention.qkv; }
    const ops::LinearWeight& output() const { return attention.out; }
  };
};

void list_tensors(const Parallel& mixer, int64_t hidden, const Parallel::Names& names,
                  Parallel::Weights* weights, LayerTensors& out);

inline StateBytes state_bytes(const Parallel& mixer) {
  return state_bytes(mixer.space);
}

// Of mix(), in elements a token: those of attention, those of the state space; what the state space
// makes, and room for some rows of it.
std::array<int64_t, 9> scratch_widths(const Parallel& mixer);

// Two products read its input, each in the form that it takes.
inline bool reads_act(const Parallel& /*mixer*/) {
  return true;
}

Mixed mix(const Parallel& mixer, const Parallel::Weights& weights, const Operand& in,
          const LayerStep& step);

}  // namespace rudder::model
