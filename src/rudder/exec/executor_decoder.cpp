// DeviceExecutor::make_kv and make_decoder: the KV cache and what reads it. A decoder of the options'
// own keeps the KV itself, so the device has none.
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/device_executor.h"
#include "rudder/exec/step_layout.h"

namespace rudder::exec {

Result<KvMemory> DeviceExecutor::make_kv(const Options& options) {
  if (options.make_decoder) return KvMemory();
  return allocate_kv(model_.kv, model_.spec, capacity_, *model_.ops);
}

Result<std::unique_ptr<model::Decoder>> DeviceExecutor::make_decoder(
    const Options& options, const model::HiddenPool& kept, const ops::View& sampled_rows) {
  if (!options.make_decoder) {
    return model::Decoder::make(model_.spec, model_.weights, kept_.kv, *model_.ops,
                                decoder_limits(capacity_), kept, sampled_rows,
                                kept_.states.layers());
  }
  RUDDER_CHECK(model_.spec.stage.is_alone() && ops::rank_of(*model_.ops).is_alone() &&
                   kept.rows.empty() && sampled_rows.empty(),
               "a decoder that keeps the KV is alone, and no rows are kept beside it");
  model::OwnKvDecoderParts parts{.spec = model_.spec,
                                 .weights = model_.weights,
                                 .ops = *model_.ops,
                                 .limits = decoder_limits(capacity_),
                                 .kv = {},
                                 .num_groups = capacity_.kv_groups.size(),
                                 .num_blocks = capacity_.num_blocks,
                                 .block_size = capacity_.block_size};
  for (const KvLayerIndex& at : model_.kv.layers) {
    const int32_t layers =
        at.group < 0 ? 1 : capacity_.kv_groups[static_cast<size_t>(at.group)].layers;
    parts.kv.push_back({.group = at.group, .index = at.index, .layers = layers});
  }
  return options.make_decoder(parts);
}

}  // namespace rudder::exec
