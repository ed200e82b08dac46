// DraftCaps: which drafts an executor verifies, and what it guesses itself. Plain data, a part of
// its Capacity: the scheduler reads no more of who guesses.
#pragma once

#include <cstdint>

#include "rudder/step/draft_tree.h"

namespace rudder::step {

// The n-grams by which an executor's proposer finds guesses in what a sequence has said.
struct LookUp {
  int32_t min_n = 0;  // tokens, 1 <= min_n <= max_n; 0: it does not
  int32_t max_n = 0;

  bool operator==(const LookUp&) const = default;
};

struct DraftCaps {
  int32_t max_draft = 0;           // of a sequence; 0: the executor takes no drafts
  bool takes_trees = false;        // SeqWork.tree
  bool guesses = false;            // it has a proposer of its own: SeqWork.guess, max_draft at most
  bool guesses_from_rows = false;  // of the step alone: it runs no tokens and needs no blocks
  // Its proposer leaves what it guesses in the slots: drafts may be that (SeqWork::takes_guess),
  // and a SlotEdit has a history where its slot is guessed for. With `guesses`, for chains.
  bool keeps_guesses = false;
  // Its proposer looks guesses up in the tokens of slots. With `guesses_from_rows` and
  // `keeps_guesses`.
  LookUp look_up = {};
  // What its proposer guesses, or the first drafts of it: SeqResult.guess has their tokens. Empty:
  // chains. Only with takes_trees.
  DraftTree guess_tree = {};

  bool looks_up() const { return look_up.max_n > 0; }
  bool operator==(const DraftCaps&) const = default;
};

}  // namespace rudder::step
