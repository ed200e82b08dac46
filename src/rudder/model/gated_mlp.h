// The gated MLP: down(act(gate(x)) * up(x)). With one name for gate and up and a rectifier it is
// that of squared ReLUs, which has no gate. One of the MLPs that a layer may have (spec.h). This
// file and its .cpp hold all that is particular to this kind of branch: its numbers, its tensors,
// its scratch memory and its pass.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/ops/args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct MlpTaps;
struct Operand;

struct GatedMlp {
  int32_t width = 0;
  ops::Activation activation = ops::Activation::kSilu;
  bool bias = false;
  float gate_factor = 1;  // of what the activation reads; 1: biases are 0 where one is not
  float out_factor = 1;

  // Of its tensors in a checkpoint, behind the layer's prefix. A list is stacked along the output
  // rows; one name instead of two: the checkpoint stores them stacked.
  struct Names {
    std::vector<std::string_view> gate_up = {"mlp.gate_proj", "mlp.up_proj"};
    std::string_view down = "mlp.down_proj";
  };

  struct Weights {
    ops::LinearWeight gate_up;  // gate, up stacked
    ops::LinearWeight down;

    const ops::LinearWeight& input() const { return gate_up; }
  };
};

// Appends its tensors; `weights` is where they are loaded to, null for their description alone.
void list_tensors(const GatedMlp& mlp, int64_t hidden, const GatedMlp::Names& names,
                  GatedMlp::Weights* weights, LayerTensors& out);

// Of feed_forward(), in elements a token: gate and up, activated.
std::array<int64_t, 2> scratch_widths(const GatedMlp& mlp);

// [T, hidden] of `in` [T, hidden], in the buffer `out`; `taps` are those of the activations.
ops::View feed_forward(const GatedMlp& mlp, const GatedMlp::Weights& weights, const Operand& in,
                       const MlpTaps& taps, const LayerStep& step, const ops::View& out);

}  // namespace rudder::model
