#include "rudder/sched/pace.h"

namespace rudder::sched {

// Stages divide what decodes among several steps: the time of one alone says little there.
Pace::Pace(const step::Capacity& capacity, const SchedSettings& settings, bool paces_drafts)
    : learns_cost_(settings.max_itl_us != kNoItlBound || paces_drafts),
      has_trials_(learns_cost_ && settings.num_cohorts == 1),
      trials_(capacity, settings.max_num_seqs, settings.max_num_batched_tokens),
      bound_(settings.max_itl_us, cost_) {}

bool Pace::plan_trial(step::StepPlan& plan, std::vector<uint32_t>& generations) {
  if (!has_trials_ || trials_.is_over()) return false;
  trials_.add_next(plan, generations);
  return true;
}

void Pace::note_trial(int64_t device_us) {
  const Trials::Seen seen = trials_.note(device_us);
  cost_.observe(seen.shape, seen.us);
}

void Pace::note_iteration(const StepShape& shape, int64_t device_us) {
  if (learns_cost_) cost_.observe(shape, device_us);
}

// Without drafts a stream gets one token.
void Pace::note_results(const StepShape& shape, int64_t device_us, int32_t num_draft,
                        int32_t num_accepted) {
  const int64_t num_streams = shape.decode_tokens - num_draft;
  const double accepted_each =
      num_streams == 0 ? 0.0 : static_cast<double>(num_accepted) / static_cast<double>(num_streams);
  bound_.observe(shape, device_us, 1 + accepted_each);
}

}  // namespace rudder::sched
