// A state space (Mamba-2): a mixer that keeps a matrix of each head in place of keys and values. A
// token's step says how much of it decays and how much of the token is added (ops::RecurArgs, of
// RecurRule::kSum); a short convolution is in front, and what is read is gated. One of the mixers
// that a layer may have (spec.h). This file and its .cpp hold all that is particular to this kind
// of branch: its numbers, its tensors, its scratch memory, its state and its pass.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "rudder/model/sequence_state.h"
#include "rudder/ops/args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Mixed;
struct Operand;

struct StateSpace {
  // What a checkpoint's rows of the first product are, in its order.
  enum Input : uint8_t { kGate, kX, kB, kC, kStep, kNumInputs };

  int32_t heads = 0;
  int32_t groups = 1;  // of equal numbers of heads, in order, that read the same B and C
  int32_t head_dim = 0;
  int32_t state_dim = 0;
  int32_t conv_length = 0;  // of the convolution of x, B and C
  bool conv_bias = true;
  bool bias = false;   // of both projections
  float step_low = 0;  // of the step, behind its softplus
  float step_high = INFINITY;
  int32_t norm_runs = 1;    // of the norm of what is read, of equal length; 0: it is not normed
  bool gates_first = true;  // the norm is of what is gated, else it is gated behind its norm
  // What its inputs and its output are multiplied by; 1: biases are 0 where one is not.
  std::array<float, kNumInputs> in_factors = {1, 1, 1, 1, 1};
  float out_factor = 1;

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t group_width() const { return int64_t{groups} * state_dim; }  // of B, and of C
  int64_t conv_width() const { return width() + 2 * group_width(); }
  int64_t in_width() const { return conv_width() + width() + heads; }

  // Of its tensors in a checkpoint, behind the layer's prefix.
  struct Names {
    std::string_view in = "mamba.in_proj";
    std::string_view conv = "mamba.conv1d.weight";
    std::string_view conv_bias = "mamba.conv1d.bias";
    std::string_view a_log = "mamba.A_log";
    std::string_view step_bias = "mamba.dt_bias";
    std::string_view skip = "mamba.D";
    std::string_view norm = "mamba.norm";
    std::string_view out = "mamba.out_proj";
  };

  struct Weights {
    ops::LinearWeight in;  // x, B, C, gate, step stacked
    ops::View conv;        // [conv_width * conv_length] f32
    ops::View conv_bias;   // [conv_width] f32
    ops::View a_log;       // [heads] f32
    ops::View step_bias;   // likewise
    ops::View skip;        // likewise
    ops::NormSpec norm;    // [width]
    ops::LinearWeight out;

    const ops::LinearWeight& input() const { return in; }
    const ops::LinearWeight& output() const { return out; }
  };
};

void list_tensors(const StateSpace& mixer, int64_t hidden, const StateSpace::Names& names,
                  StateSpace::Weights* weights, LayerTensors& out);

// The window of the convolution, then the matrices.
StateBytes state_bytes(const StateSpace& mixer);

// Of mix(), in elements a token: its inputs; x, B and C convolved; what is read of the state.
std::array<int64_t, 3> scratch_widths(const StateSpace& mixer);

// What is read of the state for each token of `in` [T, hidden], gated and normed.
Mixed mix(const StateSpace& mixer, const StateSpace::Weights& weights, const Operand& in,
          const LayerStep& step);

}  // namespace rudder::model
