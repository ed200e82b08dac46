#include "rudder/wrap/group_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::wrap {
namespace {

bool is_same(const step::TokenLogprobs& a, const step::TokenLogprobs& b) {
  return a.logprob == b.logprob && a.rank == b.rank && a.top == b.top;
}

bool is_same(const std::vector<step::TokenLogprobs>& a, const std::vector<step::TokenLogprobs>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return is_same(x, y); });
}

bool is_same(const step::SeqResult& a, const step::SeqResult& b) {
  return a.slot == b.slot && a.generation == b.generation && a.tokens == b.tokens &&
         a.end == b.end && a.masked == b.masked && a.clipped_samples == b.clipped_samples &&
         a.guess == b.guess && is_same(a.logprobs, b.logprobs) && is_same(a.scores, b.scores);
}

// What differs between the results of one step on two ranks; empty: nothing.
std::string rank_difference(const step::StepResult& a, const step::StepResult& b) {
  if (a.id != b.id || a.iteration != b.iteration || a.seqs.size() != b.seqs.size()) {
    return fmt::format("step {}.{} of {} sequences and step {}.{} of {}", a.id, a.iteration,
                       a.seqs.size(), b.id, b.iteration, b.seqs.size());
  }
  for (size_t i = 0; i < a.seqs.size(); ++i) {
    if (!is_same(a.seqs[i], b.seqs[i])) {
      return fmt::format("sequence {} of step {}.{}", i, a.id, a.iteration);
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<step::Executor> GroupExecutor::of(
    std::vector<std::unique_ptr<step::Executor>> ranks) {
  RUDDER_CHECK(!ranks.empty());
  if (ranks.size() == 1) return std::move(ranks.front());
  const step::Capacity first = ranks.front()->capacity();
  for (const auto& rank : ranks) {
    RUDDER_CHECK(rank->capacity().num_blocks == first.num_blocks &&
                 rank->capacity().max_seq_len == first.max_seq_len &&
                 rank->capacity().kv_groups == first.kv_groups &&
                 rank->capacity().states.count == first.states.count);
  }
  return std::unique_ptr<step::Executor>(new GroupExecutor(std::move(ranks)));
}

tl::unexpected<Error> GroupExecutor::fault(Error error) {
  fault_ = std::move(error);
  return tl::unexpected<Error>(*fault_);
}

Result<step::Ticket> GroupExecutor::launch(std::shared_ptr<const step::StepPlan> plan) {
  if (fault_) return tl::unexpected<Error>(*fault_);
  const step::Ticket ticket{plan->id};
  for (const auto& rank : ranks_) {
    if (auto launched = rank->launch(plan); !launched) return fault(launched.error());
  }
  return ticket;
}

Result<void> GroupExecutor::supply(step::Ticket ticket, std::span<const uint32_t> masks) {
  if (fault_) return tl::unexpected<Error>(*fault_);
  for (const auto& rank : ranks_) {
    if (auto supplied = rank->supply(ticket, masks); !supplied) return fault(supplied.error());
    if (RUDDER_MUTANT(kMasksToOneRank)) break;
  }
  return {};
}

// A rank whose iteration has come met all others at its end: they come at once, or the group has
// failed.
Result<step::StepResult> GroupExecutor::collect(step::Ticket ticket) {
  if (fault_) return tl::unexpected<Error>(*fault_);
  Result<step::StepResult> first = ranks_.front()->collect(ticket);
  if (!first) return fault(first.error());
  for (size_t i = 1; i < ranks_.size(); ++i) {
    const Result<step::StepResult> other = ranks_[i]->collect(ticket);
    if (!other) return fault(other.error());
    const std::string what = rank_difference(*first, *other);
    if (!what.empty() && !RUDDER_MUTANT(kRanksUncompared)) {
      return fault({ErrorCode::kInternal, fmt::format("rank {} and rank 0 differ: {}", i, what),
                    "tensor-parallel-size"});
    }
    first->copies_done = std::min(first->copies_done, other->copies_done);
  }
  return first;
}

bool GroupExecutor::ready(step::Ticket ticket) {
  return fault_.has_value() ||
         std::ranges::all_of(ranks_, [&](const auto& rank) { return rank->ready(ticket); });
}

void GroupExecutor::stop() {
  for (const auto& rank : ranks_) rank->stop();
}

}  // namespace rudder::wrap
