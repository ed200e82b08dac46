// RowPasses: what Medusa heads and assistants share, which guess from rows of a step's logits
// (DraftCaps::guesses_from_rows): passes of a token a sequence, its last one, behind a step whose
// tokens the host does not have. The device finds the token and the row that it was sampled from in
// the slots of the model (ops/tail_args.h), and guesses stay there. A pass has buffers and a state
// of slots of its own, and keeps no KV. The executor's worker thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/guess_asks.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"
#include "rudder/tensor/dtype.h"

namespace rudder::exec {

class RowPasses {
 public:
  // Of the passes: nothing that clients ask for. `num_fetched`: samples of a row that come to the
  // host.
  static step::Capacity capacity_of(const step::Capacity& capacity, int32_t num_fetched = 1);
  // Device bytes of make(), and of the rows of RowsRead.sampled, which are `hidden` wide.
  static int64_t device_bytes(const step::Capacity& capacity, int64_t hidden, tensor::DType act,
                              int32_t num_fetched = 1);
  static Result<std::unique_ptr<RowPasses>> make(const DraftSite& site, int32_t num_fetched = 1);

  // Packs those that are guessed for; how many tokens are guessed at most, 0: none is guessed for.
  // Each goes on from its GuessAsk::logits_row.
  int32_t pack(std::span<const GuessAsk> asks);
  PackedStep packed;  // what is packed, in the order of the asks; until begin()

  // Brings what is packed to the device. An Error is the device's.
  Result<DeviceStep> begin();
  // Likewise, behind a step of the model: tokens, places and rows are those that the slots have.
  Result<DeviceStep> begin_behind(const DeviceStep& step);
  // Guess `index` of the slots is what the pass has sampled.
  void keep(const DeviceStep& pass, int32_t index);

  StepBuffers& buffers() { return *buffers_; }
  const StepBuffers& buffers() const { return *buffers_; }

 private:
  RowPasses(const DraftSite& site, const step::Capacity& own)
      : ops_(site.ops), capacity_(own), slots_(site.slots) {}

  ops::Ops& ops_;
  const step::Capacity capacity_;  // of the passes
  const ops::SlotState slots_;     // of the model
  std::unique_ptr<StepBuffers> buffers_;
  size_t entry_ = 0;  // of the staging memory; a step whose result is told has no pass under way
};

}  // namespace rudder::exec
