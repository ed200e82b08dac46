// PassProposer: a draft model or head guesses a tree, one pass a depth.
#include <algorithm>
#include <bit>
#include <limits>

#include "rudder/exec/pass_proposer.h"

namespace rudder::exec {

// Where the head leaves what goes on behind a row of the sequence's tree.
int32_t PassProposer::feedback_row(const GuessAsk& ask, int32_t row) const {
  const uint64_t before = tree_.tree.parents() & ((uint64_t{1} << row) - 1);
  return ask.id.value * passes_.num_feedback + std::popcount(before);
}

// As many sequences at once as a pass has room for. The first guesses have been enqueued.
Result<void> PassProposer::guess_trees(std::span<GuessAsk> asks) {
  RUDDER_TRY_VOID(wait());
  read(kTokens, first_guessed_);
  std::vector<GuessAsk*> guessed;
  for (GuessAsk& ask : asks) {
    if (!ask.guess.empty()) guessed.push_back(&ask);
  }
  const int32_t deepest = tree_.tree.depth();
  std::span<GuessAsk* const> rest = guessed;
  while (deepest > 1 && !rest.empty()) {
    const int32_t room = std::min(capacity_.max_tokens_per_step / passes_.max_tokens,
                                  capacity_.num_slots / passes_.max_rows);
    const auto together = rest.first(std::min(rest.size(), static_cast<size_t>(room)));
    for (int32_t depth = 1; depth < deepest; ++depth) {
      RUDDER_TRY_VOID(guess_depth(together, depth));
    }
    rest = rest.subspan(together.size());
  }
  for (GuessAsk* const ask : guessed) {
    ask->guess.erase(std::ranges::find(ask->guess, -1), ask->guess.end());
  }
  return {};
}

// What follows the guesses of this depth.
Result<void> PassProposer::guess_depth(std::span<GuessAsk* const> asks, int32_t depth) {
  packer_.clear();
  guessed_.clear();
  for (GuessAsk* const ask : asks) add_guesses(*ask, depth);
  if (guessed_.empty()) return {};
  RUDDER_TRY_VOID(run_pass(kGuesses, guessed_.size()));
  RUDDER_TRY_VOID(wait());
  read(kGuesses, guessed_);
  return {};
}

// Each is sampled in the name of a slot of its own: the device ends a slot that has no numbers.
void PassProposer::add_guesses(GuessAsk& ask, int32_t depth) {
  const step::DraftTree whole = tree_.tree.first(ask.num_guess);
  const uint64_t rows = whole.parents() & whole.down_to(depth);
  const step::DraftTree part = whole.part(rows);
  if (part.depth() < depth) return;
  for (int32_t row = 1; row <= whole.size(); ++row) {
    if ((rows >> row & 1) != 0 && ask.guess[static_cast<size_t>(row - 1)] < 0) return;
  }
  const int32_t begin = ask.end() - shift();
  int32_t count = 0;
  for (int32_t row = 1; row <= whole.size(); ++row) {
    if ((rows >> row & 1) == 0) continue;
    packer_.packed.ids.push_back(ask.guess[static_cast<size_t>(row - 1)]);
    packer_.packed.positions.push_back(begin + whole.depth(row) - 1);
    if (is_head())
      packer_.packed.guesses.goes_on_rows.push_back(feedback_row(ask, whole.parent(row)));
    packer_.add_kv_slot(ask, begin + count);
    packer_.packed.ancestors.push_back(part.ancestors(++count) >> 1);  // the carried token is in KV
    if (whole.depth(row) < depth) continue;
    const auto slot = static_cast<int32_t>(guessed_.size());
    packer_.packed.edits.opened.push_back({.slot = slot, .has_counts = 0});
    guessed_.push_back({&ask, row});
    add_sample_row(guessed_.back(), slot);
  }
  packer_.add_sequence(ask, count, begin + count);
}

// Of those that follow one row the tokens of their ranks; none of numbers that are none.
void PassProposer::read_children(const Sampled& sampled, const ops::SampledToken& likeliest,
                                 const ops::TopLogprob* top) const {
  std::vector<int32_t>& guess = sampled.ask->guess;
  guess.resize(static_cast<size_t>(sampled.ask->num_guess), -1);
  for (int32_t row = 1; row <= sampled.ask->num_guess; ++row) {
    if (tree_.tree.parent(row) != sampled.row || likeliest.token < 0) continue;
    const auto draft = static_cast<size_t>(row - 1);
    guess[draft] = top[tree_.ranks[draft]].token;
  }
}

}  // namespace rudder::exec
