// ModelProposer: the executor's own proposer of drafts: a second, smaller decoder that runs the
// sequences' tokens behind the verify of a step and guesses what follows them, greedily. Its KV
// lies beside the model's: block b of the pool, of one KV group without a window, has a twin in a
// pool of its own for the same 16 tokens. So blocks, preemption and lengths need no second
// bookkeeping.
//
// Each step it first runs what a sequence has that it has not run: tokens that the plan names, then
// those that the step sampled. What a rejected guess left in its KV is overwritten by that. Its KV
// of a block that sequences share is the same whoever wrote it.
//
// A draft head (model/draft_head.h) takes the place of a second decoder: it runs the pair of a
// token and the one behind it at the position of the first, from rows that the model's decoder
// keeps in the same blocks. So token p is run at position p - 1, and the first token of a sequence
// alone is not. The last pair of a block belongs to a token behind the block: where sequences that
// share the block go on differently, that one pair is of the one that wrote it last.
//
// Guesses are iterations of one pass of single tokens, as `repeat` has them: the device hands each
// token to the next iteration, and the host waits once, for all of them. The device's state of
// slots is the proposer's own. Passes that come again are replayed from graphs (pass_graphs.h). The
// executor's worker thread uses it.
//
// Both may guess a tree, depth by depth (guess_tree.cpp). The pass of a depth runs all guesses up
// to it that are followed by others, each of which sees its path, and has the logits of the last
// depth alone: of a row of logits the tokens of the ranks that the tree names follow. Where its KV
// lies a pass runs anew what is in KV there, so that a pass needs nothing of the one before but, of
// a head, the rows that guesses go on from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/assistant_proposer.h"
#include "rudder/exec/kv_layout.h"
#include "rudder/exec/medusa_proposer.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/pass_graphs.h"
#include "rudder/exec/proposer.h"
#include "rudder/exec/slot_table.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/exec/tree_passes.h"
#include "rudder/model/decoder.h"
#include "rudder/model/draft_head.h"
#include "rudder/model/head_decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// A draft head that fits its model (fit_draft_head).
struct DraftHead {
  model::DraftHeadSpec spec;
  model::DraftHeadWeights weights;
  model::HeadSource source = {};  // set by the executor
};

// What guesses for a model: another one of the same tokens, a draft head, Medusa heads, or an
// assistant. On a rank its part of that.
struct DraftModel {
  model::ModelSpec spec;  // of a draft head: its layer; of those that guess from rows: nothing
  model::Weights weights;
  std::optional<DraftHead> head = {};            // then there are no weights
  std::optional<Medusa> medusa = {};             // likewise
  std::optional<AssistantDraft> assistant = {};  // likewise
  // What a model or a draft head guesses, DraftCaps::guess_tree; empty: chains.
  step::RankedTree tree = {};

  // DraftCaps::guesses_from_rows.
  bool guesses_from_rows() const { return medusa.has_value() || assistant.has_value(); }
};

// Its KV beside the model's blocks of `block_size` tokens: all its layers in one group, which keeps
// every token. kUnsupported: layers keep KV in several shapes.
Result<KvLayout> draft_kv_layout(const model::ModelSpec& spec, tensor::DType dtype,
                                 int32_t block_size);

// What it cannot guess for, by name: another number of tokens, fewer positions than `max_seq_len`,
// no KV group of `groups` that keeps every token.
Result<void> check_draft_model(const model::ModelSpec& draft, const model::ModelSpec& model,
                               const step::KvGroups& groups, int32_t max_seq_len);
// That it was made for sequences of so many tokens.
Result<void> check_positions(const model::ModelSpec& draft, int32_t max_seq_len);
// kUnsupported: the backend runs no draft heads.
Result<void> check_runs_heads(ops::Ops& ops);

// Where the decoder of `model` keeps what `head` reads; null: the head is on another stage, or
// there is none. Device bytes of it beside one block; what stages pass on, Handover::device_bytes
// has.
Result<model::HiddenPool> make_hidden_pool(const model::ModelSpec& model,
                                           const model::DraftHeadSpec* head, ops::Ops& ops,
                                           const step::Capacity& capacity);
int64_t hidden_block_bytes(const model::DraftHeadSpec& head, tensor::DType act, int32_t block_size);

class ModelProposer final : public Proposer {
 public:
  // `ops` outlives the proposer; `capacity` is the executor's. `has_graphs`: where the device has
  // them, passes are captured when they come back.
  static Result<std::unique_ptr<ModelProposer>> make(DraftModel draft, ops::Ops& ops,
                                                     const step::Capacity& capacity,
                                                     bool has_graphs);
  // Device bytes beside weights and KV.
  static int64_t device_bytes(const model::ModelSpec& spec, const model::DraftHeadSpec* head,
                              const step::Capacity& capacity, tensor::DType act,
                              ops::Rank rank = {});

  Result<Setup> run(std::span<GuessAsk> asks) override;

 private:
  // Of its steps: one of tokens, and behind it one of guesses.
  static constexpr size_t kTokens = 0;
  static constexpr size_t kGuesses = 1;
  static constexpr int32_t kFlights = 2;

  // Whose row of logits it is: the guesses behind a row of its tree, or behind its last token.
  struct Sampled {
    GuessAsk* ask = nullptr;
    int32_t row = 0;
  };
  // Of a slot's blocks, those that the device's table has.
  struct Written {
    uint32_t generation = 0;
    size_t num_blocks = 0;
  };

  ModelProposer(DraftModel draft, ops::Ops& ops, const step::Capacity& capacity,
                const step::Capacity& own);
  static step::Capacity own_capacity(const step::Capacity& capacity, step::KvGroups groups);
  Result<void> prepare(KvLayout layout, bool has_graphs);
  // How far before a token's position it is run.
  int32_t shift() const { return draft_.head ? 1 : 0; }
  Result<void> run_tokens(std::span<GuessAsk> asks);
  Result<void> guess_on(std::span<GuessAsk> asks);
  Result<void> guess_trees(std::span<GuessAsk> asks);
  Result<void> guess_depth(std::span<GuessAsk* const> asks, int32_t depth);
  void add_guesses(GuessAsk& ask, int32_t depth);
  const step::RankedTree& tree() const { return draft_.tree; }
  int32_t feedback_row(const GuessAsk& ask, int32_t row) const;
  Result<void> flush_tokens(bool is_last);
  Result<void> run_pass(size_t flight, int32_t num_iterations, size_t num_rows);
  void open(const GuessAsk& ask);
  void add_tokens(const GuessAsk& ask, int32_t begin, std::span<const int32_t> tokens);
  void add_kv_slot(const GuessAsk& ask, int32_t offset);
  void add_sequence(const GuessAsk& ask, int32_t num_tokens, int32_t kv_len);
  void add_sample_row(const Sampled& sampled, int32_t slot);
  void clear();
  Result<void> wait();
  void read(size_t flight, int32_t iteration, std::span<const Sampled> sampled) const;
  void read_children(const Sampled& sampled, const ops::SampledToken& likeliest,
                     const ops::TopLogprob* top) const;

  const DraftModel draft_;
  ops::Ops& ops_;
  const size_t group_;             // of the executor's capacity, whose blocks its KV lies beside
  const step::Capacity capacity_;  // of its own steps
  const TreePasses passes_;        // of a tree
  std::unique_ptr<model::Decoder> decoder_;  // points into draft_
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<PassGraphs> graphs_;  // points into both; none where every pass runs op by op
  std::unique_ptr<ops::Event> done_;
  std::vector<Written> written_;  // by slot
  Setup setup_;                   // of the last run

  PackedStep packed_;
  std::vector<Sampled> first_guessed_;  // rows of the last step of tokens
  std::vector<Sampled> guessed_;        // rows of the step of guesses
};

// Of what guesses. `read` is for those that guess from rows, `has_graphs` as in
// ModelProposer::make.
Result<std::unique_ptr<Proposer>> make_proposer(DraftModel draft, ops::Ops& ops,
                                                const step::Capacity& capacity,
                                                const StepRows& read, bool has_graphs);

}  // namespace rudder::exec
