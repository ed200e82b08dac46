// BaseTensors: what DoRA reads of the model's own weights, and who gives it. The model's room
// implements the reader over the checkpoint (model/adapted_products.h).
#pragma once

#include <functional>

#include "rudder/base/result.h"
#include "rudder/lora/adapter.h"
#include "rudder/tensor/view.h"

namespace rudder::lora {

// On the host, of f32, f16 or bf16; whoever gives them keeps their memory.
struct BaseTensors {
  tensor::View weight;     // [out, in]
  tensor::View bias = {};  // [out]; empty: the product has none
};

// Of a target. kUnsupported: the checkpoint has the weight in few bits, not as it was trained. Any
// thread. Null: nobody has the weights.
using BaseReader = std::function<Result<BaseTensors>(const Target& target)>;

}  // namespace rudder::lora
