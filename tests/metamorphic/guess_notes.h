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
    plans_[plan->id] = plan;
    const bool takes_guess = std::ranges::any_of(plan->seqs, &step::SeqWork::takes_guess);
    ahead_steps += takes_guess && iterations_in_flight_ > 0 ? 1 : 0;
    iterations_in_flight_ += plan->repeat;
    return inner_.launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return inner_.supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    Result<step::StepResult> result = inner_.collect(ticket);
    --iterations_in_flight_;
    const auto plan = plans_.find(ticket.id);
    if (!result) return result;
    if (result->iteration == 0) open(*plan->second);
    if (plan->second->repeat > 1) {
      for (const step::SeqResult& seq : result->seqs) slots_[seq.slot.value].take(seq);
      return result;
    }
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
      Slot& slot = slots_[seq.slot.value];
      slot.take(seq);
      if (!seq.guess.empty()) notes[{slot.seed, slot.len}] = seq.guess;
    }
    return result;
  }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }

  using Notes = std::map<std::pair<uint64_t, size_t>, std::vector<int32_t>>;
  Notes notes;
  int64_t ahead_steps = 0;  // with drafts that slots guess, behind steps in flight
  int64_t tree_steps = 0;
  int64_t tree_graph_steps = 0;  // of them, from a graph
  int64_t guess_steps = 0;       // behind which something is guessed
  int64_t untimed_steps = 0;     // of them, without the time of guesses
  int64_t timed_captures = 0;    // likewise, in whose times a graph was captured

 private:
  struct Slot {
    uint64_t seed = 0;
    size_t len = 0;  // tokens of its sequence, as of the last result

    void take(const step::SeqResult& seq) { len += seq.tokens.size(); }
  };

  void open(const step::StepPlan& plan) {
    for (const step::SlotEdit& edit : plan.slots) {
      slots_[edit.slot.value] = {
          .seed = edit.sampling.seed,
          .len = static_cast<size_t>(edit.prompt_len) + static_cast<size_t>(edit.num_output)};
    }
  }

  step::Executor& inner_;
  int64_t iterations_in_flight_ = 0;
  std::map<int32_t, Slot> slots_;
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
