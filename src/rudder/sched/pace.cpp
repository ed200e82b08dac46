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
constexpr double kLeastRatio = 2.3;
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

// Contexts are not known that have more keys than so many times what any step without prompts had,
// if those of one cost more than so many tokens.
constexpr int64_t kKnownKeys = 2;
constexpr double kLongContext = 2;
// So many steps with prompts lie between two that are for decodes alone.
constexpr int64_t kBesideEach = 7;

double keys_each(const StepShape& shape) {
  return static_cast<double>(shape.decode_keys) / static_cast<double>(shape.decode_tokens);
}

}  // namespace

Pace::Pace(int64_t max_itl_us, const StepCost& cost)
    : max_itl_us_(max_itl_us), cost_(cost), steps_to_spare_(kMostToSpare) {}

void Pace::observe(const StepShape& shape, int64_t us) {
  if (max_itl_us_ == kNoItlBound || us <= 0 || shape.decode_tokens == 0) return;
  most_keys_ = std::max(most_keys_, shape.decode_keys);
  num_usual_ = std::min(num_usual_ + 1, kUsualSteps);
  const double rate = 1 / static_cast<double>(num_usual_);
  usual_tokens_ += rate * (static_cast<double>(shape.decode_tokens) - usual_tokens_);
  usual_keys_ += rate * (keys_each(shape) - usual_keys_);
  const double alone_us =
      cost_.decode_us({.decode_tokens = shape.decode_tokens, .decode_keys = shape.decode_keys});
  if (alone_us > 0) waits_.add(static_cast<double>(us) / alone_us);
}

// By the number of sequences and the contexts that are usual, or that will be if those are less;
// and at least by those that will be.
double Pace::limit_us(const StepShape& shape) const {
  if (max_itl_us_ != kAutoItlBound) return static_cast<double>(max_itl_us_);
  const auto tokens = static_cast<double>(std::max(shape.decode_tokens, num_expected_));
  const double keys = keys_each(shape);
  const double usual = std::min(tokens, usual_tokens_);
  const double usual_us = decodes_us(usual, usual * std::min(keys, usual_keys_));
  return std::max(kMaxRatio * waits_.quantile(kTypicalShare) * usual_us,
                  kLeastRatio * decodes_us(tokens, tokens * keys));
}

// Of no more keys than a step was seen to have: what keys cost is known too badly to go further. In
// a burst it is learnt as contexts come.
double Pace::decodes_us(double tokens, double keys) const {
  return cost_.decode_us({.decode_tokens = static_cast<int64_t>(tokens),
                          .decode_keys = std::min(static_cast<int64_t>(keys), most_keys_)});
}

int32_t Pace::tokens_within(const StepShape& shape, int32_t kv_len, int32_t most) const {
  if (max_itl_us_ == kNoItlBound || shape.decode_tokens == 0) return most;
  if (is_for_decodes_alone(shape)) return 0;
  const int32_t always = kMinPromptTokens - static_cast<int32_t>(shape.prompt_tokens);
  const int32_t paced = cost_.tokens_within(shape, kv_len, most, limit_us(shape));
  return std::min(most, std::max(always, paced));
}

// Beside prompts what keys cost is not to be told from what prompts cost. A burst has no step
// without prompts unless one is made.
bool Pace::is_for_decodes_alone(const StepShape& shape) const {
  return max_itl_us_ == kAutoItlBound && num_beside_ >= kBesideEach &&
         shape.decode_keys > kKnownKeys * most_keys_alone_ &&
         keys_each(shape) > kLongContext * cost_.keys_of_a_token();
}

bool Pace::leaves_waiting(const StepShape& shape, int64_t waiting, int64_t room) const {
  if (max_itl_us_ == kNoItlBound || shape.decode_tokens == 0) return false;
  return waiting < room && steps_to_spare_ < 1;
}

void Pace::note_plan(const StepShape& shape) {
  if (shape.decode_tokens > 0 && shape.prompt_tokens > 0) ++num_beside_;
  if (shape.decode_tokens > 0 && shape.prompt_tokens == 0) {
    num_beside_ = 0;
    most_keys_alone_ = std::max(most_keys_alone_, shape.decode_keys);
  }
  steps_to_spare_ = std::min(kMostToSpare, steps_to_spare_ + kPromptShare);
  if (shape.prompt_tokens > 0) steps_to_spare_ = std::max(0.0, steps_to_spare_ - 1);
}

}  // namespace rudder::sched
