#include "rudder/sched/pace.h"

#include <algorithm>

#include "rudder/sched/settings.h"

namespace rudder::sched {

namespace {

// The 99th percentile between tokens is to be at most 2.5 times the median. The rest is for steps
// that take longer than was foreseen.
constexpr double kMaxRatio = 2.35;
// However short the typical wait is, a step may take so many times as long as a step without
// prompts will once those that wait stream, since that is the typical wait then. A burst that comes
// while few stream would be run in small pieces by the wait of those few, each a step that takes
// long.
constexpr double kLeastRatio = 2.2;
// Below the median, so that the typical wait is one of a step without prompts while such steps are
// kTypicalShare of all. Where they are fewer, prompts never stop coming: the median wait is then
// that of a step with prompts, and such steps may grow until they are fewer again, or full.
constexpr double kTypicalShare = 0.4;
// Steps with prompts that are passed over before the first step without.
constexpr int64_t kMostSkipped = 256;
// Prompt tokens that a step may have however long it takes: prompts get on beside decodes that
// alone take longer than the bound.
constexpr int32_t kMinPromptTokens = 16;
// Of the steps beside streams, those that may have prompts which do not fill them: fewer than half,
// so that the median wait stays that of a step without. Every step with prompts takes longer for
// having any, so many small ones cost more than a few that are full.
constexpr double kPromptShare = 0.4;
// As many may follow each other, so that a burst waits for nothing.
constexpr double kMostToSpare = 8;

}  // namespace

Pace::Pace(int64_t max_itl_us, const StepCost& cost)
    : max_itl_us_(max_itl_us), cost_(cost), steps_to_spare_(kMostToSpare) {}

void Pace::observe(const StepShape& shape, int64_t us) {
  if (max_itl_us_ == kNoItlBound || us <= 0) return;
  // What waits for the first prompts of a server says little of what is typical.
  if (waits_.is_empty() && shape.prompt_tokens > 0 && ++num_skipped_ < kMostSkipped) return;
  if (shape.decode_tokens == 0) return;
  waits_.add(static_cast<double>(us), static_cast<double>(shape.decode_tokens));
}

double Pace::limit_us(const StepShape& shape) const {
  if (max_itl_us_ != kAutoItlBound) return static_cast<double>(max_itl_us_);
  const double decodes_us = cost_.mean_us(decodes_expected(shape));
  if (waits_.is_empty()) return kMaxRatio * decodes_us;
  return std::max(kMaxRatio * waits_.quantile(kTypicalShare), kLeastRatio * decodes_us);
}

// A step without prompts once all that are expected stream, with as many keys each as those of
// `shape`.
StepShape Pace::decodes_expected(const StepShape& shape) const {
  StepShape decodes;
  decodes.decode_tokens = std::max(shape.decode_tokens, num_expected_);
  decodes.decode_keys = shape.decode_keys * decodes.decode_tokens / shape.decode_tokens;
  return decodes;
}

int32_t Pace::tokens_within(const StepShape& shape, int32_t kv_len, int32_t most) const {
  if (max_itl_us_ == kNoItlBound || shape.decode_tokens == 0) return most;
  const int32_t always = kMinPromptTokens - static_cast<int32_t>(shape.prompt_tokens);
  const int32_t paced = cost_.tokens_within(shape, kv_len, most, limit_us(shape));
  return std::min(most, std::max(always, paced));
}

bool Pace::leaves_waiting(const StepShape& shape, int64_t waiting, int64_t room) const {
  if (max_itl_us_ == kNoItlBound || shape.decode_tokens == 0) return false;
  return waiting < room && steps_to_spare_ < 1;
}

void Pace::note_plan(const StepShape& shape) {
  steps_to_spare_ = std::min(kMostToSpare, steps_to_spare_ + kPromptShare);
  if (shape.prompt_tokens > 0) steps_to_spare_ = std::max(0.0, steps_to_spare_ - 1);
}

}  // namespace rudder::sched
