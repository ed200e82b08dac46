// Handover: one stage's end of a pipeline (stage_link.h). It brings the residual of a step
// to the device and on to the next stage, with the rows that a draft head reads and with what taps
// have left for later layers: relays, carried rows, the latches of the step's slots and the
// captured records. What the last stage sampled, and what it guesses to follow, it brings to the
// state of the slots of every other stage. All of it goes from device to device (ops/message.h);
// the host waits for no copy. The stage's worker uses it.
//
// A stage before the last may run a step while later stages run steps before it. Its device waits
// only for what the last stage sampled for a slot of its own step: where a token comes from there
// (a carry), or where the step has taps, whose latches another stage may fill; and for the last
// report of a slot that is opened again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/stage_link.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/exec/tap_state.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class Handover {
 public:
  // The parts of the stage's executor, which outlive it; `taps` null: it has none.
  struct Parts {
    ops::Ops& ops;
    const model::Decoder& decoder;
    const StepBuffers& buffers;
    TapState* taps = nullptr;
    model::HiddenPool kept = {};
  };

  static Result<std::unique_ptr<Handover>> make(const Parts& parts, const model::Stage& stage,
                                                const step::Capacity& capacity,
                                                std::shared_ptr<StageLink> link);
  // Bytes of a token's rows.
  struct RowBytes {
    int64_t residual = 0;
    int64_t kept = 0;  // of what a draft head reads of one layer
  };
  // Device bytes that make() allocates.
  static int64_t device_bytes(const model::Stage& stage, const step::Capacity& capacity,
                              const RowBytes& rows);

  // Before the plan at `flight` is packed: brings to the slots what the last stage reported of
  // those that the plan opens, and of the step that was at `flight` before.
  Result<void> catch_up(const step::StepPlan& plan, size_t flight);
  // Waits until the step at `flight` may be enqueued, or its next iteration, and brings to its
  // slots what was reported of them.
  Result<void> await_step(const PackedStep& packed, size_t flight);
  Result<void> await_iteration();
  // Behind begin_step or advance_step of `step`: what the stage before has left of the iteration.
  void take(const PackedStep& packed, const DeviceStep& step, size_t flight);
  // The iteration is enqueued: hands it to the next stage, or reports what was sampled. An Error is
  // the device's.
  Result<void> pass_on(const PackedStep& packed, const DeviceStep& step, size_t flight);

  void fail(const Error& error) { link_->fail(error); }
  // The engine thread's, which waits for a result.
  Result<void> look() { return link_->look(); }

 private:
  enum class Way : uint8_t { kTake, kGive };
  class Cutter;
  // An iteration that has begun and whose report is not brought to the slots yet.
  struct Unreported {
    uint64_t number = 0;  // from 1
    size_t flight = 0;
  };

  Handover(const Parts& parts, const model::Stage& stage, const step::Capacity& capacity,
           std::shared_ptr<StageLink> link);

  Result<void> allocate();
  Result<void> apply(uint64_t num_reports);
  void take_report(const StageLink::Report& report);
  void give_report(const PackedStep& packed, const DeviceStep& step, StageLink::Report& report);
  void move_hidden(const PackedStep& packed, const DeviceStep& step, size_t flight,
                   const ops::View& bytes, Way way);
  void move_state(const ops::View& slots, bool has_latches, Cutter& message, Way way);
  void move_slots(const ops::View& of_all, const ops::View& slots, Cutter& message, Way way);
  void move(const ops::View& device, Cutter& message, Way way);
  int64_t num_slots_of(const PackedStep& packed) const;
  uint64_t awaited_reports(const PackedStep& packed) const;

  const Parts parts_;
  const model::Stage stage_;
  const step::Capacity capacity_;
  const std::shared_ptr<StageLink> link_;
  ops::View inbox_;  // [bytes] u8: a report, or latches, on their way to the slots

  uint64_t num_begun_ = 0;              // iterations
  uint64_t num_applied_ = 0;            // reports
  std::deque<Unreported> unreported_;   // in order
  std::vector<uint64_t> last_of_slot_;  // the number of the iteration that the slot was last in
};

}  // namespace rudder::exec
