#include "rudder/model/check_weights.h"

#include "rudder/base/check.h"
#include "rudder/model/tensors.h"

namespace rudder::model {

void check_weights(const ModelSpec& spec, const Weights& weights, ops::Rank rank) {
  RUDDER_CHECK(!spec.layers.empty() && weights.layers.size() == spec.layers.size(),
               "{} layers of weights for {} layers", weights.layers.size(), spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerWeights layer = weights.layers[i];
    const LayerTensors tensors = layer_tensors(spec, {}, i, &layer);
    for (const NormTensor& norm : tensors.norms) {
      const int64_t width = norm.width.count();
      const int64_t alphas = norm.alpha.count > 0 ? width : 0;
      RUDDER_CHECK(
          norm.target->weight.num_rows() == width && norm.target->alpha.num_rows() == alphas,
          "'{}'", norm.weight.name);
    }
    for (const VectorTensor& vector : tensors.vectors) {
      RUDDER_CHECK(vector.target->shape == vector.loaded(), "'{}'", vector.name);
    }
    for (const FilterTensor& filter : tensors.filters) {
      RUDDER_CHECK(filter.target->num_rows() == filter.count(), "'{}'", filter.names.front());
    }
    for (const LinearModule& linear : tensors.linears) {
      RUDDER_CHECK(linear.target->in == linear.in.count() && linear.target->out == linear.out(),
                   "'{}'", linear.parts.front().name);
    }
    const Attention* const attention = attention_of(spec.layers[i]);
    RUDDER_CHECK(
        attention == nullptr || attention->rope == kNoRope ||
            (attention->rope >= 0 && attention->rope < static_cast<int32_t>(spec.ropes.size())),
        "layer {}", i);
  }
  RUDDER_CHECK(weights.layer_embedding.table.empty() != spec.layer_embedding.exists());
  const Stage& stage = spec.stage;
  RUDDER_CHECK(!stage.is_last() || (weights.head.in == spec.hidden &&
                                    weights.head.out == ops::vocab_share(spec.vocab, rank).count));
  RUDDER_CHECK(!stage.is_last() || weights.final_norm.empty() == reads_normed(spec.residual));
  RUDDER_CHECK(!stage.is_first() || spec.tied_head || !weights.embedding.empty());
}

}  // namespace rudder::model
