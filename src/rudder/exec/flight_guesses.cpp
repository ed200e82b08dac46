#include "rudder/exec/flight_guesses.h"

#include <algorithm>
#include <span>

namespace rudder::exec {

void FlightGuesses::list(const step::StepPlan& plan, const SlotTable& slots,
                         const step::DraftCaps& caps, bool has_source) {
  us = 0;
  asks.clear();
  seqs.clear();
  is_followed = false;
  if (!has_source) return;
  if (!caps.looks_up()) list_asks(plan, slots, asks);
  for (size_t i = 0; i < plan.seqs.size() && caps.keeps_guesses; ++i) {
    if (plan.seqs[i].guess.num_guess > 0) seqs.push_back(i);
  }
  is_followed = !asks.empty() && !seqs.empty();
}

// Where the device runs what is enqueued at once, its time is known here.
Result<void> FlightGuesses::enqueue(DraftSource& source, const DeviceStep& step, ops::Ops& ops,
                                    StepBuffers& buffers, size_t flight, const Clock& clock,
                                    step::StepResult& result) {
  const int64_t start_us = clock.now_us();
  RUDDER_TRY(const Setup setup, source.enqueue(step, asks));
  are_set_up = setup.is_paid_once;
  result.captured_graph |= setup.captured;
  if (!is_followed) return {};
  buffers.fetch_guesses(flight);
  ops.record(*copied);
  if (!copied->done()) return {};
  us = std::max<int64_t>(1, clock.now_us() - start_us);
  result.guess_us = are_set_up ? 0 : us;
  return {};
}

void FlightGuesses::read(const StepBuffers& buffers, size_t flight,
                         step::StepResult& result) const {
  for (const size_t i : seqs) {
    step::SeqResult& seq = result.seqs[i];
    const std::span<const int32_t> guess = buffers.guess(flight, seq.slot);
    seq.guess.assign(guess.begin(), guess.end());
  }
}

}  // namespace rudder::exec
