// Weights: the tensors of one model on one device, in the backend's formats. Filled by loader.h,
// read by the decoder. Which of them a model has, and their shapes: tensors.h.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "rudder/model/spec.h"
#include "rudder/ops/args.h"

namespace rudder::model {

// variant<A, B> to variant<A::Weights, B::Weights>.
template <typename Branches>
struct WeightsOf;
template <typename... Branch>
struct WeightsOf<std::variant<Branch...>> {
  using Type = std::variant<typename Branch::Weights...>;
};

using ResidualWeights = WeightsOf<Residual>::Type;  // of a layer

struct LayerWeights {
  ops::NormSpec mixer_pre_norm;  // empty norms are not in this model
  ops::NormSpec mixer_post_norm;
  ops::NormSpec mlp_pre_norm;
  ops::NormSpec mlp_post_norm;
  // Of the kinds of branches that the layer's spec has.
  WeightsOf<Mixer>::Type mixer;
  WeightsOf<Mlp>::Type mlp;
  ResidualWeights residual;
  LayerEmbedding::Weights layer_embedding;
  float scale = 1;  // of the layer's output
};

// Of a layer that has attention (attention_of in spec.h).
inline const Attention::Weights& attention_of(const LayerWeights& layer) {
  if (const auto* const both = std::get_if<Parallel::Weights>(&layer.mixer)) return both->attention;
  return std::get<Attention::Weights>(layer.mixer);
}

struct Weights {
  ops::View embedding;  // [vocab, hidden]; empty: rows are read from `head`, which is tied
  LayerEmbedding::ModelWeights layer_embedding;
  std::vector<LayerWeights> layers;
  ops::NormSpec final_norm;
  ops::LinearWeight head;  // [vocab, hidden]
  int64_t bytes = 0;       // of device memory, all of it
};

}  // namespace rudder::model
