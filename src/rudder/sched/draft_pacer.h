// DraftPacer: decides how many guessed tokens a step verifies, so that drafts make no load slower.
//
// A step that gives N tokens in t(N) us without drafts gives, with D drafts of which A are expected
// to be right, N + A tokens in t(N + D) + g: t is StepCost's, g how long the device idles because
// the host has to know all tokens before it can guess. The drafts that make the tokens a second the
// most are verified where these are more than N / t(N).
//
// A purse bounds what wrong estimates cost. It is filled by a share of every plain step and by what
// steps with drafts gained by their measured times, and pays for what they lost. While it is empty
// nothing is drafted, however promising.
//
// Where the executor guesses, guesses take its time before they are verified: their length is
// chosen likewise, with the time of guessing in t, and the purse pays for it. Internal to the room;
// engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/sched/draft_record.h"
#include "rudder/sched/step_cost.h"

namespace rudder::sched {

class DraftPacer {
 public:
  // The guess at one sequence's tokens.
  struct Offer {
    const DraftRecord* record = nullptr;
    size_t num_pending = 0;  // first tokens of it that are in flight: nothing is left to verify
    size_t most = 0;         // tokens behind those that may be verified
    size_t count = 0;        // of them to verify
    // Of a tree: its rows (step::DraftTree) that may be verified, with row 0, and the drafts' rows
    // of them to verify; `most` counts from its first, and num_pending is 0.
    uint64_t rows = 0;
    uint64_t chosen = 0;

    bool may_verify(size_t i) const { return rows == 0 || (rows >> (i + 1) & 1) != 0; }
  };
  // `tree`: the shape of every guess; empty: chains.
  explicit DraftPacer(const step::DraftTree& tree = {}) : tree_(tree) {}

  // Sets `count` of each offer to what pays best in a step that is `plain` without drafts. True
  // when any is above 0.
  bool choose(std::span<Offer> offers, const StepCost& cost, const StepShape& plain);
  // What choose() would return of `scale` times as many offers, of which these are a fair part.
  bool promises(std::span<const Offer> offers, int64_t scale, const StepCost& cost,
                const StepShape& plain);

  // Tokens to guess for each of the sequences, at most `most`, where a guess takes the device time
  // (Outcome::guess_us): as many as pay in a step that is `plain` without drafts; 0: none do. While
  // none do, a step now and then guesses all the same, to see whether that is still so. Of a tree
  // all are guessed or none: what it takes is its depth's. choose() verifies those that pay.
  int32_t choose_guess(std::span<const DraftRecord* const> records, const StepCost& cost,
                       const StepShape& plain, int32_t most);
  // What one step had, and what came of it.
  struct Outcome {
    StepShape shape;  // with its drafts
    int64_t num_draft = 0;
    int64_t num_accepted = 0;
    bool waited = false;  // it was launched later than it could have been, for the sake of drafts
    int64_t us = 0;       // 0: not known
    // Behind it so many tokens were guessed for each of so many sequences, one behind another.
    int32_t num_guess = 0;
    int64_t guess_seqs = 0;
    int64_t guess_us = 0;        // 0: not known
    bool has_caught_up = false;  // in this time the proposer ran other tokens too
  };
  void note_step(const StepCost& cost, const Outcome& outcome);
  // A step that waited found the device idle for so long.
  void note_idle(int64_t us);

  // Where drafts need no wait: whether a step waits all the same, because the one in front of it is
  // likely to end all of its sequences, so many, and the next one, of `step_us`, to be in vain.
  bool holds_for_end(int64_t num_seqs, double step_us) const;
  // A step that sampled for a sequence has ended it, or not.
  void note_end(bool has_ended);

  // Over all sequences, how good guesses were.
  DraftRates& all() { return all_; }

 private:
  double guess_us(int32_t num_guess, int64_t num_seqs) const;
  double note_guess(const Outcome& outcome);

  const step::DraftTree tree_;
  DraftRates all_;
  double idle_us_ = 0;  // usual
  double pass_us_ = 0;  // of guessing a token for each of pass_seqs_ sequences, usual
  double pass_seqs_ = 1;
  bool has_guessed_ = false;
  int64_t num_unguessed_ = 0;  // steps since the last that guessed
  double purse_ = 0.25;        // in plain steps
  // For the guesses behind the last step: they are paid for together with the step that may verify
  // them, which an empty purse would keep from it.
  double owed_us_ = 0;
  int64_t num_drafted_ = 0;  // steps with drafts since the last without
  HitRate ends_;             // of steps that sampled for a sequence

  struct Level {
    int64_t count = 0;
    double sum = 0;
  };
  int64_t best_count(std::span<const Offer> offers, int64_t scale, const StepCost& cost,
                     const StepShape& plain);
  void weigh(std::span<const Offer> offers, int64_t scale);
  void take(std::span<Offer> offers, int64_t count);

  std::vector<float> odds_;    // of the last offers: of each, one behind another
  std::vector<Level> levels_;  // the same by level
};

}  // namespace rudder::sched
