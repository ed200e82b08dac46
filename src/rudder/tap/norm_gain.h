// NormGain: what a norm of the model multiplies its row by, as the decoder has it (1 + w where the
// checkpoint holds w). Plain data: the model room reads it, steer divides by it.
#pragma once

#include <string>
#include <vector>

namespace rudder::tap {

struct NormGain {
  std::string tensor;         // of the checkpoint; for errors
  std::vector<float> values;  // by column; empty: the layer has no such norm
};

}  // namespace rudder::tap
