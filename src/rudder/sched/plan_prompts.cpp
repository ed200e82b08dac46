// The part of Scheduler::plan that runs prompts: whose, and how many tokens of them.
#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/base/mutants.h"
#include "rudder/sched/scheduler.h"

namespace rudder::sched {

namespace {

// A sequence waits at most this many plans for another to compute the prefix they share.
constexpr int32_t kMaxHeldSteps = 256;
// Sequences of a tenant that one plan looks at and passes over so: the bound on what a plan costs.
constexpr int32_t kMaxHeldPerPlan = 64;
// Plans in which a sequence finds no room and those of other tenants may be admitted all the same.
constexpr int32_t kMaxPassedOver = 16;

}  // namespace

// By tenant, in the order of their shares: chunks of those that run, then admissions.
void Scheduler::plan_prompts(StepBuilder& builder) {
  if (builder.tokens_left == 0) return;
  list_demands(builder);
  if (demands_.empty()) return;
  pace_.begin_step(builder.shape, expected_decodes(builder), builder.turnover, builder.tokens_left);
  const int32_t tokens = pace_.tokens_within(builder.shape, 0, builder.tokens_left);
  if (waits_for_company(builder.shape, tokens)) return;
  const std::vector<FairShares::Share>& shares = fair_shares_.divide(demands_, tokens);
  for (const FairShares::Share& share : shares) {
    const int32_t before = builder.tokens_left;
    const bool is_last = &share == &shares.back();
    builder.share_left = is_last ? before : share.tokens;
    plan_chunks(builder, share.tenant);
    plan_admissions(builder, share.tenant);
    fair_shares_.note_served(share, before - builder.tokens_left);
  }
}

// Of a step once as many of those that wait have been admitted as find room. One takes what its
// prompt does, and in time about what those that run hold.
StepShape Scheduler::expected_decodes(const StepBuilder& builder) const {
  StepShape shape = {.decode_tokens = num_running_, .decode_keys = builder.running_tokens};
  if (waiting_.empty()) return shape;
  const int64_t tokens = (waiting_tokens_ + num_waiting() - 1) / num_waiting();
  const int64_t held = capacity_.num_blocks - cache_.num_available();
  const int64_t blocks = std::max(
      {int64_t{1}, int64_t{num_groups()} * blocks_for(tokens), held / std::max(1, num_running_)});
  const int64_t room = std::max<int64_t>(0, cache_.num_available() - builder.blocks_promised);
  const int64_t admitted = std::min(
      {int64_t{num_waiting()}, room / blocks, int64_t{settings_.max_num_seqs} - num_running_});
  shape.decode_tokens += admitted;
  shape.decode_keys += admitted * tokens;
  return shape;
}

// A prompt that has begun waits for nobody, nor do others then: the step has prompts anyway.
bool Scheduler::waits_for_company(const StepShape& shape, int64_t room) const {
  int64_t waiting = 0;
  for (const FairShares::Demand& demand : demands_) {
    if (demand.running > 0) return false;
    waiting += demand.waiting;
  }
  return pace_.leaves_waiting(shape, waiting, room);
}

// Also what running sequences will still take, which an admission must leave to them. Who is being
// preempted comes back before any other is admitted.
void Scheduler::list_demands(StepBuilder& builder) {
  demands_.clear();
  const auto demand_of = [&](int32_t tenant) -> FairShares::Demand& {
    const auto known = std::ranges::find(demands_, tenant, &FairShares::Demand::tenant);
    if (known != demands_.end()) return *known;
    return demands_.emplace_back(FairShares::Demand{.tenant = tenant});
  };
  for (const Sequence* sequence : running_) {
    if (sequence->state == SequenceState::kPreempting) builder.is_closed = true;
    if (sequence->state != SequenceState::kRunning) continue;
    builder.running_tokens += std::ssize(sequence->tokens);
    const int32_t uncomputed = sequence->uncomputed();
    if (uncomputed > 1) {
      demand_of(sequence->tenant).running += uncomputed;
    } else {
      const int32_t most_tokens = sequence->max_len - sequence->prompt_len;
      builder.turnover.add(sequence->prompt_len, sequence->cached_prompt_tokens,
                           answers_.expected(most_tokens));
    }
    if (waiting_.empty()) continue;
    builder.blocks_promised += blocks_to_take(std::ssize(sequence->tokens), sequence->tables);
    builder.elements_kept += sequence->taps.record_elements();
  }
  if (!may_admit(builder)) return;
  for (const auto& [tenant, line] : waiting_.all()) {
    FairShares::Demand& demand = demand_of(tenant);
    for (const Sequence* sequence : line) {
      if (demand.waiting >= builder.tokens_left) break;
      demand.waiting += std::ssize(sequence->tokens);
    }
  }
}

// Victims that are in no step in flight leave running_; they rank behind the sequence that needs
// their blocks.
void Scheduler::plan_chunks(StepBuilder& builder, int32_t tenant) {
  for (size_t i = 0; i < running_.size() && builder.tokens_left > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.tenant != tenant || sequence.state != SequenceState::kRunning) continue;
    if (sequence.uncomputed() <= 1) continue;
    const int32_t most = max_chunk(builder, sequence, sequence.planned_len);
    if (most == 0) continue;
    const int32_t old_len = sequence.table_len();
    const int64_t promised = blocks_to_take(std::ssize(sequence.tokens), sequence.tables);
    const int32_t chunk = grow(builder, sequence, most);
    builder.blocks_promised +=
        blocks_to_take(std::ssize(sequence.tokens), sequence.tables) - promised;
    if (chunk > 0) add_work(builder, sequence, chunk, old_len);
  }
}

// Prompt tokens from `from` on that the step may run: within its budget, its tenant's share, its
// time and its capture buffer.
int32_t Scheduler::max_chunk(const StepBuilder& builder, const Sequence& sequence,
                             int32_t from) const {
  const int32_t left = std::min(builder.tokens_left, builder.share_left);
  const int32_t rest = sequence.future_len() - from;
  const int32_t wanted = std::min(rest, left);
  const int32_t paced = pace_.tokens_within(builder.shape, from, wanted);
  const int32_t chunk = sequence.taps.fit(from, paced, builder.elements_left);
  return chunk < rest ? cut_evenly(builder.shape, chunk) : chunk;
}

// Of a chunk that does not end its prompt: so many tokens that the step has a multiple of what the
// executor likes, none where it has one already; all of them where the step would have no prompt.
int32_t Scheduler::cut_evenly(const StepShape& shape, int32_t chunk) const {
  const int64_t total = shape.decode_tokens + shape.prompt_tokens + chunk;
  const auto over = static_cast<int32_t>(total % capacity_.prompt_step_multiple);
  const bool leaves_some = over < chunk || shape.prompt_tokens > 0;
  return leaves_some ? std::max(0, chunk - over) : chunk;
}

// Of one tenant, by rank. Who finds no room stops all of its tenant behind it, so that a large
// sequence is not overtaken for ever, and after a while those of others too; who waits for a prefix
// being computed does not.
void Scheduler::plan_admissions(StepBuilder& builder, int32_t tenant) {
  const auto line = waiting_.all().find(tenant);
  if (line == waiting_.all().end()) return;
  int32_t num_held = 0;
  int64_t num_left = std::ssize(line->second);
  for (auto next = line->second.begin(); num_left > 0 && num_held < kMaxHeldPerPlan; --num_left) {
    if (!may_admit(builder) || builder.share_left == 0) return;
    Sequence& sequence = **next++;
    const Admission admission = admit(builder, sequence);
    if (admission == Admission::kNoRoom) {
      builder.is_closed = ++sequence.passed_over > kMaxPassedOver;
      return;
    }
    if (admission == Admission::kNoTime) return;
    if (admission == Admission::kHeld) ++num_held;
  }
}

bool Scheduler::may_admit(const StepBuilder& builder) const {
  return !builder.is_closed && builder.blocks_short == 0 && builder.tokens_left > 0 &&
         !free_slots_.empty() && num_running_ < settings_.max_num_seqs;
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
    return Admission::kNoTime;  // the step takes as long as it may
  }

  dequeue(sequence);
  sequence.passed_over = 0;
  cache_.hold(sequence.chain, match, matched_);
  sequence.tables = matched_;
  reserve(sequence);
  sequence.planned_len = num_matched * capacity_.block_size;
  sequence.computed_len = sequence.planned_len;
  sequence.written_len = sequence.planned_len;
  sequence.drop_drafts();
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
  add_work(builder, sequence, chunk, num_matched);
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

}  // namespace rudder::sched
