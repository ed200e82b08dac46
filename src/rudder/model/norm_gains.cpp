#include "rudder/model/norm_gains.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"
#include "rudder/model/binder.h"
#include "rudder/model/tensors.h"

namespace rudder::model {

Result<std::vector<tap::NormGain>> read_mlp_gains(const weights::Checkpoint& checkpoint,
                                                  const ModelSpec& spec) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  Binder binder(checkpoint, quantisation);
  const WeightNames names = names_in(architecture->names, checkpoint);
  std::vector<tap::NormGain> gains(spec.layers.size());
  for (size_t layer = 0; layer < gains.size(); ++layer) {
    if (!spec.layers[layer].norms.pre) continue;
    LayerWeights weights = empty_weights(spec, layer);
    const LayerTensors tensors = layer_tensors(spec, names, layer, &weights);
    const auto norm = std::ranges::find(tensors.norms, &weights.mlp_pre_norm, &NormTensor::target);
    RUDDER_CHECK(norm != tensors.norms.end(), "layer {} has no norm in front of its MLP", layer);
    RUDDER_TRY(const tensor::View stored,
               binder.take(norm->weight.name, tensor::Shape{norm->weight.count}));
    gains[layer] = {norm->weight.name, norm_values(stored, norm->width, names.norm_offset)};
  }
  return gains;
}

}  // namespace rudder::model
