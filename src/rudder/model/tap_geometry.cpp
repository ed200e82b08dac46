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
  const uint16_t mixes = mix_sites_of(spec.residual);
  const auto has_mix = [&](Site site) { return (mixes & site_bit(site)) != 0; };
  for (const LayerSpec& layer : spec.layers) {
    auto sites = static_cast<uint16_t>(site_bit(Site::kResidPre) | site_bit(Site::kResidPost));
    const auto add = [&](bool is_there, Site site) {
      if (is_there) sites = static_cast<uint16_t>(sites | site_bit(site));
    };
    add(layer.has_mixer(), Site::kAttnOut);
    add(layer.has_mixer() && layer.has_mlp(), Site::kResidMid);
    add(layer.has_mlp(), Site::kMlpOut);
    add(layer.has_mixer() && has_mix(Site::kAttnPostMix), Site::kAttnPostMix);
    add(layer.has_mixer() && has_mix(Site::kAttnResMix), Site::kAttnResMix);
    add(layer.has_mlp() && has_mix(Site::kMlpPostMix), Site::kMlpPostMix);
    add(layer.has_mlp() && has_mix(Site::kMlpResMix), Site::kMlpResMix);
    const Attention* const attention = attention_of(layer);
    const GatedDelta* const delta = std::get_if<GatedDelta>(&layer.mixer);
    tap::Heads heads;
    if (attention != nullptr) heads = {attention->num_heads * rank.count, attention->head_dim};
    if (const LatentAttention* const latent = latent_of(layer)) {
      heads = {latent->shape.num_heads * rank.count, latent->shape.value_dim};
    }
    if (delta != nullptr) heads = {delta->value_heads * rank.count, delta->value_dim};
    const ShortConv* const conv = std::get_if<ShortConv>(&layer.mixer);
    if (conv != nullptr) heads = {1, conv->width * rank.count};
    const StateSpace* const space = std::get_if<StateSpace>(&layer.mixer);
    if (space != nullptr) heads = {space->heads * rank.count, space->head_dim};
    geometry.heads.push_back(heads);
    geometry.weighing.push_back(attention == nullptr && latent_of(layer) == nullptr ? 0
                                                                                    : heads.count);
    add(heads.count > 0, Site::kAttnZ);
    const GatedMlp* const mlp = gated_mlp_of(layer);
    add(mlp != nullptr, Site::kMlpAct);
    if (const tap::Routing routing = routing_of(layer); routing.experts > 0) {
      sites = static_cast<uint16_t>(sites | tap::kRouterSites);
      geometry.routing.resize(geometry.heads.size());
      geometry.routing.back() = routing;
    }
    // Without a norm before it, a branch reads the residual itself.
    const bool is_normed = layer.norms.pre || reads_normed(spec.residual);
    add(is_normed && layer.has_mixer(), Site::kAttnIn);
    add(is_normed && layer.has_mlp(), Site::kMlpIn);
    geometry.sites.push_back(sites);
    geometry.mlp_width.push_back(mlp == nullptr ? 0 : mlp->width * rank.count);
  }
  if (!geometry.routing.empty()) geometry.routing.resize(spec.layers.size());
  geometry.sites.back() = static_cast<uint16_t>(geometry.sites.back() | site_bit(Site::kFinalNorm));
  return geometry;
}

}  // namespace rudder::model
