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

using tensor::DType;

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
  caps.keeps_guesses = tree_.tree.empty();
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
         RowPasses::device_bytes(capacity, spec_.hidden, act, num_fetched(capacity));
}

// Of a tree each head's tokens come to the host.
int32_t MedusaProposer::num_fetched(const step::Capacity& capacity) const {
  return tree_.tree.empty() ? 1 : std::max(capacity.drafts.max_draft, 1);
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
  RUDDER_TRY(passes_, RowPasses::make(site, num_fetched(site.capacity)));
  done_ = site.ops.make_event();
  return {};
}

// That guesses the i-th draft of the tree.
int32_t MedusaProposer::head_of(int32_t draft) const {
  return tree_.tree.depth(draft + 1) - 1;
}

Result<Setup> MedusaProposer::enqueue(const DeviceStep& step, std::span<GuessAsk> asks) {
  const int32_t most = passes_->pack(asks);
  if (most == 0) return {};
  RUDDER_TRY(DeviceStep pass, passes_->begin_behind(step));
  heads_->begin(final_rows_, pass.forward.goes_on_rows);
  for (int32_t head = 0; head < most; ++head) {
    pass.sample.logits = heads_->logits(head);
    ops_->sample(pass.sample);
    passes_->keep(pass, head);
  }
  return {};
}

Result<Setup> MedusaProposer::run(std::span<GuessAsk> asks) {
  const int32_t most = passes_->pack(asks);
  if (most == 0) return {};
  PackedStep& packed = passes_->packed;
  packed.any_logprobs = true;
  for (ops::SampleRow& row : packed.sample_rows) {
    row.num_logprobs = num_top_;
    row.max_len = std::numeric_limits<int32_t>::max();  // no guess ends the slot
  }
  RUDDER_TRY(DeviceStep pass, passes_->begin());
  heads_->begin(final_rows_, pass.forward.goes_on_rows);
  for (int32_t head = 0; head <= head_of(most - 1); ++head) {
    pass.sample.logits = heads_->logits(head);
    ops_->sample(pass.sample);
    passes_->buffers().fetch(packed.num_sampled(), packed.any_logprobs, 0, head);
  }
  ops_->record(*done_);
  RUDDER_TRY_VOID(done_->wait());
  size_t index = 0;
  for (GuessAsk& ask : asks) {
    if (ask.num_guess > 0) read_guess(index++, ask);
  }
  return {};
}

// The tokens of the tree's ranks.
void MedusaProposer::read_guess(size_t index, GuessAsk& ask) const {
  for (int32_t draft = 0; draft < ask.num_guess; ++draft) {
    const int32_t head = head_of(draft);
    if (passes_->buffers().sampled(0, head)[index].token < 0) return;  // of numbers that are none
    const auto rank = static_cast<size_t>(tree_.ranks[static_cast<size_t>(draft)]);
    const int32_t token = passes_->buffers().top(0, head)[index * step::kMaxLogprobs + rank].token;
    if (token < 0) return;  // of fewer tokens
    ask.guess.push_back(token);
  }
}

}  // namespace rudder::exec
