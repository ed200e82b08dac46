// RandomProposer: drafts that are right, wrong at one place, or random, of any length; for tests. A
// right one takes the sequence's own tokens to come, which the test knows. Chains, or trees of any
// odds where they are taken. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/philox.h"
#include "rudder/sched/proposer.h"
#include "rudder/step/executor.h"
#include "rudder/testing/random_tree.h"

namespace rudder::testing {

enum class RandomDrafts : uint8_t { kChains, kTreesOfOdds };

// All that an executor of this capacity may be given.
inline RandomDrafts random_drafts(const step::Capacity& capacity) {
  return capacity.drafts.takes_trees ? RandomDrafts::kTreesOfOdds : RandomDrafts::kChains;
}

class RandomProposer final : public sched::DraftProposer {
 public:
  // The whole of a sequence, prompt and output, as it comes out in the end; empty: not known. Valid
  // until the next call.
  using Truth = std::function<std::span<const int32_t>(sched::SequenceId)>;

  RandomProposer(uint64_t seed, int32_t vocab_size, Truth truth,
                 RandomDrafts kind = RandomDrafts::kChains)
      : seed_(seed), vocab_size_(vocab_size), truth_(std::move(truth)), kind_(kind) {}

  void begin(const sched::NewSequence& sequence) override { known_.insert(sequence.id); }
  void end(sched::SequenceId id, std::span<const int32_t>) override { forget(id); }
  bool waits(sched::SequenceId id) override {
    RUDDER_CHECK(known_.contains(id), "sequence {} has not begun", id.value);
    return philox_u64(seed_ + 1, ++num_asked_ / kAskedInARow) % 4 != 0;
  }

  void propose(sched::SequenceId id, std::span<const int32_t> tokens, const sched::DraftAsk& ask,
               sched::Draft* draft) override {
    RUDDER_CHECK(known_.contains(id), "sequence {} has not begun", id.value);
    const std::span<const int32_t> truth = truth_(id);
    const bool has_odds = kind_ == RandomDrafts::kTreesOfOdds;
    if (has_odds && ask.takes_tree && below(4) > 0) {
      propose_tree(tokens.size(), truth, ask.most, draft);
    } else {
      propose_chain(tokens.size(), truth, ask.most, draft);
    }
    if (!has_odds) return;
    for (size_t i = 0; i < draft->tokens.size(); ++i) {
      draft->odds.push_back(static_cast<float>(below(17)) / 16);
    }
  }

 private:
  void propose_chain(size_t begin, std::span<const int32_t> truth, int32_t most,
                     sched::Draft* draft) {
    const int32_t count = below(most + 1);
    const int32_t kind = below(4);  // 0 or 1: right; 2: wrong once; 3: random
    const int32_t wrong_at = kind == 2 ? below(count + 1) : -1;
    for (int32_t i = 0; i < count; ++i) {
      const size_t at = begin + static_cast<size_t>(i);
      int32_t token = below(vocab_size_);
      if (kind < 3 && at < truth.size()) token = truth[at];
      if (i == wrong_at) token = (token + 1) % vocab_size_;
      draft->tokens.push_back(token);
    }
  }
  void propose_tree(size_t begin, std::span<const int32_t> truth, int32_t most,
                    sched::Draft* draft) {
    const int32_t count = below(std::min(most, step::kMaxTreeDrafts) + 1);
    const auto right = truth.subspan(std::min(begin, truth.size()));
    draft->tree = random_tree(seed_ + ++num_draws_, count);
    draft->tokens = random_tree_guess(
        draft->tree, count, right, vocab_size_, [&](int32_t n) { return below(n); },
        [&](int32_t) { return below(3) > 0; });
  }
  static constexpr uint64_t kAskedInARow = 16;  // all answered alike

  void forget(sched::SequenceId id) {
    RUDDER_CHECK(known_.erase(id) == 1, "sequence {} ends twice", id.value);
  }
  int32_t below(int32_t n) {
    return static_cast<int32_t>(philox_u64(seed_, ++num_draws_) % static_cast<uint64_t>(n));
  }

  const uint64_t seed_;
  const int32_t vocab_size_;
  const Truth truth_;
  const RandomDrafts kind_;
  uint64_t num_draws_ = 0;
  uint64_t num_asked_ = 0;
  std::set<sched::SequenceId> known_;
};

}  // namespace rudder::testing
