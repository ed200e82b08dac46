#include "rudder/exec/pack.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

void clear(PackedStep& packed, size_t num_seqs) {
  packed.ids.clear();
  packed.positions.clear();
  packed.kv_slot.clear();
  packed.q_begin.assign(1, 0);
  packed.kv_len.clear();
  packed.logits_rows.clear();
  packed.sampled.clear();
  packed.is_masked.assign(num_seqs, false);
}

void pack_tokens(const step::StepPlan& plan, const step::SeqWork& work, int32_t vocab_size,
                 const Slot& slot, PackedStep& packed) {
  if (work.tokens == step::TokenSource::kCarry) {
    packed.ids.push_back(slot.carry);
    return;
  }
  RUDDER_CHECK(work.token_begin >= 0 && int64_t{work.token_begin} + work.q_len <=
                                            static_cast<int64_t>(plan.tokens.size()),
               "tokens {} + {} of {}", work.token_begin, work.q_len, plan.tokens.size());
  const auto begin = plan.tokens.begin() + work.token_begin;
  for (auto token = begin; token != begin + work.q_len; ++token) {
    RUDDER_CHECK(*token >= 0 && *token < vocab_size, "token {}", *token);
    packed.ids.push_back(*token);
  }
}

}  // namespace

model::ForwardBatch PackedStep::batch() const {
  model::ForwardBatch batch;
  batch.ids = ids;
  batch.positions = positions;
  batch.kv_slot = kv_slot;
  batch.attention = {
      .q_begin = q_begin, .kv_len = kv_len, .block_table = block_table, .max_blocks = max_blocks};
  batch.logits_rows = logits_rows;
  return batch;
}

void pack_step(const step::StepPlan& plan, const step::Capacity& capacity, SlotTable& slots,
               PackedStep& packed) {
  const int32_t block_size = capacity.block_size;
  for (const step::SlotEdit& edit : plan.slots) slots.apply(edit);
  clear(packed, plan.seqs.size());

  std::vector<const Slot*>& rows = packed.slots;
  rows.clear();
  for (size_t i = 0; i < plan.seqs.size(); ++i) {
    const step::SeqWork& work = plan.seqs[i];
    Slot* slot = slots.begin_row(work, plan.id);
    if (slot == nullptr) {
      packed.is_masked[i] = true;
      continue;
    }
    rows.push_back(slot);
    pack_tokens(plan, work, capacity.vocab_size, *slot, packed);
    for (int32_t position = work.kv_len; position < slot->kv_len; ++position) {
      const step::BlockId block = slot->blocks[static_cast<size_t>(position / block_size)];
      packed.positions.push_back(position);
      packed.kv_slot.push_back(block * block_size + position % block_size);
    }
    packed.q_begin.push_back(static_cast<int32_t>(packed.ids.size()));
    packed.kv_len.push_back(slot->kv_len);
    if (work.logits == step::LogitsWanted::kLast) {
      packed.logits_rows.push_back(packed.q_begin.back() - 1);
      packed.sampled.push_back({.seq = i, .slot = slot, .position = slot->kv_len});
    }
  }
  RUDDER_CHECK(static_cast<int64_t>(packed.ids.size()) <= capacity.max_tokens_per_step,
               "{} tokens in a step of at most {}", packed.ids.size(),
               capacity.max_tokens_per_step);

  packed.max_blocks = 1;
  for (const int32_t kv_len : packed.kv_len) {
    packed.max_blocks = std::max(packed.max_blocks, (kv_len + block_size - 1) / block_size);
  }
  // Past a sequence's last block the table holds block 0, which is never read.
  packed.block_table.assign(rows.size() * static_cast<size_t>(packed.max_blocks), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto used = std::min(rows[i]->blocks.size(), static_cast<size_t>(packed.max_blocks));
    std::copy_n(rows[i]->blocks.begin(), used,
                packed.block_table.begin() +
                    static_cast<std::ptrdiff_t>(i * static_cast<size_t>(packed.max_blocks)));
  }
}

}  // namespace rudder::exec
