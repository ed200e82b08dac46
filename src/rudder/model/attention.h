// Attention over a paged KV cache: several query heads share the keys and values of a KV head.
// Scores become weights by a softmax or by a gate. One of the mixers that a layer may have
// (spec.h). This file and its .cpp hold all that is particular to this kind of branch: its numbers,
// its tensors, its scratch memory and its pass.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "rudder/model/norm.h"
#include "rudder/model/sequence_state.h"
#include "rudder/ops/args.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LayerStep;     // branch.h
struct Mixed;
struct Operand;

inline constexpr int32_t kNoRope = -1;  // queries and keys are not rotated

enum class QkNorm : uint8_t { kNone, kPerHead, kAllHeads };

// How the scores of a query become the weights of its values.
struct Softmax {
  float softcap = 0;   // of the scores; 0 = off
  bool sinks = false;  // a score for each head that the checkpoint holds (ops::AttentionArgs.sinks)
};
// ops::FirGate; sigma and gamma of each head are in the checkpoint.
struct Gate {
  int32_t length = 3;  // of the filter
  bool relu_pre = false;
  float low = 0;
  float high = 1;
};
using Weighting = std::variant<Softmax, Gate>;

struct Attention {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 1;     // of q . k
  int32_t window = 0;  // 0 = all
  Weighting weighting;
  QkNorm qk_norm = QkNorm::kNone;
  NormKind qk_norm_kind;
  bool qkv_bias = false;
  bool out_bias = false;
  bool out_gate = false;       // what is read is multiplied by sigmoid(a projection of the input)
  bool norms_rotated = false;  // q and k are normed behind their rotation; per head alone
  // Of a head, how many elements of q and k turn in pairs of neighbours in the checkpoint. Their
  // rows are loaded in the order of ropes that pair halves; heads are then not normed.
  int32_t neighbours = 0;
  bool v_norm = false;  // RMS norm of each v head, without weights
  bool v_is_k = false;  // one projection makes both: values are keys before their norm and rope
  bool own_kv = true;   // false: it reads another layer's keys and values, and makes queries alone
  // That layer, of the same model, in front of it; -1: it has its own, or they are of another model
  // (assistant.h).
  int32_t kv_layer = -1;
  int32_t rope = 0;      // index into ModelSpec.ropes, or kNoRope
  float out_factor = 1;  // of what it adds; 1 where its projection has a bias

  int64_t q_width() const { return int64_t{num_heads} * head_dim; }
  int64_t kv_width() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t qkv_width() const { return q_width() + (own_kv ? 2 * kv_width() : 0); }

  // Of its tensors in a checkpoint, behind the layer's prefix. A list is stacked along the output
  // rows; one name instead of three: the checkpoint stores them stacked.
  struct Names {
    std::string_view q_norm = "self_attn.q_norm";
    std::string_view k_norm = "self_attn.k_norm";
    std::vector<std::string_view> qkv = {"self_attn.q_proj", "self_attn.k_proj",
                                         "self_attn.v_proj"};
    std::string_view out = "self_attn.o_proj";
    // Of the gate's projection; empty: its rows lie behind those of q, head by head.
    std::string_view out_gate = "";
    std::string_view sinks = "self_attn.sinks";
    std::string_view gate_sigma = "self_attn.fir_sigma";
    std::string_view gate_gamma = "self_attn.fir_gamma";
  };

  struct Weights {
    ops::NormSpec q_norm;  // empty parts are not in this model
    ops::NormSpec k_norm;
    ops::NormSpec v_norm;   // its weights are ones
    ops::View sinks;        // [num_heads] f32
    ops::View gate_sigma;   // [num_heads] f32
    ops::View gate_gamma;   // [num_heads] f32
    ops::LinearWeight qkv;  // q, k, v stacked, or q alone
    ops::LinearWeight out_gate;
    ops::LinearWeight out;
    ops::View k_scale;  // [num_kv_heads] f32, of an fp8 KV cache; empty: 1
    ops::View v_scale;

    const ops::LinearWeight& input() const { return qkv; }
    const ops::LinearWeight& output() const { return out; }
  };
};

// Appends its tensors; `weights` is where they are loaded to, null for their description alone.
void list_tensors(const Attention& attention, int64_t hidden, const Attention::Names& names,
                  Attention::Weights* weights, LayerTensors& out);

// It keeps blocks of KV alone.
inline StateBytes state_bytes(const Attention&) {
  return {};
}

// Of mix(), in elements a token: qkv, q, attended, its gate.
std::array<int64_t, 4> scratch_widths(const Attention& attention);

// Projects `in` [T, hidden] to q, k and v, writes the KV cache, attends.
Mixed mix(const Attention& attention, const Attention::Weights& weights, const Operand& in,
          const LayerStep& step);

}  // namespace rudder::model
