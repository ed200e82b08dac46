#include "rudder/sched/pace.h"

#include <algorithm>

#include "rudder/sched/settings.h"

namespace rudder::sched {

namespace {

// The 99th percentile between tokens is to be at most 2.5 times the median. The rest is for what is
// typical moving on while it is learnt.
constexpr double kMaxRatio = 2.3;
// A step may take so many times as long as without its prompts, however short the typical wait is:
// prompts get on while more sequences stream than did before.
constexpr double kLeastRatio = 2;
// Below the median, so that the typical wait is one of a step without prompts while such steps are
// kTypicalShare of all. Where they are fewer, prompts never stop coming: the median wait is then
// that of a step with prompts, and such steps may grow until they are fewer again, or full.
constexpr double kTypicalShare = 0.4;
// How far a step of the usual number of sequences moves it. 100 with prompts move it by 2 %.
constexpr double kRate = 0.0005;
constexpr double kMostWeight = 4;  // of a step with more sequences than usual
// Steps with prompts that are passed over before the first step without.
constexpr int64_t kMostSkipped = 256;
// Prompt tokens that a step may have however long it takes: prompts get on beside decodes that
// alone take longer than the bound.
constexpr int32_t kMinPromptTokens = 16;

}  // namespace

void Pace::observe(const StepShape& shape, int64_t us) {
  if (max_itl_us_ == kNoItlBound || us <= 0) return;
  // What waits for the first prompts of a server says little of what is typical.
  if (num_waits_ == 0 && shape.prompt_tokens > 0 && ++num_skipped_ < kMostSkipped) return;
  if (shape.decode_tokens > 0) {
    note_wait(static_cast<double>(us), static_cast<double>(shape.decode_tokens));
  }
}

// The quantile is followed by steps up and down whose expectation is 0 at it. Each counts by the
// tokens that waited; the first ones move it far.
void Pace::note_wait(double us, double num_waiting) {
  ++num_waits_;
  const double rate = std::max(kRate, 0.5 / static_cast<double>(num_waits_));
  if (num_waits_ == 1) {
    typical_us_ = us;
    typical_waiting_ = num_waiting;
  }
  const double weight = rate * std::min(num_waiting / typical_waiting_, kMostWeight);
  typical_waiting_ += rate * (num_waiting - typical_waiting_);
  typical_us_ *= us > typical_us_ ? 1 + weight * kTypicalShare : 1 - weight * (1 - kTypicalShare);
}

double Pace::limit_us(const StepShape& shape) const {
  if (max_itl_us_ != kAutoItlBound) return static_cast<double>(max_itl_us_);
  StepShape decodes = shape;
  decodes.prompt_tokens = 0;
  decodes.prompt_pairs = 0;
  const double decodes_us = cost_.mean_us(decodes);
  if (typical_us_ == 0) return kMaxRatio * decodes_us;
  return std::max(kMaxRatio * typical_us_, kLeastRatio * decodes_us);
}

int32_t Pace::tokens_within(const StepShape& shape, int32_t kv_len, int32_t most) const {
  if (max_itl_us_ == kNoItlBound || shape.decode_tokens == 0) return most;
  const int32_t always = kMinPromptTokens - static_cast<int32_t>(shape.prompt_tokens);
  const int32_t paced = cost_.tokens_within(shape, kv_len, most, limit_us(shape));
  return std::min(most, std::max(always, paced));
}

}  // namespace rudder::sched
