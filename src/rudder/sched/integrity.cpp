// Scheduler::check_integrity: everything that is kept incrementally, computed anew and compared.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "rudder/sched/scheduler.h"

namespace rudder::sched {

namespace {

struct Named {
  int32_t inflight = 0;
  int32_t samples = 0;
  int32_t drafts = 0;
};

Result<void> broken(const Sequence& sequence, std::string_view what) {
  return fail(ErrorCode::kInternal, fmt::format("sequence {}: {}", sequence.id.value, what));
}

}  // namespace

Result<void> Scheduler::check_integrity() const {
  RUDDER_TRY_VOID(check_queues());
  RUDDER_TRY_VOID(check_slots());
  std::unordered_map<const Sequence*, Named> named;
  for (const StepRecord& record : in_flight_) {
    for (size_t i = 0; i < record.sequences.size(); ++i) {
      Named& counts = named[record.sequences[i]];
      ++counts.inflight;
      const step::SeqWork& work = record.plan->seqs[i];
      if (work.logits == step::LogitsWanted::kNone) continue;
      const int32_t iterations =
          step::seq_iterations(work, record.plan->repeat, record.sequences[i]->max_len);
      counts.samples += std::max(0, iterations - record.committed) + work.most_accepted();
      counts.drafts += work.most_accepted();
    }
  }
  std::vector<std::span<const kv::BlockId>> tables;
  for (const auto& [id, sequence] : sequences_) {
    const Named counts = named[sequence.get()];
    if (sequence->inflight != counts.inflight || sequence->samples_pending != counts.samples ||
        sequence->drafts_pending != counts.drafts) {
      return broken(*sequence, "steps in flight are miscounted");
    }
    RUDDER_TRY_VOID(check_sequence(*sequence));
    for (const kv::BlockTable& table : sequence->tables) tables.push_back(table.held());
  }
  return cache_.check(tables);
}

Result<void> Scheduler::check_queues() const {
  int64_t waiting_tokens = 0;
  size_t num_waiting = 0;
  for (const auto& [tenant, line] : waiting_.all()) {
    num_waiting += line.by_rank.size();
    if (line.by_need.size() != line.by_rank.size() ||
        !std::ranges::is_sorted(line.by_need, ByNeed{})) {
      return fail(ErrorCode::kInternal, "those that wait are out of order");
    }
    int64_t blocks = 0;
    for (const Sequence* sequence : line.by_rank) {
      blocks += blocks_to_take(std::ssize(sequence->tokens), sequence->tables);
      if (sequence->state != SequenceState::kWaiting) return broken(*sequence, "waits and runs");
      if (sequence->tenant != tenant) return broken(*sequence, "waits in another's line");
      waiting_tokens += std::ssize(sequence->tokens);
    }
    if (blocks != line.blocks) {
      return fail(ErrorCode::kInternal,
                  fmt::format("{} blocks are wanted, their line says {}", blocks, line.blocks));
    }
  }
  if (waiting_tokens != waiting_tokens_) {
    return fail(ErrorCode::kInternal,
                fmt::format("{} tokens wait, the gauge says {}", waiting_tokens, waiting_tokens_));
  }
  const auto num_running = std::ranges::count(running_, SequenceState::kRunning, &Sequence::state);
  if (num_running != num_running_ || num_waiting != waiting_.size() ||
      num_waiting + running_.size() != sequences_.size()) {
    return fail(ErrorCode::kInternal, "sequences are miscounted");
  }
  if (!std::ranges::is_sorted(running_, ByRank{})) {
    return fail(ErrorCode::kInternal, "running sequences are out of order");
  }
  return {};
}

Result<void> Scheduler::check_slots() const {
  std::vector<int32_t> uses(slot_generations_.size(), 0);
  for (const int32_t slot : free_slots_) ++uses[static_cast<size_t>(slot)];
  for (const Sequence* sequence : running_) {
    const auto slot = static_cast<size_t>(sequence->slot.value);
    ++uses[slot];
    if (slot_generations_[slot] != sequence->generation) {
      return broken(*sequence, "its slot has another generation");
    }
  }
  if (std::ranges::any_of(uses, [](int32_t n) { return n != 1; })) {
    return fail(ErrorCode::kInternal, "a slot is lost or used twice");
  }
  return {};
}

Result<void> Scheduler::check_sequence(const Sequence& sequence) const {
  if (sequence.state == SequenceState::kWaiting) {
    if (sequence.table_len() != 0 || sequence.inflight != 0)
      return broken(sequence, "waits holding");
    return {};
  }
  if (sequence.state != SequenceState::kRunning && sequence.inflight == 0) {
    return broken(sequence, "is retiring, no step names it, and it is not released");
  }
  if (sequence.future_len() > sequence.max_len ||
      sequence.computed_len >
          std::min<int64_t>(sequence.planned_len, std::ssize(sequence.tokens))) {
    return broken(sequence, "its lengths disagree");
  }
  // The token sampled last has no KV before it is run.
  const bool has_output = std::ssize(sequence.tokens) > sequence.prompt_len;
  if (sequence.state == SequenceState::kRunning && has_output && sequence.samples_pending == 0 &&
      sequence.computed_len >= std::ssize(sequence.tokens)) {
    return broken(sequence, "KV of a token that was not run counts as written");
  }
  RUDDER_TRY_VOID(check_tables(sequence));
  return cache_.check_chain(sequence.chain, sequence.tokens, sequence.tables);
}

// kv.I2, kv.I4, kv.I14.
Result<void> Scheduler::check_tables(const Sequence& sequence) const {
  const int32_t size = capacity_.block_size;
  // The first position that a step in flight, or the next one, runs.
  int32_t position = sequence.computed_len;
  for (const StepRecord& record : in_flight_) {
    const auto found = std::ranges::find(record.sequences, &sequence);
    if (found == record.sequences.end()) continue;
    const step::SeqWork& work =
        record.plan->seqs[static_cast<size_t>(found - record.sequences.begin())];
    position = std::min(work.kv_len, sequence.written_len);
    break;
  }
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    const kv::BlockTable& table = sequence.tables[g];
    const auto len = static_cast<int32_t>(table.blocks.size());
    if (sequence.planned_len > sequence.reserved_len ||
        len != (sequence.reserved_len + size - 1) / size) {
      return broken(sequence, fmt::format("{} blocks of group {} for {} tokens of {}", len, g,
                                          sequence.planned_len, sequence.reserved_len));
    }
    const int32_t needed = capacity_.kv_groups[g].first_visible(position) / size;
    const bool runs = sequence.state == SequenceState::kRunning;
    if (table.first > needed || (runs && table.first != std::min(needed, len))) {
      return broken(sequence, fmt::format("holds group {} from block {} on, position {} sees {}", g,
                                          table.first, position, needed));
    }
    for (int32_t i = 0; i < len; ++i) {
      const kv::BlockId block = table.blocks[static_cast<size_t>(i)];
      if ((block == kv::kNoBlock) != (i < table.first)) {
        return broken(sequence, fmt::format("block {} of group {} is missing or kept", i, g));
      }
      if (block == kv::kNoBlock || i < sequence.computed_len / size) continue;
      if (cache_.is_shared(block) || cache_.pool().refs(block) != 1) {
        return broken(sequence, fmt::format("block {} is shared and still written", block));
      }
    }
  }
  return {};
}

}  // namespace rudder::sched
