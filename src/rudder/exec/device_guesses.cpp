// DeviceExecutor: what is guessed behind a step.
#include "rudder/exec/device_executor.h"

namespace rudder::exec {

// Behind what was sampled, where the host has to know it once it is there: a step that guesses has
// one iteration.
Result<void> DeviceExecutor::guess(size_t index) {
  Flight& flight = flights_[index];
  if (capacity_.drafts.keeps_guesses) {
    name_rows(flight.sampled_seq, flight.guesses.asks);
    return flight.guesses.enqueue(*source_, flight.step, *model_.ops, *buffers_, index, clock_,
                                  flight.result);
  }
  Iteration& iteration = flight.iterations[0];
  RUDDER_TRY_VOID(iteration.done->wait());
  iteration.enqueued_us = clock_.now_us();
  add_sampled(flight.sampled_seq, buffers_->sampled(index, 0), flight.guesses.asks);
  RUDDER_TRY(const Setup setup, source_->run(flight.guesses.asks));
  for (GuessAsk& ask : flight.guesses.asks) {
    flight.result.seqs[static_cast<size_t>(ask.seq)].guess = std::move(ask.guess);
  }
  flight.guesses.us = clock_.now_us() - iteration.enqueued_us;
  flight.result.guess_us = setup.is_paid_once ? 0 : flight.guesses.us;
  flight.result.captured_graph |= setup.captured;
  return {};
}

// What passes behind a step have guessed is a part of its result. The time that it took is known
// where the host saw both ends of it.
Result<void> DeviceExecutor::await_guesses(FlightGuesses& guesses, bool was_done,
                                           step::StepResult& result) {
  if (!guesses.is_followed || guesses.us > 0) return {};
  const int64_t start_us = clock_.now_us();
  const bool is_known = !was_done && !guesses.are_copied();
  RUDDER_TRY_VOID(await_done(*guesses.copied));
  const int64_t end_us = clock_.now_us();
  device_time_.note_guesses(end_us, is_known);
  if (is_known && !guesses.are_set_up) result.guess_us = end_us - start_us;
  return {};
}

}  // namespace rudder::exec
