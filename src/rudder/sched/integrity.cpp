// Everything that a sequence counts and holds, computed anew and compared.
#include "rudder/sched/integrity.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace rudder::sched {

namespace {

struct Named {
  int32_t inflight = 0;
  int32_t samples = 0;
  int32_t drafts = 0;
};

// kv.I2, kv.I4, kv.I14.
Result<void> check_tables(const Sequence& sequence, std::span<const StepRecord> in_flight,
                          const step::KvGroups& groups, const Blocks& blocks) {
  const int32_t size = blocks.block_size();
  const cache::BlockCache& cache = blocks.cache();
  // The first position that a step in flight, or the next one, runs.
  int32_t position = sequence.run.computed_len;
  for (const StepRecord& record : in_flight) {
    const auto found = std::ranges::find(record.sequences, &sequence);
    if (found == record.sequences.end()) continue;
    const step::SeqWork& work =
        record.plan->seqs[static_cast<size_t>(found - record.sequences.begin())];
    position = std::min(work.kv_len, sequence.run.written_len);
    break;
  }
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    const cache::BlockTable& table = sequence.tables[g];
    const auto len = static_cast<int32_t>(table.blocks.size());
    if (sequence.run.planned_len > sequence.run.reserved_len ||
        len != (sequence.run.reserved_len + size - 1) / size) {
      return broken(sequence, fmt::format("{} blocks of group {} for {} tokens of {}", len, g,
                                          sequence.run.planned_len, sequence.run.reserved_len));
    }
    const int32_t needed = groups[g].first_visible(position) / size;
    const bool runs = sequence.is_begun();
    if (table.first > needed || (runs && table.first != std::min(needed, len))) {
      return broken(sequence, fmt::format("holds group {} from block {} on, position {} sees {}", g,
                                          table.first, position, needed));
    }
    for (int32_t i = 0; i < len; ++i) {
      const cache::BlockId block = table.blocks[static_cast<size_t>(i)];
      if ((block == cache::kNoBlock) != (i < table.first)) {
        return broken(sequence, fmt::format("block {} of group {} is missing or kept", i, g));
      }
      if (block == cache::kNoBlock || i < sequence.run.computed_len / size) continue;
      if (cache.is_shared(block) || cache.pool().refs(block) != 1) {
        return broken(sequence, fmt::format("block {} is shared and still written", block));
      }
    }
  }
  return {};
}

}  // namespace

Result<void> broken(const Sequence& sequence, std::string_view what) {
  return fail(ErrorCode::kInternal, fmt::format("sequence {}: {}", sequence.id.value, what));
}

Result<void> check_counts(std::span<const StepRecord> in_flight,
                          std::span<const Sequence* const> sequences) {
  std::unordered_map<const Sequence*, Named> named;
  for (const StepRecord& record : in_flight) {
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
  for (const Sequence* sequence : sequences) {
    const Named counts = named[sequence];
    const RunState& run = sequence->run;
    if (run.inflight != counts.inflight || run.samples_pending != counts.samples ||
        run.drafts_pending != counts.drafts) {
      return broken(*sequence, "steps in flight are miscounted");
    }
  }
  return {};
}

Result<void> check_sequence(const Sequence& sequence, std::span<const StepRecord> in_flight,
                            const step::KvGroups& groups, const Blocks& blocks) {
  const bool holds_state = sequence.object != cache::kNoState;
  if (holds_state != (blocks.cache().has_states() && sequence.state != SequenceState::kWaiting)) {
    return broken(sequence, "has no state, or one while it waits");
  }
  if (sequence.state == SequenceState::kWaiting) {
    if (sequence.table_len() != 0 || sequence.run.inflight != 0)
      return broken(sequence, "waits holding");
    return {};
  }
  const bool is_copying = sequence.state == SequenceState::kCopying;
  if (!is_copying && sequence.tier.loads_left > 0 && sequence.is_begun()) {
    return broken(sequence, "runs while records are copied to it");
  }
  if (is_copying && (!sequence.run.is_copied_to || sequence.run.inflight > 0)) {
    return broken(sequence, "waits for a copy that is not on its way, or runs");
  }
  if (!sequence.is_begun() && sequence.is_idle()) {
    return broken(sequence, "is retiring, no step names it, and it is not released");
  }
  if (sequence.future_len() > sequence.max_len ||
      sequence.run.computed_len >
          std::min<int64_t>(sequence.run.planned_len, std::ssize(sequence.tokens))) {
    return broken(sequence, "its lengths disagree");
  }
  // The token sampled last has no KV before it is run.
  const bool has_output = std::ssize(sequence.tokens) > sequence.prompt_len;
  if (sequence.state == SequenceState::kRunning && has_output &&
      sequence.run.samples_pending == 0 &&
      sequence.run.computed_len >= std::ssize(sequence.tokens)) {
    return broken(sequence, "KV of a token that was not run counts as written");
  }
  RUDDER_TRY_VOID(check_tables(sequence, in_flight, groups, blocks));
  return blocks.cache().check_chain(sequence.chain, sequence.tokens, sequence.tables);
}

}  // namespace rudder::sched
