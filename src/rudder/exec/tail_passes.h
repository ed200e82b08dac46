// TailPasses: the passes in which a draft model or head guesses chains that stay in the slots
// (pass_proposer.h). They are enqueued behind a step whose tokens the host does not have, and read
// from the slots of the model where its sequences end (ops/tail_args.h). The executor's worker
// thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/graphs.h"
#include "rudder/exec/guess_asks.h"
#include "rudder/exec/pass_packer.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class TailPasses {
 public:
  // Of the tokens that the host has, of the last tokens of sequences, of guesses.
  static constexpr size_t kPasses = 3;
  // Steps of staging memory that the inputs of passes need, behind steps of which so many are in
  // flight: they are read when as many steps more are over.
  static constexpr int32_t num_flights(int32_t max_in_flight) {
    return static_cast<int32_t>(kPasses) * (max_in_flight + 1);
  }

  // What runs the passes; all of it outlives them.
  struct Parts {
    ops::Ops& ops;
    model::Decoder& decoder;
    StepBuffers& buffers;  // of num_flights()
    Graphs* graphs;        // null: they run op by op
    PassPacker& packer;
  };
  // `capacity` is of the passes, `slots` of the model.
  TailPasses(const Parts& parts, const step::Capacity& capacity, const ops::SlotState& slots,
             bool is_head)
      : parts_(parts), capacity_(capacity), slots_(slots), is_head_(is_head) {}

  // Of asks without what the step samples. Never waits for the device, whose Error it returns.
  Result<Setup> enqueue(std::span<const GuessAsk> asks);

 private:
  enum Pass : size_t { kNamed, kTails, kGuesses };

  Result<void> enqueue_named(std::span<const GuessAsk> asks);
  Result<void> enqueue_tails(std::span<const GuessAsk> asks);
  Result<void> enqueue_guesses(std::span<const GuessAsk> asks);
  Result<void> enqueue_pass(Pass pass, int32_t num_iterations);
  void place(const DeviceStep& step, int32_t num_ahead);

  const Parts parts_;
  const step::Capacity capacity_;
  const ops::SlotState slots_;
  const bool is_head_;
  size_t entry_ = 0;  // of the staging memory, kPasses each
  Setup setup_;       // of the last enqueue()
};

}  // namespace rudder::exec
