#include "rudder/exec/medusa_proposer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/scorer.h"

namespace rudder::exec {
namespace {

using ops::View;
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

Result<std::unique_ptr<MedusaProposer>> MedusaProposer::make(Medusa medusa, ops::Ops& ops,
                                                             const step::Capacity& capacity,
                                                             const View& final_rows) {
  const int32_t deepest =
      medusa.tree.tree.empty() ? capacity.drafts.max_draft : medusa.tree.tree.depth();
  RUDDER_CHECK(medusa.spec.vocab == capacity.vocab_size && capacity.drafts.guesses_from_rows &&
               deepest <= medusa.spec.num_heads && medusa.tree.tree == capacity.drafts.guess_tree);
  std::unique_ptr<MedusaProposer> proposer(new MedusaProposer(std::move(medusa), ops, final_rows));
  RUDDER_TRY(proposer->heads_,
             model::MedusaHeads::make(proposer->medusa_.spec, proposer->medusa_.weights, ops,
                                      capacity.num_slots));
  RUDDER_TRY(proposer->buffers_,
             StepBuffers::make(ops, rows_capacity(capacity), nullptr, StepBuffers::Counts::kNone));
  proposer->done_ = ops.make_event();
  return proposer;
}

int64_t MedusaProposer::device_bytes(const model::MedusaSpec& spec, const step::Capacity& capacity,
                                     DType act, ops::Rank rank) {
  return model::MedusaHeads::device_bytes(spec, capacity.num_slots, act, rank) +
         StepBuffers::device_bytes(rows_capacity(capacity), StepBuffers::Counts::kNone) +
         int64_t{max_logits_rows(capacity)} * spec.hidden *
             static_cast<int64_t>(tensor::dtype_bytes(act));
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
  const step::DraftTree& tree = medusa_.tree.tree;
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
    ops_.sample(step.sample);
    buffers_->fetch(packed_.num_sampled(), packed_.any_logprobs, 0, head);
  }
  ops_.record(*done_);
  RUDDER_TRY_VOID(done_->wait());
  for (size_t i = 0; i < guessed_.size(); ++i) read_guess(i, *guessed_[i]);
  return {};
}

void MedusaProposer::read_guess(size_t index, GuessAsk& ask) const {
  for (int32_t draft = 0; draft < ask.num_guess; ++draft) {
    const int32_t head = head_of(draft);
    int32_t token = buffers_->sampled(0, head)[index].token;
    if (token >= 0 && !medusa_.tree.ranks.empty()) {
      const auto rank = static_cast<size_t>(medusa_.tree.ranks[static_cast<size_t>(draft)]);
      token = buffers_->top(0, head)[index * step::kMaxLogprobs + rank].token;
    }
    if (token < 0) return;  // of numbers that are none, or of fewer tokens
    ask.guess.push_back(token);
  }
}

}  // namespace rudder::exec
