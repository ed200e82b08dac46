// A gated delta rule: a mixer that keeps a matrix of each value head in place of keys and values,
// and corrects it by each token (ops::RecurArgs), behind a short convolution. One of the mixers
// that a layer may have (spec.h). This file and its .cpp hold all that is particular to this kind
// of branch: its numbers, its tensors, its scratch memory, its state and its pass.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/model/sequence_state.h"
#include "rudder/ops/args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Mixed;
struct Operand;

struct GatedDelta {
  int32_t key_heads = 0;
  int32_t value_heads = 0;  // a multiple of key_heads, in order
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t conv_length = 0;  // of the convolution of q, k and v
  // Kimi's form (KDA): a decay for each channel of a key, and a gate of sigmoids; both are made of
  // rows of so many elements. 0: a decay for each head, a gate of silu, both made of the input.
  int32_t gate_rank = 0;
  float decay_floor = 0;  // of the logarithms of decays (ops::RecurLimits); 0: they have none

  int64_t key_width() const { return int64_t{key_heads} * key_dim; }
  int64_t value_width() const { return int64_t{value_heads} * value_dim; }
  int64_t conv_width() const { return 2 * key_width() + value_width(); }

  bool by_channel() const { return gate_rank > 0; }
  int64_t decay_width() const { return int64_t{value_heads} * (by_channel() ? key_dim : 1); }
  // Of what the input is multiplied with: q, k, v and, where it is made of the input, the gate.
  int64_t input_width() const { return conv_width() + (by_channel() ? 0 : value_width()); }
  // Of what steps, and decays of heads, are made of.
  int64_t gates_width() const { return int64_t{value_heads} * (by_channel() ? 1 : 2); }

  // Of its tensors in a checkpoint, behind the layer's prefix. With one name for all inputs, or for
  // both gates, the tensor has the rows of a key head together: q, k, v, z of it, or b, a.
  struct Names {
    std::vector<std::string_view> in = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z"};
    std::vector<std::string_view> gates = {"linear_attn.in_proj_b", "linear_attn.in_proj_a"};
    std::vector<std::string_view> conv = {"linear_attn.conv1d.weight"};  // of all, or q, k and v
    // by_channel(): q, k and v; what steps are made of; decays, then gates, in two products each.
    std::vector<std::string_view> qkv = {"self_attn.q_proj", "self_attn.k_proj",
                                         "self_attn.v_proj"};
    std::string_view step = "self_attn.b_proj";
    std::array<std::string_view, 2> decay = {"self_attn.f_a_proj", "self_attn.f_b_proj"};
    std::array<std::string_view, 2> gate = {"self_attn.g_a_proj", "self_attn.g_b_proj"};
    std::string_view a_log = "linear_attn.A_log";
    bool flat_a_log = false;  // by_channel(): [value_heads], not [1, 1, value_heads, 1]
    std::string_view step_bias = "linear_attn.dt_bias";
    std::string_view norm = "linear_attn.norm";
    std::string_view out = "linear_attn.out_proj";
  };

  struct Weights {
    ops::LinearWeight in;          // q, k, v, z stacked, of all heads each
    ops::LinearWeight gates;       // b, a
    ops::LinearWeight decay_down;  // by_channel() alone, as the next three
    ops::LinearWeight decay;
    ops::LinearWeight gate_down;
    ops::LinearWeight gate;
    ops::View conv;       // [conv_width * conv_length] f32
    ops::View a_log;      // [value_heads] f32
    ops::View step_bias;  // [decay_width] f32
    ops::NormSpec norm;   // of each value head
    ops::LinearWeight out;

    const ops::LinearWeight& input() const { return in; }
    const ops::LinearWeight& output() const { return out; }
  };
};

void list_tensors(const GatedDelta& mixer, int64_t hidden, const GatedDelta::Names& names,
                  GatedDelta::Weights* weights, LayerTensors& out);

// The window of the convolution, then the matrices.
StateBytes state_bytes(const GatedDelta& mixer);

// Of mix(), in elements a token: q, k, v and z; q, k and v convolved, and the input as another
// product takes it; b and a; what is read of the state; short rows of both; decays of channels;
// gates.
std::array<int64_t, 8> scratch_widths(const GatedDelta& mixer);

// The gates read their input in act.
inline bool reads_act(const GatedDelta& /*mixer*/) {
  return true;
}

// What is read of the state for each token of `in` [T, hidden], normed and gated.
Mixed mix(const GatedDelta& mixer, const GatedDelta::Weights& weights, const Operand& in,
          const LayerStep& step);

}  // namespace rudder::model
