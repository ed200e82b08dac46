#include "rudder/exec/assistant_proposer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/scorer.h"
#include "rudder/model/loader.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;

// Of its passes: a token a sequence, and nothing that clients ask for. Block tables are the
// model's.
step::Capacity pass_capacity(const step::Capacity& capacity) {
  return {.num_slots = capacity.num_slots,
          .num_blocks = 1,
          .block_size = capacity.block_size,
          .max_tokens_per_step = capacity.num_slots,
          .max_seq_len = capacity.block_size,
          .vocab_size = capacity.vocab_size,
          .max_in_flight = 1,
          .max_repeat = std::max(capacity.drafts.max_draft, 1),
          .kv_groups = capacity.kv_groups};
}

View as_column(View view) {
  view.shape = {view.shape.numel(), 1};
  return view;
}

}  // namespace

Result<std::unique_ptr<DraftSource>> AssistantProposer::read(const StepLimits& limits,
                                                             const model::ModelSpec& target) {
  Result<model::AssistantSpec> spec = model::read_assistant(*limits.draft_model);
  if (!spec) return of_draft(spec.error());
  if (!limits.draft_tree.tree.empty()) {
    return fail(ErrorCode::kUnsupported, "an assistant guesses chains alone",
                "speculative-config.speculative_token_tree");
  }
  RUDDER_TRY_VOID(model::fit_assistant(target, *spec));
  auto source = std::make_unique<AssistantProposer>(*std::move(spec), model::AssistantWeights());
  source->checkpoint_ = limits.draft_model;
  return source;
}

Result<void> AssistantProposer::check_device(ops::Ops& ops, const model::Stage& /*stage*/) const {
  return check_runs_heads(ops);
}

Result<void> AssistantProposer::check_model(const model::ModelSpec& /*model*/,
                                            const step::KvGroups& /*groups*/,
                                            int32_t max_seq_len) const {
  return check_positions(spec_.layers, max_seq_len);
}

Result<void> AssistantProposer::join(std::vector<model::Stage>& stages) const {
  return model::join_assistant(spec_, stages);
}

Result<int64_t> AssistantProposer::weight_bytes(ops::Ops& ops) const {
  return model::assistant_bytes(spec_, model::stored_formats(*checkpoint_, ops), ops::rank_of(ops));
}

int64_t AssistantProposer::device_bytes(const step::Capacity& capacity, DType act,
                                        ops::Rank rank) const {
  return model::Assistant::device_bytes(spec_, capacity.num_slots, capacity.max_seq_len, act,
                                        rank) +
         StepBuffers::device_bytes(pass_capacity(capacity), StepBuffers::Counts::kNone) +
         capacity.num_slots * int64_t{sizeof(int32_t)} +
         int64_t{max_logits_rows(capacity)} * spec_.target_hidden *
             static_cast<int64_t>(tensor::dtype_bytes(act));
}

Result<void> AssistantProposer::shard(ops::Rank rank) {
  RUDDER_TRY(spec_, model::shard_assistant(spec_, rank));
  return {};
}

Result<void> AssistantProposer::load(ops::Ops& ops) {
  Result<model::AssistantWeights> weights = model::load_assistant(*checkpoint_, spec_, ops);
  if (!weights) return of_draft(weights.error());
  weights_ = *std::move(weights);
  checkpoint_ = nullptr;
  return {};
}

Result<void> AssistantProposer::bind(const DraftSite& site) {
  RUDDER_CHECK(spec_.layers.vocab == site.capacity.vocab_size);
  ops_ = &site.ops;
  final_rows_ = site.sampled_rows;
  block_table_ = site.slots.block_table;
  group_rows_ = site.capacity.num_slots + 1;
  num_groups_ = site.capacity.kv_groups.size();
  const model::AssistantSource source =
      model::assistant_source(spec_, site.spec, site.weights, site.kv);
  RUDDER_TRY(assistant_,
             model::Assistant::make(spec_, weights_, source, site.ops, site.capacity.num_slots,
                                    site.capacity.max_seq_len));
  RUDDER_TRY(buffers_, StepBuffers::make(site.ops, pass_capacity(site.capacity), nullptr,
                                         StepBuffers::Counts::kNone));
  RUDDER_TRY_VOID(name_slots(site.capacity.num_slots));
  done_ = site.ops.make_event();
  if (site.has_graphs && site.ops.graph_ops() != nullptr) {
    step::Capacity passes = pass_capacity(site.capacity);
    passes.max_seq_len = site.capacity.max_seq_len;
    graphs_ =
        std::make_unique<Graphs>(site.ops, passes, bind_passes(site.ops, *assistant_, passes));
  }
  return {};
}

Result<void> AssistantProposer::name_slots(int32_t num_slots) {
  std::vector<int32_t> names(static_cast<size_t>(num_slots));
  std::iota(names.rbegin(), names.rend(), -num_slots);
  RUDDER_TRY(slots_, ops_->upload({names.data(), DType::kI32, {num_slots, 1}}, DType::kI32));
  return {};
}

// The last token of each sequence, at its position, over the KV of those before it.
void AssistantProposer::pack(std::span<GuessAsk> asks) {
  packed_.clear();
  packed_.kv_slot.resize(static_cast<size_t>(num_groups_));
  packed_.max_q_len = 1;
  guessed_.clear();
  for (GuessAsk& ask : asks) {
    if (ask.num_guess == 0) continue;
    RUDDER_CHECK(ask.logits_row >= 0, "sequence {} sampled nothing", ask.seq);
    const int32_t position = ask.end() - 1;
    ops::SampleRow row;
    row.slot = ask.id.value;
    row.temperature = 0;
    row.max_len = std::numeric_limits<int32_t>::max();  // no guess ends the slot
    packed_.edits.opened.push_back({.slot = row.slot, .has_counts = 0});
    packed_.guesses.goes_on_rows.push_back(ask.logits_row);
    packed_.logits_rows.push_back(static_cast<int32_t>(packed_.ids.size()));
    packed_.sample_rows.push_back(row);
    packed_.ids.push_back(ask.tokens.back());
    packed_.positions.push_back(position);
    for (std::vector<int32_t>& slots : packed_.kv_slot) slots.push_back(-1);
    packed_.q_begin.push_back(static_cast<int32_t>(packed_.ids.size()));
    packed_.kv_len.push_back(position);
    packed_.table_row.push_back(ask.id.value);
    packed_.max_kv_len = std::max(packed_.max_kv_len, position);
    guessed_.push_back(&ask);
  }
}

// The tokens of the next pass are those that the slots have sampled; padding keeps its own.
void AssistantProposer::take_sampled(const DeviceStep& step) {
  const int64_t count = std::ssize(guessed_);
  const View ids = step.forward.ids.rows(0, count);
  ops_->gather_rows({.x = slots_,
                     .rows = step.forward.attention.table_row.rows(0, count),
                     .out = as_column(ids)});
  ops::BeginStepArgs args;
  args.state = buffers_->state();
  args.ids = ids;
  args.kv_slot = step.forward.kv_slot.rows(0, count);  // -1 already
  ops_->begin_step(args);
}

Result<Setup> AssistantProposer::run(std::span<GuessAsk> asks) {
  pack(asks);
  if (guessed_.empty()) return {};
  const auto most = std::ranges::max(guessed_, {}, &GuessAsk::num_guess)->num_guess;
  Setup setup;
  const bool is_captured = graphs_ != nullptr && graphs_->pad(packed_, setup);
  RUDDER_TRY(DeviceStep step, buffers_->begin(packed_, 0));
  step.forward.attention.block_table = block_table_;
  step.forward.attention.group_rows = group_rows_;
  if (is_captured) RUDDER_TRY_VOID(graphs_->capture(step, setup));
  assistant_->pick(final_rows_, step.forward.goes_on_rows);
  for (int32_t i = 0; i < most; ++i) {
    if (i > 0) take_sampled(step);
    if (is_captured) {
      graphs_->replay(step);
    } else {
      step.sample.logits = assistant_->forward(step.forward);
      ops_->sample(step.sample);
    }
    buffers_->fetch(std::ssize(guessed_), false, 0, i);
  }
  ops_->record(*done_);
  RUDDER_TRY_VOID(done_->wait());
  for (size_t i = 0; i < guessed_.size(); ++i) {
    for (int32_t draft = 0; draft < guessed_[i]->num_guess; ++draft) {
      const int32_t token = buffers_->sampled(0, draft)[i].token;
      if (token < 0) break;  // of numbers that are none
      guessed_[i]->guess.push_back(token);
    }
  }
  return setup;
}

}  // namespace rudder::exec
