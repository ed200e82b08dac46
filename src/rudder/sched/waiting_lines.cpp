#include "rudder/sched/waiting_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "rudder/base/mutants.h"
#include "rudder/sched/integrity.h"

namespace rudder::sched {

namespace {

// Steps between two looks at who has waited too long.
constexpr step::StepId kStarvationScanSteps = 64;

}  // namespace

void WaitingLines::insert(Sequence& sequence) {
  Line& line = lines_[sequence.tenant];
  line.by_rank.insert(&sequence);
  line.by_need.insert(&sequence);
  line.blocks += sequence.wait.blocks_wanted;
  ++size_;
}

void WaitingLines::erase(Sequence& sequence) {
  const auto line = lines_.find(sequence.tenant);
  line->second.by_rank.erase(&sequence);
  line->second.by_need.erase(&sequence);
  line->second.blocks -= sequence.wait.blocks_wanted;
  if (line->second.by_rank.empty()) lines_.erase(line);
  --size_;
}

void WaitingLines::enqueue(Sequence& sequence) {
  sequence.state = SequenceState::kWaiting;
  WaitState& wait = sequence.wait;
  wait.waiting_since = last_step_;
  wait.held_steps = 0;
  wait.found_len = blocks_.find_cached(sequence, &found_).num_blocks * blocks_.block_size();
  wait.blocks_wanted = blocks_.to_take(std::ssize(sequence.tokens), sequence.tables);
  insert(sequence);
  num_tokens_ += std::ssize(sequence.tokens);
}

void WaitingLines::dequeue(Sequence& sequence) {
  erase(sequence);
  num_tokens_ -= std::ssize(sequence.tokens);
  if (RUDDER_MUTANT(kCounterUnderflow)) num_tokens_ -= std::ssize(sequence.tokens);
}

void WaitingLines::clear() {
  lines_.clear();
  size_ = 0;
  num_tokens_ = 0;
}

void WaitingLines::promote_starved(int32_t max_wait_steps) {
  if (last_step_ % kStarvationScanSteps != 0) return;
  constexpr int32_t kFirst = std::numeric_limits<int32_t>::min();
  starved_.clear();
  const auto most = static_cast<uint64_t>(max_wait_steps);
  for (const auto& [tenant, line] : lines_) {
    for (Sequence* sequence : line.by_rank) {
      const auto waited = last_step_ - sequence->wait.waiting_since;
      if (sequence->priority != kFirst && waited >= most) starved_.push_back(sequence);
    }
  }
  for (Sequence* sequence : starved_) {
    erase(*sequence);
    sequence->priority = kFirst;
    insert(*sequence);
  }
}

Result<void> WaitingLines::check() const {
  int64_t num_tokens = 0;
  int64_t size = 0;
  for (const auto& [tenant, line] : lines_) {
    size += std::ssize(line.by_rank);
    if (line.by_need.size() != line.by_rank.size() ||
        !std::ranges::is_sorted(line.by_need, ByNeed{})) {
      return fail(ErrorCode::kInternal, "those that wait are out of order");
    }
    int64_t blocks = 0;
    for (const Sequence* sequence : line.by_rank) {
      blocks += blocks_.to_take(std::ssize(sequence->tokens), sequence->tables);
      if (sequence->state != SequenceState::kWaiting) return broken(*sequence, "waits and runs");
      if (sequence->tenant != tenant) return broken(*sequence, "waits in another's line");
      num_tokens += std::ssize(sequence->tokens);
    }
    if (blocks != line.blocks) {
      return fail(ErrorCode::kInternal,
                  fmt::format("{} blocks are wanted, their line says {}", blocks, line.blocks));
    }
  }
  if (num_tokens != num_tokens_ || size != size_) {
    return fail(ErrorCode::kInternal,
                fmt::format("{} sequences of {} tokens wait, the gauges say {} and {}", size,
                            num_tokens, size_, num_tokens_));
  }
  return {};
}

}  // namespace rudder::sched
