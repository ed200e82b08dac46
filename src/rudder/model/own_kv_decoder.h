// A decoder of another make than the one of macro-ops (decoder.h): what it is made of. The executor
// calls the maker that it is given once, when the weights are loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"

namespace rudder::model {

// Which layer of a block a layer of the model is: block b of its KV group is blocks b * layers to
// (b + 1) * layers - 1 of one layer, as slots and block tables count them.
struct LayerInBlock {
  int32_t group = 0;
  int32_t index = 0;
  int32_t layers = 1;  // of the group's blocks
};

// What a decoder is made of that keeps the KV itself, and computes in its own way what macro-ops
// would. References outlive it.
struct OwnKvDecoderParts {
  const ModelSpec& spec;
  const Weights& weights;
  ops::Ops& ops;
  DecoderLimits limits;
  std::vector<LayerInBlock> kv;  // of each layer
  int32_t num_groups = 1;
  int32_t num_blocks = 0;
  int32_t block_size = 16;
};
using MakeOwnKvDecoder =
    std::function<Result<std::unique_ptr<Decoder>>(const OwnKvDecoderParts& parts)>;

}  // namespace rudder::model
