// Prompts: how tenants share the prompt tokens of a step. Which of a tenant's prompts run is
// prompts_tenant.cpp's, how many tokens of one prompts_chunks.cpp's.
#include "rudder/sched/prompts.h"

#include <algorithm>

namespace rudder::sched {

Prompts::Prompts(const step::Capacity& capacity, const SchedSettings& settings, const Parts& parts)
    : capacity_(capacity),
      settings_(settings),
      blocks_(parts.blocks),
      waiting_(parts.waiting),
      running_(parts.running),
      tiers_(parts.tiers),
      bound_(parts.bound),
      answers_(parts.answers),
      overtaking_(parts.blocks, parts.answers) {}

void Prompts::add_to(SchedStats* stats) const {
  stats->prefix_queries += prefix_queries_;
  stats->prefix_hits += prefix_hits_;
  stats->states.hits_without += prefix_unstated_;
  stats->overtakes += overtakes_;
}

void Prompts::plan(StepBuilder& builder) {
  if (builder.tokens_left == 0) return;
  step_ = {};
  overtaking_.begin_step();
  list_demands(builder);
  if (demands_.empty()) return;
  bound_.begin_step(builder.shape, expected_decodes(builder), step_.turnover, step_.longest,
                    builder.tokens_left);
  const int32_t tokens = bound_.tokens_within(builder.shape, 0, builder.tokens_left);
  if (waits_for_company(builder.shape, tokens)) return;
  const std::vector<FairShares::Share>& shares = fair_shares_.divide(demands_, tokens);
  for (const FairShares::Share& share : shares) {
    const int32_t before = builder.tokens_left;
    const bool is_last = &share == &shares.back();
    step_.others = is_last ? 0 : before - share.tokens;
    plan_tenant(builder, share.tenant);
    fair_shares_.note_served(share, before - builder.tokens_left);
  }
}

// The decodes that a step will have once as many waiting sequences have been admitted as find room.
// A waiting sequence is taken to need the blocks of its prompt, or, if that is more, as many as a
// running sequence holds on average, since it will grow to that.
StepShape Prompts::expected_decodes(const StepBuilder& builder) const {
  const int32_t num_running = running_.num_running();
  StepShape shape = {.decode_tokens = num_running, .decode_keys = step_.running_tokens};
  if (waiting_.empty()) return shape;
  const int64_t tokens = (waiting_.num_tokens() + waiting_.size() - 1) / waiting_.size();
  const int64_t held = blocks_.num_blocks() - blocks_.num_available();
  const int64_t blocks =
      std::max({int64_t{1}, int64_t{blocks_.num_groups()} * blocks_.needed(tokens),
                held / std::max(1, num_running)});
  const int64_t room = std::max<int64_t>(0, blocks_.num_available() - builder.blocks_promised);
  const int64_t admitted =
      std::min({int64_t{waiting_.size()}, room / blocks, int64_t{running_.num_more()}});
  shape.decode_tokens += admitted;
  shape.decode_keys += admitted * tokens;
  return shape;
}

// Whether the step leaves all prompts waiting until more have come (PromptBound::leaves_waiting).
// Never while a prompt is half done: then the step has prompt tokens anyway, and no prompt waits.
bool Prompts::waits_for_company(const StepShape& shape, int64_t room) const {
  int64_t waiting = 0;
  for (const FairShares::Demand& demand : demands_) {
    if (demand.running > 0) return false;
    waiting += demand.waiting;
  }
  return bound_.leaves_waiting(shape, waiting, room);
}

FairShares::Demand& Prompts::demand_of(int32_t tenant) {
  const auto known = std::ranges::find(demands_, tenant, &FairShares::Demand::tenant);
  if (known != demands_.end()) return *known;
  return demands_.emplace_back(FairShares::Demand{.tenant = tenant});
}

// Lists for each tenant how many prompt tokens its running and its waiting sequences ask for. While
// a sequence is being preempted nothing is admitted: the preempted sequence comes back first.
void Prompts::list_demands(StepBuilder& builder) {
  demands_.clear();
  for (const Sequence* sequence : running_.all()) {
    if (sequence->state == SequenceState::kPreempting) builder.is_closed = true;
    if (sequence->is_begun()) note_running(*sequence, builder);
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

// Adds a running sequence to the sums of the step: the blocks and the elements of the capture
// buffer that it will still take, which an admission must leave to it; and, unless the sequence
// waits for a copy, the prompt tokens that it asks for or, when it decodes, how long its answer is
// likely to be.
void Prompts::note_running(const Sequence& sequence, StepBuilder& builder) {
  const int64_t num_tokens = std::ssize(sequence.tokens);
  const int32_t cached = sequence.wait.cached_prompt_tokens;
  step_.running_tokens += num_tokens;
  const int32_t uncomputed = sequence.uncomputed();
  const bool runs = sequence.state == SequenceState::kRunning;
  if (runs && uncomputed > 1) {
    demand_of(sequence.tenant).running += uncomputed;
    if (num_tokens - cached > step_.longest.tokens) {
      step_.longest = {.tokens = num_tokens - cached, .computed = sequence.run.planned_len};
    }
  } else if (runs) {
    const int32_t most_tokens = sequence.max_len - sequence.prompt_len;
    step_.turnover.add(sequence.prompt_len, cached, answers_.expected(most_tokens));
  }
  if (waiting_.empty()) return;
  overtaking_.note_running(sequence);
  builder.blocks_promised += blocks_.to_take(num_tokens, sequence.tables);
  step_.elements_kept += sequence.taps.record_elements();
}

}  // namespace rudder::sched
