// Scheduler::plan: which sequences run in the next step, with how many tokens, in which blocks.
// Prompts are plan_prompts.cpp's.
#include <algorithm>
#include <limits>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/sched/scheduler.h"

namespace rudder::sched {

namespace {

// Steps between two looks at who has waited too long.
constexpr step::StepId kStarvationScanSteps = 64;

}  // namespace

std::shared_ptr<const step::StepPlan> Scheduler::plan(TableEdits* edits) {
  first_planned_.clear();
  constrained_.clear();
  if (iterations_in_flight() >= settings_.max_in_flight) return nullptr;
  const bool has_edits = edits != nullptr && !edits->empty();
  const bool has_waited = std::exchange(is_holding_, false);
  if (running_.empty() && waiting_.empty() && !has_edits) return nullptr;
  if (holds_for_drafts()) return nullptr;
  promote_starved();

  StepRecord record = spare_.take();
  record.id = last_step_ + 1;
  step::StepPlan* const plan = record.plan.get();
  plan->id = record.id;
  plan->repeat = propose_drafts() || num_guess_ > 0 ? 1 : choose_repeat();
  plan->seqs.reserve(running_.size());
  record.sequences.reserve(running_.size());
  StepBuilder builder{.plan = plan,
                      .sequences = &record.sequences,
                      .tokens_left = settings_.max_num_batched_tokens,
                      .num_guess = num_guess_,
                      .guess_left = settings_.max_num_batched_tokens,
                      .elements_left = capacity_.taps.capture_elements};
  plan_decodes(builder);
  plan_prompts(builder);
  if (plan->seqs.empty()) {
    RUDDER_CHECK(!in_flight_.empty() || !has_work(), "nothing runs and nothing will");
    if (!has_edits) {
      spare_.give_back(std::move(record));
      return nullptr;
    }
  }
  if (has_edits && !RUDDER_MUTANT(kTableEditsLost)) {
    plan->tap_edits = std::move(edits->taps);
    plan->capture_edits = std::move(edits->captures);
  }
  if (has_edits) *edits = {};
  last_step_ = record.id;
  record.shape = builder.shape;
  pace_.note_plan(builder.shape);
  record.waited = has_waited;
  for (const step::SeqWork& work : plan->seqs) {
    record.num_draft += work.num_draft;
    record.num_guess = std::max(record.num_guess, work.guess.num_guess);
    record.guess_seqs += work.guess.num_guess > 0 ? 1 : 0;
    record.guess_tokens += std::ssize(work.guess.tokens);
  }
  ++counters_.steps;
  counters_.iterations += static_cast<uint64_t>(plan->repeat);
  counters_.planned_tokens += static_cast<uint64_t>(plan->num_tokens() * plan->repeat);
  in_flight_.push_back(std::move(record));
  return in_flight_.back().plan;
}

// A step is repeated only when nothing but decodes can run: what waits, or has a prompt to finish,
// would wait longer. Not where a sequence is constrained: the host knows its next mask when it
// knows its token. Not beyond the last token of every sequence, nor past a change of what steers or
// captures one, and only as far as there are blocks for all of them now: a repeat is never what
// preempts.
int32_t Scheduler::choose_repeat() const {
  if (settings_.multi_step == 1 || !waiting_.empty()) return 1;
  int32_t longest = 0;
  int32_t uniform = settings_.multi_step;
  for (const Sequence* sequence : running_) {
    if (sequence->state == SequenceState::kPreempting) return 1;  // it will wait
    if (sequence->state != SequenceState::kRunning) continue;
    if (sequence->will_end()) continue;
    if (sequence->uncomputed() > 1) return 1;
    if (sequence->drafts_pending > 0) return 1;  // how far it can go is not known
    if (sequence->constrained && !RUDDER_MUTANT(kConstrainedRepeated)) return 1;
    longest = std::max(longest, sequence->max_len - sequence->future_len());
    uniform = sequence->taps.uniform_len(sequence->planned_len, uniform);
  }
  const auto blocks_wanted = [&](int32_t repeat) {
    int64_t wanted = 0;
    for (const Sequence* sequence : running_) {
      if (sequence->state != SequenceState::kRunning) continue;
      const int32_t left = std::min(repeat, sequence->max_len - sequence->future_len());
      const int64_t len = blocks_for(int64_t{sequence->planned_len} + left);
      wanted += std::max<int64_t>(0, len - sequence->table_len()) * num_groups();
    }
    return wanted;
  };
  int32_t repeat = std::max(1, std::min(uniform, longest));
  while (repeat > 1 && blocks_wanted(repeat) > cache_.num_available()) repeat /= 2;
  return repeat;
}

// Victims rank behind the sequence that needs their blocks, so that a loop over running_ by index
// survives their removal.
void Scheduler::plan_decodes(StepBuilder& builder) {
  const Cohorts cohorts = divide_decodes();
  int64_t left_of_cohort = cohorts.size;
  for (size_t i = 0; i < running_.size() && builder.tokens_left > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (!can_decode(sequence, cohorts.count) || left_of_cohort == 0) continue;
    if (sequence.taps.fit(sequence.planned_len, 1, builder.elements_left) == 0) continue;
    --left_of_cohort;
    if (sequence.num_draft() > 0) {
      decode_drafted(builder, sequence);
      continue;
    }
    const int32_t old_len = sequence.table_len();
    const int32_t left = std::max(1, sequence.max_len - sequence.future_len());
    const int32_t wanted =
        RUDDER_MUTANT(kRepeatWithoutBlocks) ? 1 : std::min(builder.plan->repeat, left);
    if (grow(builder, sequence, wanted) == wanted) add_work(builder, sequence, 1, old_len);
  }
}

// All that run, divided among the steps in flight. Fewer sequences than these are as many cohorts.
Scheduler::Cohorts Scheduler::divide_decodes() const {
  const int64_t most = settings_.num_cohorts;
  if (most == 1) return {.count = 1, .size = std::ssize(running_)};
  const int64_t decodes = std::ranges::count_if(running_, [](const Sequence* sequence) {
    return sequence->state == SequenceState::kRunning && sequence->uncomputed() == 1;
  });
  const bool takes_all = RUDDER_MUTANT(kCohortOfAll);
  return {.count = std::clamp<int64_t>(decodes, 1, most),
          .size = takes_all ? std::ssize(running_) : (decodes + most - 1) / most};
}

// Of another cohort than the next step's: of one of those in flight just in front of it. A step
// further in front comes to its end first, so the next one may be planned behind it; but drafts
// are guessed behind tokens that are known.
bool Scheduler::is_beside(const Sequence& sequence, int64_t num_cohorts) const {
  if (settings_.num_cohorts == 1 || sequence.inflight == 0) return false;
  const auto distance = static_cast<int64_t>(last_step_ + 1 - sequence.last_step);
  return sequence.is_drafted || distance < num_cohorts;
}

bool Scheduler::can_decode(const Sequence& sequence, int64_t num_cohorts) const {
  if (sequence.state != SequenceState::kRunning || sequence.uncomputed() != 1) return false;
  if (sequence.will_end() && !RUDDER_MUTANT(kPlanPastMaxLen)) return false;
  if (is_beside(sequence, num_cohorts) && !RUDDER_MUTANT(kCohortsOverlap)) return false;
  if (sequence.samples_pending == 0) return true;
  if (sequence.taps.needs_known_tokens() && !RUDDER_MUTANT(kThoughtsGuessed)) return false;
  if (!sequence.is_drafted) return true;
  // Behind drafts its next position is one of several, and all of them must run the same.
  const int32_t first = sequence.planned_len - sequence.drafts_pending;
  const int32_t count = 1 + sequence.drafts_pending;
  return sequence.drafts_pending == 0 || sequence.taps.uniform_len(first, count) == count;
}

// How many of its drafts it may run. None is captured: the host may find out that the answer had
// ended before an accepted draft, on a stop string. Behind drafts in flight every position that it
// may have runs the same.
int32_t Scheduler::drafts_that_fit(const Sequence& sequence) {
  const int32_t num_draft = sequence.num_draft();
  if (!sequence.draft_tree.empty()) return num_draft;  // none of its positions is captured
  const int32_t unsure = sequence.drafts_pending;
  if (unsure == 0 || RUDDER_MUTANT(kUnsureDraftsChange)) {
    return sequence.taps.uncaptured_len(sequence.planned_len + 1, num_draft);
  }
  const int32_t first = sequence.planned_len - unsure;
  return sequence.taps.uniform_len(first, 1 + unsure + num_draft) - 1 - unsure;
}

// As many of its drafts as there are blocks for.
void Scheduler::decode_drafted(StepBuilder& builder, Sequence& sequence) {
  const int32_t fits = 1 + drafts_that_fit(sequence);
  const int32_t old_len = sequence.table_len();
  const int32_t q_len = grow(builder, sequence, RUDDER_MUTANT(kDraftsWithoutBlocks) ? 1 : fits);
  if (q_len == 0) return;
  const int32_t kept = RUDDER_MUTANT(kDraftsWithoutBlocks) ? sequence.num_draft() : q_len - 1;
  if (sequence.own_draft > 0) {
    sequence.own_draft = kept;
  } else {
    sequence.draft.resize(static_cast<size_t>(kept));
    sequence.draft_tree = sequence.draft_tree.first(kept);
  }
  add_work(builder, sequence, 1 + kept, old_len);
}

void Scheduler::open_slot(StepBuilder& builder, Sequence& sequence) {
  sequence.slot = step::SlotId(free_slots_.back());
  free_slots_.pop_back();
  uint32_t& generation = slot_generations_[static_cast<size_t>(sequence.slot.value)];
  if (generation == 0 || !RUDDER_MUTANT(kSlotReuseWithoutGeneration)) ++generation;
  sequence.generation = generation;
  step::SlotEdit& edit = builder.plan->slots.emplace_back();
  edit.slot = sequence.slot;
  edit.generation = generation;
  edit.sampling = sequence.sampling;
  for (const kv::BlockTable& table : sequence.tables) edit.blocks.push_back(table.blocks);
  edit.prompt_len = sequence.prompt_len;
  edit.num_output = static_cast<int32_t>(sequence.tokens.size()) - sequence.prompt_len;
  edit.max_len = sequence.max_len;
  const bool looks_up = capacity_.keeps_guesses() && !RUDDER_MUTANT(kNothingToLookUp);
  if (sequence.sampling.needs_history() || looks_up) {
    edit.history = sequence.tokens;
    edit.history_prompt_len = sequence.prompt_len;
  }
}

// Its tables had `old_len` blocks before they grew for this step.
void Scheduler::add_work(StepBuilder& builder, Sequence& sequence, int32_t q_len, int32_t old_len) {
  step::StepPlan& plan = *builder.plan;
  const int32_t uncomputed = sequence.uncomputed();
  step::SeqWork& work = plan.seqs.emplace_back();
  work.slot = sequence.slot;
  work.generation = sequence.generation;
  work.kv_len = sequence.planned_len;
  work.q_len = q_len;
  if (sequence.has_carry) {
    work.num_draft = q_len - 1;
    work.takes_guess = sequence.own_draft > 0;
    work.tree = sequence.draft_tree;
  }
  if (sequence.taps.record_elements() > 0) work.captures = spare_.take_spans();
  builder.elements_left -= sequence.taps.write(work);
  if (sequence.has_carry) {
    work.tokens = step::TokenSource::kCarry;
    if (!sequence.draft.empty()) work.token_begin = static_cast<int32_t>(plan.tokens.size());
    plan.tokens.insert(plan.tokens.end(), sequence.draft.begin(), sequence.draft.end());
  } else {
    work.token_begin = static_cast<int32_t>(plan.tokens.size());
    const auto begin = sequence.tokens.begin() + sequence.planned_len;
    plan.tokens.insert(plan.tokens.end(), begin, begin + q_len);
  }
  if (sequence.sampling.num_prompt_logprobs >= 0) add_scores(sequence, work);
  const bool is_sampled = q_len - work.num_draft == uncomputed;
  if (is_sampled) {
    work.logits = work.num_draft > 0 ? step::LogitsWanted::kAll : step::LogitsWanted::kLast;
  }
  add_guess(builder, sequence, work);
  if (sequence.table_len() > old_len) {
    work.append_blocks = spare_.take_tables(sequence.tables.size());
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      const std::vector<kv::BlockId>& blocks = sequence.tables[g].blocks;
      work.append_blocks[g].assign(blocks.begin() + old_len, blocks.end());
    }
  }
  const int32_t most_accepted = work.most_accepted();
  const int32_t beside = work.num_draft - most_accepted;  // drafts that cannot be right as well
  sequence.planned_len += q_len - beside;
  if (is_sampled) {
    const int32_t iterations = step::seq_iterations(work, plan.repeat, sequence.max_len);
    work.constrained = sequence.constrained;
    if (sequence.constrained) add_constrained(sequence);
    sequence.guess_asked = work.guess.num_guess;
    sequence.has_carry = true;
    sequence.samples_pending += iterations + most_accepted;
    sequence.drafts_pending += most_accepted;
    sequence.planned_len += iterations - 1;
  }
  sequence.reserved_len = std::max(sequence.reserved_len, sequence.planned_len + beside);
  sequence.drop_drafts();
  ++sequence.inflight;
  sequence.last_step = plan.id;
  builder.shape.add(work);
  builder.tokens_left -= q_len;
  builder.share_left -= q_len;
  builder.sequences->push_back(&sequence);
  if (RUDDER_MUTANT(kPublishBeforeCompute)) {
    cache_.publish(sequence.chain, sequence.tokens, sequence.tables,
                   std::min(sequence.planned_len, static_cast<int32_t>(sequence.tokens.size())));
  }
}

// The logits of each token of the prompt score the one behind it, once: a preempted sequence does
// not ask again for what steps in flight bring.
void Scheduler::add_scores(Sequence& sequence, step::SeqWork& work) {
  const int32_t scored = RUDDER_MUTANT(kScoredTwice) ? 0 : sequence.scored_len;
  const int32_t begin = std::max(work.kv_len, scored);
  const int32_t end = std::min(work.kv_len + work.q_len, sequence.prompt_len - 1);
  if (begin >= end) return;
  work.score_begin = begin - work.kv_len;
  const auto second = sequence.tokens.begin() + 1;
  work.score_tokens.assign(second + begin, second + end);
  sequence.scored_len = end;
}

// Gives the sequence blocks for its next `q_len` tokens, or for as many of them as there are
// blocks; makes room only when it could not go on at all. Returns how many tokens it has room for.
int32_t Scheduler::grow(StepBuilder& builder, Sequence& sequence, int32_t q_len) {
  const int32_t wanted = blocks_for(int64_t{sequence.planned_len} + q_len);
  const auto room = [&] {
    const int64_t held = int64_t{sequence.table_len()} * capacity_.block_size;
    return static_cast<int32_t>(std::min<int64_t>(held - sequence.planned_len, q_len));
  };
  while (sequence.table_len() < wanted) {
    if (cache_.num_available() >= num_groups()) {
      for (kv::BlockTable& table : sequence.tables) table.blocks.push_back(cache_.take());
    } else if (room() > 0 || !make_room(builder, sequence)) {
      break;
    }
  }
  return RUDDER_MUTANT(kBlockEdgeOffByOne) ? q_len : room();
}

// Preempts sequences that rank behind `wants` until a block of each group is available now, or as
// many are coming back at commits as this step's sequences miss. True when they are available now.
bool Scheduler::make_room(StepBuilder& builder, const Sequence& wants) {
  builder.blocks_short += num_groups();
  if (builder.blocks_short == num_groups()) {
    for (const Sequence* sequence : running_) {
      if (sequence->state != SequenceState::kRunning || sequence->will_end()) {
        builder.blocks_coming += blocks_held_alone(*sequence);
      }
    }
  }
  while (cache_.num_available() < num_groups()) {
    if (builder.blocks_coming >= builder.blocks_short) return false;
    Sequence* victim = pick_victim(wants);
    if (victim == nullptr) return false;
    if (victim->inflight > 0) builder.blocks_coming += blocks_held_alone(*victim);
    builder.is_closed = builder.is_closed || victim->inflight > 0;
    preempt(*victim);
  }
  builder.blocks_short -= num_groups();
  return true;
}

// The last by rank. Never one that ranks before `wants`: so the first of all always goes on.
Sequence* Scheduler::pick_victim(const Sequence& wants) const {
  for (auto it = running_.rbegin(); it != running_.rend() && *it != &wants; ++it) {
    if ((*it)->state == SequenceState::kRunning && !(*it)->will_end()) return *it;
  }
  return nullptr;
}

int32_t Scheduler::blocks_held_alone(const Sequence& sequence) const {
  return cache_.count_refs(sequence.tables, 1);
}

void Scheduler::promote_starved() {
  if (last_step_ % kStarvationScanSteps != 0) return;
  constexpr int32_t kFirst = std::numeric_limits<int32_t>::min();
  starved_.clear();
  const auto most = static_cast<uint64_t>(settings_.max_wait_steps);
  for (const auto& [tenant, line] : waiting_.all()) {
    for (Sequence* sequence : line.by_rank) {
      const auto waited = last_step_ - sequence->waiting_since;
      if (sequence->priority != kFirst && waited >= most) starved_.push_back(sequence);
    }
  }
  for (Sequence* sequence : starved_) {
    waiting_.erase(*sequence);
    sequence->priority = kFirst;
    waiting_.insert(*sequence);
  }
}

}  // namespace rudder::sched
