// Pace: what is learnt of the time that steps take, and what follows for the steps to come: the
// cost of a step (StepCost), the bound on its prompt tokens (PromptBound), how long answers are
// (AnswerLength), and the trials that measure the device before the first sequence (Trials). The
// scheduler owns it and tells it of every step; Prompts and Drafts read their parts of it. Internal
// to the room; engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/sched/answer_length.h"
#include "rudder/sched/prompt_bound.h"
#include "rudder/sched/settings.h"
#include "rudder/sched/step_cost.h"
#include "rudder/sched/trials.h"
#include "rudder/step/executor.h"
#include "rudder/step/plan.h"

namespace rudder::sched {

class Pace {
 public:
  // `paces_drafts`: drafts are planned by what they cost.
  Pace(const step::Capacity& capacity, const SchedSettings& settings, bool paces_drafts);

  const StepCost& cost() const { return cost_; }
  PromptBound& bound() { return bound_; }
  AnswerLength& answers() { return answers_; }

  // Makes an empty plan the next trial; false: there is none more. `generations`, of the slots,
  // count those that it opens.
  bool plan_trial(step::StepPlan& plan, std::vector<uint32_t>& generations);
  // The oldest trial that was planned and not noted took so long.
  void note_trial(int64_t device_us);

  // An iteration of this shape took so long, 0: not known.
  void note_iteration(const StepShape& shape, int64_t device_us);
  // The same, once its results are known: of its decoded tokens so many were drafts, and so many of
  // these were right.
  void note_results(const StepShape& shape, int64_t device_us, int32_t num_draft,
                    int32_t num_accepted);

 private:
  const bool learns_cost_;  // who paces nothing needs to know nothing
  const bool has_trials_;
  StepCost cost_;
  Trials trials_;
  PromptBound bound_;
  AnswerLength answers_;
};

}  // namespace rudder::sched
