#include "rudder/sched/pace.h"

#include <algorithm>

#include "rudder/sched/settings.h"

namespace rudder::sched {

namespace {

// The 99th percentile between tokens is to be at most 2.5 times the median. The rest is for steps
// that take longer than was foreseen.
constexpr double kMaxRatio = 2.4;
// Of what a step without prompts will take once those that wait stream, with contexts as long as
// now: where both are more than usual, the median is about to follow. A burst that comes while few
// stream would be run in small pieces by the wait of those few, each a step that takes long.
constexpr double kLeastRatio = 2.32;
// Below the median, so that the typical wait is one of a step without prompts while such steps are
// kTypicalShare of all. Where they are fewer, prompts never stop coming: the median wait is then
// that of a step with prompts, and such steps may grow until they are fewer again, or full.
constexpr double kTypicalShare = 0.4;
// So many of the last steps tell what is usual.
constexpr int64_t kUsualSteps = 500;
// Prompt tokens that a step may have however long it takes: prompts get on beside decodes that
// alone take longer than the bound.
constexpr int32_t kMinPromptTokens = 16;
// Of the steps beside streams, those that may have prompts which do not fill them: fewer than half,
// so that the median wait stays that of a step without. Every step with prompts takes longer for
// having any, so many small ones cost more than a few that are full.
constexpr double kPromptShare = 0.4;
// As many may follow each other, so that a burst waits for nothing.
constexpr double kMostToSpare = 8;

double keys_each(const StepShape& shape) {
  return static_cast<double>(shape.decode_keys) / static_cast<double>(shape.decode_tokens);
}

}  // namespace

Pace::Pace(int64_t max_itl_us, const StepCost& cost)
    : max_itl_us_(max_itl_us), cost_(cost), steps_to_spare_(kMostToSpare) {}

void Pace::observe(const StepShape& shape, int64_t us) {
  if (max_itl_us_ == kNoItlBound || us <= 0 || shape.decode_tokens == 0) return;
  num_usual_ = std::min(num_usual_ + 1, kUsualSteps);
  const double rate = 1 / static_cast<double>(num_usual_);
  usual_tokens_ += rate * (static_cast<double>(shape.decode_tokens) - usual_tokens_);
  usual_keys_ += rate * (keys_each(shape) - usual_keys_);
  const double alone_us =
      cost_.decode_us({.decode_tokens = shape.decode_tokens, .decode_keys = shape.decode_keys});
  if (alone_us > 0) waits_.add(static_cast<double>(us) / alone_us);
}

// By the number of sequences and the contexts that are usual, or that will be if those are less;
// and at least by those that will be. There will be no fewer than the step has: of those that wait
// one may find room where the mean of all would not.
double Pace::limit_us(const StepShape& shape) const {
  if (max_itl_us_ != kAutoItlBound) return static_cast<double>(max_itl_us_);
  StepShape expected = expected_;
  if (expected.decode_tokens < shape.decode_tokens) {
    expected = {.decode_tokens = shape.decode_tokens, .decode_keys = shape.decode_keys};
  }
  const double tokens = std::min(static_cast<double>(expected.decode_tokens), usual_tokens_);
  const double keys = tokens * std::min(keys_each(expected), usual_keys_);
  const double usual_us = cost_.decode_us(
      {.decode_tokens = static_cast<int64_t>(tokens), .decode_keys = static_cast<int64_t>(keys)});
  return std::max(kMaxRatio * waits_.quantile(kTypicalShare) * usual_us,
                  kLeastRatio * cost_.decode_us(expected));
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
