// DraftRecord: how good the guesses at one sequence's tokens were. Each guess is compared with the
// tokens that come, whether a step verified it or not: so a sequence that decodes plainly is judged
// too, at no cost to the device. Part of a Sequence; engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/step/draft_tree.h"

namespace rudder::sched {

// A share that forgets: of the last few cases, how many were hits.
struct HitRate {
  float tries = 0;
  float hits = 0;

  void note(bool is_hit, float keep) {
    tries = keep * tries + 1;
    hits = keep * hits + (is_hit ? 1.0f : 0.0f);
  }
  // As if two cases more had gone as `prior` says.
  float estimate(float prior) const { return (hits + 2 * prior) / (tries + 2); }
};

// What drafts that are verified together brought, in the mean of the last steps. It forgets, also
// while there are none: what did not pay is tried again.
struct Yield {
  float cases = 0;
  float drafts = 0;
  float accepted = 0;

  void note(int32_t num_draft, int32_t num_accepted, float keep);
  void fade();
  // Of one step more, as if some before had been as `prior` says.
  struct Expected {
    float drafts = 0;
    float accepted = 0;
  };
  Expected expected(const Expected& prior) const;
};

class DraftRecord {
 public:
  // The guess at what follows the tokens known now; to be filled by the proposer. Replaces the
  // last.
  std::vector<int32_t>& new_guess();
  // The new guess is none: its first token counts as wrong. Where drafts are planned that are not
  // known, those of a guess that is not there are as useless as wrong ones.
  void note_none(HitRate* all);
  // Of the last guess what has not come yet; none once a token of it was wrong. Of a tree all or
  // none: not once a token has come.
  std::span<const int32_t> guess() const {
    return std::span(guess_).subspan(row_ > 0 ? guess_.size() : num_came_);
  }

  // These tokens came, in order. `tree`: which tokens of a guess follow which; empty: a chain.
  // `all`: over every sequence, how often the first token of a guess was right.
  void compare(std::span<const int32_t> came, const step::DraftTree& tree, HitRate* all);

  // Of a proposer that learns, in place of compare(): a step verified so many drafts, of which so
  // many were right; none: it had none.
  void note_together(int32_t num_draft, int32_t num_accepted, Yield* all);
  const Yield& yield() const { return yield_; }

  // Appends for each of the first `count` tokens of a guess how probable it is that it and all
  // before it are right. `all` as above: what is assumed of a sequence of which nothing is known.
  // In a tree those before it are those that it follows. Where the guess itself is not known yet,
  // the last one says what to expect: behind none there is seldom one.
  void append_odds(float all, size_t count, const step::DraftTree& tree,
                   std::vector<float>* odds) const;

 private:
  // A guess behind each of the tokens of a run of hits would have been right up to the run's end.
  // So a token that comes after a run of r hits tells of the positions 0 to r of a guess.
  static constexpr size_t kPositions = 16;  // further ones are as the last

  void compare_children(int32_t token, const step::DraftTree& tree, HitRate* all);
  void note_hit(bool is_hit, size_t num_positions);

  std::vector<int32_t> guess_;
  size_t num_came_ = 0;  // of its tokens
  size_t run_ = 0;       // hits in a row
  int32_t row_ = 0;      // of a tree, whose token came last
  // Of a tree by draft: of those whose parent's token came.
  std::array<HitRate, step::kMaxTreeDrafts> by_position_ = {};
  // The same of guesses behind none.
  std::array<HitRate, kPositions> behind_none_ = {};
  bool is_none_ = false;         // the last guess
  bool is_behind_none_ = false;  // the one before it was
  Yield yield_;
};

}  // namespace rudder::sched
