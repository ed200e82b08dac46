// The part of Prompts::plan that says which prompts of a tenant run: who came first has half of
// the step, the rest is for those that are done soonest. Normative text: docs/contracts/step.md,
// "Whose prompts run".
#include <algorithm>
#include <iterator>

#include "rudder/base/mutants.h"
#include "rudder/sched/prompts.h"

namespace rudder::sched {

namespace {

// Sequences of a tenant that one plan looks at and passes over, for the prefix that others compute:
// the bound on what a plan costs.
constexpr int32_t kMaxHeldPerPlan = 64;
// Fewer tokens of a prompt are no use: where a step has too few for two, they take turns.
constexpr int32_t kLeastPart = 16;

}  // namespace

// Shares the tenant's part of the step between the prompt that came first and those that are done
// soonest. Of equal prompts the first to come is also done soonest; then it has all of the part.
void Prompts::plan_tenant(StepBuilder& builder, int32_t tenant) {
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

// Fills prompts_ with the tenant's sequences that could have a prompt chunk in the step: half-done
// prompts and waiting sequences, in the order of ByNeed but for those that wait their turn. Returns
// the half-done prompt that came first; null: there is none.
Sequence* Prompts::list_prompts(const StepBuilder& builder, int32_t tenant) {
  prompts_.clear();
  for (Sequence* sequence : running_.all()) {
    if (sequence->tenant != tenant || sequence->state != SequenceState::kRunning) continue;
    if (sequence->uncomputed() > 1) prompts_.push_back(sequence);
  }
  Sequence* const begun = prompts_.empty() ? nullptr : prompts_.front();
  std::ranges::sort(prompts_, ByNeed{});
  const WaitingLines::Line* const line = waiting_.find(tenant);
  if (!builder.is_full) overtaking_.stop();
  if (line == nullptr || !may_admit(builder, true)) return begun;
  int32_t most = kMaxHeldPerPlan + running_.num_more();
  const auto append = [&](const auto& waiting) {
    for (auto next = waiting.begin(); next != waiting.end() && most > 0; ++next, --most) {
      if (!overtaking_.goes_past(**next)) prompts_.push_back(*next);
    }
  };
  const bool has_blocks = has_blocks_for(builder, *line);
  const bool has_seats = std::ssize(line->by_rank) <= running_.num_seats();
  if (!builder.is_full && has_blocks && has_seats && !RUDDER_MUTANT(kShortPromptsWait)) {
    append(line->by_need);
    std::ranges::sort(prompts_, ByNeed{});
  } else {
    // Where there are not blocks for the whole line and its first is large, the small ones behind
    // it are run as those that have begun.
    if (!builder.is_full && !has_blocks) overtaking_.wait_for_blocks(**line->by_rank.begin());
    const auto num_seen = std::min<int64_t>(std::ssize(line->by_need), kMaxHeldPerPlan);
    std::copy_if(line->by_need.begin(), std::next(line->by_need.begin(), num_seen),
                 std::back_inserter(prompts_),
                 [&](const Sequence* waiting) { return overtaking_.goes_past(*waiting); });
    std::ranges::sort(prompts_, ByNeed{});
    if (!builder.is_full) append(line->by_rank);
  }
  return begun;
}

// Whether there are blocks for the whole waiting line. Only where there are, and slots, may short
// prompts overtake long ones freely, since the overtaken wait for tokens of steps alone; else the
// line is admitted in the order in which it came.
bool Prompts::has_blocks_for(const StepBuilder& builder, const WaitingLines::Line& line) const {
  const int64_t left = overtaking_.left_by(**line.by_rank.begin());
  const int64_t blocks =
      blocks_.num_available() - builder.blocks_promised - blocks_.headroom(running_.num_running());
  return line.blocks + left <= blocks;
}

// Admits the waiting sequence that came before all half-done prompts ahead of any that came later,
// so that a large sequence is not overtaken for ever. kHeld: there is no such sequence, or it is
// the next one anyway.
Prompts::Admission Prompts::admit_first(StepBuilder& builder, int32_t tenant,
                                        const Sequence* begun) {
  const WaitingLines::Line* const line = waiting_.find(tenant);
  if (line == nullptr) return Admission::kHeld;
  int32_t num_held = 0;
  for (Sequence* sequence : line->by_rank) {
    if (begun != nullptr && begun->ranks_before(*sequence)) break;
    if (prompts_.empty() || sequence == prompts_.front()) break;
    if (!may_admit(builder) || num_held == kMaxHeldPerPlan) break;
    if (overtaking_.goes_past(*sequence)) continue;
    step_.leaves_half = true;
    const Admission admission = admit(builder, *sequence);
    step_.leaves_half = false;
    std::erase(prompts_, sequence);
    if (admission != Admission::kHeld) return admission;
    ++num_held;
  }
  return Admission::kHeld;
}

// Gives half of the tenant's part of the step to `first`, the half-done prompt that came first, and
// the rest to the others, the soonest done first. The half is set aside while the others are
// planned, as if it were in the step; the chunk of `first` is added last, so that it also gets what
// the others leave, and makes the step's tokens a multiple of what the executor likes.
void Prompts::share_step(StepBuilder& builder, Sequence& first) {
  std::erase(prompts_, &first);
  const int32_t room = room_for(builder, first, first.run.planned_len);
  const int32_t half =
      RUDDER_MUTANT(kFirstLeftOut) ? 0 : std::min(room, half_for(builder, first.run.planned_len));
  StepShape kept;
  kept.add_prompt(first.run.planned_len, half);
  const int64_t elements = first.taps.captured_elements(first.run.planned_len, half);
  const auto set_aside = [&](int32_t sign) {
    builder.shape.prompt_tokens += sign * kept.prompt_tokens;
    builder.shape.prompt_pairs += sign * kept.prompt_pairs;
    builder.tokens_left -= sign * half;
    builder.elements_left -= sign * elements;
  };
  set_aside(1);
  if (bound_.tokens_within(builder.shape, 0, tokens_left(builder)) < kLeastPart) {
    set_aside(-1);
    take_turns(builder, first);
    return;
  }
  step_.first = &first;
  step_.kept = half;
  step_.prompts_before = builder.shape.prompt_tokens;
  plan_soonest(builder, true);
  if (builder.shape.prompt_tokens == step_.prompts_before) step_.first = nullptr;
  set_aside(-1);
  plan_chunk(builder, first);
  step_.first = nullptr;
}

// Where half of the step is too little to be of use, `first` and the others have it in turns: who
// gave way in the last step goes first in this one.
void Prompts::take_turns(StepBuilder& builder, Sequence& first) {
  const int64_t before = builder.shape.prompt_tokens;
  const auto is_served = [&] { return builder.shape.prompt_tokens > before; };
  if (first.wait.gave_way) {
    plan_chunk(builder, first);
    first.wait.gave_way = !is_served();
    plan_soonest(builder, true);
  } else {
    plan_soonest(builder, true);
    first.wait.gave_way = is_served() && !RUDDER_MUTANT(kFirstLeftOut);
    plan_chunk(builder, first);
  }
}

// Plans chunks and admissions in the order of prompts_, the soonest done first. A sequence that
// finds no room keeps those behind it waiting, but for small ones that go past a large one; a
// sequence that waits for a prefix being computed keeps nobody waiting. `admits`: false where none
// may be admitted but those that go past.
void Prompts::plan_soonest(StepBuilder& builder, bool admits) {
  int32_t num_held = 0;
  for (Sequence* sequence : prompts_) {
    if (tokens_left(builder) <= 0) return;
    if (sequence->state == SequenceState::kRunning) {
      plan_chunk(builder, *sequence);
      continue;
    }
    const bool goes_past = overtaking_.goes_past(*sequence);
    if (sequence->state != SequenceState::kWaiting || !may_admit(builder, goes_past)) continue;
    if (!admits && !goes_past) continue;
    const Admission admission = admit(builder, *sequence);
    if (admission == Admission::kNoTime) return;
    if (goes_past) continue;
    if (admission == Admission::kHeld) ++num_held;
    admits = admission != Admission::kNoRoom && num_held < kMaxHeldPerPlan;
  }
}

}  // namespace rudder::sched
