#include "rudder/model/residual.h"

#include <string>
#include <string_view>

#include "rudder/model/tensors.h"

namespace rudder::model {

void list_tensors(const OneStream& /*residual*/, bool /*is_last_layer*/,
                  OneStream::Weights* /*weights*/, LayerTensors& /*out*/) {}

void list_tensors(const MixedStreams& residual, bool is_last_layer, MixedStreams::Weights* weights,
                  LayerTensors& out) {
  using Site = MixedStreams::Site;
  using Weights = MixedStreams::Weights;
  const int64_t count = residual.count;
  const auto add_site = [&](const std::string& name, Site Weights::*member) {
    Site* const site = target_in(weights, member);
    out.add_vector(name + ".read", count, target_in(site, &Site::read));
    out.add_vector(name + ".write", count, target_in(site, &Site::write));
    out.add_vector(name + ".mix", count * count, target_in(site, &Site::mix));
  };
  add_site("mixer_streams", &Weights::mixer);
  add_site("mlp_streams", &Weights::mlp);
  if (is_last_layer) out.add_vector("end_streams", count, target_in(weights, &Weights::end));
}

}  // namespace rudder::model
