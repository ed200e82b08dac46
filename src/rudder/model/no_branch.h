// Layers that have one branch alone: no mixer, or no MLP. Alternatives of Mixer and Mlp (spec.h)
// without tensors, which the decoder passes by; the sites of what is not there are none.
#pragma once

#include <array>
#include <cstdint>

#include "rudder/model/sequence_state.h"
#include "rudder/ops/args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Operand;

// Of a branch that is not there.
struct NoWeights {
  ops::LinearWeight none;

  const ops::LinearWeight& input() const { return none; }
  const ops::LinearWeight& output() const { return none; }
};

struct NoMixer {
  struct Names {};
  struct Weights : NoWeights {};
};
struct NoMlp {
  struct Names {};
  struct Weights : NoWeights {};
};

inline void list_tensors(const NoMixer&, int64_t, const NoMixer::Names&, NoMixer::Weights*,
                         LayerTensors&) {}
inline void list_tensors(const NoMlp&, int64_t, const NoMlp::Names&, NoMlp::Weights*,
                         LayerTensors&) {}
inline StateBytes state_bytes(const NoMixer&) {
  return {};
}
inline std::array<int64_t, 0> scratch_widths(const NoMixer&) {
  return {};
}
inline std::array<int64_t, 0> scratch_widths(const NoMlp&) {
  return {};
}

}  // namespace rudder::model
