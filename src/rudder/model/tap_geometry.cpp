#include "rudder/model/tap_geometry.h"

namespace rudder::model {

tap::Geometry tap_geometry(const ModelSpec& spec, tensor::DType act, ops::Rank rank) {
  using tap::Site;
  using tap::site_bit;
  tap::Geometry geometry;
  geometry.num_layers = static_cast<int32_t>(spec.layers.size());
  geometry.hidden = spec.hidden;
  geometry.dtype = act;
  geometry.residual = form_of(spec.residual);
  for (const LayerSpec& layer : spec.layers) {
    auto sites = static_cast<uint16_t>(site_bit(Site::kResidPre) | site_bit(Site::kAttnOut) |
                                       site_bit(Site::kResidMid) | site_bit(Site::kMlpOut) |
                                       site_bit(Site::kResidPost));
    const Attention* const attention = attention_of(layer);
    const GatedDelta* const delta = std::get_if<GatedDelta>(&layer.mixer);
    tap::Heads heads;
    if (attention != nullptr) heads = {attention->num_heads * rank.count, attention->head_dim};
    if (delta != nullptr) heads = {delta->value_heads * rank.count, delta->value_dim};
    const ShortConv* const conv = std::get_if<ShortConv>(&layer.mixer);
    if (conv != nullptr) heads = {1, conv->width * rank.count};
    geometry.heads.push_back(heads);
    geometry.weighing.push_back(attention == nullptr ? 0 : heads.count);
    if (heads.count > 0) sites = static_cast<uint16_t>(sites | site_bit(Site::kAttnZ));
    const GatedMlp* const mlp = gated_mlp_of(layer);
    if (mlp != nullptr) sites = static_cast<uint16_t>(sites | site_bit(Site::kMlpAct));
    if (const tap::Routing routing = routing_of(layer); routing.experts > 0) {
      sites = static_cast<uint16_t>(sites | tap::kRouterSites);
      geometry.routing.resize(geometry.heads.size());
      geometry.routing.back() = routing;
    }
    // Without a norm before it, a branch reads the residual itself.
    if (layer.norms.pre) {
      sites = static_cast<uint16_t>(sites | site_bit(Site::kAttnIn) | site_bit(Site::kMlpIn));
    }
    geometry.sites.push_back(sites);
    geometry.mlp_width.push_back(mlp == nullptr ? 0 : mlp->width * rank.count);
  }
  if (!geometry.routing.empty()) geometry.routing.resize(spec.layers.size());
  geometry.sites.back() = static_cast<uint16_t>(geometry.sites.back() | site_bit(Site::kFinalNorm));
  return geometry;
}

}  // namespace rudder::model
