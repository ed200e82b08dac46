#include "rudder/sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"

namespace rudder::sched {

namespace {

kv::CacheOptions cache_options(const step::Capacity& capacity, const SchedSettings& settings) {
  std::vector<int32_t> windows;
  for (const step::KvGroup& group : capacity.kv_groups) windows.push_back(group.window);
  return {.num_blocks = capacity.num_blocks,
          .block_size = capacity.block_size,
          .windows = std::move(windows),
          .share_prefixes = settings.enable_prefix_caching,
          .model_identity = settings.model_identity,
          .hash_key = settings.hash_key,
          .hash_bits = settings.hash_bits,
          .watcher = settings.block_watcher};
}

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

}  // namespace

Scheduler::Scheduler(const step::Capacity& capacity, const SchedSettings& settings,
                     DraftProposer* proposer)
    : capacity_(capacity),
      proposer_(capacity.max_draft > 0 && !capacity.guesses ? proposer : nullptr),
      settings_(fit(settings, capacity)),
      cache_(cache_options(capacity, settings)),
      trials_(capacity, settings_.max_num_seqs, settings_.max_num_batched_tokens),
      pace_(settings.max_itl_us, cost_),
      pacer_(capacity.guess_tree) {
  RUDDER_CHECK(settings_.max_num_seqs > 0 && settings_.max_in_flight > 0 &&
                   settings_.multi_step > 0 && capacity.num_blocks > 0 && capacity.block_size > 0,
               "nothing can run: {} sequences, {} steps in flight, {} blocks of {}",
               settings_.max_num_seqs, settings_.max_in_flight, capacity.num_blocks,
               capacity.block_size);
  max_len_limit_ = step::longest_sequence(capacity.kv_groups, capacity.block_size,
                                          capacity.num_blocks, capacity.max_seq_len);
  const auto num_slots = static_cast<size_t>(capacity.num_slots);
  slot_generations_.resize(num_slots, 0);
  free_slots_.reserve(num_slots);
  for (int32_t slot = capacity.num_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  running_.reserve(num_slots);
  in_flight_.reserve(static_cast<size_t>(settings_.max_in_flight));
  RUDDER_CHECK(!capacity.guesses || capacity.max_draft > 0, "guesses that nobody takes");
  RUDDER_CHECK(capacity.guess_tree.empty() ||
                   (capacity.guesses && capacity.guess_tree.size() == capacity.max_draft),
               "a tree of {} for {} drafts", capacity.guess_tree.size(), capacity.max_draft);
  if (has_proposer()) {
    const int32_t depth = capacity.guess_tree.depth();
    counters_.accepted_by_position.resize(
        static_cast<size_t>(depth > 0 ? depth : capacity.max_draft));
  }
}

Scheduler::~Scheduler() = default;

int32_t Scheduler::blocks_for(int64_t tokens) const {
  const int64_t size = capacity_.block_size;
  if (RUDDER_MUTANT(kBlockEdgeOffByOne)) return static_cast<int32_t>((tokens + size - 2) / size);
  return static_cast<int32_t>((tokens + size - 1) / size);
}

// Blocks that a sequence with these tables will take on top until `tokens` tokens are computed, in
// steps as large as they may be: a window gives back others on the way.
int64_t Scheduler::blocks_to_take(int64_t tokens, const kv::BlockTables& tables) const {
  int64_t total = 0;
  for (size_t g = 0; g < tables.size(); ++g) {
    const int64_t len = std::ssize(tables[g].blocks);
    const int64_t most = step::blocks_held(capacity_.kv_groups[g], capacity_.block_size, tokens,
                                           settings_.max_num_batched_tokens);
    const int64_t held = std::ssize(tables[g].held());
    total += std::max<int64_t>(0, std::min(blocks_for(tokens) - len, most - held));
  }
  return total;
}

// Room for all that a sequence may become, so that its lists do not move while it decodes.
void Scheduler::reserve(Sequence& sequence) const {
  const auto num_blocks = static_cast<size_t>(blocks_for(sequence.max_len));
  sequence.tokens.reserve(static_cast<size_t>(sequence.max_len));
  for (kv::BlockTable& table : sequence.tables) table.blocks.reserve(num_blocks);
  sequence.chain.keys.reserve(num_blocks);
}

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
  sequence->is_drafted = has_proposer() && added.is_drafted;
  if (sequence->is_drafted && proposer_ != nullptr) proposer_->begin(added);
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
  sequence->tables.resize(static_cast<size_t>(num_groups()));
  sequence->chain = cache_.make_chain(std::move(added.cache_salt), sequence->taps.content_runs());
  enqueue(*sequence);
  const bool is_new = sequences_.emplace(added.id, std::move(sequence)).second;
  RUDDER_CHECK(is_new, "sequence {} is added twice", added.id.value);
  return {};
}

void Scheduler::finish(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  if (sequence.state == SequenceState::kWaiting) {
    dequeue(sequence);
    end_drafting(sequence);
    sequences_.erase(found);
  } else if (sequence.state != SequenceState::kRetiring) {
    retire(sequence);
    release_if_idle(sequence);
  }
}

int32_t Scheduler::iterations_in_flight() const {
  int32_t total = 0;
  for (const StepRecord& record : in_flight_) total += record.plan->repeat - record.committed;
  return total;
}

bool Scheduler::learns_cost() const {
  return settings_.max_itl_us != kNoItlBound || (has_proposer() && settings_.pace_drafts);
}

// Stages divide what decodes among several steps: the time of one alone says little there.
std::shared_ptr<const step::StepPlan> Scheduler::plan_trial() {
  if (!learns_cost() || settings_.num_cohorts > 1 || trials_.is_over()) return nullptr;
  RUDDER_CHECK(idle() && next_arrival_ == 1, "a trial behind the first sequence");
  auto plan = std::make_shared<step::StepPlan>();
  plan->id = ++last_step_;
  trials_.add_next(*plan, slot_generations_);
  return plan;
}

void Scheduler::commit_trial(const step::StepResult& result) {
  const Trials::Seen seen = trials_.note(result.device_us);
  cost_.observe(seen.shape, seen.us);
}

void Scheduler::commit(const step::StepResult& result, std::vector<SequenceOutput>* out) {
  RUDDER_CHECK(!in_flight_.empty() && result.id == in_flight_.front().id &&
                   result.iteration == in_flight_.front().committed,
               "iteration {} of step {} is committed out of order", result.iteration, result.id);
  StepRecord& record = in_flight_.front();
  const size_t num_sequences = record.sequences.size();
  RUDDER_CHECK(result.seqs.size() == num_sequences, "step {}: {} results for {} sequences",
               result.id, result.seqs.size(), num_sequences);
  const bool paces_drafts = has_proposer() && settings_.pace_drafts;
  StepShape shape = record.shape;
  shape.decode_keys += shape.decode_tokens * record.committed;
  if (learns_cost()) cost_.observe(shape, result.device_us);
  ++record.committed;
  captured_sequences_.clear();
  for (size_t i = 0; i < num_sequences; ++i) {
    const Sequence& sequence = *record.sequences[i];
    const bool late = sequence.state == SequenceState::kRetiring;
    if (!record.plan->seqs[i].captures.empty() && !late && !result.seqs[i].masked) {
      captured_sequences_.push_back({.seq = static_cast<int32_t>(i), .id = sequence.id});
    }
    commit_sequence(record, i, result.seqs[i], out);
  }
  // Without drafts a stream gets one token.
  const int64_t num_streams = shape.decode_tokens - record.num_draft;
  const double accepted_each = num_streams == 0 ? 0.0
                                                : static_cast<double>(record.num_accepted) /
                                                      static_cast<double>(num_streams);
  pace_.observe(shape, result.device_us, 1 + accepted_each);
  if (paces_drafts) {
    // What the proposer catches up on is not counted against guesses: the next ones need it too.
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
  if (record.committed < record.plan->repeat) return;
  spare_.give_back(std::exchange(last_, std::move(record)));
  in_flight_.erase(in_flight_.begin());
}

namespace {

// Drafts of a sequence that the tokens it gave prove right: each token but the last is the draft
// that the next was sampled behind; before a NaN the last is one too.
int32_t num_accepted(const step::SeqWork& work, const step::SeqResult& result) {
  const auto num_tokens = static_cast<int32_t>(result.tokens.size());
  RUDDER_CHECK(num_tokens <= 1 + work.num_draft, "slot {}: {} tokens of {} drafts",
               result.slot.value, num_tokens, work.num_draft);
  const bool is_numerical = result.end == step::SeqEnd::kNumerical;
  return std::max(0, is_numerical ? num_tokens : num_tokens - 1);
}

// Drafts that its part of the step had: of a guess that was not known then, as many as it turned
// out to have, as far as anyone takes its tokens.
int32_t drafts_known(const Sequence& sequence, const step::SeqWork& work) {
  if (!work.takes_guess) return work.num_draft;
  return std::min(work.num_draft, static_cast<int32_t>(sequence.record.guess().size()));
}

}  // namespace

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
  const bool numerical = result.end == step::SeqEnd::kNumerical;
  const int32_t repeat = record.plan->repeat;
  if (record.committed == repeat) --sequence.inflight;
  if (work.logits != step::LogitsWanted::kNone &&
      record.committed <= step::seq_iterations(work, repeat, sequence.max_len)) {
    sequence.samples_pending -= 1 + work.most_accepted();
  }
  const int32_t accepted = num_accepted(work, result);
  const int32_t num_draft = drafts_known(sequence, work);
  sequence.drafts_pending -= work.most_accepted();
  if (!RUDDER_MUTANT(kRejectedKvCounted)) sequence.planned_len -= work.most_accepted() - accepted;
  if (!result.masked) {
    sequence.written_len += record.committed > 1 ? 1 : work.q_len - work.num_draft + accepted;
  }
  if (late) ++counters_.late_results;

  const bool takes_tokens = !late || RUDDER_MUTANT(kLateTokenKept);
  if (takes_tokens) {
    sequence.tokens.insert(sequence.tokens.end(), result.tokens.begin(), result.tokens.end());
    counters_.generation_tokens += result.tokens.size();
    note_drafts(sequence, record, num_draft, result, accepted);
    if (work.logits != step::LogitsWanted::kNone) {
      pacer_.note_end(result.end != step::SeqEnd::kNone);
    }
    note_guess(sequence, work, result);
    if (sequence.taps.note_tokens(sequence.tokens) && !RUDDER_MUTANT(kThoughtsUnkeyed)) {
      kv::BlockCache::set_runs(sequence.chain, sequence.taps.content_runs());
    }
  }
  // kv.I5, kv.I7.
  if (numerical && !RUDDER_MUTANT(kPublishNumerical)) {
    cache_.distrust(sequence.tables);
  } else if (!result.masked) {
    // The KV of a late result is good, but the host may have dropped the token it is of.
    const int32_t rejected = RUDDER_MUTANT(kPublishRejected) ? work.num_draft - accepted : 0;
    sequence.computed_len =
        std::min(sequence.written_len + rejected, static_cast<int32_t>(sequence.tokens.size()));
    cache_.publish(sequence.chain, sequence.tokens, sequence.tables, sequence.computed_len);
    // kv.I14. What later steps run begins here.
    const int32_t reached =
        RUDDER_MUTANT(kWindowFreedEarly) ? sequence.planned_len : sequence.computed_len;
    if (record.committed == repeat) cache_.release_passed(sequence.tables, reached);
    sequence.taps.note_computed(sequence.computed_len);
  }
  const bool ended = result.end != step::SeqEnd::kNone;
  if (takes_tokens && (ended || !result.tokens.empty() || !result.scores.empty())) {
    out->push_back(
        {.id = sequence.id,
         .tokens = result.tokens,
         .logprobs = result.logprobs,
         .scored = result.scores.empty() ? std::span<const int32_t>() : work.score_tokens,
         .scores = result.scores,
         .end = result.end,
         .cached_tokens = sequence.cached_prompt_tokens,
         .clipped_samples = result.clipped_samples,
         .num_draft = num_draft,
         .num_accepted = accepted});
  }
  if (!late && ended) {
    retire(sequence);
    if (RUDDER_MUTANT(kRepeatFreesInFlight) && record.committed < repeat) {
      cache_.release(sequence.chain, sequence.tables);
    }
  }
  release_if_idle(sequence);
}

void Scheduler::preempt(Sequence& sequence) {
  sequence.state = SequenceState::kPreempting;
  --num_running_;
  ++counters_.preemptions;
  release_if_idle(sequence);
}

void Scheduler::start_afresh() {
  RUDDER_CHECK(in_flight_.empty(), "{} steps are in flight", in_flight_.size());
  while (!running_.empty()) preempt(*running_.back());
  cache_.forget_all();
}

void Scheduler::retire(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning) --num_running_;
  sequence.state = SequenceState::kRetiring;
  answers_.note(std::ssize(sequence.tokens) - sequence.prompt_len,
                sequence.max_len - sequence.prompt_len);
  end_drafting(sequence);
  if (RUDDER_MUTANT(kFreeInFlight)) {
    cache_.release(sequence.chain, sequence.tables);
  }
}

void Scheduler::end_drafting(Sequence& sequence) {
  if (sequence.is_drafted && proposer_ != nullptr) proposer_->end(sequence.id, sequence.tokens);
  sequence.is_drafted = false;
}

void Scheduler::release_if_idle(Sequence& sequence) {
  if (sequence.inflight > 0) return;
  if (sequence.state == SequenceState::kRetiring) {
    release(sequence);
    sequences_.erase(sequence.id);
  } else if (sequence.state == SequenceState::kPreempting) {
    release(sequence);
    enqueue(sequence);
  }
}

void Scheduler::release(Sequence& sequence) {
  if (RUDDER_MUTANT(kDoubleFree)) {
    kv::BlockTables again = sequence.tables;
    cache_.release(sequence.chain, again);
  }
  if (RUDDER_MUTANT(kMissedDecrefOnPreempt) && sequence.state == SequenceState::kPreempting &&
      !sequence.tables.back().held().empty()) {
    sequence.tables.back().blocks.pop_back();
  }
  if (RUDDER_MUTANT(kPreemptDropsToken) && sequence.state == SequenceState::kPreempting &&
      static_cast<int32_t>(sequence.tokens.size()) > sequence.prompt_len) {
    sequence.tokens.pop_back();
  }
  cache_.release(sequence.chain, sequence.tables);
  sequence.planned_len = 0;
  sequence.reserved_len = 0;
  sequence.written_len = 0;
  sequence.computed_len = 0;
  sequence.has_carry = false;
  if (!RUDDER_MUTANT(kProposedLenKept)) sequence.proposed_len = 0;
  sequence.guess_asked = 0;
  free_slots_.push_back(sequence.slot.value);
  running_.erase(std::ranges::find(running_, &sequence));
}

void Scheduler::enqueue(Sequence& sequence) {
  sequence.state = SequenceState::kWaiting;
  sequence.waiting_since = last_step_;
  sequence.held_steps = 0;
  sequence.found_len = find_cached(sequence).num_blocks * capacity_.block_size;
  sequence.blocks_wanted = blocks_to_take(std::ssize(sequence.tokens), sequence.tables);
  waiting_.insert(sequence);
  waiting_tokens_ += static_cast<int64_t>(sequence.tokens.size());
}

void Scheduler::dequeue(Sequence& sequence) {
  waiting_.erase(sequence);
  waiting_tokens_ -= static_cast<int64_t>(sequence.tokens.size());
  if (RUDDER_MUTANT(kCounterUnderflow)) {
    waiting_tokens_ -= static_cast<int64_t>(sequence.tokens.size());
  }
}

void Scheduler::drop_all() {
  in_flight_.clear();
  cache_.forget_all();
  for (const auto& [id, sequence] : sequences_) end_drafting(*sequence);
  for (Sequence* sequence : running_) {
    cache_.release(sequence->chain, sequence->tables);
    free_slots_.push_back(sequence->slot.value);
  }
  running_.clear();
  num_running_ = 0;
  waiting_.clear();
  waiting_tokens_ = 0;
  sequences_.clear();
}

SchedStats Scheduler::stats() const {
  SchedStats stats = counters_;
  stats.num_running = num_running_;
  stats.num_waiting = num_waiting();
  stats.num_retiring = static_cast<int32_t>(running_.size()) - num_running_;
  stats.waiting_tokens = waiting_tokens_;
  stats.steps_in_flight = steps_in_flight();
  stats.num_blocks = cache_.pool().num_blocks();
  stats.blocks_in_use = cache_.pool().num_in_use();
  stats.blocks_cached = cache_.pool().num_cached();
  stats.blocks_free = cache_.pool().num_free();
  stats.evictions = cache_.evictions();
  return stats;
}

}  // namespace rudder::sched
