// Scheduler: which guessed tokens the next step verifies, and when a step waits for them.
#include <algorithm>
#include <bit>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/sched/scheduler.h"

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

bool decodes(const Sequence& sequence) {
  return sequence.state == SequenceState::kRunning && sequence.has_carry &&
         sequence.uncomputed() == 1;
}

// Not while what a token runs follows from the one before it: a draft's is not known.
bool takes_drafts(const Sequence& sequence) {
  return sequence.is_drafted && sequence.takes_drafts && sequence.taps.takes_drafts();
}

}  // namespace

// Tokens of a sequence with drafts may still be sampled, and a guess needs them.
bool Scheduler::has_pending_guess() const {
  return std::ranges::any_of(running_, [](const Sequence* sequence) {
    return takes_drafts(*sequence) && decodes(*sequence) && sequence->samples_pending > 0;
  });
}

// All sequences wait together: two halves that take turns would read the weights twice as often.
// They wait where the last step had drafts, and where drafts behind the tokens in flight promise to
// pay; without pacing, where a proposer says so.
bool Scheduler::holds_for_drafts() {
  if (capacity_.guesses) {
    num_guess_ = choose_guess();
    if (capacity_.keeps_guesses()) return is_holding_ = holds_for_end();
    const auto guesses = [](const StepRecord& record) { return record.num_guess > 0; };
    is_holding_ =
        has_pending_guess() && (num_guess_ > 0 || std::ranges::any_of(in_flight_, guesses));
    return is_holding_;
  }
  if (proposer_ == nullptr) return false;
  is_holding_ = settings_.pace_drafts ? has_pending_guess() && (is_drafting_ || choose_drafts())
                                      : waits_for_guess();
  return is_holding_;
}

// Drafts that are slots' guesses are there before they are known, so steps run ahead. But each step
// with drafts is a large part of an answer, and what is planned behind its end is in vain.
bool Scheduler::holds_for_end() const {
  const auto has_prompt = [](const Sequence* sequence) {
    return sequence->state == SequenceState::kRunning && !decodes(*sequence);
  };
  if (!settings_.pace_drafts || !is_drafting_ || !waiting_.empty() || !has_pending_guess() ||
      std::ranges::any_of(running_, has_prompt)) {
    return false;
  }
  return pacer_.holds_for_end(num_running_, cost_.decode_us(in_flight_.back().shape));
}

bool Scheduler::waits_for_guess() const {
  return std::ranges::any_of(running_, [&](const Sequence* sequence) {
    return takes_drafts(*sequence) && decodes(*sequence) && sequence->samples_pending > 0 &&
           proposer_->waits(sequence->id);
  });
}

// What the next step verifies goes to Sequence::draft. True when there is anything.
bool Scheduler::propose_drafts() {
  if (!has_proposer()) return false;
  for (Sequence* sequence : running_) sequence->drop_drafts();
  if (!settings_.pace_drafts) return take_every_draft();
  if (has_pending_guess() && !capacity_.keeps_guesses()) return false;  // it runs ahead
  is_drafting_ = choose_drafts() && take_chosen_drafts();
  return is_drafting_;
}

// Of every sequence whose drafts are known, or whose slot has them, by rank, as far as the decodes
// leave tokens.
bool Scheduler::take_every_draft() {
  int64_t tokens_left = settings_.max_num_batched_tokens - std::ssize(running_);
  bool has_any = false;
  for (Sequence* sequence : running_) {
    if (!takes_drafts(*sequence) || !decodes(*sequence)) continue;
    if (sequence->samples_pending > 0 && !capacity_.keeps_guesses()) continue;
    const int64_t most = std::min(tokens_left, most_drafts(*sequence));
    if (most <= 0) continue;
    if (proposer_ != nullptr) {
      take_proposed(*sequence, most);
    } else if (capacity_.keeps_guesses()) {
      sequence->own_draft = static_cast<int32_t>(std::min<int64_t>(most, sequence->guess_len()));
    } else {
      const auto guess = sequence->record.guess();
      const auto taken = guess.first(std::min(guess.size(), static_cast<size_t>(most)));
      if (capacity_.guess_tree.empty()) {
        sequence->draft.assign(taken.begin(), taken.end());
      } else {
        take_rows(*sequence, rows_to_verify(*sequence, taken.size()));
      }
    }
    const int64_t num_draft = sequence->num_draft();
    RUDDER_CHECK(num_draft <= most, "{} drafts, {} were asked for", num_draft, most);
    tokens_left -= num_draft;
    has_any = has_any || num_draft > 0;
  }
  return has_any;
}

// Behind every token that it may still be given, as far as a last one can follow.
int64_t Scheduler::most_drafts(const Sequence& sequence) const {
  return std::min<int64_t>(capacity_.max_draft, sequence.max_len - sequence.future_len() - 1);
}

// Of the sequence's guess; empty: it is a chain.
const step::DraftTree& Scheduler::guess_tree(const Sequence& sequence) const {
  return proposer_ != nullptr ? sequence.record.tree() : capacity_.guess_tree;
}

// Of a guess that is a tree, of its first `most` drafts. Where more than its positions follow from
// the tokens that a token follows (programs that change, captures), those of one path alone: the
// first draft behind each. None that stands for a token in flight.
uint64_t Scheduler::rows_to_verify(const Sequence& sequence, size_t most) const {
  const step::DraftTree& tree = guess_tree(sequence);
  uint64_t rows = ~uint64_t{0} >> (step::kMaxTreeDrafts - most);
  if (!takes_tree(sequence, tree.depth())) rows &= tree.first_chain();
  if (sequence.samples_pending > 0) rows &= ~tree.down_to(sequence.samples_pending);
  return rows | 1;
}

// One so deep.
bool Scheduler::takes_tree(const Sequence& sequence, int32_t depth) const {
  return capacity_.takes_trees &&
         sequence.taps.uniform_len(sequence.planned_len, 1 + depth) == 1 + depth;
}

// Of its guess, a tree, the drafts of these rows.
void Scheduler::take_rows(Sequence& sequence, uint64_t rows) const {
  const std::span<const int32_t> guess = sequence.record.guess();
  for (size_t i = 0; i < guess.size(); ++i) {
    if ((rows >> (i + 1) & 1) != 0) sequence.draft.push_back(guess[i]);
  }
  sequence.draft_tree = guess_tree(sequence).part(rows);
  if (sequence.draft_tree.is_chain()) sequence.draft_tree = {};
}

// At most so many tokens behind those that are known.
void Scheduler::ask_proposer(const Sequence& sequence, int64_t most, Draft* draft) {
  const DraftAsk ask = {.most = static_cast<int32_t>(most),
                        .takes_tree = takes_tree(sequence, static_cast<int32_t>(most))};
  proposer_->propose(sequence.id, sequence.tokens, ask, draft);
  const int64_t count = std::ssize(draft->tokens);
  RUDDER_CHECK(count <= most && (draft->tree.empty() || draft->tree.size() == count) &&
                   (draft->odds.empty() || std::ssize(draft->odds) == count),
               "{} drafts, a tree of {}, {} odds, {} were asked for", count, draft->tree.size(),
               draft->odds.size(), most);
}

// What the proposer makes of at most so many drafts: its tree, or where there can be none the chain
// of first children.
void Scheduler::take_proposed(Sequence& sequence, int64_t most) {
  RUDDER_CHECK(most <= most_drafts(sequence), "{} drafts for sequence {}", most, sequence.id.value);
  Draft draft;
  ask_proposer(sequence, most, &draft);
  const int64_t count = std::ssize(draft.tokens);
  const bool is_tree = draft.tree.empty() || takes_tree(sequence, draft.tree.depth());
  const uint64_t rows = is_tree ? ~uint64_t{0} : draft.tree.first_chain();
  for (int64_t i = 0; i < count; ++i) {
    const bool is_taken = is_tree || (rows >> (i + 1) & 1) != 0;
    if (is_taken) sequence.draft.push_back(draft.tokens[static_cast<size_t>(i)]);
  }
  if (is_tree) sequence.draft_tree = draft.tree;
}

// Sets in offers_ what is worth verifying. True when anything is. To guess for every sequence takes
// time of the host, whatever comes of it. So while drafts do not pay, a cohort of the sequences
// stands for all, in time each, and all are asked once it promises something. Who learns is asked
// for those alone that are drafted for; many of them are looked at in one of several plans.
bool Scheduler::choose_drafts() {
  if (proposer_ != nullptr && proposer_->learns()) {
    if (!drafts_pay_ && ++num_looks_ % (running_.size() / kLeastAsked + 1) != 0) return false;
    const StepShape plain = collect_offers(1);
    drafts_pay_ = pacer_.choose_together(offers_, cost_, plain);
    return drafts_pay_;
  }
  const size_t most = proposer_ == nullptr ? 1 : kMostCohorts;  // the executor's are made already
  const size_t num_cohorts =
      std::bit_floor(std::clamp<size_t>(running_.size() / kLeastAsked, 1, most));
  if (num_cohorts > 1 && !drafts_pay_) {
    const StepShape plain = collect_offers(num_cohorts);
    if (!pacer_.promises(offers_, static_cast<int64_t>(num_cohorts), cost_, plain)) return false;
  }
  const StepShape plain = collect_offers(1);
  drafts_pay_ = pacer_.choose(offers_, cost_, plain);
  return drafts_pay_;
}

// Guesses anew behind the tokens known now of the sequences of one of so many cohorts. The guesses
// go to offers_; returned is what the step would be without drafts.
StepShape Scheduler::collect_offers(size_t num_cohorts) {
  offers_.clear();
  offered_.clear();
  StepShape plain;
  const size_t asked = ++num_looks_ / kLooksInARow % num_cohorts;
  for (Sequence* const sequence : running_) {
    if (!decodes(*sequence)) continue;
    plain.decode_tokens += 1;
    plain.decode_keys += sequence->future_len();
    if (cohort_of(sequence->id, num_cohorts) != asked || !takes_drafts(*sequence)) continue;
    const auto num_pending = static_cast<size_t>(sequence->samples_pending);
    const int64_t most = std::max<int64_t>(0, most_drafts(*sequence));
    if (proposer_ != nullptr && proposer_->learns()) {
      offered_.push_back(sequence);
      offers_.push_back({.record = &sequence->record, .most = static_cast<size_t>(most)});
      continue;
    }
    if (capacity_.keeps_guesses()) {
      offer_own(*sequence, most);
      continue;
    }
    if (proposer_ != nullptr) guess_anew(*sequence);
    const std::span<const int32_t> guess = sequence->record.guess();
    if (guess.size() <= num_pending) continue;
    offered_.push_back(sequence);
    offers_.push_back({.record = &sequence->record, .num_pending = num_pending});
    DraftPacer::Offer& offer = offers_.back();
    offer.most = std::min(guess.size() - num_pending, static_cast<size_t>(most));
    if (guess_tree(*sequence).empty()) continue;
    offer.num_pending = 0;
    offer.rows = rows_to_verify(*sequence, offer.most);
  }
  return plain;
}

// What the slot guesses behind the tokens in flight, whatever that is.
void Scheduler::offer_own(Sequence& sequence, int64_t most) {
  const int64_t count = std::min<int64_t>(most, sequence.guess_len());
  if (count <= 0) return;
  offered_.push_back(&sequence);
  offers_.push_back({.record = &sequence.record, .most = static_cast<size_t>(count)});
}

void Scheduler::guess_anew(Sequence& sequence) {
  Draft& draft = sequence.record.new_guess();
  ask_proposer(sequence, sequence.samples_pending + capacity_.max_draft, &draft);
  RUDDER_CHECK(draft.tree.empty() || !draft.odds.empty(), "a tree of unknown odds");
}

// Tokens that the executor's proposer is to guess behind each sequence of the next step. To look
// them up takes next to no time.
int32_t Scheduler::choose_guess() {
  const auto is_drafted = [](const Sequence* sequence) { return takes_drafts(*sequence); };
  if (!settings_.pace_drafts || capacity_.keeps_guesses()) {
    return waiting_.empty() && std::ranges::none_of(running_, is_drafted) ? 0 : capacity_.max_draft;
  }
  StepShape plain;
  records_.clear();
  for (const Sequence* sequence : running_) {
    if (sequence->state != SequenceState::kRunning) continue;
    plain.decode_tokens += 1;
    plain.decode_keys += sequence->future_len();
    if (takes_drafts(*sequence)) records_.push_back(&sequence->record);
  }
  return pacer_.choose_guess(records_, cost_, plain, capacity_.max_draft);
}

// The executor's proposer first runs the tokens that it has not run, as far as a step has room for
// them. It guesses where it has run all of them, no sample of another step is on its way, and there
// are blocks to keep what it makes of its guesses. One that reads rows alone guesses at once, and
// one that looks guesses up whatever is on its way. Of `work` all but blocks is known.
void Scheduler::add_guess(StepBuilder& builder, Sequence& sequence, step::SeqWork& work) {
  if (builder.num_guess == 0 || !takes_drafts(sequence)) return;
  const int32_t end = work.kv_len + work.q_len - work.num_draft;
  const bool is_last = work.logits != step::LogitsWanted::kNone &&
                       (sequence.samples_pending == 0 || capacity_.keeps_guesses());
  const int32_t most = is_last ? std::min(builder.num_guess, sequence.max_len - end - 2) : 0;
  if (capacity_.guesses_from_rows && !RUDDER_MUTANT(kTokensForRows)) {
    work.guess.begin = end;
    work.guess.num_guess = std::max(most, 0);
    return;
  }
  const auto known = std::min(end, static_cast<int32_t>(sequence.tokens.size()));
  const auto count = static_cast<int32_t>(std::clamp<int64_t>(
      known - sequence.proposed_len, 0, RUDDER_MUTANT(kGuessPastHole) ? 0 : builder.guess_left));
  const auto first = sequence.tokens.begin() + sequence.proposed_len;
  work.guess.begin = RUDDER_MUTANT(kGuessPastHole) ? end : sequence.proposed_len;
  work.guess.tokens.assign(first, first + count);
  builder.guess_left -= count;
  sequence.proposed_len += count;
  const bool knows_all = work.guess.begin + count == end;
  if (!knows_all || most <= 0) return;
  work.guess.num_guess = grow_for_guess(builder, sequence, work.longest_len(), most);
}

// Blocks for `most` guesses behind so many tokens, as far as there are more than those that run are
// about to need; returns for how many.
int32_t Scheduler::grow_for_guess(const StepBuilder& builder, Sequence& sequence, int32_t behind,
                                  int32_t most) {
  const int32_t wanted = std::min(behind + most, sequence.max_len);
  // Below 0 where nobody waits: what prompts will take is not summed up then, what they took is.
  const int64_t promised = std::max<int64_t>(0, builder.blocks_promised);
  while (sequence.table_len() < blocks_for(wanted) && !RUDDER_MUTANT(kGuessWithoutBlocks)) {
    if (cache_.num_available() - promised < num_groups() + headroom()) break;
    for (kv::BlockTable& table : sequence.tables) table.blocks.push_back(cache_.take());
  }
  const int32_t held = sequence.table_len() * capacity_.block_size;
  const int32_t room = RUDDER_MUTANT(kGuessWithoutBlocks) ? wanted : std::min(held, wanted);
  sequence.reserved_len = std::max({sequence.reserved_len, behind, std::min(held, room)});
  return std::clamp(room - behind, 0, most);
}

// A result's guess, behind its tokens.
void Scheduler::note_guess(Sequence& sequence, const step::SeqWork& work,
                           const step::SeqResult& result) {
  if (work.guess.num_guess == 0) return;
  RUDDER_CHECK(std::ssize(result.guess) <= work.guess.num_guess, "{} guesses, {} were asked for",
               result.guess.size(), work.guess.num_guess);
  sequence.proposed_len = static_cast<int32_t>(sequence.tokens.size());
  sequence.record.new_guess().tokens = result.guess;
  // Where drafts are planned before it is known whether there is a guess, none is a wrong one.
  const bool is_missed = capacity_.keeps_guesses() && result.guess.empty();
  if (is_missed && result.end == step::SeqEnd::kNone) sequence.record.note_none(&pacer_.all());
}

// The drafts of a guess that the slot has are filled in when they are known.
void Scheduler::add_constrained(const Sequence& sequence) {
  ConstrainedSequence& added = constrained_.emplace_back();
  added.id = sequence.id;
  added.draft = sequence.draft;
  added.tree = sequence.draft_tree;
  added.takes_guess = sequence.own_draft > 0;
  added.draft.resize(static_cast<size_t>(sequence.num_draft()), -1);
  if (RUDDER_MUTANT(kMasksOfLastGuess)) learn_drafts();
}

const std::vector<ConstrainedSequence>& Scheduler::learn_drafts() {
  for (ConstrainedSequence& constrained : constrained_) {
    const auto sequence = sequences_.find(constrained.id);
    if (!std::exchange(constrained.takes_guess, false) || sequence == sequences_.end()) continue;
    const std::span<const int32_t> guess = sequence->second->record.guess();
    const size_t known = std::min(guess.size(), constrained.draft.size());
    std::copy_n(guess.begin(), known, constrained.draft.begin());
  }
  return constrained_;
}

bool Scheduler::take_chosen_drafts() {
  int64_t tokens_left = settings_.max_num_batched_tokens - std::ssize(running_);
  bool has_any = false;
  for (size_t i = 0; i < offers_.size() && tokens_left > 0; ++i) {
    const DraftPacer::Offer& offer = offers_[i];
    const auto count = std::min(offer.count, static_cast<size_t>(tokens_left));
    if (capacity_.keeps_guesses()) {
      offered_[i]->own_draft = static_cast<int32_t>(count);
    } else if (offer.rows != 0) {
      uint64_t rows = offer.chosen;
      while (std::popcount(rows) > tokens_left) rows ^= std::bit_floor(rows);
      take_rows(*offered_[i], rows);
    } else if (proposer_ != nullptr && proposer_->learns()) {
      const int64_t most = std::min(static_cast<int64_t>(offer.count), tokens_left);
      if (most > 0) take_proposed(*offered_[i], most);
      offered_[i]->has_part = most < static_cast<int64_t>(offer.most);
    } else {
      const auto guess = offer.record->guess().first(count);
      offered_[i]->draft.assign(guess.begin(), guess.end());
    }
    const int64_t num_draft = offered_[i]->num_draft();
    tokens_left -= num_draft;
    has_any = has_any || num_draft > 0;
  }
  return has_any;
}

void Scheduler::stop_drafting(SequenceId id) {
  const auto sequence = sequences_.find(id);
  if (sequence != sequences_.end()) sequence->second->takes_drafts = false;
}

// Of a sequence with drafts: how many it had, and which were right.
void Scheduler::note_drafts(Sequence& sequence, StepRecord& record, int32_t num_draft,
                            const step::SeqResult& result, int32_t accepted) {
  RUDDER_CHECK(accepted <= num_draft, "{} of {} drafts are right", accepted, num_draft);
  if (num_draft > 0) {
    ++counters_.drafts;
    counters_.draft_tokens += static_cast<uint64_t>(num_draft);
    counters_.accepted_tokens += static_cast<uint64_t>(accepted);
    for (int32_t i = 0; i < accepted; ++i) {
      ++counters_.accepted_by_position[static_cast<size_t>(i)];
    }
  }
  record.num_accepted += accepted;
  if (!sequence.is_drafted) return;
  if (proposer_ != nullptr && proposer_->learns()) {
    if (num_draft == 0 || !sequence.has_part) {
      sequence.record.note_together(num_draft, accepted, &pacer_.yield());
    }
    const auto rows = std::span(result.row_tokens);  // of trees alone
    if (rows.empty()) return;
    return proposer_->note_rows(sequence.id, rows.subspan(RUDDER_MUTANT(kRowsMoved) ? 1 : 0));
  }
  if (settings_.pace_drafts || capacity_.guesses) {
    sequence.record.compare(result.tokens, capacity_.guess_tree, &pacer_.all());
  }
}

}  // namespace rudder::sched
