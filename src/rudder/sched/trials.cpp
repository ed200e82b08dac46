#include "rudder/sched/trials.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::sched {

namespace {

// How often a shape runs. The first time may take longer than those that follow: nothing is learnt
// of it.
constexpr size_t kRuns = 3;
// From a number of sequences to the next.
constexpr int32_t kTimesMore = 4;
// Of a trial with many keys: of a sequence, and of all. A batch of long contexts reads as many.
constexpr int64_t kLongContext = 4096;
constexpr int64_t kManyKeys = 128 * 1024;
// The shortest prompt is this share of the longest; each is twice the one before.
constexpr int32_t kShortestPrompt = 8;

}  // namespace

Trials::Trials(const step::Capacity& capacity, int32_t max_num_seqs, int32_t max_tokens)
    : block_size_(capacity.block_size),
      num_groups_(capacity.kv_groups.size()),
      num_blocks_(capacity.num_blocks),
      num_states_(capacity.states.count),
      max_seq_len_(capacity.max_seq_len) {
  const auto add_both = [&](int32_t num_seqs) {
    add_decodes(num_seqs, num_seqs);
    add_decodes(num_seqs, std::min(kManyKeys, num_seqs * kLongContext));
  };
  for (int32_t num_seqs = 1; num_seqs < max_num_seqs; num_seqs *= kTimesMore) add_both(num_seqs);
  add_both(max_num_seqs);
  const int32_t longest = std::min(max_tokens, max_seq_len_ - 1);
  for (int32_t share = kShortestPrompt; share > 0; share /= 2) {
    if (longest / share > 1) add({.num_seqs = 1, .kv_len = 0, .q_len = longest / share});
  }
}

int64_t Trials::blocks_each(const Shape& shape) const {
  return num_groups_ * step::blocks_of(shape.kv_len + shape.q_len, block_size_);
}

void Trials::add(const Shape& shape) {
  if (shape.num_seqs * blocks_each(shape) > num_blocks_) return;
  if (num_states_ > 0 && shape.num_seqs > num_states_) return;
  shapes_.insert(shapes_.end(), kRuns, shape);
}

// As many keys as there are blocks for, each sequence with at least one besides its own token.
void Trials::add_decodes(int32_t num_seqs, int64_t keys) {
  const int64_t blocks = num_blocks_ / (int64_t{num_seqs} * num_groups_);
  const int64_t most = std::min<int64_t>(blocks * block_size_, max_seq_len_ - 1) - 1;
  const int64_t kv_len = std::min(most, keys / num_seqs);
  if (kv_len > 0) {
    add({.num_seqs = num_seqs, .kv_len = static_cast<int32_t>(kv_len), .q_len = 1});
  }
}

void Trials::add_next(step::StepPlan& plan, std::vector<uint32_t>& generations) {
  RUDDER_CHECK(!is_over() && plan.seqs.empty());
  const Shape shape = shapes_[next_++];
  const int64_t blocks = blocks_each(shape) / num_groups_;
  int32_t block = 0;
  for (int32_t slot = 0; slot < shape.num_seqs; ++slot) {
    step::SlotEdit& edit = plan.slots.emplace_back();
    edit.slot = step::SlotId(slot);
    edit.generation = ++generations[static_cast<size_t>(slot)];
    edit.sampling.temperature = 0;
    edit.prompt_len = shape.kv_len + shape.q_len;
    edit.max_len = edit.prompt_len + 1;
    if (num_states_ > 0) edit.state = slot;
    edit.blocks.resize(static_cast<size_t>(num_groups_));
    for (step::GroupTable& table : edit.blocks) {
      for (int64_t i = 0; i < blocks; ++i) table.emplace_back(block++);
    }
    step::SeqWork& work = plan.seqs.emplace_back();
    work.slot = edit.slot;
    work.generation = edit.generation;
    work.kv_len = shape.kv_len;
    work.q_len = shape.q_len;
    work.logits = step::LogitsWanted::kLast;
    work.token_begin = slot * shape.q_len;
  }
  plan.tokens.assign(static_cast<size_t>(shape.num_seqs) * static_cast<size_t>(shape.q_len), 0);
}

Trials::Seen Trials::note(int64_t us) {
  RUDDER_CHECK(noted_ < next_);
  const bool is_first = noted_ % kRuns == 0;
  const Shape shape = shapes_[noted_++];
  spent_us_ += us;
  Seen seen = {.shape = {}, .us = is_first ? 0 : us};
  if (shape.q_len > 1) {
    seen.shape.add_prompt(shape.kv_len, shape.q_len);
  } else {
    seen.shape.decode_tokens = shape.num_seqs;
    seen.shape.decode_keys = int64_t{shape.num_seqs} * (shape.kv_len + 1);
  }
  return seen;
}

}  // namespace rudder::sched
