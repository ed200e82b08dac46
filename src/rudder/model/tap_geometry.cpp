#include "rudder/model/tap_geometry.h"

namespace rudder::model {
namespace {

uint16_t bit(tap::Site site) {
  return static_cast<uint16_t>(1U << static_cast<unsigned>(site));
}

}  // namespace

tap::Geometry tap_geometry(const ModelSpec& spec, tensor::DType act, ops::Rank rank,
                           bool taps_mixers) {
  using tap::Site;
  tap::Geometry geometry;
  geometry.num_layers = static_cast<int32_t>(spec.layers.size());
  geometry.hidden = spec.hidden;
  geometry.dtype = act;
  for (const LayerSpec& layer : spec.layers) {
    auto sites =
        static_cast<uint16_t>(bit(Site::kResidPre) | bit(Site::kAttnOut) | bit(Site::kResidMid) |
                              bit(Site::kMlpOut) | bit(Site::kResidPost));
    const Attention* const attention = attention_of(layer);
    geometry.heads.push_back(attention == nullptr
                                 ? tap::Heads{}
                                 : tap::Heads{attention->num_heads, attention->head_dim});
    if (attention != nullptr && taps_mixers && rank.is_alone())
      sites = static_cast<uint16_t>(sites | bit(Site::kAttnZ));
    const GatedMlp* const mlp = gated_mlp_of(layer);
    if (mlp != nullptr && rank.is_alone())
      sites = static_cast<uint16_t>(sites | bit(Site::kMlpAct));
    // Without a norm before it, a branch reads the residual itself.
    if (layer.norms.pre) {
      sites = static_cast<uint16_t>(sites | bit(Site::kAttnIn) | bit(Site::kMlpIn));
    }
    geometry.sites.push_back(sites);
    geometry.mlp_width.push_back(mlp == nullptr ? 0 : mlp->width);
  }
  if (!rank.is_alone()) {
    geometry.divided_sites = static_cast<uint16_t>(bit(Site::kAttnZ) | bit(Site::kMlpAct));
  }
  if (!taps_mixers) geometry.untapped_sites = bit(Site::kAttnZ);
  geometry.sites.back() = static_cast<uint16_t>(geometry.sites.back() | bit(Site::kFinalNorm));
  return geometry;
}

}  // namespace rudder::model
