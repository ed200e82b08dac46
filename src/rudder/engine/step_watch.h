// StepWatch: what the engine thread is at, and since when, for whoever asks whether it makes
// progress (engine.E7). The engine thread tells it; any thread asks, and never waits for a step.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "rudder/base/clock.h"
#include "rudder/base/result.h"
#include "rudder/step/plan.h"

namespace rudder::engine {

// Of a step in flight, what its plan said of it; the plan's memory is soon another's.
struct StepFacts {
  step::StepId id = 0;
  int32_t num_seqs = 0;
  int32_t num_prompts = 0;  // of those, the ones with tokens of their prompts
  int32_t num_tokens = 0;
  int32_t num_constrained = 0;
  int32_t repeat = 1;
};
StepFacts facts_of(const step::StepPlan& plan);
std::string to_text(const StepFacts& facts);

class StepWatch {
 public:
  // It has nothing to do and wakes up to say so.
  void idle(int64_t now_us) { note(now_us, "", std::nullopt); }
  // It does something that ends soon, unless something is wrong: `doing` is a literal, and goes on
  // with the step that it does it with, where there is one.
  void busy(int64_t now_us, const char* doing, const std::optional<StepFacts>& step = {}) {
    note(now_us, doing, step);
  }

  // kUnavailable: it has been at one thing for `stuck_us`, or has said nothing while idle; the
  // message says what it is at.
  Result<void> health(int64_t now_us, int64_t stuck_us) const;

 private:
  void note(int64_t now_us, const char* doing, const std::optional<StepFacts>& step);

  mutable std::mutex mutex_;
  int64_t since_us_ = 0;
  const char* doing_ = "";  // empty: nothing
  std::optional<StepFacts> step_;
};

}  // namespace rudder::engine
