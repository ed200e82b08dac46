// Handover: one stage's end of a pipeline (stage_link.h). It brings the residual stream of a step
// to the device and on to the next stage, with what taps have left for later layers: relays,
// carried rows, the latches of the step's slots and the captured records. What the last stage
// sampled it brings to the state of the slots of every other stage. All of it goes through host
// memory. The stage's worker uses it.
//
// A stage before the last may run a step while later stages run steps before it. It waits only for
// what the last stage sampled for a slot of its own step: where a token comes from there (a carry),
// or where the step has taps, whose latches another stage may fill.
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
  };

  Handover(const Parts& parts, const model::Stage& stage, const step::Capacity& capacity,
           std::shared_ptr<StageLink> link);

  // Brings what has been reported to the slots. Called before a step is packed.
  Result<void> catch_up();
  // Waits until the step at `flight` may begin, or its next iteration.
  Result<void> await_step(const PackedStep& packed, size_t flight);
  Result<void> await_iteration();
  // Behind begin_step or advance_step: what the stage before has left of the iteration.
  void take(const PackedStep& packed, size_t flight);
  // The iteration is enqueued: hands it to the next stage, or reports what was sampled. An Error is
  // the device's.
  Result<void> pass_on(const PackedStep& packed, size_t flight);

  void fail(const Error& error) { link_->fail(error); }
  // The engine thread's, which waits for a result.
  Result<void> look() { return link_->look(); }

 private:
  enum class Way : uint8_t { kTake, kGive };

  void allocate();
  Result<void> apply(uint64_t num_reports);
  void move_hidden(const PackedStep& packed, size_t flight, const ops::View& bytes, Way way);
  void move_sampled(const StageLink::Sampled& sampled, Way way);
  void move(const ops::View& device, const ops::View& bytes, int64_t& offset, Way way);
  uint64_t awaited_reports(const PackedStep& packed) const;

  const Parts parts_;
  const model::Stage stage_;
  const step::Capacity capacity_;
  const std::shared_ptr<StageLink> link_;
  std::unique_ptr<ops::Event> sent_;

  uint64_t num_begun_ = 0;              // iterations
  uint64_t num_applied_ = 0;            // reports
  std::deque<size_t> unreported_;       // flights of iterations begun and not applied
  std::vector<uint64_t> last_of_slot_;  // iterations begun when the slot's last step was
};

}  // namespace rudder::exec
