// DeviceWeights: the weights of a model as modules take them, each in one buffer of the device. The
// decoder makes it once; what products read is already there (DeviceWeight), the rest is sent.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/model/weights.h"
#include "rudder/pjrt/model_text.h"
#include "rudder/pjrt/plugin.h"

namespace rudder::pjrt {

class DeviceWeights {
 public:
  DeviceWeights() = default;
  // `weights` and `client` outlive it. An Error is the device's.
  static Result<DeviceWeights> take(const ModelShape& shape, const model::Weights& weights,
                                    const Client& client);

  const Buffer& of(const WeightRef& ref) const { return *all_.at({ref.name, ref.index}); }

 private:
  Result<void> keep(WeightName name, int32_t index, const tensor::View& host, const Client& client);
  Result<void> keep_norm(WeightName name, int32_t index, const ops::NormSpec& norm,
                         const Client& client);
  void keep_linear(WeightName name, WeightName bias, int32_t index,
                   const ops::LinearWeight& linear);
  Result<void> take_layer(int32_t index, const model::LayerWeights& weights, const Client& client);

  std::map<std::pair<WeightName, int32_t>, const Buffer*> all_;
  std::vector<std::unique_ptr<Buffer>> owned_;
};

}  // namespace rudder::pjrt
