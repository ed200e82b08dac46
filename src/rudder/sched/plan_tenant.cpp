// The part of Scheduler::plan that says which prompts of a tenant run: who came first has half of
// the step, the rest is for those that are done soonest. Normative text: docs/contracts/step.md,
// "Whose prompts run".
#include <algorithm>

#include "rudder/base/mutants.h"
#include "rudder/sched/scheduler.h"

namespace rudder::sched {

namespace {

// Sequences of a tenant that one plan looks at and passes over, for the prefix that others compute:
// the bound on what a plan costs.
constexpr int32_t kMaxHeldPerPlan = 64;
// Fewer tokens of a prompt are no use: where a step has too few for two, they take turns.
constexpr int32_t kLeastPart = 16;

}  // namespace

// Half of the tokens of a prompt that the step has room for, from `from` on.
int32_t Scheduler::half_for(const StepBuilder& builder, int32_t from) const {
  const int32_t left = std::min(builder.tokens_left, builder.share_left);
  const int32_t tokens = pace_.tokens_within(builder.shape, from, left);
  return std::min(tokens, std::max(kLeastPart, (tokens + 1) / 2));
}

// Of equal prompts the first to come is done soonest as well, and has all that the step takes.
void Scheduler::plan_tenant(StepBuilder& builder, int32_t tenant) {
  Sequence* const begun = list_prompts(builder, tenant);
  if (prompts_.empty()) return;
  const Admission of_first = admit_first(builder, tenant, begun);
  if (of_first == Admission::kNoTime || prompts_.empty()) return;
  const bool is_first = of_first == Admission::kHeld && begun != nullptr;
  if (is_first && begun->ranks_before(*prompts_.front())) {
    share_step(builder, *begun);
  } else {
    plan_soonest(builder, of_first != Admission::kNoRoom);
  }
}

// Those that could be in the step, the soonest done first. Returns who came first of those that
// have begun.
Sequence* Scheduler::list_prompts(const StepBuilder& builder, int32_t tenant) {
  prompts_.clear();
  for (Sequence* sequence : running_) {
    if (sequence->tenant != tenant || sequence->state != SequenceState::kRunning) continue;
    if (sequence->uncomputed() > 1) prompts_.push_back(sequence);
  }
  Sequence* const begun = prompts_.empty() ? nullptr : prompts_.front();
  std::ranges::sort(prompts_, ByNeed{});
  const WaitingLines::Line* const line = waiting_.find(tenant);
  if (line == nullptr || !may_admit(builder)) return begun;
  int32_t most = kMaxHeldPerPlan + settings_.max_num_seqs - num_running_;
  const auto append = [&](const auto& waiting) {
    for (auto next = waiting.begin(); next != waiting.end() && most > 0; ++next, --most) {
      prompts_.push_back(*next);
    }
  };
  if (has_room_for(builder, *line) && !RUDDER_MUTANT(kShortPromptsWait)) {
    append(line->by_need);
    std::ranges::sort(prompts_, ByNeed{});
  } else {
    append(line->by_rank);
  }
  return begun;
}

// Else they begin in the order in which they came: who is overtaken waits for tokens of steps
// alone.
bool Scheduler::has_room_for(const StepBuilder& builder, const WaitingLines::Line& line) const {
  const auto num_waiting = std::ssize(line.by_rank);
  const int64_t seats =
      std::min<int64_t>(settings_.max_num_seqs - num_running_, std::ssize(free_slots_));
  const int64_t blocks = cache_.num_available() - builder.blocks_promised - headroom();
  return num_waiting <= seats && line.blocks <= blocks;
}

// Who came before all that have begun is begun before any that came later, so that a large sequence
// is not overtaken for ever. kHeld: there is none, or it is the next anyway.
Scheduler::Admission Scheduler::admit_first(StepBuilder& builder, int32_t tenant,
                                            const Sequence* begun) {
  const WaitingLines::Line* const line = waiting_.find(tenant);
  if (line == nullptr) return Admission::kHeld;
  int32_t num_held = 0;
  for (Sequence* sequence : line->by_rank) {
    if (begun != nullptr && begun->ranks_before(*sequence)) break;
    if (prompts_.empty() || sequence == prompts_.front()) break;
    if (!may_admit(builder) || num_held == kMaxHeldPerPlan) break;
    builder.leaves_half = true;
    const Admission admission = admit(builder, *sequence);
    builder.leaves_half = false;
    std::erase(prompts_, sequence);
    if (admission != Admission::kHeld) return admission;
    ++num_held;
  }
  return Admission::kHeld;
}

// What is kept for the first is a part of the step while the others are planned. It comes last: so
// it has what they leave, and its chunk makes the step's tokens even.
void Scheduler::share_step(StepBuilder& builder, Sequence& first) {
  std::erase(prompts_, &first);
  const int32_t room = room_for(builder, first, first.planned_len);
  const int32_t half =
      RUDDER_MUTANT(kFirstLeftOut) ? 0 : std::min(room, half_for(builder, first.planned_len));
  StepShape kept;
  kept.add_prompt(first.planned_len, half);
  const int64_t elements = first.taps.captured_elements(first.planned_len, half);
  const auto set_aside = [&](int32_t sign) {
    builder.shape.prompt_tokens += sign * kept.prompt_tokens;
    builder.shape.prompt_pairs += sign * kept.prompt_pairs;
    builder.tokens_left -= sign * half;
    builder.share_left -= sign * half;
    builder.elements_left -= sign * elements;
  };
  set_aside(1);
  const int32_t left = std::min(builder.tokens_left, builder.share_left);
  if (pace_.tokens_within(builder.shape, 0, left) < kLeastPart) {
    set_aside(-1);
    take_turns(builder, first);
    return;
  }
  builder.first = &first;
  builder.kept = half;
  builder.prompts_before = builder.shape.prompt_tokens;
  plan_soonest(builder, true);
  if (builder.shape.prompt_tokens == builder.prompts_before) builder.first = nullptr;
  set_aside(-1);
  plan_chunk(builder, first);
  builder.first = nullptr;
}

void Scheduler::take_turns(StepBuilder& builder, Sequence& first) {
  const int64_t before = builder.shape.prompt_tokens;
  const auto is_served = [&] { return builder.shape.prompt_tokens > before; };
  if (first.gave_way) {
    plan_chunk(builder, first);
    first.gave_way = !is_served();
    plan_soonest(builder, true);
  } else {
    plan_soonest(builder, true);
    first.gave_way = is_served() && !RUDDER_MUTANT(kFirstLeftOut);
    plan_chunk(builder, first);
  }
}

// Who is done soonest goes first. Who finds no room keeps those behind it waiting; who waits for a
// prefix being computed does not.
void Scheduler::plan_soonest(StepBuilder& builder, bool admits) {
  int32_t num_held = 0;
  for (Sequence* sequence : prompts_) {
    if (std::min(builder.tokens_left, builder.share_left) <= 0) return;
    if (sequence->state == SequenceState::kRunning) {
      plan_chunk(builder, *sequence);
      continue;
    }
    if (sequence->state != SequenceState::kWaiting || !admits || !may_admit(builder)) continue;
    const Admission admission = admit(builder, *sequence);
    if (admission == Admission::kNoTime) return;
    if (admission == Admission::kHeld) ++num_held;
    admits = admission != Admission::kNoRoom && num_held < kMaxHeldPerPlan;
  }
}

// Victims that are in no step in flight leave running_; they rank behind the sequence that needs
// their blocks.
void Scheduler::plan_chunk(StepBuilder& builder, Sequence& sequence) {
  const int32_t most = max_chunk(builder, sequence, sequence.planned_len);
  if (most == 0) return;
  const int32_t old_len = sequence.table_len();
  const int64_t promised = blocks_to_take(std::ssize(sequence.tokens), sequence.tables);
  const int32_t chunk = grow(builder, sequence, most);
  builder.blocks_promised +=
      blocks_to_take(std::ssize(sequence.tokens), sequence.tables) - promised;
  if (chunk > 0) add_work(builder, sequence, chunk, old_len);
}

}  // namespace rudder::sched
