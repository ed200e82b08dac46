// PromptBound: how many prompt tokens a step may have beside sequences that stream, which wait for
// all of it. The bound on the time of such a step is given (SchedSettings::max_itl_us), or a
// multiple of what steps take without prompts; the latter yields where it would keep prompts from
// getting through. Normative text: docs/contracts/step.md, "How many prompt tokens a step may
// have". Internal to the room; engine thread.
#pragma once

#include <cstdint>

#include "rudder/sched/step_cost.h"

namespace rudder::sched {

// The prompts that sequences which stream had, by the tokens that they stream: who has its answer
// is taken to be followed by one like it, so as much is to come.
struct Turnover {
  int64_t num_streams = 0;
  double prompt_tokens = 0;  // sum over the streams, of each for one token of its answer
  double prompt_pairs = 0;   // likewise of their queries and keys

  // A prompt of which `cached` tokens were not computed, and an answer of so many tokens.
  void add(int64_t prompt_len, int64_t cached, double answer_tokens);
};

// A prompt that runs, beside others or alone.
struct LongPrompt {
  int64_t tokens = 0;    // of it, those that are not cached
  int64_t computed = 0;  // with those that are
};

class PromptBound {
 public:
  // As SchedSettings::max_itl_us. `cost` is learnt by its owner, and outlives this.
  PromptBound(int64_t max_itl_us, const StepCost& cost);

  // An iteration of this shape took so long, and gave each of its streams so many tokens in the
  // mean. A time of 0 is unknown, and nothing is learnt of it.
  void observe(const StepShape& shape, int64_t us, double tokens_each);

  // A step is planned that decodes so much and has room for `most` prompt tokens. `expected`: the
  // decodes of a step once those that wait have been admitted, as far as there is room. `longest`:
  // of the prompts that run.
  void begin_step(const StepShape& decodes, const StepShape& expected, const Turnover& turnover,
                  const LongPrompt& longest, int32_t most);

  // The most prompt tokens, at most `most`, that the step which was begun can take of a sequence
  // with `kv_len` in KV, when it has `shape` so far. `most` where no sequence of it streams.
  int32_t tokens_within(const StepShape& shape, int32_t kv_len, int32_t most) const;

  // Whether prompts of `waiting` tokens, of which no step has run any, are left for a later step
  // than that of `shape`, whose bound has room for `room`: until they fill one, or prompts have had
  // no more than their share of the last steps.
  bool leaves_waiting(const StepShape& shape, int64_t waiting, int64_t room) const;

  // A step of this shape was planned.
  void note_plan(const StepShape& shape);

 private:
  struct Prompts {
    double tokens = 0;
    double keys = 0;  // that each attends to
  };

  double usual_limit_us(const StepShape& expected) const;
  Prompts to_come(const Turnover& turnover, int64_t num_expected) const;
  double long_us(const StepShape& decodes, const LongPrompt& longest, int32_t most) const;
  double yield_us(double limit_us, const StepShape& decodes, const StepShape& expected,
                  const Prompts& come, int32_t most) const;

  const int64_t max_itl_us_;
  const StepCost& cost_;
  double limit_us_;  // of the step that was begun
  // In the mean of about the last five hundred steps beside streams: their tokens, the keys of
  // each, and the tokens that they gave a stream.
  double usual_tokens_ = 0;
  double usual_keys_ = 0;
  double usual_gain_ = 1;
  int64_t num_usual_ = 0;  // steps that were seen, at most kUsualSteps
  double steps_to_spare_;  // that may have prompts which do not fill them
};

}  // namespace rudder::sched
