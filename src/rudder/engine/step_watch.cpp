#include "rudder/engine/step_watch.h"

#include <fmt/format.h>

namespace rudder::engine {
namespace {

// An idle loop shows life four times a second (Replica).
constexpr int64_t kMaxIdleSilenceUs = 1'000'000;

}  // namespace

StepFacts facts_of(const step::StepPlan& plan) {
  StepFacts facts = {.id = plan.id, .num_tokens = plan.num_tokens(), .repeat = plan.repeat};
  for (const step::SeqWork& work : plan.seqs) {
    ++facts.num_seqs;
    if (work.q_len > 1 + work.num_draft) ++facts.num_prompts;
    if (work.constrained) ++facts.num_constrained;
  }
  return facts;
}

std::string to_text(const StepFacts& facts) {
  return fmt::format(
      "step {} of {} tokens of {} sequences ({} with prompts, {} constrained), {} {}", facts.id,
      facts.num_tokens, facts.num_seqs, facts.num_prompts, facts.num_constrained, facts.repeat,
      facts.repeat == 1 ? "iteration" : "iterations");
}

void StepWatch::note(int64_t now_us, const char* doing, const std::optional<StepFacts>& step) {
  const std::lock_guard lock(mutex_);
  since_us_ = now_us;
  doing_ = doing;
  step_ = step;
}

Result<void> StepWatch::health(int64_t now_us, int64_t stuck_us) const {
  const std::lock_guard lock(mutex_);
  const int64_t silence_us = now_us - since_us_;
  const bool is_busy = *doing_ != '\0';
  if (silence_us < (is_busy ? stuck_us : kMaxIdleSilenceUs)) return {};
  const std::string what =
      !is_busy ? "its loop has been silent"
               : fmt::format("{}{}", doing_, step_ ? " " + to_text(*step_) : std::string());
  return fail(ErrorCode::kUnavailable,
              fmt::format("the engine makes no progress: {} for {} ms", what, silence_us / 1000));
}

}  // namespace rudder::engine
