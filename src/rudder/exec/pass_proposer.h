// PassProposer: a proposer that is a decoder of its own beside the model's: a draft model
// (model_proposer.h) or a draft head (head_proposer.h). Behind the verify of a step it runs the
// tokens that the step gave its sequences, then guesses what follows them, greedily. The executor's
// worker thread uses it.
//
// The proposer keeps KV of its own. It lies beside the model's: block b of the pool, of one KV
// group without a window, has a twin in the proposer's pool for the same 16 tokens. So blocks,
// preemption and lengths need no second bookkeeping.
//
// In each step the proposer first runs the tokens of a sequence that it has not run: those that the
// plan names, then those that the step sampled. These overwrite what a rejected guess left in the
// proposer's KV. The proposer's KV of a block that sequences share is the same, whichever sequence
// wrote it.
//
// A draft head runs the pair of a token and the token behind it at the position of the first, from
// rows that the model's decoder keeps in the same blocks. So it runs token p at position p - 1, and
// the first token of a sequence alone is not run. The last pair of a block belongs to a token
// behind the block: where sequences that share the block go on differently, the pair is of the
// sequence that wrote it last.
//
// The guesses of a chain are iterations of one pass of single tokens, as those of a repeated step:
// the device hands each token to the next iteration. The proposer has buffers and a state of slots
// of its own. Passes that come again are replayed from graphs (graphs.h).
//
// Chains stay in the slots of the model (DraftCaps::keeps_guesses), and nothing waits for the host:
// what a step samples, and how many of its drafts were right, the device knows. Behind the tokens
// that the plan names, the proposer runs the last tokens of a sequence, wherever it ends
// (ops/tail_args.h). To run a token again leaves the same KV. The last guess of a chain, which was
// not run, and the token behind it are two; so a draft model runs two. A draft head runs every
// token that the step may have given, since its KV of a guess is made from other rows.
//
// A proposer may guess a tree behind a step whose tokens are on the host, depth by depth
// (guess_tree.cpp). The pass of a depth runs every
// guess down to that depth that other guesses follow. Each guess sees its path, and the pass has
// logits of the last depth alone: the tree names the ranks of the tokens that follow a row of
// logits. A pass runs again what earlier passes ran, where its KV lies already. So it needs nothing
// of the pass before it but, of a draft head, the rows that guesses go on from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/graphs.h"
#include "rudder/exec/kv_layout.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/pass_packer.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/exec/tail_passes.h"
#include "rudder/exec/tree_passes.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/step/draft_tree.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// A proposer's KV beside the model's blocks of `block_size` tokens: all its layers in one group,
// which keeps every token. kUnsupported: layers keep KV in several shapes.
Result<KvLayout> draft_kv_layout(const model::ModelSpec& spec, const ops::KvFormat& kv,
                                 int32_t block_size);

// What a draft model or head cannot guess for, by name: another number of tokens, fewer positions
// than `max_seq_len`, no KV group of `groups` that keeps every token.
Result<void> check_draft_model(const model::ModelSpec& draft, const model::ModelSpec& model,
                               const step::KvGroups& groups, int32_t max_seq_len);

class PassProposer : public DraftSource {
 public:
  void describe(step::DraftCaps& caps) const override {
    caps.guess_tree = tree_.tree;
    caps.keeps_guesses = tree_.tree.empty();
  }
  Result<void> check_model(const model::ModelSpec& model, const step::KvGroups& groups,
                           int32_t max_seq_len) const override;
  int64_t device_bytes(const step::Capacity& capacity, tensor::DType act,
                       ops::Rank rank) const override;
  Result<int64_t> block_bytes(const ops::KvFormat& kv, tensor::DType act,
                              int32_t block_size) const override;

  Result<void> bind(const DraftSite& site) override;
  void follow(const DeviceStep& step) override { keep_tokens(*ops_, step); }
  Result<Setup> enqueue(const DeviceStep& step, std::span<GuessAsk> asks) override;
  Result<Setup> run(std::span<GuessAsk> asks) override;

 protected:
  // `tree` is what it guesses; empty: chains.
  explicit PassProposer(step::RankedTree tree) : tree_(std::move(tree)) {}

  // The layers that its passes run, of the rank's part.
  virtual const model::ModelSpec& layers() const = 0;
  // Whether it is a draft head: its passes read and leave rows that guesses go on from, and a
  // token is run one position before its own.
  virtual bool is_head() const = 0;
  // The decoder of its passes, over its KV; `num_feedback` rows that guesses of a head go on from.
  virtual Result<std::unique_ptr<model::Decoder>> make_decoder(const DraftSite& site,
                                                               std::span<const ops::KvLayer> kv,
                                                               const model::DecoderLimits& limits,
                                                               int32_t num_feedback) const = 0;
  // Device bytes that make_decoder() allocates.
  virtual int64_t decoder_bytes(const model::DecoderLimits& limits, int32_t num_feedback,
                                tensor::DType act, ops::Rank rank) const = 0;

 private:
  // Of its steps behind tokens that the host has: one of tokens, and behind it one of guesses.
  static constexpr size_t kTokens = 0;
  static constexpr size_t kGuesses = 1;
  static constexpr int32_t kFlights = 2;

  // Whose row of logits it is: the guesses behind a row of its tree, or behind its last token.
  struct Sampled {
    GuessAsk* ask = nullptr;
    int32_t row = 0;
  };

  step::Capacity own_capacity(const step::Capacity& capacity, step::KvGroups groups) const;
  // How far before a token's position it is run.
  int32_t shift() const { return is_head() ? 1 : 0; }
  Result<void> run_tokens(std::span<GuessAsk> asks);
  Result<void> guess_trees(std::span<GuessAsk> asks);
  Result<void> guess_depth(std::span<GuessAsk* const> asks, int32_t depth);
  void add_guesses(GuessAsk& ask, int32_t depth);
  int32_t feedback_row(const GuessAsk& ask, int32_t row) const;
  Result<void> flush_tokens(bool is_last);
  Result<void> run_pass(size_t flight, size_t num_rows);
  void add_sample_row(const Sampled& sampled, int32_t slot);
  Result<void> wait();
  void read(size_t flight, std::span<const Sampled> sampled) const;
  void read_children(const Sampled& sampled, const ops::SampledToken& likeliest,
                     const ops::TopLogprob* top) const;

  const step::RankedTree tree_;

  // Once bound.
  ops::Ops* ops_ = nullptr;
  step::Capacity capacity_;                  // of its own steps
  TreePasses passes_;                        // of a tree
  std::unique_ptr<model::Decoder> decoder_;  // points into this
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<Graphs> graphs_;     // points into both; none where every pass runs op by op
  std::unique_ptr<TailPasses> tails_;  // points into all these; where guesses stay in the slots
  std::unique_ptr<ops::Event> done_;
  Setup setup_;  // of the last run

  PassPacker packer_;
  std::vector<Sampled> first_guessed_;  // rows of the last step of tokens
  std::vector<Sampled> guessed_;        // rows of the step of guesses
};

}  // namespace rudder::exec
