#include "rudder/sched/prompt_bound.h"

#include <algorithm>
#include <limits>

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
// The share of the steps that would have prompts, each as many tokens as the bound allows: up to
// the first the bound is kept, from the second on it yields wholly.
constexpr double kKeptShare = 0.5;
constexpr double kYieldedShare = 0.65;
// Where it yields: prompts are in no more than so many of the steps, and what waits takes no more
// than so many times as long as in steps that are full.
constexpr double kBusyShare = 0.6;
constexpr double kMostLengthening = 1.1;
// A prompt has its first token at most so much later than by full steps.
constexpr double kMostDelayUs = 1e6;
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

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double keys_each(const StepShape& shape) {
  return static_cast<double>(shape.decode_keys) / static_cast<double>(shape.decode_tokens);
}

// A step of these decodes and prompt tokens of which each attends to so many keys.
StepShape with_prompts(StepShape decodes, double tokens, double keys) {
  decodes.prompt_tokens = static_cast<int64_t>(tokens);
  decodes.prompt_pairs = static_cast<int64_t>(tokens * keys);
  return decodes;
}

}  // namespace

void Turnover::add(int64_t prompt_len, int64_t cached, double answer_tokens) {
  ++num_streams;
  const double tokens = static_cast<double>(prompt_len - cached) / answer_tokens;
  prompt_tokens += tokens;
  prompt_pairs += tokens * static_cast<double>(prompt_len + cached) / 2;
}

PromptBound::PromptBound(int64_t max_itl_us, const StepCost& cost)
    : max_itl_us_(max_itl_us), cost_(cost), limit_us_(kNoLimit), steps_to_spare_(kMostToSpare) {}

void PromptBound::observe(const StepShape& shape, int64_t us, double tokens_each) {
  if (max_itl_us_ == kNoItlBound || us <= 0 || shape.decode_tokens == 0) return;
  num_usual_ = std::min(num_usual_ + 1, kUsualSteps);
  const double rate = 1 / static_cast<double>(num_usual_);
  usual_tokens_ += rate * (static_cast<double>(shape.decode_tokens) - usual_tokens_);
  usual_keys_ += rate * (keys_each(shape) - usual_keys_);
  usual_gain_ += rate * (tokens_each - usual_gain_);
}

// There will be no fewer streams than the step has: of those that wait one may find room where the
// mean of all would not.
void PromptBound::begin_step(const StepShape& decodes, const StepShape& expected,
                             const Turnover& turnover, const LongPrompt& longest, int32_t most) {
  limit_us_ = kNoLimit;
  if (max_itl_us_ == kNoItlBound || decodes.decode_tokens == 0) return;
  limit_us_ = static_cast<double>(max_itl_us_);
  if (max_itl_us_ != kAutoItlBound) return;
  StepShape future = expected.decode_tokens < decodes.decode_tokens ? decodes : expected;
  const double keys = keys_each(decodes) * static_cast<double>(future.decode_tokens);
  future.decode_keys = std::min(future.decode_keys, static_cast<int64_t>(keys));
  limit_us_ = std::max(usual_limit_us(future), long_us(decodes, longest, most));
  if (turnover.prompt_tokens == 0) return;
  const Prompts come = to_come(turnover, expected.decode_tokens);
  limit_us_ = yield_us(limit_us_, decodes, future, come, most);
}

// By the number of sequences and the contexts that are usual, or that will be if those are less;
// and at least by those that will be.
double PromptBound::usual_limit_us(const StepShape& expected) const {
  const double tokens = std::min(static_cast<double>(expected.decode_tokens), usual_tokens_);
  const double keys = tokens * std::min(keys_each(expected), usual_keys_);
  const double usual_us = cost_.decode_us(
      {.decode_tokens = static_cast<int64_t>(tokens), .decode_keys = static_cast<int64_t>(keys)});
  return std::max(kMaxRatio * usual_us, kLeastRatio * cost_.decode_us(expected));
}

// Each step takes as long as one that has hardly any prompt, besides what its tokens take: so a
// prompt in more steps takes longer by as many times that.
double PromptBound::long_us(const StepShape& decodes, const LongPrompt& longest,
                            int32_t most) const {
  if (longest.tokens == 0) return 0;
  const auto keys = static_cast<double>(longest.computed);
  const double start_us = cost_.mean_us(with_prompts(decodes, 1, keys));
  if (start_us <= 0) return 0;
  const auto tokens = static_cast<double>(longest.tokens);
  const double num_steps = tokens / most + kMostDelayUs / start_us;
  return cost_.predict_us(with_prompts(decodes, tokens / num_steps, keys));
}

// Of prompts in a step: what takes the place of the answers that end in it, once all that run and
// wait stream.
PromptBound::Prompts PromptBound::to_come(const Turnover& turnover, int64_t num_expected) const {
  const auto num_streams = static_cast<double>(turnover.num_streams);
  const double future = std::max(num_streams, static_cast<double>(num_expected));
  return {.tokens = usual_gain_ * turnover.prompt_tokens * future / num_streams,
          .keys = turnover.prompt_pairs / turnover.prompt_tokens};
}

// Steps that have fewer let the queue grow, until few stream at a time, each in steps of its own.
double PromptBound::yield_us(double limit_us, const StepShape& decodes, const StepShape& expected,
                             const Prompts& come, int32_t most) const {
  const double start_us = cost_.mean_us(with_prompts(expected, 1, come.keys));
  const double full_us = cost_.mean_us(with_prompts(expected, most, come.keys));
  const double token_us = (full_us - start_us) / most;
  if (token_us <= 0) return limit_us;
  const double fitting = std::max<double>(kMinPromptTokens, (limit_us - start_us) / token_us);
  const double over = come.tokens / fitting - kKeptShare;
  if (over <= 0) return limit_us;
  const double swift = start_us / (kMostLengthening * full_us / most - token_us);
  const double wanted = std::max({fitting, swift, come.tokens / kBusyShare});
  const double yielded = std::min(1.0, over / (kYieldedShare - kKeptShare));
  const double tokens = fitting + yielded * (wanted - fitting);
  if (tokens >= most) return kNoLimit;
  return std::max(limit_us, cost_.predict_us(with_prompts(decodes, tokens, come.keys)));
}

int32_t PromptBound::tokens_within(const StepShape& shape, int32_t kv_len, int32_t most) const {
  if (limit_us_ == kNoLimit) return most;
  const int32_t always = kMinPromptTokens - static_cast<int32_t>(shape.prompt_tokens);
  const int32_t paced = cost_.tokens_within(shape, kv_len, most, limit_us_);
  return std::min(most, std::max(always, paced));
}

bool PromptBound::leaves_waiting(const StepShape& shape, int64_t waiting, int64_t room) const {
  if (max_itl_us_ == kNoItlBound || shape.decode_tokens == 0) return false;
  return waiting < room && steps_to_spare_ < 1;
}

void PromptBound::note_plan(const StepShape& shape) {
  steps_to_spare_ = std::min(kMostToSpare, steps_to_spare_ + kPromptShare);
  if (shape.prompt_tokens > 0) steps_to_spare_ = std::max(0.0, steps_to_spare_ - 1);
}

}  // namespace rudder::sched
