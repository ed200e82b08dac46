#include "rudder/exec/assistant_proposer.h"

#include <algorithm>
#include <limits>

#include "rudder/base/check.h"
#include "rudder/exec/scorer.h"

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
          .max_repeat = std::max(capacity.max_draft, 1),
          .max_draft = 0,
          .kv_groups = capacity.kv_groups};
}

View as_column(View view) {
  view.shape = {view.shape.numel(), 1};
  return view;
}

}  // namespace

Result<std::unique_ptr<AssistantProposer>> AssistantProposer::make(AssistantDraft draft,
                                                                   ops::Ops& ops,
                                                                   const step::Capacity& capacity,
                                                                   const StepRows& read) {
  RUDDER_CHECK(draft.spec.layers.vocab == capacity.vocab_size && capacity.guesses_from_rows &&
               capacity.guess_tree.empty());
  std::unique_ptr<AssistantProposer> proposer(new AssistantProposer(std::move(draft), ops, read));
  const AssistantDraft& own = proposer->draft_;
  RUDDER_TRY(proposer->assistant_,
             model::Assistant::make(own.spec, own.weights, own.source, ops, capacity.num_slots,
                                    capacity.max_seq_len));
  RUDDER_TRY(proposer->buffers_,
             StepBuffers::make(ops, pass_capacity(capacity), nullptr, StepBuffers::Counts::kNone));
  proposer->done_ = ops.make_event();
  return proposer;
}

int64_t AssistantProposer::device_bytes(const model::AssistantSpec& spec,
                                        const step::Capacity& capacity, DType act, ops::Rank rank) {
  return model::Assistant::device_bytes(spec, capacity.num_slots, capacity.max_seq_len, act, rank) +
         StepBuffers::device_bytes(pass_capacity(capacity), StepBuffers::Counts::kNone) +
         int64_t{max_logits_rows(capacity)} * spec.target_hidden *
             static_cast<int64_t>(tensor::dtype_bytes(act));
}

// The last token of each sequence, at its position, over the KV of those before it.
void AssistantProposer::pack(std::span<GuessAsk> asks) {
  packed_.clear();
  packed_.kv_slot.resize(static_cast<size_t>(read_.num_groups));
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
    packed_.goes_on_rows.push_back(ask.logits_row);
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

// The tokens of the next pass are those that the slots have sampled.
void AssistantProposer::take_sampled(const DeviceStep& step) {
  ops_.gather_rows({.x = as_column(buffers_->state().carry),
                    .rows = step.forward.attention.table_row,
                    .out = as_column(step.forward.ids)});
}

Result<Setup> AssistantProposer::run(std::span<GuessAsk> asks) {
  pack(asks);
  if (guessed_.empty()) return {};
  const auto most = std::ranges::max(guessed_, {}, &GuessAsk::num_guess)->num_guess;
  RUDDER_TRY(DeviceStep step, buffers_->begin(packed_, 0));
  step.forward.attention.block_table = read_.block_table;
  step.forward.attention.group_rows = read_.group_rows;
  assistant_->begin(read_.final_rows, step.forward.goes_on_rows);
  for (int32_t i = 0; i < most; ++i) {
    if (i > 0) take_sampled(step);
    step.sample.logits = assistant_->logits(step.forward);
    ops_.sample(step.sample);
    buffers_->fetch(packed_.num_sampled(), packed_.any_logprobs, 0, i);
  }
  ops_.record(*done_);
  RUDDER_TRY_VOID(done_->wait());
  for (size_t i = 0; i < guessed_.size(); ++i) {
    for (int32_t draft = 0; draft < guessed_[i]->num_guess; ++draft) {
      const int32_t token = buffers_->sampled(0, draft)[i].token;
      if (token < 0) break;  // of numbers that are none
      guessed_[i]->guess.push_back(token);
    }
  }
  return Setup{};
}

}  // namespace rudder::exec
