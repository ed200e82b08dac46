// Drafts: what the executor's proposer does, when a step waits, and what came of drafts. What a
// step verifies is drafts_choose.cpp's.
#include "rudder/sched/drafts.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/sched/running.h"
#include "rudder/sched/step_builder.h"

namespace rudder::sched {

Drafts::Drafts(const step::DraftCaps& caps, const SchedSettings& settings, DraftProposer* proposer,
               const Parts& parts)
    : caps_(caps),
      settings_(settings),
      proposer_(caps.max_draft > 0 && !caps.guesses ? proposer : nullptr),
      blocks_(parts.blocks),
      running_(parts.running),
      waiting_(parts.waiting),
      cost_(parts.cost),
      pacer_(caps.guess_tree) {
  RUDDER_CHECK(!caps.guesses || caps.max_draft > 0, "guesses that nobody takes");
  RUDDER_CHECK(
      caps.guess_tree.empty() || (caps.guesses && caps.guess_tree.size() == caps.max_draft),
      "a tree of {} for {} drafts", caps.guess_tree.size(), caps.max_draft);
  if (!has_proposer()) return;
  const int32_t depth = caps.guess_tree.depth();
  counters_.accepted_by_position.resize(static_cast<size_t>(depth > 0 ? depth : caps.max_draft));
}

void Drafts::begin(const NewSequence& added, Sequence& sequence) {
  sequence.draft.is_drafted = has_proposer() && added.is_drafted;
  if (sequence.draft.is_drafted && proposer_ != nullptr) proposer_->begin(added);
}

void Drafts::end(Sequence& sequence) {
  const bool is_known = sequence.draft.is_drafted && proposer_ != nullptr;
  if (is_known) proposer_->end(sequence.id, sequence.tokens);
  sequence.draft.is_drafted = false;
}

// Tokens of a sequence with drafts may still be sampled, and a guess needs them.
bool Drafts::has_pending_guess() const {
  return std::ranges::any_of(running_.all(), [](const Sequence* sequence) {
    return sequence->takes_drafts() && sequence->decodes() && sequence->run.samples_pending > 0;
  });
}

// All sequences wait together: two halves that take turns would read the weights twice as often.
// They wait where the last step had drafts, and where drafts behind the tokens in flight promise to
// pay; without pacing, where a proposer says so.
bool Drafts::holds(std::span<const StepRecord> in_flight) {
  if (caps_.guesses) {
    num_guess_ = choose_guess();
    if (caps_.keeps_guesses) return holds_for_end(in_flight);
    const auto guesses = [](const StepRecord& record) { return record.num_guess > 0; };
    return has_pending_guess() && (num_guess_ > 0 || std::ranges::any_of(in_flight, guesses));
  }
  if (proposer_ == nullptr) return false;
  return settings_.pace_drafts ? has_pending_guess() && (is_drafting_ || choose())
                               : waits_for_guess();
}

// Drafts that are slots' guesses are there before they are known, so steps run ahead. But each step
// with drafts is a large part of an answer, and what is planned behind its end is in vain.
bool Drafts::holds_for_end(std::span<const StepRecord> in_flight) const {
  const auto has_prompt = [](const Sequence* sequence) {
    return sequence->state == SequenceState::kRunning && !sequence->decodes();
  };
  if (!settings_.pace_drafts || !is_drafting_ || !waiting_.empty() || !has_pending_guess() ||
      std::ranges::any_of(running_.all(), has_prompt)) {
    return false;
  }
  return pacer_.holds_for_end(running_.num_running(), cost_.decode_us(in_flight.back().shape));
}

bool Drafts::waits_for_guess() const {
  return std::ranges::any_of(running_.all(), [&](const Sequence* sequence) {
    return sequence->takes_drafts() && sequence->decodes() && sequence->run.samples_pending > 0 &&
           proposer_->waits(sequence->id);
  });
}

// To look guesses up takes next to no time.
int32_t Drafts::choose_guess() {
  const auto is_drafted = [](const Sequence* sequence) { return sequence->takes_drafts(); };
  if (!settings_.pace_drafts || caps_.looks_up()) {
    const bool has_none = waiting_.empty() && std::ranges::none_of(running_.all(), is_drafted);
    return has_none ? 0 : caps_.max_draft;
  }
  StepShape plain;
  records_.clear();
  for (const Sequence* sequence : running_.all()) {
    if (sequence->state != SequenceState::kRunning) continue;
    plain.decode_tokens += 1;
    plain.decode_keys += sequence->future_len();
    if (sequence->takes_drafts()) records_.push_back(&sequence->draft.record);
  }
  return pacer_.choose_guess(records_, cost_, plain, caps_.max_draft);
}

// The executor's proposer first runs the tokens that it has not run, as far as a step has room for
// them. It guesses where it has run all of them, and there are blocks to keep what it makes of its
// guesses. Where guesses do not stay in the slots, no sample of another step may be on its way.
// Where they do, the proposer runs what steps that guess have sampled, and of other steps the last
// token: so one token of these may be on its way. One that reads rows alone guesses at once, and
// one that looks guesses up whatever is on its way.
void Drafts::add_guess(StepBuilder& builder, Sequence& sequence, step::SeqWork& work) {
  if (num_guess_ == 0 || !sequence.takes_drafts()) return;
  const int32_t end = work.kv_len + work.q_len - work.num_draft;
  const bool is_last = work.logits != step::LogitsWanted::kNone &&
                       (sequence.run.samples_pending == 0 || caps_.keeps_guesses);
  const int32_t most = is_last ? std::min(num_guess_, sequence.max_len - end - 2) : 0;
  if (caps_.guesses_from_rows && !RUDDER_MUTANT(kTokensForRows)) {
    work.guess.begin = end;
    work.guess.num_guess = std::max(most, 0);
    return;
  }
  int32_t& proposed_len = sequence.draft.proposed_len;
  const auto known = std::min(end, static_cast<int32_t>(sequence.tokens.size()));
  const auto count = static_cast<int32_t>(std::clamp<int64_t>(
      known - proposed_len, 0, RUDDER_MUTANT(kGuessPastHole) ? 0 : builder.guess_left));
  const auto first = sequence.tokens.begin() + proposed_len;
  work.guess.begin = RUDDER_MUTANT(kGuessPastHole) ? end : proposed_len;
  work.guess.tokens.assign(first, first + count);
  builder.guess_left -= count;
  proposed_len += count;
  const int32_t named_end = work.guess.begin + count;
  const bool is_followed =
      sequence.draft.is_followed || named_end + 1 == end || RUDDER_MUTANT(kGuessUnfollowed);
  const bool runs_all = named_end == end || (caps_.keeps_guesses && is_followed);
  if (!runs_all || most <= 0) return;
  // Below 0 where nobody waits: what prompts will take is not summed up then, what they took is.
  const int64_t promised = std::max<int64_t>(0, builder.blocks_promised);
  work.guess.num_guess = grow_for_guess(promised, sequence, work.longest_len(), most);
}

// Blocks for `most` guesses behind so many tokens, as far as there are more than those that run are
// about to need; returns for how many.
int32_t Drafts::grow_for_guess(int64_t promised, Sequence& sequence, int32_t behind, int32_t most) {
  const int32_t wanted = std::min(behind + most, sequence.max_len);
  const int64_t kept = promised + blocks_.headroom(running_.num_running());
  while (sequence.table_len() < blocks_.needed(wanted) && !RUDDER_MUTANT(kGuessWithoutBlocks)) {
    if (blocks_.num_available() - kept < blocks_.num_groups()) break;
    blocks_.extend(sequence);
  }
  const int32_t held = sequence.table_len() * blocks_.block_size();
  const int32_t room = RUDDER_MUTANT(kGuessWithoutBlocks) ? wanted : std::min(held, wanted);
  int32_t& reserved_len = sequence.run.reserved_len;
  reserved_len = std::max({reserved_len, behind, std::min(held, room)});
  return std::clamp(room - behind, 0, most);
}

void Drafts::note_result(Sequence& sequence, const step::SeqWork& work,
                         const step::SeqResult& result, int32_t num_draft, int32_t accepted) {
  RUDDER_CHECK(accepted <= num_draft, "{} of {} drafts are right", accepted, num_draft);
  if (num_draft > 0) {
    ++counters_.drafts;
    counters_.draft_tokens += static_cast<uint64_t>(num_draft);
    counters_.accepted_tokens += static_cast<uint64_t>(accepted);
    for (int32_t i = 0; i < accepted; ++i) {
      ++counters_.accepted_by_position[static_cast<size_t>(i)];
    }
  }
  if (sequence.draft.is_drafted && (settings_.pace_drafts || caps_.guesses)) {
    sequence.draft.record.compare(result.tokens, caps_.guess_tree, &pacer_.all());
  }
  if (work.logits != step::LogitsWanted::kNone) {
    pacer_.note_end(result.end != step::SeqEnd::kNone);
  }
  note_guess(sequence, work, result);
}

// A result's guess, behind its tokens.
void Drafts::note_guess(Sequence& sequence, const step::SeqWork& work,
                        const step::SeqResult& result) {
  if (work.guess.num_guess == 0) return;
  RUDDER_CHECK(std::ssize(result.guess) <= work.guess.num_guess, "{} guesses, {} were asked for",
               result.guess.size(), work.guess.num_guess);
  sequence.draft.proposed_len = static_cast<int32_t>(sequence.tokens.size());
  sequence.draft.record.new_guess().tokens = result.guess;
  // Where drafts are planned before it is known whether there is a guess, none is a wrong one.
  const bool is_missed = caps_.keeps_guesses && result.guess.empty();
  if (is_missed && result.end == step::SeqEnd::kNone) {
    sequence.draft.record.note_none(&pacer_.all());
  }
}

// What the proposer catches up on is not counted against guesses: the next ones need it too.
void Drafts::note_step(const StepRecord& record, const step::StepResult& result) {
  if (!has_proposer() || !settings_.pace_drafts) return;
  pacer_.note_step(cost_, {.shape = record.shape,
                           .num_draft = record.num_draft,
                           .num_accepted = record.num_accepted,
                           .waited = record.waited && record.committed == 1,
                           .us = result.device_us,
                           .num_guess = record.num_guess,
                           .guess_seqs = record.guess_seqs,
                           .guess_us = result.guess_us,
                           .has_caught_up = record.guess_tokens > 0});
}

void Drafts::add_to(SchedStats* stats) const {
  stats->drafts += counters_.drafts;
  stats->draft_tokens += counters_.draft_tokens;
  stats->accepted_tokens += counters_.accepted_tokens;
  stats->accepted_by_position = counters_.accepted_by_position;
}

int32_t drafts_known(const Sequence& sequence, const step::SeqWork& work) {
  if (!work.takes_guess) return work.num_draft;
  return std::min(work.num_draft, static_cast<int32_t>(sequence.draft.record.guess().size()));
}

ConstrainedSequence constrained_of(const Sequence& sequence) {
  ConstrainedSequence constrained;
  constrained.id = sequence.id;
  constrained.draft = sequence.draft.tokens;
  constrained.tree = sequence.draft.tree;
  constrained.takes_guess = sequence.draft.own > 0;
  constrained.draft.resize(static_cast<size_t>(sequence.draft.count()), -1);
  if (RUDDER_MUTANT(kMasksOfLastGuess)) fill_in_guess(sequence, &constrained);
  return constrained;
}

void fill_in_guess(const Sequence& sequence, ConstrainedSequence* constrained) {
  if (!std::exchange(constrained->takes_guess, false)) return;
  const std::span<const int32_t> guess = sequence.draft.record.guess();
  const size_t known = std::min(guess.size(), constrained->draft.size());
  std::copy_n(guess.begin(), known, constrained->draft.begin());
}

}  // namespace rudder::sched
