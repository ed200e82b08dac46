// Scheduler::plan: which sequences run in the next step, with how many tokens, in which blocks.
#include <algorithm>
#include <limits>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/sched/scheduler.h"

namespace rudder::sched {

namespace {

// A sequence waits at most this many plans for another to compute the prefix they share.
constexpr int32_t kMaxHeldSteps = 256;
// Sequences that one plan looks at and passes over so: the bound on what a plan costs.
constexpr int32_t kMaxHeldPerPlan = 64;
// Prompt tokens that a step may have however long it takes: prompts get on beside decodes that
// alone take longer than max_itl_us.
constexpr int32_t kMinPromptTokens = 16;
// Steps between two looks at who has waited too long.
constexpr step::StepId kStarvationScanSteps = 64;

}  // namespace

std::shared_ptr<const step::StepPlan> Scheduler::plan(TableEdits* edits) {
  first_planned_.clear();
  constrained_.clear();
  if (iterations_in_flight() >= settings_.max_in_flight) return nullptr;
  const bool has_edits = edits != nullptr && !edits->empty();
  if (running_.empty() && waiting_.empty() && !has_edits) return nullptr;
  const bool has_waited = is_holding_;
  if (holds_for_drafts()) return nullptr;
  promote_starved();

  auto plan = std::make_shared<step::StepPlan>();
  StepRecord record{.id = last_step_ + 1, .plan = plan, .rows = {}};
  plan->id = record.id;
  plan->repeat = propose_drafts() ? 1 : choose_repeat();
  plan->seqs.reserve(running_.size());
  record.rows.reserve(running_.size());
  StepBuilder builder{.plan = plan.get(),
                      .rows = &record.rows,
                      .tokens_left = settings_.max_num_batched_tokens,
                      .elements_left = capacity_.taps.capture_elements};
  plan_decodes(builder);
  plan_chunks(builder);
  plan_admissions(builder);
  if (plan->seqs.empty()) {
    RUDDER_CHECK(!in_flight_.empty() || !has_work(), "nothing runs and nothing will");
    if (!has_edits) return nullptr;
  }
  if (has_edits && !RUDDER_MUTANT(kTableEditsLost)) {
    plan->tap_edits = std::move(edits->taps);
    plan->capture_edits = std::move(edits->captures);
  }
  if (has_edits) *edits = {};
  last_step_ = record.id;
  record.shape = builder.shape;
  record.waited = has_waited;
  for (const step::SeqWork& work : plan->seqs) record.num_draft += work.num_draft;
  ++counters_.steps;
  counters_.iterations += static_cast<uint64_t>(plan->repeat);
  counters_.planned_tokens += static_cast<uint64_t>(plan->num_tokens() * plan->repeat);
  in_flight_.push_back(std::move(record));
  return plan;
}

// A step is repeated only when nothing but decodes can run: what waits, or has a prompt to finish,
// would wait longer. Not where a row is constrained: the host knows its next mask when it knows its
// token. Not beyond the last token of every row, nor past a change of what steers or captures one,
// and only as far as there are blocks for all of them now: a repeat is never what
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

// Victims rank behind the row that needs their blocks, so that a loop over running_ by index
// survives their removal.
void Scheduler::plan_decodes(StepBuilder& builder) {
  for (size_t i = 0; i < running_.size() && builder.tokens_left > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (!can_decode(sequence)) continue;
    if (sequence.taps.fit(sequence.planned_len, 1, builder.elements_left) == 0) continue;
    if (!sequence.draft.empty()) {
      decode_drafted(builder, sequence);
      continue;
    }
    const int32_t old_len = sequence.table_len();
    const int32_t left = std::max(1, sequence.max_len - sequence.future_len());
    const int32_t wanted =
        RUDDER_MUTANT(kRepeatWithoutBlocks) ? 1 : std::min(builder.plan->repeat, left);
    if (grow(builder, sequence, wanted) == wanted) add_row(builder, sequence, 1, old_len);
  }
}

bool Scheduler::can_decode(const Sequence& sequence) const {
  if (sequence.state != SequenceState::kRunning || sequence.uncomputed() != 1) return false;
  if (sequence.will_end() && !RUDDER_MUTANT(kPlanPastMaxLen)) return false;
  if (!sequence.is_drafted || sequence.samples_pending == 0) return true;
  if (!settings_.pace_drafts && proposer_->waits(sequence.id)) return false;
  // Behind drafts its next position is one of several, and all of them must run the same.
  const int32_t first = sequence.planned_len - sequence.drafts_pending;
  const int32_t count = 1 + sequence.drafts_pending;
  return sequence.drafts_pending == 0 || sequence.taps.uniform_len(first, count) == count;
}

// As many of its drafts as there are blocks for. None is captured: the host may find out that the
// answer had ended before an accepted draft, on a stop string.
void Scheduler::decode_drafted(StepBuilder& builder, Sequence& sequence) {
  const auto num_draft = static_cast<int32_t>(sequence.draft.size());
  const int32_t fits = 1 + sequence.taps.uncaptured_len(sequence.planned_len + 1, num_draft);
  const int32_t old_len = sequence.table_len();
  const int32_t q_len = grow(builder, sequence, RUDDER_MUTANT(kDraftsWithoutBlocks) ? 1 : fits);
  if (q_len == 0) return;
  const int32_t kept = RUDDER_MUTANT(kDraftsWithoutBlocks) ? num_draft : q_len - 1;
  sequence.draft.resize(static_cast<size_t>(kept));
  add_row(builder, sequence, static_cast<int32_t>(1 + sequence.draft.size()), old_len);
}

void Scheduler::plan_chunks(StepBuilder& builder) {
  for (size_t i = 0; i < running_.size() && builder.tokens_left > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.state != SequenceState::kRunning || sequence.uncomputed() <= 1) continue;
    const int32_t most = max_chunk(builder, sequence, sequence.planned_len);
    if (most == 0) continue;
    const int32_t old_len = sequence.table_len();
    const int32_t chunk = grow(builder, sequence, most);
    if (chunk > 0) add_row(builder, sequence, chunk, old_len);
  }
}

// Of the `most` prompt tokens of a sequence from `from` on, those that do not keep the rows that
// stream in this step from their next token for longer than is allowed.
int32_t Scheduler::within_pace(const StepBuilder& builder, int32_t from, int32_t most) const {
  if (settings_.max_itl_us == 0 || builder.shape.decode_rows == 0) return most;
  const int32_t always = kMinPromptTokens - static_cast<int32_t>(builder.shape.prompt_tokens);
  const int32_t paced =
      cost_.tokens_within(builder.shape, from, most, static_cast<double>(settings_.max_itl_us));
  return std::min(most, std::max(always, paced));
}

// Prompt tokens from `from` on that the step may run: within its budget, its time and its capture
// buffer.
int32_t Scheduler::max_chunk(const StepBuilder& builder, const Sequence& sequence,
                             int32_t from) const {
  const int32_t wanted = std::min(sequence.future_len() - from, builder.tokens_left);
  return sequence.taps.fit(from, within_pace(builder, from, wanted), builder.elements_left);
}

// By rank. Who finds no room stops all behind it, so that a large sequence is not overtaken for
// ever; who waits for a prefix being computed does not.
void Scheduler::plan_admissions(StepBuilder& builder) {
  if (waiting_.empty() || builder.blocks_short > 0) return;
  for (const Sequence* sequence : running_) {
    if (sequence->state == SequenceState::kPreempting) return;  // it comes back first
    if (sequence->state != SequenceState::kRunning) continue;
    builder.blocks_promised += blocks_to_take(std::ssize(sequence->tokens), sequence->tables);
    builder.elements_kept += sequence->taps.record_elements();
  }
  int32_t num_held = 0;
  auto next = waiting_.begin();
  while (next != waiting_.end() && builder.tokens_left > 0 && !free_slots_.empty() &&
         num_running_ < settings_.max_num_seqs && num_held < kMaxHeldPerPlan) {
    Sequence& sequence = **next++;
    const Admission admission = admit(builder, sequence);
    if (admission == Admission::kNoRoom) return;
    if (admission == Admission::kHeld) ++num_held;
  }
}

Scheduler::Admission Scheduler::admit(StepBuilder& builder, Sequence& sequence) {
  const auto num_tokens = static_cast<int32_t>(sequence.tokens.size());
  // At least one token is left to compute: it gives the logits.
  const int32_t max_match =
      std::min(sequence.max_reused(), sequence.taps.max_reused()) / capacity_.block_size;
  const kv::Match match = cache_.match(sequence.chain, sequence.tokens, max_match, &matched_);
  const int32_t num_matched = match.num_blocks;
  if (num_matched < max_match && sequence.held_steps < kMaxHeldSteps &&
      is_being_computed(sequence, num_matched)) {
    ++sequence.held_steps;
    return Admission::kHeld;
  }
  if (!has_capture_room(builder, sequence, num_matched * capacity_.block_size)) {
    return Admission::kHeld;
  }
  if (!running_.empty()) {
    const int64_t matched_idle = cache_.count_refs(matched_, 0);
    const int64_t room = cache_.num_available() - matched_idle - builder.blocks_promised;
    if (blocks_to_take(num_tokens, matched_) + headroom() > room) return Admission::kNoRoom;
  }
  if (max_chunk(builder, sequence, num_matched * capacity_.block_size) == 0) {
    return Admission::kNoRoom;  // the step takes as long as it may
  }

  dequeue(sequence);
  cache_.hold(sequence.chain, match, matched_);
  sequence.tables = matched_;
  sequence.planned_len = num_matched * capacity_.block_size;
  sequence.computed_len = sequence.planned_len;
  sequence.written_len = sequence.planned_len;
  sequence.draft.clear();
  sequence.state = SequenceState::kRunning;
  ++num_running_;
  running_.insert(std::ranges::upper_bound(running_, &sequence, ByRank{}), &sequence);
  if (!sequence.was_planned) {
    sequence.was_planned = true;
    sequence.cached_prompt_tokens = sequence.planned_len;
    counters_.prefix_queries += static_cast<uint64_t>(num_tokens);
    counters_.prefix_hits += static_cast<uint64_t>(sequence.planned_len);
    first_planned_.push_back(sequence.id);
  }
  open_slot(builder, sequence);
  const int32_t chunk = grow(builder, sequence, max_chunk(builder, sequence, sequence.planned_len));
  RUDDER_CHECK(chunk > 0, "sequence {} was admitted without room", sequence.id.value);
  add_row(builder, sequence, chunk, num_matched);
  builder.blocks_promised += blocks_to_take(num_tokens, sequence.tables);
  builder.elements_kept += sequence.taps.record_elements();
  return Admission::kAdmitted;
}

// Each running sequence that captures must find room for one record in every step: so one more is
// admitted only when its record fits beside theirs. Those that capture keep their order; others go
// past them.
bool Scheduler::has_capture_room(StepBuilder& builder, const Sequence& sequence,
                                 int32_t from) const {
  const int64_t elements = sequence.taps.record_elements();
  if (elements == 0) return true;
  builder.elements_short = builder.elements_short ||
                           builder.elements_kept + elements > capacity_.taps.capture_elements ||
                           max_chunk(builder, sequence, from) == 0;
  return !builder.elements_short;
}

// Blocks that an admission leaves to those that run: half of them take a new block of each group
// within block_size / 2 steps, and an admission that is preempted right away was work for nothing.
int32_t Scheduler::headroom() const {
  return capacity_.num_blocks / 100 + num_running_ * num_groups() / 2;
}

// True when a running sequence is about to compute the block that comes after the matched ones:
// waiting for it is cheaper than computing it twice.
bool Scheduler::is_being_computed(Sequence& sequence, int32_t num_matched) const {
  const int64_t block_end = int64_t{num_matched + 1} * capacity_.block_size;
  if (!settings_.enable_prefix_caching) return false;
  const kv::BlockKey& wanted = cache_.key(sequence.chain, sequence.tokens, num_matched);
  return std::ranges::any_of(running_, [&](Sequence* other) {
    const bool will_compute = other->state == SequenceState::kRunning
                                  ? std::ssize(other->tokens) >= block_end
                                  : other->planned_len >= block_end;
    return will_compute && other->computed_len < block_end &&
           std::ssize(other->tokens) >= block_end &&
           cache_.key(other->chain, other->tokens, num_matched) == wanted;
  });
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
  if (sequence.sampling.needs_history()) {
    edit.history = sequence.tokens;
    edit.history_prompt_len = sequence.prompt_len;
  }
}

// Its tables had `old_len` blocks before they grew for this row.
void Scheduler::add_row(StepBuilder& builder, Sequence& sequence, int32_t q_len, int32_t old_len) {
  step::StepPlan& plan = *builder.plan;
  const int32_t uncomputed = sequence.uncomputed();
  step::SeqWork& work = plan.seqs.emplace_back();
  work.slot = sequence.slot;
  work.generation = sequence.generation;
  work.kv_len = sequence.planned_len;
  work.q_len = q_len;
  builder.elements_left -= sequence.taps.write(work);
  if (sequence.table_len() > old_len) {
    for (const kv::BlockTable& table : sequence.tables) {
      work.append_blocks.emplace_back(table.blocks.begin() + old_len, table.blocks.end());
    }
  }
  if (sequence.has_carry) {
    work.tokens = step::TokenSource::kCarry;
    work.num_draft = q_len - 1;
    if (work.num_draft > 0) work.token_begin = static_cast<int32_t>(plan.tokens.size());
    plan.tokens.insert(plan.tokens.end(), sequence.draft.begin(), sequence.draft.end());
  } else {
    work.token_begin = static_cast<int32_t>(plan.tokens.size());
    const auto begin = sequence.tokens.begin() + sequence.planned_len;
    plan.tokens.insert(plan.tokens.end(), begin, begin + q_len);
  }
  if (sequence.sampling.num_prompt_logprobs >= 0) add_scores(sequence, work);
  sequence.planned_len += q_len;
  if (q_len - work.num_draft == uncomputed) {
    const int32_t iterations = step::row_iterations(work, plan.repeat, sequence.max_len);
    work.logits = work.num_draft > 0 ? step::LogitsWanted::kAll : step::LogitsWanted::kLast;
    work.constrained = sequence.constrained;
    if (sequence.constrained) constrained_.push_back({sequence.id, sequence.draft});
    sequence.has_carry = true;
    sequence.samples_pending += iterations + work.num_draft;
    sequence.drafts_pending += work.num_draft;
    sequence.planned_len += iterations - 1;
  }
  sequence.reserved_len = std::max(sequence.reserved_len, sequence.planned_len);
  sequence.draft.clear();
  ++sequence.inflight;
  builder.shape.add(work);
  builder.tokens_left -= q_len;
  builder.rows->push_back(&sequence);
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
// many are coming back at commits as this step's rows miss. True when they are available now.
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
  for (Sequence* sequence : waiting_) {
    const auto waited = last_step_ - sequence->waiting_since;
    if (sequence->priority != kFirst && waited >= static_cast<uint64_t>(settings_.max_wait_steps)) {
      starved_.push_back(sequence);
    }
  }
  for (Sequence* sequence : starved_) {
    waiting_.erase(sequence);
    sequence->priority = kFirst;
    waiting_.insert(sequence);
  }
}

}  // namespace rudder::sched
