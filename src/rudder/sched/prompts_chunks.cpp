// Prompts: how many tokens of a prompt a step runs, and which sequences of those that wait it
// admits.
#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/sched/prompts.h"

namespace rudder::sched {

namespace {

// A sequence waits at most this many plans for another to compute the prefix they share.
constexpr int32_t kMaxHeldSteps = 256;
// Fewer tokens of a prompt are no use, where it could have half of a step.
constexpr int32_t kLeastHalf = 16;

}  // namespace

// The step's tokens that prompts of the tenant at hand may still take: the other tenants' shares
// are left to them.
int32_t Prompts::tokens_left(const StepBuilder& builder) const {
  return std::min(builder.tokens_left, builder.tokens_left - step_.others);
}

// Prompt tokens from `from` on that the step has room for: within its budget, its tenant's share,
// its time and its capture buffer.
int32_t Prompts::room_for(const StepBuilder& builder, const Sequence& sequence,
                          int32_t from) const {
  const int32_t left = std::min(sequence.future_len() - from, tokens_left(builder));
  const int32_t wanted = blocks_.to_checkpoint(sequence, from, left);
  const int32_t paced = bound_.tokens_within(builder.shape, from, wanted);
  const int32_t part = step_.leaves_half ? std::min(paced, half_for(builder, from)) : paced;
  return sequence.taps.fit(from, part, builder.elements_left);
}

// Half of what the step has room for, of a prompt from its token `from` on: the other half is for
// another prompt of the same tenant.
int32_t Prompts::half_for(const StepBuilder& builder, int32_t from) const {
  const int32_t tokens = bound_.tokens_within(builder.shape, from, tokens_left(builder));
  return std::min(tokens, std::max(kLeastHalf, (tokens + 1) / 2));
}

// The longest chunk of the prompt that the step may run from token `from` on, cut to the multiple
// that the executor likes where it neither ends the prompt nor has to end at a checkpoint; 0: none.
int32_t Prompts::max_chunk(const StepBuilder& builder, const Sequence& sequence,
                           int32_t from) const {
  const int32_t chunk = room_for(builder, sequence, from);
  const bool is_last = chunk == sequence.future_len() - from;
  if (is_last || blocks_.wants_checkpoint(sequence, from + chunk)) return chunk;
  return cut_evenly(builder.shape, chunk, least_chunk(builder, sequence, chunk));
}

// The least that cut_evenly() may leave of a chunk. The step's first chunk keeps at least a token;
// a chunk beside the one that is kept for the tenant's first prompt keeps half; the chunk of that
// first prompt keeps all that was set aside for it (share_step).
int32_t Prompts::least_chunk(const StepBuilder& builder, const Sequence& sequence,
                             int32_t chunk) const {
  if (step_.leaves_half) return chunk;
  if (&sequence == step_.first) return step_.kept;
  const bool is_alone = builder.shape.prompt_tokens == step_.prompts_before;
  if (step_.first != nullptr && is_alone) return (chunk + 1) / 2;
  return builder.shape.prompt_tokens > 0 ? 0 : 1;
}

// Shortens a chunk that does not end its prompt so that the step's tokens are a multiple of
// Capacity::prompt_step_multiple. Returns its length, which may be 0; the chunk as it was where
// fewer than `least` tokens would be left.
int32_t Prompts::cut_evenly(const StepShape& shape, int32_t chunk, int32_t least) const {
  const int64_t total = shape.decode_tokens + shape.prompt_tokens + chunk;
  const auto over = static_cast<int32_t>(total % capacity_.prompt_step_multiple);
  const int32_t cut = std::max(0, chunk - over);
  return cut < least ? chunk : cut;
}

// Adds the sequence's next chunk to the step, as far as there are blocks for it. To get them,
// sequences of lower rank may be preempted (Running::grow), which takes those that are in no step
// in flight out of the list of running sequences.
void Prompts::plan_chunk(StepBuilder& builder, Sequence& sequence) {
  const int32_t most = max_chunk(builder, sequence, sequence.run.planned_len);
  if (most == 0) return;
  const int32_t old_len = sequence.table_len();
  const int64_t num_tokens = std::ssize(sequence.tokens);
  const int64_t promised = blocks_.to_take(num_tokens, sequence.tables);
  const int32_t chunk = running_.grow(builder, sequence, most);
  builder.blocks_promised += blocks_.to_take(num_tokens, sequence.tables) - promised;
  if (chunk > 0) builder.add(sequence, chunk, old_len);
}

// Whether the step may still admit the next sequence of a line or, with `goes_past`, a small one
// that goes past a large one which finds no room.
bool Prompts::may_admit(const StepBuilder& builder, bool goes_past) const {
  return !builder.is_closed && (goes_past || !builder.is_full) && builder.blocks_short == 0 &&
         builder.tokens_left > 0 && running_.num_seats() > 0;
}

// Begins a waiting sequence if it can have a chunk in this step. kHeld: it waits for a prefix that
// another sequence is computing, or for room in the capture buffer. kNoRoom: there are not blocks
// (or no state) enough beside what running sequences are promised. kNoTime: the step takes as long
// as it may.
Prompts::Admission Prompts::admit(StepBuilder& builder, Sequence& sequence) {
  const cache::Match match = blocks_.find_cached(sequence, &matched_);
  int32_t num_cached = match.num_blocks * blocks_.block_size();
  if (match.num_blocks < blocks_.max_match(sequence) && sequence.wait.held_steps < kMaxHeldSteps &&
      is_being_computed(sequence, match.num_blocks)) {
    ++sequence.wait.held_steps;
    return Admission::kHeld;
  }
  const Tiers::Reach reach = tiers_.find(sequence, match, matched_);
  num_cached += reach.size() * blocks_.block_size();
  if (!has_capture_room(builder, sequence, num_cached)) return Admission::kHeld;
  bool squeezes = false;
  if (!running_.all().empty()) {
    const bool goes_past = overtaking_.goes_past(sequence);
    const int64_t matched_idle = blocks_.cache().count_refs(matched_, 0);
    const int64_t room = blocks_.num_available() - matched_idle - builder.blocks_promised;
    const int64_t wanted = blocks_.to_take(std::ssize(sequence.tokens), matched_);
    const int64_t left = blocks_.headroom(running_.num_running()) + overtaking_.left_by(sequence);
    const int64_t kept = matched_idle + overtaking_.wants(sequence, matched_);
    squeezes = wanted + left > room && overtaking_.may_squeeze_in(sequence, kept);
    const bool fits =
        wanted + (squeezes ? 0 : left) <= room && (!goes_past || overtaking_.has_room_for(kept));
    if (!fits || !blocks_.has_state_for(match)) {
      if (++sequence.wait.passed_over > kMaxPassedOver && !goes_past) {
        builder.is_full = true;
        overtaking_.wait_for_blocks(sequence);
      }
      return Admission::kNoRoom;
    }
  }
  if (reach.empty() && max_chunk(builder, sequence, num_cached) == 0) {
    return Admission::kNoTime;  // the step takes as long as it may
  }
  // While copies to other tiers hold blocks, even a lone sequence may find none.
  const int32_t left = blocks_.num_available() - blocks_.cache().count_refs(matched_, 0);
  const bool has_room =
      blocks_.has_state_for(match) && (!reach.empty() || left >= blocks_.num_groups());
  if (running_.all().empty() && tiers_.size() > 0 && !has_room) return Admission::kNoRoom;
  sequence.wait.overtook = squeezes || overtaking_.goes_past(sequence);
  begin(builder, sequence, match, reach);
  return Admission::kAdmitted;
}

// Takes the sequence out of its line and gives it the cached blocks of its prefix (matched_), a
// slot and its first chunk; a sequence whose state, or what it reaches in other tiers, has to be
// copied first gets its chunk once the copy is done.
void Prompts::begin(StepBuilder& builder, Sequence& sequence, cache::Match match,
                    const Tiers::Reach& reach) {
  if (!reach.empty()) match.checkpoint = cache::kNoState;  // its state comes with the last record
  const int64_t num_tokens = std::ssize(sequence.tokens);
  const int32_t num_cached = match.num_blocks * blocks_.block_size();
  waiting_.dequeue(sequence);
  if (sequence.wait.overtook) {
    ++overtakes_;
    overtaking_.note_begun(blocks_.cache().count_refs(matched_, 0) +
                           overtaking_.wants(sequence, matched_));
  }
  sequence.wait.passed_over = 0;
  sequence.wait.found_len = 0;
  blocks_.cache().hold(sequence.chain, match, matched_);
  sequence.tables = matched_;
  blocks_.reserve(sequence);
  sequence.draft.drop();
  blocks_.give_state(sequence, match, builder.plan());
  tiers_.begin(sequence, reach, builder.plan());
  if (!sequence.wait.was_planned) {
    sequence.wait.was_planned = true;
    sequence.wait.cached_prompt_tokens = num_cached;
    prefix_queries_ += static_cast<uint64_t>(num_tokens);
    prefix_hits_ += static_cast<uint64_t>(num_cached);
    prefix_unstated_ += static_cast<uint64_t>(match.without_states * blocks_.block_size());
    first_planned_.push_back(sequence.id);
  }
  running_.begin(sequence, num_cached + reach.size() * blocks_.block_size(), builder.plan());
  if (sequence.state != SequenceState::kCopying) {
    const int32_t chunk =
        running_.grow(builder, sequence, max_chunk(builder, sequence, num_cached));
    RUDDER_CHECK(chunk > 0, "sequence {} was admitted without room", sequence.id.value);
    builder.add(sequence, chunk, match.num_blocks);
  }
  builder.blocks_promised += blocks_.to_take(num_tokens, sequence.tables);
  step_.elements_kept += sequence.taps.record_elements();
}

// Whether the capture buffer has room for one more sequence that captures. Every running one must
// find room for a record in every step, so a new one is admitted only where its record fits beside
// theirs. Sequences that capture are admitted in the order in which they came; those that capture
// nothing go past them.
bool Prompts::has_capture_room(StepBuilder& builder, const Sequence& sequence, int32_t from) {
  const int64_t elements = sequence.taps.record_elements();
  if (elements == 0) return true;
  step_.elements_short = step_.elements_short ||
                         step_.elements_kept + elements > capacity_.taps.capture_elements ||
                         max_chunk(builder, sequence, from) == 0;
  return !step_.elements_short;
}

// True when a running sequence is about to compute the block that comes after the matched ones:
// waiting for it is cheaper than computing it twice. Where sequences have states, when it is about
// to make a checkpoint of the same prefix behind them.
bool Prompts::is_being_computed(Sequence& sequence, int32_t num_matched) const {
  if (!settings_.enable_prefix_caching) return false;
  const bool has_states = blocks_.cache().has_states();
  const int32_t last = has_states ? blocks_.max_match(sequence) : num_matched + 1;
  return std::ranges::any_of(running_.all(), [&](Sequence* other) {
    for (int32_t i = num_matched; i < last; ++i) {
      const bool is_of_use = !has_states || blocks_.wants_checkpoint(*other, end_of(i));
      if (is_of_use && computes(*other, sequence, i)) return true;
    }
    return false;
  });
}

// The token behind a block's last.
int32_t Prompts::end_of(int32_t block) const {
  return (block + 1) * blocks_.block_size();
}

// Whether `other` is about to compute the full block `i` of the sequence: the two have the same
// tokens up to its end, and `other` has not computed it yet.
bool Prompts::computes(Sequence& other, Sequence& sequence, int32_t i) const {
  const cache::BlockCache& cache = blocks_.cache();
  const int64_t num_tokens = std::ssize(other.tokens);
  const bool will_compute =
      other.is_begun() ? num_tokens >= end_of(i) : other.run.planned_len >= end_of(i);
  return will_compute && other.known_len() < end_of(i) && num_tokens >= end_of(i) &&
         cache.key(other.chain, other.tokens, i) == cache.key(sequence.chain, sequence.tokens, i);
}

}  // namespace rudder::sched
