// Scales of channels for weights of few bits, found by what the products read (AWQ, Lin et al.,
// arXiv:2306.00978): inputs with large activations are multiplied by s before they are rounded, and
// what makes the inputs is divided by s, so that the model computes the same and errors fall where
// they matter less. `rudder quantise --calibration` calls it, on one thread; it works on every
// core.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/thread_pool.h"
#include "rudder/model/group_rounding.h"
#include "rudder/tap/site.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// What becomes of a tensor: element [r, k] is multiplied by inputs[k] and divided by outputs[r]. Of
// a vector, (element r + offset) / outputs[r] - offset.
struct TensorScales {
  std::vector<float> inputs;   // empty: ones
  std::vector<float> outputs;  // empty: ones
  float offset = 0;            // of a norm whose gain is its weight and this
};
using ChannelScales = std::map<std::string, TensorScales, std::less<>>;

// Row `row` of the tensor with its scales; of a vector all of it.
void read_scaled_row(const weights::TensorInfo& tensor, int64_t row, const ChannelScales& scales,
                     std::vector<float>& values);

// Products that read the same rows, and where these come from.
struct ScaledProducts {
  // A tensor whose rows from `first` on, one a channel, make the channels.
  struct Source {
    std::string tensor;
    int64_t first = 0;
    bool is_norm = false;
    float offset = 0;
  };

  tap::Point point;                   // of the rows
  std::vector<std::string> products;  // weights [outputs, width]
  std::vector<Source> sources;
  std::vector<int32_t> channels;  // [width] the source's channel of each input
  int32_t num_channels = 0;
};
// Of the layers whose products read a norm without a bias, values that attention carries, or a
// gated MLP's neurons; others have none, and are rounded as they are.
Result<std::vector<ScaledProducts>> scaled_products(const weights::Checkpoint& checkpoint);

struct FoundScales {
  double exponent = 0;  // of the mean magnitudes; 0: ones are best
  double error = 0;     // squared, of the products' outputs over the rows
  double plain = 0;     // the same without scales
};
// The scales of `group` for the scheme, of eleven that the mean magnitudes of `rows` ([n, width])
// suggest those with the least error of the products' outputs. Adds them to `scales`.
FoundScales find_scales(const weights::Checkpoint& checkpoint, const QuantiseScheme& scheme,
                        const ScaledProducts& group, std::span<const float> rows, ThreadPool& pool,
                        ChannelScales& scales);

}  // namespace rudder::model
