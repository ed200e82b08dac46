// TreeGuesser: an executor with a proposer that guesses trees of any shape, often with what comes
// in them, in front of one that verifies them; and the scheduler's settings for trees. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "metamorphic/harness.h"
#include "rudder/base/philox.h"
#include "rudder/step/executor.h"
#include "rudder/testing/random_tree.h"

namespace rudder::metamorphic {

// Of runs with trees: steps of `budget` tokens, repeated where nothing waits.
inline sched::SchedSettings tree_settings(int32_t budget, int32_t in_flight,
                                          bool is_paced = false) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = budget;
  settings.max_in_flight = in_flight;
  settings.multi_step = 4;
  settings.pace_drafts = is_paced;
  return settings;
}

class TreeGuesser final : public step::Executor {
 public:
  // Whole sequences, prompt and output, by the seed that they sample with.
  using Wholes = std::map<uint64_t, std::vector<int32_t>>;

  // The capacity of `inner`, which does not guess, has room for as many drafts as the tree has;
  // with the tree as its `guess_tree` steps with trees are replayed from graphs.
  TreeGuesser(step::Executor& inner, const step::DraftTree& tree, Wholes wholes, uint64_t seed)
      : inner_(inner), tree_(tree), wholes_(std::move(wholes)), seed_(seed) {}

  step::Capacity capacity() const override {
    step::Capacity capacity = inner_.capacity();
    capacity.drafts.guesses = capacity.drafts.guesses_from_rows = true;
    capacity.drafts.guess_tree = tree_;
    return capacity;
  }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    for (const step::SlotEdit& edit : plan->slots) seeds_[edit.slot.value] = edit.sampling.seed;
    auto without = std::make_shared<step::StepPlan>(*plan);
    std::vector<step::GuessWork>& asked = asked_[plan->id];
    for (step::SeqWork& work : without->seqs) {
      num_trees += work.tree.empty() ? 0 : 1;
      if (!work.tree.empty()) with_trees_.insert(plan->id);
      asked.push_back(std::exchange(work.guess, {}));
    }
    return inner_.launch(std::move(without));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    return inner_.supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override {
    Result<step::StepResult> result = inner_.collect(ticket);
    if (!result) return result;
    num_replayed += result->from_graph && with_trees_.contains(ticket.id) ? 1 : 0;
    const std::vector<step::GuessWork>& asked = asked_.at(ticket.id);
    for (size_t i = 0; i < result->seqs.size(); ++i) {
      step::SeqResult& seq = result->seqs[i];
      const bool goes_on = !seq.tokens.empty() && seq.end == step::SeqEnd::kNone;
      if (goes_on && asked[i].num_guess > 0) guess(asked[i], seq);
    }
    return result;
  }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }

  int64_t num_trees = 0;     // that were verified
  int64_t num_replayed = 0;  // steps with trees, from a graph
  // Whether a row behind right ones is right, if it may be; null: two of three, while no other is.
  std::function<bool(int32_t)> is_right = {};

 private:
  void guess(const step::GuessWork& asked, step::SeqResult& seq) {
    const auto below = [&](int32_t n) {
      return static_cast<int32_t>(philox_u64(seed_, ++num_draws_) % static_cast<uint64_t>(n));
    };
    const std::span<const int32_t> whole = wholes_.at(seeds_.at(seq.slot.value));
    const auto begin = static_cast<size_t>(asked.begin) + seq.tokens.size();
    seq.guess = testing::random_tree_guess(
        tree_, asked.num_guess, whole.subspan(begin), inner_.capacity().vocab_size, below,
        [&](int32_t row) { return is_right ? is_right(row) : below(3) > 0; });
  }

  step::Executor& inner_;
  const step::DraftTree tree_;
  const Wholes wholes_;
  const uint64_t seed_;
  uint64_t num_draws_ = 0;
  std::map<int32_t, uint64_t> seeds_;  // by slot
  std::map<step::StepId, std::vector<step::GuessWork>> asked_;
  std::set<step::StepId> with_trees_;
};

inline TreeGuesser::Wholes wholes_by_seed(const std::vector<Ask>& asks,
                                          const std::vector<Got>& plain) {
  TreeGuesser::Wholes out;
  const auto whole = wholes(asks, plain);
  for (size_t i = 0; i < asks.size(); ++i) out[asks[i].sampling.seed] = whole[i];
  return out;
}

}  // namespace rudder::metamorphic
