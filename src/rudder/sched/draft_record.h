// DraftRecord: how good the guesses at one sequence's tokens were. Each guess is compared with the
// tokens that come, whether a step verified it or not: so a sequence that decodes plainly is judged
// too, at no cost to the device. Part of a Sequence; engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/sched/draft.h"
#include "rudder/sched/hit_rate.h"
#include "rudder/sched/stated_odds.h"
#include "rudder/step/draft_tree.h"

namespace rudder::sched {

// How good the guesses at all sequences' tokens were: what is assumed of one of which nothing is
// known.
struct DraftRates {
  HitRate first;  // of a guess's first token
  StatedOdds stated;
};

class DraftRecord {
 public:
  // The guess at what follows the tokens known now; empty, to be filled by the proposer. Replaces
  // the last.
  Draft& new_guess();
  // The new guess is none: its first token counts as wrong. Where drafts are planned that are not
  // known, those of a guess that is not there are as useless as wrong ones.
  void note_none(DraftRates* all);
  // Of the last guess what has not come yet; none once a token of it was wrong. Of a tree, and of a
  // guess with odds, all or none: not once a token has come.
  std::span<const int32_t> guess() const {
    return std::span(guess_.tokens).subspan(row_ > 0 ? guess_.tokens.size() : num_came_);
  }
  // Of that guess, where it was made with one.
  const step::DraftTree& tree() const { return guess_.tree; }

  // These tokens came, in order. `tree`: which tokens of every guess follow which; empty: each says
  // so itself.
  void compare(std::span<const int32_t> came, const step::DraftTree& tree, DraftRates* all);

  // Appends for each of the first `count` tokens of a guess how probable it is that it and all
  // before it are right. `tree` as above: in one, those before it are those that it follows.
  // `unknown`: of a first token of which nobody knows anything. Where the guess itself is not known
  // yet, the last one says what to expect: behind none there is seldom one.
  void append_odds(const DraftRates& all, float unknown, size_t count, const step::DraftTree& tree,
                   std::vector<float>* odds) const;

 private:
  // A guess behind each of the tokens of a run of hits would have been right up to the run's end.
  // So a token that comes after a run of r hits tells of the positions 0 to r of a guess.
  static constexpr size_t kPositions = 16;  // further ones are as the last

  void compare_stated(int32_t token, DraftRates* all);
  void compare_children(int32_t token, const step::DraftTree& tree, DraftRates* all);
  void note_hit(bool is_hit, size_t num_positions);
  void append_stated_odds(const DraftRates& all, size_t count, std::vector<float>* odds) const;

  Draft guess_;
  size_t num_came_ = 0;  // of its tokens
  size_t run_ = 0;       // hits in a row
  int32_t row_ = 0;      // of a tree, or of a guess with odds, whose token came last
  // Of a tree by draft: of those whose parent's token came.
  std::array<HitRate, step::kMaxTreeDrafts> by_position_ = {};
  // The same of guesses behind none.
  std::array<HitRate, kPositions> behind_none_ = {};
  bool is_none_ = false;         // the last guess
  bool is_behind_none_ = false;  // the one before it was
  StatedOdds stated_;
};

}  // namespace rudder::sched
