// Drafts: which guessed tokens the next step verifies: every one that there is, or those that pay.
#include <algorithm>
#include <bit>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/sched/drafts.h"
#include "rudder/sched/running.h"

namespace rudder::sched {

namespace {

// Sequences that stand for all are about so many, or one of so many.
constexpr size_t kLeastAsked = 16;
constexpr size_t kMostCohorts = 16;
// They do so for a while: a proposer learns the text of a sequence that it is asked for.
constexpr size_t kLooksInARow = 32;

// Of a power of two, at most kMostCohorts. Ids that follow each other fall apart evenly.
size_t cohort_of(SequenceId id, size_t num_cohorts) {
  return (id.value * 0x9e37'79b9'7f4a'7c15 >> 60) % num_cohorts;
}

}  // namespace

bool Drafts::propose() {
  if (!has_proposer()) return false;
  for (Sequence* sequence : running_.all()) sequence->draft.drop();
  if (!settings_.pace_drafts) return take_every_draft();
  if (has_pending_guess() && !caps_.keeps_guesses) return false;  // it runs ahead
  is_drafting_ = choose() && take_chosen();
  return is_drafting_;
}

// Of every sequence whose drafts are known, or whose slot has them, by rank, as far as the decodes
// leave tokens.
bool Drafts::take_every_draft() {
  int64_t tokens_left = settings_.max_num_batched_tokens - running_.size();
  bool has_any = false;
  for (Sequence* sequence : running_.all()) {
    if (!sequence->takes_drafts() || !sequence->decodes()) continue;
    if (sequence->run.samples_pending > 0 && !caps_.keeps_guesses) continue;
    const int64_t most = std::min(tokens_left, most_drafts(*sequence));
    if (most <= 0) continue;
    if (proposer_ != nullptr) {
      take_proposed(*sequence, most);
    } else {
      take_guess(*sequence, most);
    }
    const int64_t num_draft = sequence->draft.count();
    RUDDER_CHECK(num_draft <= most, "{} drafts, {} were asked for", num_draft, most);
    tokens_left -= num_draft;
    has_any = has_any || num_draft > 0;
  }
  return has_any;
}

// Of the guess that the executor made, at most so many drafts.
void Drafts::take_guess(Sequence& sequence, int64_t most) const {
  if (caps_.keeps_guesses) {
    sequence.draft.own = static_cast<int32_t>(std::min<int64_t>(most, sequence.guess_len()));
    return;
  }
  const auto guess = sequence.draft.record.guess();
  const auto taken = guess.first(std::min(guess.size(), static_cast<size_t>(most)));
  if (caps_.guess_tree.empty()) {
    sequence.draft.tokens.assign(taken.begin(), taken.end());
  } else {
    take_rows(sequence, rows_to_verify(sequence, taken.size()));
  }
}

// Behind every token that it may still be given, as far as a last one can follow.
int64_t Drafts::most_drafts(const Sequence& sequence) const {
  return std::min<int64_t>(caps_.max_draft, sequence.max_len - sequence.future_len() - 1);
}

// Of the sequence's guess; empty: it is a chain.
const step::DraftTree& Drafts::guess_tree(const Sequence& sequence) const {
  return proposer_ != nullptr ? sequence.draft.record.tree() : caps_.guess_tree;
}

// Of a guess that is a tree, of its first `most` drafts. Where more than its positions follow from
// the tokens that a token follows (programs that change, captures), those of one path alone: the
// first draft behind each. None that stands for a token in flight.
uint64_t Drafts::rows_to_verify(const Sequence& sequence, size_t most) const {
  const step::DraftTree& tree = guess_tree(sequence);
  uint64_t rows = ~uint64_t{0} >> (step::kMaxTreeDrafts - most);
  if (!takes_tree(sequence, tree.depth())) rows &= tree.first_chain();
  const int32_t pending = sequence.run.samples_pending;
  if (pending > 0) rows &= ~tree.down_to(pending);
  return rows | 1;
}

// One so deep.
bool Drafts::takes_tree(const Sequence& sequence, int32_t depth) const {
  return caps_.takes_trees &&
         sequence.taps.uniform_len(sequence.run.planned_len, 1 + depth) == 1 + depth;
}

// Of its guess, a tree, the drafts of these rows.
void Drafts::take_rows(Sequence& sequence, uint64_t rows) const {
  const std::span<const int32_t> guess = sequence.draft.record.guess();
  for (size_t i = 0; i < guess.size(); ++i) {
    if ((rows >> (i + 1) & 1) != 0) sequence.draft.tokens.push_back(guess[i]);
  }
  sequence.draft.tree = guess_tree(sequence).part(rows);
  if (sequence.draft.tree.is_chain()) sequence.draft.tree = {};
}

// At most so many tokens behind those that are known.
void Drafts::ask_proposer(const Sequence& sequence, int64_t most, Draft* draft) {
  const DraftAsk ask = {.most = static_cast<int32_t>(most),
                        .takes_tree = takes_tree(sequence, static_cast<int32_t>(most))};
  proposer_->propose(sequence.id, sequence.tokens, ask, draft);
  const int64_t count = std::ssize(draft->tokens);
  const bool is_tree = ask.takes_tree && draft->tree.size() == count;
  RUDDER_CHECK(count <= most && (draft->tree.empty() || is_tree) &&
                   (draft->odds.empty() || std::ssize(draft->odds) == count),
               "{} drafts, a tree of {}, {} odds, {} were asked for", count, draft->tree.size(),
               draft->odds.size(), most);
}

// What the proposer makes of at most so many drafts.
void Drafts::take_proposed(Sequence& sequence, int64_t most) {
  Draft draft;
  ask_proposer(sequence, most, &draft);
  sequence.draft.tokens = std::move(draft.tokens);
  sequence.draft.tree = draft.tree;
}

// Sets in offers_ what is worth verifying. True when anything is. To guess for every sequence takes
// time of the host, whatever comes of it. So while drafts do not pay, a cohort of the sequences
// stands for all, in time each, and all are asked once it promises something.
bool Drafts::choose() {
  const auto num_running = static_cast<size_t>(running_.size());
  const size_t most = proposer_ == nullptr ? 1 : kMostCohorts;  // the executor's are made already
  const size_t num_cohorts = std::bit_floor(std::clamp<size_t>(num_running / kLeastAsked, 1, most));
  if (num_cohorts > 1 && !pays_) {
    const StepShape plain = collect_offers(num_cohorts);
    if (!pacer_.promises(offers_, static_cast<int64_t>(num_cohorts), cost_, plain)) return false;
  }
  const StepShape plain = collect_offers(1);
  pays_ = pacer_.choose(offers_, cost_, plain);
  return pays_;
}

// Guesses anew behind the tokens known now of the sequences of one of so many cohorts. The guesses
// go to offers_; returned is what the step would be without drafts.
StepShape Drafts::collect_offers(size_t num_cohorts) {
  offers_.clear();
  offered_.clear();
  StepShape plain;
  const size_t asked = ++num_looks_ / kLooksInARow % num_cohorts;
  for (Sequence* const sequence : running_.all()) {
    if (!sequence->decodes()) continue;
    plain.decode_tokens += 1;
    plain.decode_keys += sequence->future_len();
    if (cohort_of(sequence->id, num_cohorts) != asked || !sequence->takes_drafts()) continue;
    offer(*sequence);
  }
  return plain;
}

// The drafts that a step could verify of the sequence: those that the slot guesses behind the
// tokens in flight, whatever that is, or those of a guess.
void Drafts::offer(Sequence& sequence) {
  const auto most = static_cast<size_t>(std::max<int64_t>(0, most_drafts(sequence)));
  DraftPacer::Offer offer = {.record = &sequence.draft.record, .most = most};
  if (caps_.keeps_guesses) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(most), sequence.guess_len());
    if (count <= 0) return;
    offer.most = static_cast<size_t>(count);
  } else {
    const int32_t num_pending = sequence.run.samples_pending;
    if (proposer_ != nullptr) {
      Draft& draft = sequence.draft.record.new_guess();
      ask_proposer(sequence, num_pending + caps_.max_draft, &draft);
      RUDDER_CHECK(draft.tree.empty() || !draft.odds.empty(), "a tree of unknown odds");
    }
    const size_t num_guessed = sequence.draft.record.guess().size();
    if (std::cmp_less_equal(num_guessed, num_pending)) return;
    const bool is_tree = !guess_tree(sequence).empty();
    offer.num_pending = is_tree ? 0 : static_cast<size_t>(num_pending);
    offer.most = std::min(num_guessed - static_cast<size_t>(num_pending), most);
    if (is_tree) offer.rows = rows_to_verify(sequence, offer.most);
  }
  offered_.push_back(&sequence);
  offers_.push_back(offer);
}

bool Drafts::take_chosen() {
  int64_t tokens_left = settings_.max_num_batched_tokens - running_.size();
  bool has_any = false;
  for (size_t i = 0; i < offers_.size() && tokens_left > 0; ++i) {
    take_offer(offers_[i], *offered_[i], tokens_left);
    const int64_t num_draft = offered_[i]->draft.count();
    tokens_left -= num_draft;
    has_any = has_any || num_draft > 0;
  }
  return has_any;
}

// What was chosen of it, as far as the step has tokens.
void Drafts::take_offer(const DraftPacer::Offer& offer, Sequence& sequence, int64_t tokens_left) {
  const auto count = std::min(offer.count, static_cast<size_t>(tokens_left));
  if (caps_.keeps_guesses) {
    sequence.draft.own = static_cast<int32_t>(count);
  } else if (offer.rows != 0) {
    uint64_t rows = offer.chosen;
    while (std::popcount(rows) > tokens_left) rows ^= std::bit_floor(rows);
    take_rows(sequence, rows);
  } else {
    const auto guess = offer.record->guess().first(count);
    sequence.draft.tokens.assign(guess.begin(), guess.end());
  }
}

}  // namespace rudder::sched
