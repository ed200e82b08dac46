#include "rudder/exec/executor_decoder.h"

#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/step_layout.h"

namespace rudder::exec {

Result<KvMemory> make_kv(const model::MakeOwnKvDecoder& make, const DeviceExecutor::Model& model,
                         const step::Capacity& capacity) {
  if (make) return KvMemory();
  return allocate_kv(model.kv, model.spec, capacity, *model.ops);
}

Result<std::unique_ptr<model::Decoder>> make_decoder(const model::MakeOwnKvDecoder& make,
                                                     const DeviceExecutor::Model& model,
                                                     const step::Capacity& capacity,
                                                     const DecoderMemory& memory) {
  if (!make) {
    return model::Decoder::make(model.spec, model.weights, memory.kv, *model.ops,
                                decoder_limits(capacity), memory.kept, memory.sampled_rows,
                                memory.states);
  }
  RUDDER_CHECK(model.spec.stage.is_alone() && ops::rank_of(*model.ops).is_alone() &&
                   memory.kept.rows.empty() && memory.sampled_rows.empty(),
               "a decoder that keeps the KV is alone, and no rows are kept beside it");
  model::OwnKvDecoderParts parts{.spec = model.spec,
                                 .weights = model.weights,
                                 .ops = *model.ops,
                                 .limits = decoder_limits(capacity),
                                 .kv = {},
                                 .num_groups = capacity.kv_groups.size(),
                                 .num_blocks = capacity.num_blocks,
                                 .block_size = capacity.block_size};
  for (const KvLayerIndex& at : model.kv.layers) {
    const int32_t layers =
        at.group < 0 ? 1 : capacity.kv_groups[static_cast<size_t>(at.group)].layers;
    parts.kv.push_back({.group = at.group, .index = at.index, .layers = layers});
  }
  return make(parts);
}

}  // namespace rudder::exec
