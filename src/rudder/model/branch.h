// What the passes of branches (a mixer or an MLP of a layer: attention.h, gated_mlp.h)
// share: operands in the form that a weight takes, scratch memory, and the layer and step they run
// in. Used by decoder.cpp and the branches, on the executor's worker thread.
//
// A kind of branch is a struct that is an alternative of Mixer or Mlp (spec.h), with nested Names
// and Weights, and these functions beside it: list_tensors, scratch_widths, and state_bytes and mix
// (of a mixer) or feed_forward (of an MLP); and reads_act, where it is true.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"

namespace rudder::model {

// The start of a flat buffer as [rows, width].
ops::View shaped(const ops::View& buffer, int64_t rows, int64_t width);

// What a product takes: act, or F8E4M3 with a scale a row, as its weight wants it. `act` has the
// same rows in act: x itself where the product takes that, else where the branch reads it
// (reads_act) or what was quantised; it may be the residual, and is read alone.
struct Operand {
  ops::View x;
  ops::View scale;
  ops::View act = {};

  int64_t rows() const { return x.shape[0]; }
};

// Makes operands and multiplies them. An operand is used before the next one is written: there is
// one buffer of scales.
class Products {
 public:
  // `scales`: [max_tokens] f32. Both outlive it.
  Products(ops::Ops& ops, ops::View scales) : ops_(ops), scales_(scales) {}

  // The adapters of the rows at hand, from now on; empty: none has one.
  void adapt(const ops::AdapterBatch& adapters, const ops::View& mid) {
    adapters_ = adapters;
    adapter_mid_ = mid;
  }
  // Whether project() adds what adapters add: its operand then needs `act`.
  bool adapts(const ops::LinearWeight& weight) const {
    return weight.adapters != nullptr && !adapters_.empty();
  }

  // in times weight, in `buffer`; and what adapters add to it.
  ops::View project(const ops::LinearWeight& weight, const Operand& in,
                    const ops::View& buffer) const;
  // An operand of `weight` with nothing in it yet, for an op to write.
  Operand empty_operand(const ops::LinearWeight& weight, int64_t rows,
                        const ops::View& buffer) const;
  // x itself, or x quantised into `buffer`.
  Operand operand_of(const ops::LinearWeight& weight, const ops::View& x,
                     const ops::View& buffer) const;
  // The operand in the form that another weight takes, made of what it has in act where it is not
  // in that form; then what it had as scales is gone.
  Operand as_taken(const ops::LinearWeight& weight, const Operand& in,
                   const ops::View& buffer) const;

 private:
  ops::Ops& ops_;
  const ops::View scales_;
  ops::AdapterBatch adapters_;
  ops::View adapter_mid_;
};

// Whether a kind of branch reads its input in act as well as in the form that its first product
// takes, as routers and adapters do. The norm in front of it then writes both (Operand.act).
template <typename Branch>
bool reads_act(const Branch& /*branch*/) {
  return false;
}

// Whether an MLP adds up the ranks' parts of its output itself: it is then whole on each of them.
template <typename Branch>
bool sums_ranks(const Branch& /*branch*/) {
  return false;
}

// Elements of a piece of the scratch buffer that holds [max_tokens, width]: every piece starts on a
// 64-byte line, whatever the dtype.
inline int64_t piece_elements(int32_t max_tokens, int64_t width) {
  return (max_tokens * width + 63) / 64 * 64;
}

// The scratch buffer that all branches of a model share, as the branch at hand cuts it: piece i
// holds [max_tokens, widths[i]].
template <size_t N>
class Scratch {
 public:
  Scratch(const ops::View& buffer, int32_t max_tokens, const std::array<int64_t, N>& widths) {
    int64_t begin = 0;
    for (size_t i = 0; i < N; ++i) {
      const int64_t elements = piece_elements(max_tokens, widths[i]);
      pieces_[i] = buffer.rows(begin, elements);
      begin += elements;
    }
  }
  const ops::View& operator[](size_t i) const { return pieces_[i]; }

 private:
  std::array<ops::View, N> pieces_;
};

// One layer of one step.
struct LayerStep {
  ops::Ops& ops;
  const Products& products;
  const ops::View& scratch;  // flat, act
  int32_t max_tokens = 0;    // that scratch has room for
  const ForwardBatch& batch;
  int32_t layer = 0;                 // of the whole model
  const ops::KvLayer& kv;            // of the layer
  std::span<const ops::View> ropes;  // [max_seq_len, 2, rotary_dim / 2], one per ModelSpec.ropes
  ops::View query_scales = {};       // [max_seq_len] f32, of ModelSpec.query_growth; empty: none
  ops::View whole_rows = {};         // flat, act: of a rank that taps rows it has a share of
  int64_t num_ranks = 1;
  LayerState state = {};  // of the layer, where it keeps one
  // Of an MLP: the rows that its input was normed of, [T, hidden] act. A residual of one stream.
  ops::View residual = {};

  // The same with other scratch memory, for a part of a branch.
  LayerStep with_scratch(const ops::View& other) const;
};

// Of an MLP's own points; those that it does not have are of no program and no capture.
struct MlpTaps {
  ops::Taps act;            // mlp_act
  ops::Taps router_logits;  // with which routed_experts comes
  ops::Taps routed_experts;
};

// On a rank: the point's taps on the rows of which `x` has this rank's columns; the same columns of
// what they make, in `buffer`.
ops::View tap_shares(const LayerStep& step, const ops::View& x, const ops::View& buffer,
                     const ops::Taps& taps);

// Attention's patterns, of the tokens whose capture sets name some; nothing in steps without.
void capture_patterns(const ops::AttentionArgs& args, const LayerStep& step);

// What a mixer gives: [T, width], before its output projection, in `buffer`; `free` is
// another buffer of that size, whose contents nobody needs any more.
struct Mixed {
  ops::View out;
  ops::View buffer;
  ops::View free;
  ops::View added = {};       // [T, hidden] act: added behind that projection
  ops::View added_rows = {};  // room for some of its rows
};

// A branch that is not there makes nothing; the decoder goes by it.
inline Mixed mix(const NoMixer&, const NoMixer::Weights&, const Operand&, const LayerStep&) {
  return {};
}
inline ops::View feed_forward(const NoMlp&, const NoMlp::Weights&, const Operand&, const MlpTaps&,
                              const LayerStep&, const ops::View&) {
  return {};
}

// Calls run(branch, weights) with the alternative that `spec` holds and with its weights.
template <typename Spec, typename Weights, typename Run>
decltype(auto) visit_branch(const Spec& spec, const Weights& weights, Run&& run) {
  return std::visit(
      [&](const auto& branch) -> decltype(auto) {
        using Branch = std::decay_t<decltype(branch)>;
        return std::forward<Run>(run)(branch, std::get<typename Branch::Weights>(weights));
      },
      spec);
}

}  // namespace rudder::model
