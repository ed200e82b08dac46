#include "rudder/sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/sched/integrity.h"
#include "rudder/sched/step_builder.h"

namespace rudder::sched {

namespace {

// What the device can do bounds what the settings ask for. More sequences than tokens in a step
// would let the decodes of the first starve the last.
SchedSettings fit(SchedSettings settings, const step::Capacity& capacity) {
  settings.max_num_batched_tokens =
      std::min(settings.max_num_batched_tokens, capacity.max_tokens_per_step);
  settings.max_num_seqs =
      std::min({settings.max_num_seqs, capacity.num_slots, settings.max_num_batched_tokens});
  settings.max_in_flight = std::min(settings.max_in_flight, capacity.max_in_flight);
  settings.multi_step = std::min(settings.multi_step, capacity.max_repeat);
  return settings;
}

// Drafts of a sequence that the tokens it gave prove right: each token but the last is the draft
// that the next was sampled behind; before a NaN the last is one too.
int32_t num_accepted(const step::SeqWork& work, const step::SeqResult& result) {
  const auto num_tokens = static_cast<int32_t>(result.tokens.size());
  RUDDER_CHECK(num_tokens <= 1 + work.num_draft, "slot {}: {} tokens of {} drafts",
               result.slot.value, num_tokens, work.num_draft);
  const bool is_numerical = result.end == step::SeqEnd::kNumerical;
  return std::max(0, is_numerical ? num_tokens : num_tokens - 1);
}

}  // namespace

Scheduler::Scheduler(const step::Capacity& capacity, const SchedSettings& settings,
                     DraftProposer* proposer)
    : capacity_(capacity),
      settings_(fit(settings, capacity)),
      max_len_limit_(step::longest_sequence(capacity.kv_groups, capacity.block_size,
                                            capacity.num_blocks, capacity.max_seq_len)),
      blocks_(capacity_, settings_),
      waiting_(blocks_),
      tiers_(capacity_, settings_, blocks_),
      pace_(capacity_, settings_,
            settings.pace_drafts && capacity.drafts.max_draft > 0 &&
                (capacity.drafts.guesses || proposer != nullptr)),
      running_(capacity_, settings_, blocks_, waiting_, copies_),
      drafts_(capacity_.drafts, settings_, proposer,
              {.blocks = blocks_, .running = running_, .waiting = waiting_, .cost = pace_.cost()}),
      prompts_(capacity_, settings_,
               {.blocks = blocks_,
                .waiting = waiting_,
                .running = running_,
                .tiers = tiers_,
                .bound = pace_.bound(),
                .answers = pace_.answers()}) {
  RUDDER_CHECK(settings_.max_num_seqs > 0 && settings_.max_in_flight > 0 &&
                   settings_.multi_step > 0 && capacity.num_blocks > 0 && capacity.block_size > 0,
               "nothing can run: {} sequences, {} steps in flight, {} blocks of {}",
               settings_.max_num_seqs, settings_.max_in_flight, capacity.num_blocks,
               capacity.block_size);
  RUDDER_CHECK(
      capacity.states.empty() || (capacity.states.count > 1 && !capacity.drafts.takes_trees),
      "{} states, or trees of drafts beside them", capacity.states.count);
  in_flight_.reserve(static_cast<size_t>(settings_.max_in_flight));
}

Scheduler::~Scheduler() = default;

Result<void> Scheduler::add(NewSequence added) {
  const auto prompt_len = static_cast<int64_t>(added.prompt.size());
  if (prompt_len == 0) return fail(ErrorCode::kInvalidArgument, "the prompt is empty", "prompt");
  if (added.max_len > max_len_limit_) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tokens of prompt and output are asked for, {} fit", added.max_len,
                            max_len_limit_),
                "max_tokens");
  }
  if (added.max_len <= prompt_len) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a prompt of {} tokens leaves no room for output in {}", prompt_len,
                            added.max_len),
                "max_tokens");
  }
  int64_t record_elements = 0;
  if (added.taps != nullptr && added.taps->capture != nullptr) {
    record_elements = tap::record_elements(*added.taps->capture, capacity_.geometry);
    if (record_elements > capacity_.taps.capture_elements) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a token's captured rows are {} elements, a step has room for {}",
                              record_elements, capacity_.taps.capture_elements),
                  "capture");
    }
  }
  auto sequence = std::make_unique<Sequence>();
  drafts_.begin(added, *sequence);
  sequence->id = added.id;
  sequence->prompt_len = static_cast<int32_t>(prompt_len);
  sequence->tokens = std::move(added.prompt);
  sequence->max_len = added.max_len;
  sequence->sampling = std::move(added.sampling);
  sequence->constrained = added.constrained;
  sequence->tenant = added.tenant;
  sequence->priority = added.priority;
  sequence->arrival = RUDDER_MUTANT(kStarvation) ? ~next_arrival_++ : next_arrival_++;
  sequence->taps = TapWork(std::move(added.taps), std::move(added.tap_lease), sequence->prompt_len,
                           record_elements);
  sequence->tables.resize(static_cast<size_t>(blocks_.num_groups()));
  sequence->chain =
      blocks_.cache().make_chain(std::move(added.cache_salt), sequence->taps.content_runs());
  blocks_.find_turns(*sequence);
  waiting_.enqueue(*sequence);
  const bool is_new = sequences_.emplace(added.id, std::move(sequence)).second;
  RUDDER_CHECK(is_new, "sequence {} is added twice", added.id.value);
  return {};
}

void Scheduler::finish(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  if (sequence.state == SequenceState::kWaiting) {
    waiting_.dequeue(sequence);
    drafts_.end(sequence);
    sequences_.erase(found);
  } else if (sequence.state != SequenceState::kRetiring) {
    retire(sequence);
    forget_if_idle(sequence);
  }
}

void Scheduler::stop_drafting(SequenceId id) {
  const auto sequence = sequences_.find(id);
  if (sequence != sequences_.end()) sequence->second->draft.takes_drafts = false;
}

int32_t Scheduler::iterations_in_flight() const {
  int32_t total = 0;
  for (const StepRecord& record : in_flight_) total += record.plan->repeat - record.committed;
  return total;
}

std::shared_ptr<const step::StepPlan> Scheduler::plan_trial() {
  auto plan = std::make_shared<step::StepPlan>();
  if (!pace_.plan_trial(*plan, running_.slot_generations())) return nullptr;
  RUDDER_CHECK(idle() && next_arrival_ == 1, "a trial behind the first sequence");
  plan->id = ++last_step_;
  waiting_.note_step(last_step_);
  return plan;
}

void Scheduler::commit_trial(const step::StepResult& result) {
  pace_.note_trial(result.device_us);
}

std::shared_ptr<const step::StepPlan> Scheduler::plan(TableEdits* edits) {
  prompts_.clear_first_planned();
  lists_.constrained.clear();
  if (iterations_in_flight() >= settings_.max_in_flight) return nullptr;
  const bool has_edits = edits != nullptr && !edits->empty();
  const bool has_waited = std::exchange(is_holding_, false);
  if (running_.all().empty() && waiting_.empty() && !has_edits && !tiers_.wants_plan())
    return nullptr;
  is_holding_ = drafts_.holds(in_flight_);
  if (is_holding_) return nullptr;
  waiting_.promote_starved(settings_.max_wait_steps);

  StepRecord record = spare_.take();
  record.id = last_step_ + 1;
  record.waited = has_waited;
  step::StepPlan* const plan = record.plan.get();
  plan->id = record.id;
  const bool has_drafts = drafts_.propose() || drafts_.num_guess() > 0;
  plan->repeat = has_drafts ? 1 : running_.choose_repeat();
  plan->seqs.reserve(static_cast<size_t>(running_.size()));
  record.sequences.reserve(static_cast<size_t>(running_.size()));
  StepBuilder builder{.record = record,
                      .spare = spare_,
                      .drafts = drafts_,
                      .blocks = blocks_,
                      .constrained = lists_.constrained,
                      .tokens_left = settings_.max_num_batched_tokens,
                      .guess_left = settings_.max_num_batched_tokens,
                      .elements_left = capacity_.taps.capture_elements};
  running_.plan_decodes(builder);
  prompts_.plan(builder);
  tiers_.plan(*plan);
  const bool waits = in_flight_.empty() && (copies_.size() > 0 || tiers_.size() > 0);
  const bool copies = !plan->copies_before.empty() || !plan->record_copies.empty();
  if (plan->seqs.empty() && !copies && !waits) {
    RUDDER_CHECK(!in_flight_.empty() || !has_work(), "nothing runs and nothing will");
    if (!has_edits) {
      spare_.give_back(std::move(record));
      return nullptr;
    }
  }
  if (has_edits && !RUDDER_MUTANT(kTableEditsLost)) {
    plan->tap_edits = std::move(edits->taps);
    plan->capture_edits = std::move(edits->captures);
    plan->adapter_edits = std::move(edits->adapters);
  }
  if (has_edits) *edits = {};
  note_planned(std::move(record), builder.shape);
  return in_flight_.back().plan;
}

// It is planned; from now on it is in flight.
void Scheduler::note_planned(StepRecord record, const StepShape& shape) {
  const step::StepPlan& plan = *record.plan;
  record.shape = shape;
  for (const step::SeqWork& work : plan.seqs) {
    record.num_draft += work.num_draft;
    record.num_guess = std::max(record.num_guess, work.guess.num_guess);
    record.guess_seqs += work.guess.num_guess > 0 ? 1 : 0;
    record.guess_tokens += std::ssize(work.guess.tokens);
  }
  last_step_ = record.id;
  waiting_.note_step(last_step_);
  pace_.bound().note_plan(shape);
  ++counters_.steps;
  counters_.iterations += static_cast<uint64_t>(plan.repeat);
  counters_.states.checkpoints += record.checkpoints.size();
  counters_.planned_tokens += static_cast<uint64_t>(plan.num_tokens() * plan.repeat);
  in_flight_.push_back(std::move(record));
}

const std::vector<ConstrainedSequence>& Scheduler::learn_drafts() {
  for (ConstrainedSequence& constrained : lists_.constrained) {
    const auto sequence = sequences_.find(constrained.id);
    if (sequence == sequences_.end()) {
      constrained.takes_guess = false;
    } else {
      fill_in_guess(*sequence->second, &constrained);
    }
  }
  return lists_.constrained;
}

void Scheduler::commit(const step::StepResult& result, std::vector<SequenceOutput>* out) {
  RUDDER_CHECK(!in_flight_.empty() && result.id == in_flight_.front().id &&
                   result.iteration == in_flight_.front().committed,
               "iteration {} of step {} is committed out of order", result.iteration, result.id);
  StepRecord& record = in_flight_.front();
  const size_t num_sequences = record.sequences.size();
  RUDDER_CHECK(result.seqs.size() == num_sequences, "step {}: {} results for {} sequences",
               result.id, result.seqs.size(), num_sequences);
  StepShape shape = record.shape;
  shape.decode_keys += shape.decode_tokens * record.committed;
  pace_.note_iteration(shape, result.device_us);
  tiers_.note_step(shape, result.device_us);
  ++record.committed;
  lists_.captured.clear();
  while (Sequence* copied = copies_.take_done(result.copies_done)) {
    blocks_.end_restore(*copied);
    forget_if_idle(*copied);
  }
  for (const step::RecordDone& done : result.records_done) {
    if (Sequence* const loaded = tiers_.take_done(done)) {
      running_.end_load(*loaded);
      forget_if_idle(*loaded);
    }
  }
  for (size_t i = 0; i < num_sequences; ++i) {
    const Sequence& sequence = *record.sequences[i];
    const bool late = sequence.state == SequenceState::kRetiring;
    if (!record.plan->seqs[i].captures.empty() && !late && !result.seqs[i].masked) {
      lists_.captured.push_back({.seq = static_cast<int32_t>(i), .id = sequence.id});
    }
    commit_sequence(record, i, result.seqs[i], out);
  }
  pace_.note_results(shape, result.device_us, record.num_draft, record.num_accepted);
  drafts_.note_step(record, result);
  if (record.committed < record.plan->repeat) return;
  spare_.give_back(std::exchange(last_, std::move(record)));
  in_flight_.erase(in_flight_.begin());
}

// Of the iteration that record.committed counts last.
void Scheduler::commit_sequence(StepRecord& record, size_t index, const step::SeqResult& result,
                                std::vector<SequenceOutput>* out) {
  const step::SeqWork& work = record.plan->seqs[index];
  Sequence& sequence = *record.sequences[index];
  RUDDER_CHECK(result.slot == work.slot && result.generation == work.generation,
               "a result of slot {} generation {} for slot {} generation {}", result.slot.value,
               result.generation, work.slot.value, work.generation);
  const bool late = sequence.state == SequenceState::kRetiring;
  RUDDER_CHECK(late || !result.masked, "sequence {} ended on the device alone", sequence.id.value);
  const int32_t accepted = num_accepted(work, result);
  const int32_t num_draft = drafts_known(sequence, work);
  running_.note_result(record, index, result, accepted);
  if (late) ++counters_.late_results;
  const bool takes_tokens = !late || RUDDER_MUTANT(kLateTokenKept);
  if (takes_tokens) take_tokens(record, index, result, num_draft, accepted);
  if (result.end == step::SeqEnd::kNumerical) tiers_.distrust(sequence);
  running_.publish(record, index, result, accepted);
  tiers_.note_shared(sequence);
  const bool ended = result.end != step::SeqEnd::kNone;
  if (takes_tokens && (ended || !result.tokens.empty() || !result.scores.empty())) {
    out->push_back(
        {.id = sequence.id,
         .tokens = result.tokens,
         .logprobs = result.logprobs,
         .scored = result.scores.empty() ? std::span<const int32_t>() : work.score_tokens,
         .scores = result.scores,
         .end = result.end,
         .cached_tokens = sequence.wait.cached_prompt_tokens,
         .cached_host_tokens = sequence.wait.cached_host_tokens,
         .cached_disk_tokens = sequence.wait.cached_disk_tokens,
         .clipped_samples = result.clipped_samples,
         .num_draft = num_draft,
         .num_accepted = accepted});
  }
  if (!late && ended) {
    retire(sequence);
    if (RUDDER_MUTANT(kRepeatFreesInFlight) && record.committed < record.plan->repeat) {
      blocks_.cache().release(sequence.chain, sequence.tables);
    }
  }
  forget_if_idle(sequence);
}

void Scheduler::take_tokens(StepRecord& record, size_t index, const step::SeqResult& result,
                            int32_t num_draft, int32_t accepted) {
  Sequence& sequence = *record.sequences[index];
  sequence.tokens.insert(sequence.tokens.end(), result.tokens.begin(), result.tokens.end());
  counters_.generation_tokens += result.tokens.size();
  drafts_.note_result(sequence, record.plan->seqs[index], result, num_draft, accepted);
  record.num_accepted += accepted;
  if (sequence.taps.note_tokens(sequence.tokens) && !RUDDER_MUTANT(kThoughtsUnkeyed)) {
    cache::BlockCache::set_runs(sequence.chain, sequence.taps.content_runs());
  }
}

void Scheduler::retire(Sequence& sequence) {
  running_.retire(sequence);
  pace_.answers().note(std::ssize(sequence.tokens) - sequence.prompt_len,
                       sequence.max_len - sequence.prompt_len);
  drafts_.end(sequence);
}

void Scheduler::forget_if_idle(Sequence& sequence) {
  if (running_.release_if_idle(sequence)) sequences_.erase(sequence.id);
}

void Scheduler::start_afresh(const std::string* identity) {
  RUDDER_CHECK(in_flight_.empty(), "{} steps are in flight", in_flight_.size());
  running_.preempt_all();
  std::vector<cache::Chain*> chains;
  chains.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) chains.push_back(&sequence->chain);
  blocks_.cache().forget_all(identity, chains);
  tiers_.note_cleared(identity != nullptr);
}

void Scheduler::reset_prefix_cache() {
  blocks_.cache().forget_all();
  tiers_.forget_all();
}

void Scheduler::drop_all() {
  for (const StepRecord& record : in_flight_) {
    for (const Checkpoint& made : record.checkpoints) blocks_.cache().release_state(made.state);
  }
  in_flight_.clear();
  tiers_.drop_all();
  blocks_.cache().forget_all();
  for (const auto& [id, sequence] : sequences_) drafts_.end(*sequence);
  running_.drop_all();
  waiting_.clear();
  sequences_.clear();
}

SchedStats Scheduler::stats() const {
  SchedStats stats = counters_;
  drafts_.add_to(&stats);
  prompts_.add_to(&stats);
  stats.preemptions = running_.preemptions();
  stats.num_running = running_.num_running();
  stats.num_waiting = waiting_.size();
  stats.num_retiring = running_.size() - running_.num_running();
  stats.waiting_tokens = waiting_.num_tokens();
  stats.steps_in_flight = steps_in_flight();
  stats.states.copies_in_flight = copies_.size() + tiers_.size();
  tiers_.add_to(&stats);
  const cache::BlockPool& pool = blocks_.cache().pool();
  stats.num_blocks = pool.num_blocks();
  stats.blocks_in_use = pool.num_in_use();
  stats.blocks_cached = pool.num_cached();
  stats.blocks_free = pool.num_free();
  stats.cached.evictions = blocks_.cache().evictions();
  return stats;
}

Result<void> Scheduler::check_integrity() const {
  RUDDER_TRY_VOID(waiting_.check());
  RUDDER_TRY_VOID(running_.check());
  if (std::cmp_not_equal(waiting_.size() + running_.size(), sequences_.size())) {
    return fail(ErrorCode::kInternal, "a sequence neither waits nor holds a slot");
  }
  std::vector<const Sequence*> sequences;
  std::vector<std::span<const cache::BlockId>> tables;
  std::vector<cache::StateId> states;
  for (const auto& [id, sequence] : sequences_) {
    sequences.push_back(sequence.get());
    RUDDER_TRY_VOID(check_sequence(*sequence, in_flight_, capacity_.kv_groups, blocks_));
    for (const cache::BlockTable& table : sequence->tables) tables.push_back(table.held());
    for (const cache::StateId state : {sequence->object, sequence->restored_from}) {
      if (state != cache::kNoState) states.push_back(state);
    }
  }
  for (const StepRecord& record : in_flight_) {
    for (const Checkpoint& made : record.checkpoints) states.push_back(made.state);
  }
  const std::vector<cache::NodeObjects> stored = tiers_.held();
  for (const cache::NodeObjects& objects : stored) {
    tables.emplace_back(objects.blocks);
    if (objects.checkpoint != cache::kNoState) states.push_back(objects.checkpoint);
  }
  RUDDER_TRY_VOID(tiers_.check());
  RUDDER_TRY_VOID(check_counts(in_flight_, sequences));
  return blocks_.cache().check(tables, states);
}

}  // namespace rudder::sched
