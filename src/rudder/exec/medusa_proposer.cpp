#include "rudder/exec/medusa_proposer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/scorer.h"
#include "rudder/model/loader.h"

namespace rudder::exec {
namespace {

using tensor::DType;

// Of its steps: a row a sequence, sampled once for each head, and nothing that clients ask for.
step::Capacity rows_capacity(const step::Capacity& capacity) {
  return {.num_slots = capacity.num_slots,
          .num_blocks = 1,
          .block_size = capacity.block_size,
          .max_tokens_per_step = capacity.num_slots,
          .max_seq_len = capacity.block_size,
          .vocab_size = capacity.vocab_size,
          .max_in_flight = 1,
          .max_repeat =
              std::max(capacity.drafts.max_draft, 1)};  // heads, no more than there are drafts
}

}  // namespace

MedusaProposer::MedusaProposer(const model::MedusaSpec& spec, model::MedusaWeights weights,
                               step::RankedTree tree)
    : spec_(spec), weights_(std::move(weights)), tree_(std::move(tree)) {
  for (const int32_t rank : tree_.ranks) num_top_ = std::max(num_top_, rank + 1);
}

Result<std::unique_ptr<DraftSource>> MedusaProposer::read(const StepLimits& limits,
                                                          const model::ModelSpec& target) {
  Result<model::MedusaSpec> spec = model::read_medusa(*limits.draft_model);
  if (!spec) return of_draft(spec.error());
  const int32_t depth = limits.draft_tree.tree.depth();
  if (depth > spec->num_heads) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the tree is {} deep, there are {} heads, one a token", depth, spec->num_heads),
        "speculative-config.speculative_token_tree");
  }
  RUDDER_TRY_VOID(model::fit_medusa(target, depth > 0 ? depth : limits.max_draft, *spec));
  auto source = std::make_unique<MedusaProposer>(*spec, model::MedusaWeights(), limits.draft_tree);
  source->checkpoint_ = limits.draft_model;
  return source;
}

void MedusaProposer::describe(step::DraftCaps& caps) const {
  caps.guesses_from_rows = true;
  caps.guess_tree = tree_.tree;
}

Result<void> MedusaProposer::check_device(ops::Ops& ops, const model::Stage& /*stage*/) const {
  return check_runs_heads(ops);
}

Result<int64_t> MedusaProposer::weight_bytes(ops::Ops& ops) const {
  return model::medusa_bytes(spec_, model::stored_formats(*checkpoint_, ops), ops::rank_of(ops));
}

int64_t MedusaProposer::device_bytes(const step::Capacity& capacity, DType act,
                                     ops::Rank rank) const {
  return model::MedusaHeads::device_bytes(spec_, capacity.num_slots, act, rank) +
         StepBuffers::device_bytes(rows_capacity(capacity), StepBuffers::Counts::kNone) +
         int64_t{max_logits_rows(capacity)} * spec_.hidden *
             static_cast<int64_t>(tensor::dtype_bytes(act));
}

// Of heads there is no part: a rank has columns of their weights.
Result<void> MedusaProposer::shard(ops::Rank rank) {
  return model::check_medusa_shares(spec_, rank);
}

Result<void> MedusaProposer::load(ops::Ops& ops) {
  Result<model::MedusaWeights> weights = model::load_medusa(*checkpoint_, spec_, ops);
  if (!weights) return of_draft(weights.error());
  weights_ = *std::move(weights);
  checkpoint_ = nullptr;
  return {};
}

Result<void> MedusaProposer::bind(const DraftSite& site) {
  const int32_t deepest = tree_.tree.empty() ? site.capacity.drafts.max_draft : tree_.tree.depth();
  RUDDER_CHECK(spec_.vocab == site.capacity.vocab_size && deepest <= spec_.num_heads);
  ops_ = &site.ops;
  final_rows_ = site.sampled_rows;
  RUDDER_TRY(heads_, model::MedusaHeads::make(spec_, weights_, site.ops, site.capacity.num_slots));
  RUDDER_TRY(buffers_, StepBuffers::make(site.ops, rows_capacity(site.capacity), nullptr,
                                         StepBuffers::Counts::kNone));
  done_ = site.ops.make_event();
  return {};
}

void MedusaProposer::pack(std::span<GuessAsk> asks) {
  packed_.clear();
  packed_.kv_slot.resize(1);
  packed_.any_logprobs = num_top_ > 0;
  guessed_.clear();
  for (GuessAsk& ask : asks) {
    if (ask.num_guess == 0) continue;
    RUDDER_CHECK(ask.logits_row >= 0, "sequence {} sampled nothing", ask.seq);
    ops::SampleRow row;
    row.slot = ask.id.value;
    row.temperature = 0;
    row.max_len = std::numeric_limits<int32_t>::max();  // no guess ends the slot
    row.num_logprobs = num_top_;
    packed_.edits.opened.push_back({.slot = row.slot, .has_counts = 0});
    packed_.logits_rows.push_back(ask.logits_row);
    packed_.sample_rows.push_back(row);
    guessed_.push_back(&ask);
  }
}

// That guesses the i-th draft.
int32_t MedusaProposer::head_of(int32_t draft) const {
  const step::DraftTree& tree = tree_.tree;
  return (tree.empty() ? draft + 1 : tree.depth(draft + 1)) - 1;
}

Result<Setup> MedusaProposer::run(std::span<GuessAsk> asks) {
  pack(asks);
  if (guessed_.empty()) return {};
  const auto most = std::ranges::max(guessed_, {}, &GuessAsk::num_guess)->num_guess;
  RUDDER_TRY(DeviceStep step, buffers_->begin(packed_, 0));
  heads_->begin(final_rows_, step.forward.logits_rows);
  for (int32_t head = 0; head <= head_of(most - 1); ++head) {
    step.sample.logits = heads_->logits(head);
    ops_->sample(step.sample);
    buffers_->fetch(packed_.num_sampled(), packed_.any_logprobs, 0, head);
  }
  ops_->record(*done_);
  RUDDER_TRY_VOID(done_->wait());
  for (size_t i = 0; i < guessed_.size(); ++i) read_guess(i, *guessed_[i]);
  return {};
}

void MedusaProposer::read_guess(size_t index, GuessAsk& ask) const {
  for (int32_t draft = 0; draft < ask.num_guess; ++draft) {
    const int32_t head = head_of(draft);
    int32_t token = buffers_->sampled(0, head)[index].token;
    if (token >= 0 && !tree_.ranks.empty()) {
      const auto rank = static_cast<size_t>(tree_.ranks[static_cast<size_t>(draft)]);
      token = buffers_->top(0, head)[index * step::kMaxLogprobs + rank].token;
    }
    if (token < 0) return;  // of numbers that are none, or of fewer tokens
    ask.guess.push_back(token);
  }
}

}  // namespace rudder::exec
