// ModelProposer: the executor's own proposer of drafts: a second, smaller decoder that runs the
// sequences' tokens behind the verify of a step and guesses what follows them, greedily. Its KV
// lies beside the model's: block b of the pool, of one KV group without a window, has a place in a
// pool of its own for the same 16 tokens. So blocks, preemption and lengths need no second
// bookkeeping.
//
// Each step it first runs what a sequence has that it has not run: tokens that the plan names, then
// those that the step sampled. What a rejected guess left in its KV is overwritten by that. Its KV
// of a block that sequences share is the same whoever wrote it.
//
// Needs a device whose ops run at once (Ops::runs_at_once). The executor's worker thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/kv_layout.h"
#include "rudder/exec/slot_table.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// A model that guesses for another, of the same tokens.
struct DraftModel {
  model::ModelSpec spec;
  model::Weights weights;
};

// Its KV beside the model's blocks of `block_size` tokens: all its layers in one group, which keeps
// every token. kUnsupported: layers keep KV in several shapes.
Result<KvLayout> draft_kv_layout(const model::ModelSpec& spec, tensor::DType dtype,
                                 int32_t block_size);

// What it cannot guess for, by name: another number of tokens, fewer positions than `max_seq_len`,
// no KV group of `groups` that keeps every token, a device that does not run ops at once, a rank.
Result<void> check_draft_model(const model::ModelSpec& draft, const model::ModelSpec& model,
                               const step::KvGroups& groups, int32_t max_seq_len, ops::Ops& ops);

class ModelProposer {
 public:
  // `ops` outlives the proposer; `capacity` is the executor's.
  static Result<std::unique_ptr<ModelProposer>> make(DraftModel draft, ops::Ops& ops,
                                                     const step::Capacity& capacity);
  // Device bytes beside weights and KV.
  static int64_t device_bytes(const model::ModelSpec& spec, const step::Capacity& capacity,
                              tensor::DType act);

  // What one sequence of a step needs.
  struct Ask {
    int32_t seq = 0;              // of the step
    int32_t begin = 0;            // position of the first token
    std::vector<int32_t> tokens;  // to run; with num_guess, the last is the one just sampled
    int32_t num_guess = 0;
    const Slot* slot = nullptr;
    std::vector<int32_t> guess = {};  // out
  };
  void run(std::span<Ask> asks);

 private:
  // A part of a sequence in one pass.
  struct Piece {
    const Ask* ask = nullptr;
    int32_t begin = 0;  // position
    std::span<const int32_t> tokens;
    bool wants_logits = false;
  };

  ModelProposer(DraftModel draft, ops::Ops& ops, const step::Capacity& capacity);
  Result<void> prepare();
  void run_tokens(std::span<Ask> asks);
  void guess_on(std::span<Ask> asks);
  void pass(std::span<const Piece> pieces);
  void append_guesses(std::span<Ask*> guessed, const ops::View& logits);
  ops::View put(const ops::View& buffer, std::span<const int32_t> values);

  const DraftModel draft_;
  ops::Ops& ops_;
  const step::Capacity capacity_;
  const size_t group_;  // of the capacity, whose blocks its KV lies beside
  KvLayout layout_;
  std::unique_ptr<model::Decoder> decoder_;  // points into draft_

  // Of one pass. [max_tokens_per_step] and [num_slots (+ 1)] i32
  ops::View ids_, positions_, kv_slot_, q_begin_, kv_len_, table_row_, logits_rows_;
  ops::View block_table_;  // [num_slots, max_blocks] i32
  struct Packed {
    std::vector<int32_t> ids, positions, kv_slot, q_begin, kv_len, table_row, logits_rows;
  };
  Packed packed_;
  std::vector<Piece> pieces_;
  std::vector<Ask*> guessed_;
};

// What the sequences of a plan need, in their order, but for what the step samples.
void list_asks(const step::StepPlan& plan, const SlotTable& slots,
               std::vector<ModelProposer::Ask>& asks);
// Appends what was sampled; row i is of sequence sampled_seq[i], which ascend. A sequence that has
// ended is neither run nor guessed for, and none is guessed for past its last draft.
void add_sampled(std::span<const int32_t> sampled_seq, const ops::SampledToken* sampled,
                 std::span<ModelProposer::Ask> asks);

}  // namespace rudder::exec
