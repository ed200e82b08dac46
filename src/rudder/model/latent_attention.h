// Latent attention (MLA): keys and values of all heads are made of one short row of each token,
// which is what the KV cache keeps; queries may be made of such a row as well. One of the mixers
// that a layer may have (spec.h). This file and its .cpp hold all that is particular to this kind
// of branch: its numbers, its tensors, its scratch memory and its pass. Ops: ops/latent_args.h.
// Source: transformers, modeling_deepseek_v3.py, DeepseekV3Attention.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "rudder/model/sequence_state.h"
#include "rudder/ops/args.h"
#include "rudder/ops/latent_args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Mixed;
struct Operand;

struct LatentAttention {
  int32_t hidden = 0;  // of a row that it reads
  ops::LatentShape shape = {};
  int32_t query_rank = 0;    // of the row that queries are made of; 0: they are made of the input
  float scale = 1;           // of q . k
  bool neighbours = true;    // pairs that turn are neighbours, else they pair halves
  bool bias = false;         // of the first products and the last
  bool sinks = false;        // of each head, in its softmax's sum
  bool out_gate = false;     // of sigmoids, on what is read, made of the input
  float latent_eps = 1e-6f;  // of the norms of both short rows
  int32_t rope = 0;          // index into ModelSpec.ropes, or kNoRope

  int64_t query_width() const { return shape.num_heads * shape.query_dim(); }
  int64_t read_width() const { return shape.num_heads * shape.row(); }
  int64_t value_width() const { return int64_t{shape.num_heads} * shape.value_dim; }

  // Of its tensors in a checkpoint, behind the layer's prefix.
  struct Names {
    std::string_view q = "self_attn.q_proj";  // without a row of their own
    std::string_view q_down = "self_attn.q_a_proj";
    std::string_view q_norm = "self_attn.q_a_layernorm";
    std::string_view q_up = "self_attn.q_b_proj";
    std::string_view kv_down = "self_attn.kv_a_proj_with_mqa";
    std::string_view kv_norm = "self_attn.kv_a_layernorm";
    std::string_view kv_up = "self_attn.kv_b_proj";
    std::string_view out = "self_attn.o_proj";
    std::string_view gate = "self_attn.gate_proj";
    std::string_view sinks = "self_attn.sinks";
  };

  struct Weights {
    ops::LinearWeight q_down;  // with a query_rank alone, as q_norm
    ops::NormSpec q_norm;
    ops::LinearWeight q;
    ops::LinearWeight kv_down;
    ops::NormSpec kv_norm;
    ops::LinearWeight kv_up;  // of LatentPrepArgs::up
    ops::LinearWeight out;
    ops::LinearWeight gate;  // with out_gate alone
    ops::View sinks;         // [num_heads] f32; with sinks alone

    const ops::LinearWeight& input() const { return q_norm.empty() ? q : q_down; }
    const ops::LinearWeight& output() const { return out; }
  };
};

// Appends its tensors; `weights` is where they are loaded to, null for their description alone. A
// rank has some of the heads, and all of both short rows.
void list_tensors(const LatentAttention& mixer, int64_t hidden, const LatentAttention::Names& names,
                  LatentAttention::Weights* weights, LayerTensors& out);

// It keeps blocks of the KV cache alone.
inline StateBytes state_bytes(const LatentAttention&) {
  return {};
}

// Two products take its input.
inline bool reads_act(const LatentAttention& /*mixer*/) {
  return true;
}

// Of mix(), in elements a token: the row of queries, its norm, the row of keys and values, the
// input as another product takes it, queries, the same over rows, what these read, values, free,
// gates.
std::array<int64_t, 10> scratch_widths(const LatentAttention& mixer);

// Projects `in` [T, hidden], writes the KV cache, attends. Prompts and decoding alike read the rows
// as they are kept: a token's bits depend on neither its chunk nor its company.
Mixed mix(const LatentAttention& mixer, const LatentAttention::Weights& weights, const Operand& in,
          const LayerStep& step);

}  // namespace rudder::model
