// Scheduler: which guessed tokens the next step verifies, and when a step waits for them.
#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/sched/scheduler.h"

namespace rudder::sched {

namespace {

// Sequences that stand for all are at least so many, and at least one of so many.
constexpr size_t kLeastAsked = 16;
constexpr size_t kMostStride = 16;

bool decodes(const Sequence& sequence) {
  return sequence.state == SequenceState::kRunning && sequence.has_carry &&
         sequence.uncomputed() == 1;
}

// Not while what a token runs follows from the one before it: a draft's is not known.
bool takes_drafts(const Sequence& sequence) {
  return sequence.is_drafted && !sequence.taps.needs_known_tokens();
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
  if (proposer_ == nullptr) return false;
  is_holding_ = settings_.pace_drafts ? has_pending_guess() && (is_drafting_ || choose_drafts())
                                      : waits_for_guess();
  return is_holding_;
}

bool Scheduler::waits_for_guess() const {
  return std::ranges::any_of(running_, [&](const Sequence* sequence) {
    return takes_drafts(*sequence) && decodes(*sequence) && sequence->samples_pending > 0 &&
           proposer_->waits(sequence->id);
  });
}

// What the next step verifies goes to Sequence::draft. True when there is anything.
bool Scheduler::propose_drafts() {
  if (proposer_ == nullptr) return false;
  for (Sequence* sequence : running_) sequence->draft.clear();
  if (!settings_.pace_drafts) return take_every_draft();
  if (has_pending_guess()) return false;  // it runs ahead
  is_drafting_ = choose_drafts() && take_chosen_drafts();
  return is_drafting_;
}

// Of every sequence all of whose tokens are known, by rank, as far as the decodes leave tokens.
bool Scheduler::take_every_draft() {
  int64_t tokens_left = settings_.max_num_batched_tokens - std::ssize(running_);
  bool has_any = false;
  for (Sequence* sequence : running_) {
    if (!takes_drafts(*sequence) || !decodes(*sequence) || sequence->samples_pending > 0) continue;
    const int64_t most = std::min(tokens_left, most_drafts(*sequence));
    if (most <= 0) continue;
    proposer_->propose(sequence->id, sequence->tokens, static_cast<int32_t>(most),
                       &sequence->draft);
    const int64_t num_draft = std::ssize(sequence->draft);
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

// Sets in offers_ what is worth verifying. True when anything is. To guess for every sequence takes
// time of the host, whatever comes of it. So while drafts do not pay, a few sequences stand for
// all, others each time, and all are asked once these promise something.
bool Scheduler::choose_drafts() {
  const size_t stride = std::clamp<size_t>(running_.size() / kLeastAsked, 1, kMostStride);
  if (stride > 1 && !drafts_pay_) {
    const StepShape plain = collect_offers(stride);
    if (!pacer_.promises(offers_, static_cast<int64_t>(stride), cost_, plain)) return false;
  }
  const StepShape plain = collect_offers(1);
  drafts_pay_ = pacer_.choose(offers_, cost_, plain);
  return drafts_pay_;
}

// Guesses anew behind the tokens known now of each `stride`-th sequence, the next ones each time.
// The guesses go to offers_; returned is what the step would be without drafts.
StepShape Scheduler::collect_offers(size_t stride) {
  offers_.clear();
  offered_.clear();
  StepShape plain;
  const size_t asked = ++num_looks_ % stride;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* const sequence = running_[i];
    if (!decodes(*sequence)) continue;
    plain.decode_tokens += 1;
    plain.decode_keys += sequence->future_len();
    if (i % stride != asked || !takes_drafts(*sequence)) continue;
    const auto num_pending = static_cast<size_t>(sequence->samples_pending);
    const int64_t most = std::max<int64_t>(0, most_drafts(*sequence));
    std::vector<int32_t>& guess = sequence->record.new_guess();
    const int64_t wanted = sequence->samples_pending + capacity_.max_draft;
    proposer_->propose(sequence->id, sequence->tokens, static_cast<int32_t>(wanted), &guess);
    RUDDER_CHECK(std::ssize(guess) <= wanted, "{} drafts, {} were asked for", guess.size(), wanted);
    if (guess.size() <= num_pending) continue;
    offered_.push_back(sequence);
    offers_.push_back({.record = &sequence->record,
                       .num_pending = num_pending,
                       .most = std::min(guess.size() - num_pending, static_cast<size_t>(most))});
  }
  return plain;
}

bool Scheduler::take_chosen_drafts() {
  int64_t tokens_left = settings_.max_num_batched_tokens - std::ssize(running_);
  bool has_any = false;
  for (size_t i = 0; i < offers_.size() && tokens_left > 0; ++i) {
    const auto count = std::min(offers_[i].count, static_cast<size_t>(tokens_left));
    const auto guess = offers_[i].record->guess().first(count);
    offered_[i]->draft.assign(guess.begin(), guess.end());
    tokens_left -= static_cast<int64_t>(count);
    has_any = has_any || count > 0;
  }
  return has_any;
}

// Of a sequence with drafts: how many it has, and which were right.
void Scheduler::note_drafts(Sequence& sequence, StepRecord& record, const step::SeqWork& work,
                            const step::SeqResult& result, int32_t accepted) {
  if (work.num_draft > 0) {
    ++counters_.drafts;
    counters_.draft_tokens += static_cast<uint64_t>(work.num_draft);
    counters_.accepted_tokens += static_cast<uint64_t>(accepted);
    for (int32_t i = 0; i < accepted; ++i) {
      ++counters_.accepted_by_position[static_cast<size_t>(i)];
    }
  }
  record.num_accepted += accepted;
  if (sequence.is_drafted && settings_.pace_drafts) {
    sequence.record.compare(result.tokens, &pacer_.all());
  }
}

}  // namespace rudder::sched
