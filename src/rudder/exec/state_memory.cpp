#include "rudder/exec/state_memory.h"

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

// Every layer's part starts on a 64-byte line.
int64_t aligned_state(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

tensor::Shape kept_shape(int64_t row_bytes, const step::Capacity& capacity) {
  return {int64_t{capacity.num_slots} + 1, int64_t{1} + capacity.drafts.max_draft, row_bytes};
}

}  // namespace

int64_t StateMemory::state_bytes(const model::ModelSpec& spec) {
  int64_t bytes = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    bytes += aligned_state(model::state_bytes(layer).state);
  }
  return bytes;
}

int64_t StateMemory::row_bytes(const model::ModelSpec& spec, const step::Capacity& capacity) {
  if (capacity.drafts.max_draft == 0) return 0;
  int64_t bytes = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    bytes += kept_shape(model::state_bytes(layer).row, capacity).numel();
  }
  return bytes;
}

Result<StateMemory> StateMemory::make(ops::Ops& ops, const model::ModelSpec& spec,
                                      const step::Capacity& capacity) {
  StateMemory memory;
  memory.count_ = capacity.states.count;
  const int64_t bytes = state_bytes(spec);
  RUDDER_CHECK(bytes == 0 || memory.count_ > 1, "{} states of {} bytes", memory.count_, bytes);
  if (bytes == 0) return memory;
  RUDDER_TRY(memory.pool_, ops.allocate(tensor::DType::kU8, {memory.count_, bytes}));
  int64_t begin = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::StateBytes of_layer = model::state_bytes(layer);
    model::LayerState& state = memory.layers_.emplace_back();
    if (of_layer.state == 0) continue;
    state.pool = memory.pool_;
    state.begin = begin;
    begin += aligned_state(of_layer.state);
    if (capacity.drafts.max_draft == 0) continue;
    RUDDER_TRY(state.kept, ops.allocate(tensor::DType::kU8, kept_shape(of_layer.row, capacity)));
  }
  return memory;
}

void StateMemory::copy(ops::Ops& ops, std::span<const step::ObjectCopy> copies) const {
  const auto is_state = [&](const step::ObjectRef& object) {
    return object.store == step::Store::kStates && object.index >= 0 && object.index < count_;
  };
  for (const step::ObjectCopy& one : copies) {
    RUDDER_CHECK(is_state(one.from) && is_state(one.to), "a copy of {} to {}", one.from.index,
                 one.to.index);
    if (pool_.empty()) continue;  // of layers of other stages
    ops.copy(pool_.rows(one.to.index, 1), pool_.rows(one.from.index, 1));
  }
}

}  // namespace rudder::exec
