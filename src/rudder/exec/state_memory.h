// StateMemory: what a model's layers keep of sequences besides KV (model/sequence_state.h): the
// pool of states, the rows that slots keep, and the copies of states that plans ask for. A model
// that registers nothing has none and pays nothing. The executor's worker thread uses it.
// Normative text: docs/contracts/cache.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/sequence_state.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class StateMemory {
 public:
  // Of the layers of a spec, which is that of a rank's or stage's part.
  static int64_t state_bytes(const model::ModelSpec& spec);
  // Of rows, in all slots.
  static int64_t row_bytes(const model::ModelSpec& spec, const step::Capacity& capacity);

  StateMemory() = default;
  // Nothing where the capacity has no states. An Error is the device's.
  static Result<StateMemory> make(ops::Ops& ops, const model::ModelSpec& spec,
                                  const step::Capacity& capacity);

  // One a layer; none where no layer keeps a state.
  const std::vector<model::LayerState>& layers() const { return layers_; }
  const ops::View& pool() const { return pool_; }
  // Enqueues them, in order.
  void copy(ops::Ops& ops, std::span<const step::ObjectCopy> copies) const;

 private:
  int64_t count_ = 0;
  ops::View pool_;  // [count, bytes of a state] u8; empty on a stage whose layers keep none
  std::vector<model::LayerState> layers_;
};

}  // namespace rudder::exec
