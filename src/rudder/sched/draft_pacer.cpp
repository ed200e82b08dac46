#include "rudder/sched/draft_pacer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace rudder::sched {
namespace {

// The purse's share of a plain step: the most that drafts may cost in the long run.
constexpr double kAllowance = 0.003;
constexpr double kFullPurse = 2;
constexpr double kEmptyPurse = -4;
// What a step with drafts must be better by than a plain one, as expected.
constexpr double kMargin = 1.01;
// After so many steps with drafts one is plain, so that what it takes stays known.
constexpr int64_t kDraftedInARow = 128;
// A step took at most so many times what was expected; more is a hiccup.
constexpr double kMostHiccup = 2;
constexpr double kIdleRate = 1.0 / 16;
// One pause for another reason is not the rule.
constexpr double kMostIdleSurprise = 4;
constexpr double kLeastIdleSurprise = 1000;  // us
// To hold a step costs so many us at least: what was measured may be of other steps.
constexpr double kLeastIdle = 50;
// A step counts half after so many others: 69.
constexpr float kKeepEnds = 0.99f;
// A pause that keeps drafts away is not measured again: every plain step forgets some of it.
constexpr double kIdleFade = 1.0 / 512;
// Of sequences and drafts of which nothing is known, so many first tokens are right.
constexpr float kUnknownOdds = 0.25f;

// The same of a model that guesses: who has one expects it to be right.
constexpr float kUnknownModelOdds = 0.6f;
// Where guesses cost time and do not pay, one step in so many guesses, so many tokens.
constexpr int64_t kTryEvery = 128;
constexpr int32_t kTryTokens = 2;
constexpr double kPassRate = 1.0 / 8;

// Odds are told apart in so many steps.
constexpr size_t kLevels = 64;

size_t level_of(float odds) {
  return std::min(kLevels - 1, static_cast<size_t>(odds * static_cast<float>(kLevels)));
}

StepShape with_drafts(StepShape shape, int64_t num_draft) {
  shape.decode_tokens += num_draft;
  shape.decode_keys += num_draft;
  return shape;
}

}  // namespace

bool DraftPacer::choose(std::span<Offer> offers, const StepCost& cost, const StepShape& plain) {
  for (Offer& offer : offers) offer.count = offer.chosen = 0;
  const int64_t count = best_count(offers, 1, cost, plain);
  if (count == 0) return false;
  take(offers, count);
  return true;
}

bool DraftPacer::promises(std::span<const Offer> offers, int64_t scale, const StepCost& cost,
                          const StepShape& plain) {
  return best_count(offers, scale, cost, plain) > 0;
}

// Odds fall along a guess, so all tokens whose odds are at some level or above are the beginnings
// of guesses, of trees with all that they follow. Of these sets the best is taken, as far as it is
// within what steps were seen to take.
int64_t DraftPacer::best_count(std::span<const Offer> offers, int64_t scale, const StepCost& cost,
                               const StepShape& plain) {
  const double plain_us = cost.decode_us(plain);
  if (purse_ <= 0 || !cost.is_warm() || plain_us <= 0) return 0;
  if (num_drafted_ >= kDraftedInARow) return 0;
  weigh(offers, scale);
  const auto num_tokens = static_cast<double>(plain.decode_tokens);
  const int64_t room = cost.trusted_tokens() - plain.decode_tokens;
  double best = kMargin * num_tokens / plain_us;
  int64_t most_gained = 0;
  int64_t count = 0;
  double expected = num_tokens;
  for (size_t level = kLevels; level-- > 0 && count < room;) {
    const Level& at = levels_[level];
    if (at.count == 0) continue;
    const int64_t taken = std::min(at.count, room - count);
    expected += at.sum * static_cast<double>(taken) / static_cast<double>(at.count);
    count += taken;
    const double reached = expected / (cost.decode_us(with_drafts(plain, count)) + idle_us_);
    if (reached <= best) continue;
    best = reached;
    most_gained = count;
  }
  return most_gained;
}

// More sequences take longer, fewer perhaps no less. Of a tree it is the time of all its depths.
double DraftPacer::guess_us(int32_t num_guess, int64_t num_seqs) const {
  return pass_us_ * (tree_.empty() ? num_guess : tree_.size()) *
         std::max(1.0, static_cast<double>(num_seqs) / pass_seqs_);
}

// Returns what the guesses of a step are charged for: what they took, or what is usual where they
// were not all that took the time. A cost that is paid once is neither learnt nor charged: that of
// the first guesses of all, and as far as it shows what others have. A time that has more in it
// than guesses is a bound of what they take. It lowers an estimate that keeps guesses from being
// made, and so from being measured.
double DraftPacer::note_guess(const Outcome& outcome) {
  if (outcome.num_guess == 0 || outcome.guess_seqs == 0) return 0;
  const double usual_us = guess_us(outcome.num_guess, outcome.guess_seqs);
  const bool is_first = !std::exchange(has_guessed_, true);
  auto us = static_cast<double>(outcome.guess_us);
  if (us <= 0 || is_first) return usual_us;
  if (usual_us > 0) us = std::min(us, kMostHiccup * usual_us);
  const double charged_us = outcome.has_caught_up ? std::min(us, usual_us) : us;
  if (outcome.num_guess < tree_.size()) return charged_us;  // it was as deep, but for fewer tokens
  const double pass_us = us / outcome.num_guess;
  const auto num_seqs = static_cast<double>(outcome.guess_seqs);
  if (!outcome.has_caught_up) {
    const double rate = pass_us_ == 0 ? 1 : kPassRate;
    pass_us_ += rate * (pass_us - pass_us_);
    pass_seqs_ += rate * (num_seqs - pass_seqs_);
  } else if (pass_us * std::max(1.0, pass_seqs_ / num_seqs) < pass_us_) {
    pass_us_ = pass_us;
    pass_seqs_ = num_seqs;
  }
  return charged_us;
}

int32_t DraftPacer::choose_guess(std::span<const DraftRecord* const> records, const StepCost& cost,
                                 const StepShape& plain, int32_t most) {
  const auto num_seqs = std::ssize(records);
  const double plain_us = cost.decode_us(plain);
  if (num_seqs == 0 || purse_ <= 0 || !cost.is_warm() || plain_us <= 0) return 0;
  // choose() verifies no tokens that nobody trusts the cost of. What is left over of a token for
  // each sequence counts as one: else steps would never have more tokens, and the trust not grow.
  const int64_t trusted = cost.trusted_tokens() - plain.decode_tokens;
  if (trusted <= 0) return 0;
  const int64_t room = std::min<int64_t>((trusted + num_seqs - 1) / num_seqs, most);
  odds_.clear();
  for (const DraftRecord* record : records) {
    const auto begin = std::ssize(odds_);
    record->append_odds(all_, kUnknownModelOdds, static_cast<size_t>(tree_.empty() ? room : most),
                        tree_, &odds_);
    std::sort(odds_.begin() + begin, odds_.end(), std::greater<>());  // a chain's are
    odds_.resize(static_cast<size_t>(begin + room));
  }
  const auto num_tokens = static_cast<double>(plain.decode_tokens);
  double best = kMargin * num_tokens / plain_us;
  double expected = num_tokens;
  int32_t chosen = 0;
  for (int32_t count = 1; count <= room; ++count) {
    for (int64_t seq = 0; seq < num_seqs; ++seq) {
      expected += odds_[static_cast<size_t>(seq * room + count - 1)];
    }
    const double us =
        cost.decode_us(with_drafts(plain, count * num_seqs)) + guess_us(count, num_seqs) + idle_us_;
    if (expected / us <= best) continue;
    best = expected / us;
    chosen = count;
  }
  if (chosen == 0 && num_unguessed_ >= kTryEvery)
    chosen = std::min<int32_t>(static_cast<int32_t>(room), kTryTokens);
  return chosen == 0 || tree_.empty() ? chosen : most;
}

// How many tokens of all offers have odds of each level, and their sum, `scale` times.
void DraftPacer::weigh(std::span<const Offer> offers, int64_t scale) {
  levels_.assign(kLevels, {});
  odds_.clear();
  for (const Offer& offer : offers) {
    const size_t begin = odds_.size();
    if (offer.most > 0) {
      offer.record->append_odds(all_, kUnknownOdds, offer.num_pending + offer.most, tree_, &odds_);
    }
    odds_.erase(
        odds_.begin() + static_cast<ptrdiff_t>(begin),
        odds_.begin() + static_cast<ptrdiff_t>(begin + (offer.most > 0 ? offer.num_pending : 0)));
    for (size_t i = begin; i < odds_.size(); ++i) {
      if (!offer.may_verify(i - begin)) continue;
      Level& level = levels_[level_of(odds_[i])];
      level.count += scale;
      level.sum += static_cast<double>(scale) * odds_[i];
    }
  }
}

// The `count` tokens of the highest levels; of the lowest of these levels, the first in order.
void DraftPacer::take(std::span<Offer> offers, int64_t count) {
  size_t lowest = kLevels;
  int64_t above = 0;  // tokens above the lowest level
  while (lowest > 0 && above + levels_[lowest - 1].count < count) above += levels_[--lowest].count;
  if (lowest == 0) return;
  --lowest;
  int64_t left = count - above;
  size_t next = 0;
  for (Offer& offer : offers) {
    for (size_t i = 0; i < offer.most; ++i, ++next) {
      if (!offer.may_verify(i)) continue;
      const size_t level = level_of(odds_[next]);
      const bool is_taken = level > lowest || (level == lowest && left-- > 0);
      if (!is_taken) continue;
      offer.count = i + 1;
      if (offer.rows != 0) offer.chosen |= uint64_t{1} << (i + 1);
    }
  }
}

void DraftPacer::note_step(const StepCost& cost, const Outcome& outcome) {
  const double guesses_us = note_guess(outcome);
  num_unguessed_ = outcome.num_guess > 0 ? 0 : num_unguessed_ + 1;
  if (outcome.us <= 0) return;
  StepShape plain = outcome.shape;
  plain.decode_tokens -= outcome.num_draft;
  plain.decode_keys -= outcome.num_draft;
  StepShape decodes = plain;
  decodes.prompt_tokens = 0;
  decodes.prompt_pairs = 0;
  const double decodes_us = cost.decode_us(decodes);
  if (decodes_us <= 0) return;
  double gain_us = (outcome.waited ? -idle_us_ : 0) - owed_us_;
  owed_us_ = guesses_us;
  if (outcome.num_draft == 0) {
    num_drafted_ = 0;
    idle_us_ -= kIdleFade * idle_us_;
    gain_us += kAllowance * decodes_us;
  } else {
    ++num_drafted_;
    // What prompts take is not known as well as drafts would have to be.
    const double drafts_us =
        plain.prompt_tokens > 0
            ? cost.decode_us(with_drafts(decodes, outcome.num_draft)) - decodes_us
            : std::min(static_cast<double>(outcome.us) - decodes_us,
                       (kMostHiccup - 1) * cost.mean_us(outcome.shape));
    gain_us += static_cast<double>(outcome.num_accepted) * decodes_us /
                   static_cast<double>(plain.decode_tokens) -
               drafts_us;
  }
  purse_ = std::clamp(purse_ + gain_us / decodes_us, kEmptyPurse, kFullPurse);
}

bool DraftPacer::holds_for_end(int64_t num_seqs, double step_us) const {
  const double odds = std::pow(ends_.estimate(0), static_cast<double>(num_seqs));
  return odds * step_us > std::max(idle_us_, kLeastIdle);
}

void DraftPacer::note_end(bool has_ended) {
  ends_.note(has_ended, kKeepEnds);
}

void DraftPacer::note_idle(int64_t us) {
  const double most = std::max(kLeastIdleSurprise, kMostIdleSurprise * idle_us_);
  idle_us_ += kIdleRate * (std::min(static_cast<double>(us), most) - idle_us_);
}

}  // namespace rudder::sched
