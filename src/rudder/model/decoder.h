// Decoder: the forward pass of a model; that of a draft head is head_decoder.h. It calls macro-ops
// layer by layer as ModelSpec says, and sees no backend. exec makes it once; the executor's worker
// thread uses it. It allocates all buffers at construction, for the largest step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/tap/passage.h"

namespace rudder::model {

// The step as the decoder sees it: T tokens of num_seqs sequences, packed one after another. Views
// of i32 in device memory.
struct ForwardBatch {
  ops::View ids;        // [T]
  ops::View positions;  // [T]
  ops::View kv_slot;    // [groups * T] block * block_size + offset, -1 = write nothing
  ops::AttentionBatch attention;
  ops::View logits_rows;   // [R] tokens whose logits are wanted, ascending; [0] for none
  StateBatch states = {};  // where layers keep states

  // Adapters of the tokens and of the rows of logits; empty: no token has one, and the products run
  // alone.
  ops::AdapterBatch adapters = {};       // of the tokens
  ops::AdapterBatch rows_adapters = {};  // of the rows
  ops::View adapter_mid = {};            // scratch (ops::AdaptArgs)
  // Scratch, act: a product's rows beside their quantised form; empty: none is quantised.
  ops::View adapter_act = {};

  // Taps of the tokens and of the rows of logits; without a table the plain ops run, and anyhow of
  // those that are not `tapped` (null: all but patterns are). They outlive the step, and a graph
  // that is captured of it; begin_step has gathered their entries.
  const ops::TapTable* tap_table = nullptr;
  const tap::PassageSet* tapped = nullptr;
  ops::TapBatch taps = {};       // [T]
  ops::TapBatch rows_taps = {};  // [R]
  // Points at which programs of the step encode, ascending; behind their macro-ops encode() runs.
  std::span<const int32_t> encodes = {};
  // All tokens go through what comes behind the last attention, not only those whose logits are
  // wanted: taps there want them, or more_logits() does. Likewise where HiddenPool.final_norm does.
  bool keep_all_rows = false;

  // Of a draft head alone (head_decoder.h).
  ops::View feedback_rows = {};  // [R] i32
  ops::View goes_on_rows = {};   // [T] i32
};

// Whether some layer's attention patterns are captured.
inline bool captures_patterns(const ForwardBatch& batch) {
  return batch.tap_table != nullptr && batch.tapped != nullptr &&
         (batch.tapped->kinds() & tap::kMixerWeights) != 0;
}

// Whether programs of the step encode at the point of `taps`.
inline bool encodes_at(const ForwardBatch& batch, const ops::Taps& taps) {
  return !taps.empty() && std::ranges::binary_search(batch.encodes, taps.point);
}

// Runs encode() on `rows`, which are act, if the step encodes at the point of `taps`.
inline void encode_at(ops::Ops& ops, const ForwardBatch& batch, const ops::Taps& taps,
                      const ops::View& rows) {
  if (!encodes_at(batch, taps)) return;
  ops.feature_ops()->encode({.x = rows, .taps = taps});
}

struct DecoderLimits {
  int32_t max_tokens = 0;       // T of the largest step
  int32_t max_logits_rows = 0;  // R of the largest step
  int32_t max_seq_len = 0;      // rope tables reach this far
  // Of a rank: steps have taps on rows of which it has a share (Ops::tap_shares).
  bool taps_shares = false;
  bool encodes = false;  // steps may encode (ops::EncodeArgs)
  bool adapts = false;   // products may have adapters
};

// Where a decoder keeps rows for a draft head to read: those that enter some layers, or what the
// final norm makes of what the last one leaves, without taps of that point. They lie where the
// token's KV is in the blocks of a KV group, side by side in the order of `layers`; they live as
// long as the KV, and are written where it is.
//
// Of stages the last one alone has such rows. What enters layers of the others comes to it with
// the step: each stage leaves its part in `passed`, beside what the stages in front have left.
struct HiddenPool {
  ops::View rows;               // [num_blocks * block_size, layers.size() or 1 * hidden] act
  std::vector<int32_t> layers;  // of the whole model; none: no row that enters a layer
  // [layers.size() * max_tokens, hidden] act: from row i * max_tokens on, what enters layers[i], of
  // the step's tokens in order. Empty: one stage has all layers.
  ops::View passed = {};
  bool final_norm = false;  // then every token goes through what comes behind the last attention
  int32_t group = 0;
  int32_t block_size = 16;
  int32_t group_layers = 1;  // step::KvGroup.layers

  ops::TokenRows token_rows() const { return {rows, group, block_size, group_layers}; }
  ops::View passed_of(size_t index, int64_t num_tokens) const {
    const auto num_layers = static_cast<int64_t>(layers.size());
    return passed.rows(static_cast<int64_t>(index) * (passed.num_rows() / num_layers), num_tokens);
  }
};

class Decoder {
 public:
  // `ops` and `weights` outlive the decoder. On a rank of a group (ops/comm.h) `spec` and `weights`
  // are its part of the model (shard_spec), on a stage (stage_spec) its layers. `final_rows`
  // [max_logits_rows, hidden] act, optional: where forward() leaves what the final norm makes of
  // the rows of logits, without taps of that point. `states`: of each layer, where some keep any.
  static Result<std::unique_ptr<Decoder>> make(const ModelSpec& spec, const Weights& weights,
                                               std::span<const ops::KvLayer> kv, ops::Ops& ops,
                                               const DecoderLimits& limits,
                                               const HiddenPool& kept = {},
                                               const ops::View& final_rows = {},
                                               std::span<const LayerState> states = {});
  virtual ~Decoder() = default;

  // What begin() leaves in the decoder's buffers, of all tokens, until the next begin().
  struct Begun {
    ops::View residual;  // [T, residual_width] act
    ops::View mixed;     // [T, .]: what the last layer's mixer makes of it, in `buffer`
    ops::View buffer;
    ops::View free;        // another buffer, of the same size
    ops::View added = {};  // Mixed.added and Mixed.added_rows (branch.h)
    ops::View added_rows = {};
  };

  // forward() in two parts. The first runs all layers up to the mixer of the last one: it depends
  // on no row of logits. The second goes on with the rows whose logits are wanted.
  virtual Begun begin(const ForwardBatch& batch) = 0;
  virtual ops::View finish(const Begun& begun, const ForwardBatch& batch) = 0;

  // Runs the step; returns logits [R, vocab] f32 in the decoder's own buffer, valid until the next
  // forward; an empty view when R is 0, or when a stage behind this one goes on. A stage that is
  // not the first begins with what hidden() holds.
  virtual ops::View forward(const ForwardBatch& batch) = 0;

  // The residual of a step of so many tokens, [num_tokens, residual_width] act: what forward()
  // leaves for the stage behind, or takes from the stage before.
  virtual ops::View hidden(int64_t num_tokens) const = 0;

  // Logits of other tokens of the last forward, which kept all rows: [R, vocab] f32 for `rows`
  // [R] i32, at most max_logits_rows of them; in the same buffer, instead of what is in it.
  virtual ops::View more_logits(const ops::View& rows) = 0;

  // Device bytes the decoder's buffers take, known before anything is allocated.
  static int64_t workspace_bytes(const ModelSpec& spec, const DecoderLimits& limits,
                                 tensor::DType act, ops::Rank rank = {});
};

}  // namespace rudder::model
