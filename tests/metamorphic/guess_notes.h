// GuessNotes: an executor that notes what another one's proposer guesses, and which of its steps
// had trees. For tests that hold guesses of one run against those of another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/step/executor.h"

namespace rudder::metamorphic {

// Notes what an executor guesses, by the seed of the sequence and the tokens before the guess.
class GuessNotes final : public step::Executor {
 public:
  explicit GuessNotes(step::Executor& inner) : inner_(inner) {}

  step::Capacity capacity() const override { return inner_.capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    for (const step::SlotEdit& edit : plan->slots) seeds_[edit.slot.value] = edit.sampling.seed;
    if (plan->repeat == 1) plans_[plan->id] = plan;
    return inner_.launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return inner_.supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    Result<step::StepResult> result = inner_.collect(ticket);
    const auto plan = plans_.find(ticket.id);
    if (!result || plan == plans_.end()) return result;
    if (std::ranges::any_of(plan->second->seqs,
                            [](const step::SeqWork& work) { return !work.tree.empty(); })) {
      ++tree_steps;
      tree_graph_steps += result->from_graph ? 1 : 0;
    }
    if (std::ranges::any_of(plan->second->seqs,
                            [](const step::SeqWork& work) { return work.guess.num_guess > 0; })) {
      ++guess_steps;
      untimed_steps += result->guess_us == 0 ? 1 : 0;
      const bool is_timed = result->device_us > 0 && result->guess_us > 0;
      timed_captures += is_timed && result->captured_graph ? 1 : 0;
    }
    for (size_t i = 0; i < result->seqs.size(); ++i) {
      const step::SeqResult& seq = result->seqs[i];
      const step::GuessWork& asked = plan->second->seqs[i].guess;
      if (seq.guess.empty()) continue;
      notes[{seeds_.at(seq.slot.value), asked.begin + asked.tokens.size() + seq.tokens.size()}] =
          seq.guess;
    }
    return result;
  }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }

  using Notes = std::map<std::pair<uint64_t, size_t>, std::vector<int32_t>>;
  Notes notes;
  int64_t tree_steps = 0;
  int64_t tree_graph_steps = 0;  // of them, from a graph
  int64_t guess_steps = 0;       // behind which something is guessed
  int64_t untimed_steps = 0;     // of them, without the time of guesses
  int64_t timed_captures = 0;    // likewise, in whose times a graph was captured

 private:
  step::Executor& inner_;
  std::map<int32_t, uint64_t> seeds_;  // by slot
  std::map<step::StepId, std::shared_ptr<const step::StepPlan>> plans_;
};

// Guesses of `one` that `other` has otherwise, as far as both have any: how many there are of a
// sequence also hangs on what else is in the step.
inline size_t num_different(const GuessNotes::Notes& one, const GuessNotes::Notes& other) {
  return static_cast<size_t>(std::ranges::count_if(one, [&](const auto& noted) {
    const auto& [behind, guess] = noted;
    const auto found = other.find(behind);
    if (found == other.end()) return true;
    const size_t both = std::min(guess.size(), found->second.size());
    return !std::ranges::equal(std::span(guess).first(both), std::span(found->second).first(both));
  }));
}

}  // namespace rudder::metamorphic
