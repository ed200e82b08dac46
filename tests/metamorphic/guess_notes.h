// GuessNotes: an executor that notes what another one's proposer guesses. For tests that hold
// guesses of one run against those of another.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/step/executor.h"

namespace rudder::metamorphic {

// Notes what an executor guesses, by the first token of the sequence and the tokens before the
// guess.
class GuessNotes final : public step::Executor {
 public:
  explicit GuessNotes(step::Executor& inner) : inner_(inner) {}

  step::Capacity capacity() const override { return inner_.capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    for (const step::SeqWork& work : plan->seqs) {
      if (work.guess.begin == 0 && !work.guess.tokens.empty()) {
        first_[work.slot.value] = work.guess.tokens[0];
      }
    }
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
    for (size_t i = 0; i < result->seqs.size(); ++i) {
      const step::SeqResult& seq = result->seqs[i];
      const step::GuessWork& asked = plan->second->seqs[i].guess;
      if (seq.guess.empty()) continue;
      notes[{first_.at(seq.slot.value), asked.begin + asked.tokens.size() + seq.tokens.size()}] =
          seq.guess;
    }
    return result;
  }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }

  using Notes = std::map<std::pair<int32_t, size_t>, std::vector<int32_t>>;
  Notes notes;

 private:
  step::Executor& inner_;
  std::map<int32_t, int32_t> first_;  // by slot
  std::map<step::StepId, std::shared_ptr<const step::StepPlan>> plans_;
};

}  // namespace rudder::metamorphic
