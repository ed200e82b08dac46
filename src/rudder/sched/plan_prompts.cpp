// The part of Scheduler::plan that runs prompts: of which tenants, how many tokens of them, and who
// finds room. Which of a tenant's is plan_tenant.cpp's.
#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/sched/scheduler.h"

namespace rudder::sched {

namespace {

// A sequence waits at most this many plans for another to compute the prefix they share.
constexpr int32_t kMaxHeldSteps = 256;
// Plans in which a sequence finds no room and those of other tenants may be admitted all the same.
constexpr int32_t kMaxPassedOver = 16;

}  // namespace

// By tenant, in the order of their shares.
void Scheduler::plan_prompts(StepBuilder& builder) {
  if (builder.tokens_left == 0) return;
  list_demands(builder);
  if (demands_.empty()) return;
  pace_.begin_step(builder.shape, expected_decodes(builder), builder.turnover, builder.longest,
                   builder.tokens_left);
  const int32_t tokens = pace_.tokens_within(builder.shape, 0, builder.tokens_left);
  if (waits_for_company(builder.shape, tokens)) return;
  const std::vector<FairShares::Share>& shares = fair_shares_.divide(demands_, tokens);
  for (const FairShares::Share& share : shares) {
    const int32_t before = builder.tokens_left;
    const bool is_last = &share == &shares.back();
    builder.share_left = is_last ? before : share.tokens;
    plan_tenant(builder, share.tenant);
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
      const int64_t tokens = std::ssize(sequence->tokens) - sequence->cached_prompt_tokens;
      if (tokens > builder.longest.tokens) {
        builder.longest = {.tokens = tokens, .computed = sequence->planned_len};
      }
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
    for (const Sequence* sequence : line.by_rank) {
      if (demand.waiting >= builder.tokens_left) break;
      demand.waiting += std::ssize(sequence->tokens);
    }
  }
}

// Prompt tokens from `from` on that the step has room for: within its budget, its tenant's share,
// its time and its capture buffer.
int32_t Scheduler::room_for(const StepBuilder& builder, const Sequence& sequence,
                            int32_t from) const {
  const int32_t left = std::min(builder.tokens_left, builder.share_left);
  const int32_t wanted = std::min(sequence.future_len() - from, left);
  const int32_t paced = pace_.tokens_within(builder.shape, from, wanted);
  const int32_t part = builder.leaves_half ? std::min(paced, half_for(builder, from)) : paced;
  return sequence.taps.fit(from, part, builder.elements_left);
}

int32_t Scheduler::max_chunk(const StepBuilder& builder, const Sequence& sequence,
                             int32_t from) const {
  const int32_t chunk = room_for(builder, sequence, from);
  if (chunk == sequence.future_len() - from) return chunk;
  return cut_evenly(builder.shape, chunk, least_chunk(builder, sequence, chunk));
}

// Of a chunk that could be cut, what is left of it: something of the step's first, half of one that
// shares the step with its tenant's first, all that was kept for this.
int32_t Scheduler::least_chunk(const StepBuilder& builder, const Sequence& sequence,
                               int32_t chunk) const {
  if (builder.leaves_half) return chunk;
  if (&sequence == builder.first) return builder.kept;
  const bool is_alone = builder.shape.prompt_tokens == builder.prompts_before;
  if (builder.first != nullptr && is_alone) return (chunk + 1) / 2;
  return builder.shape.prompt_tokens > 0 ? 0 : 1;
}

// Of a chunk that does not end its prompt: so many tokens that the step has a multiple of what the
// executor likes, none where it has one already; all of them where fewer than `least` would be
// left.
int32_t Scheduler::cut_evenly(const StepShape& shape, int32_t chunk, int32_t least) const {
  const int64_t total = shape.decode_tokens + shape.prompt_tokens + chunk;
  const auto over = static_cast<int32_t>(total % capacity_.prompt_step_multiple);
  const int32_t cut = std::max(0, chunk - over);
  return cut < least ? chunk : cut;
}

bool Scheduler::may_admit(const StepBuilder& builder) const {
  return !builder.is_closed && builder.blocks_short == 0 && builder.tokens_left > 0 &&
         !free_slots_.empty() && num_running_ < settings_.max_num_seqs;
}

Scheduler::Admission Scheduler::admit(StepBuilder& builder, Sequence& sequence) {
  const auto num_tokens = static_cast<int32_t>(sequence.tokens.size());
  const kv::Match match = find_cached(sequence);
  const int32_t num_matched = match.num_blocks;
  if (num_matched < max_match(sequence) && sequence.held_steps < kMaxHeldSteps &&
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
    if (blocks_to_take(num_tokens, matched_) + headroom() > room) {
      builder.is_closed = ++sequence.passed_over > kMaxPassedOver;
      return Admission::kNoRoom;
    }
  }
  if (max_chunk(builder, sequence, num_matched * capacity_.block_size) == 0) {
    return Admission::kNoTime;  // the step takes as long as it may
  }

  dequeue(sequence);
  sequence.passed_over = 0;
  sequence.found_len = 0;
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

// At least one token is left to compute: it gives the logits.
int32_t Scheduler::max_match(const Sequence& sequence) const {
  return std::min(sequence.max_reused(), sequence.taps.max_reused()) / capacity_.block_size;
}

// Into matched_.
kv::Match Scheduler::find_cached(Sequence& sequence) {
  return cache_.match(sequence.chain, sequence.tokens, max_match(sequence), &matched_);
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
