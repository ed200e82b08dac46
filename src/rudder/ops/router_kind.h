// RouterKind: how scores become a choice of experts. Plain data that kernels read too.
#pragma once

#include <cstdint>

namespace rudder::ops {

// How scores become a choice of k experts and their weights. Ties go to the lower expert.
enum class RouterKind : uint8_t {
  kSoftmaxThenTop,  // p = softmax(l); the k largest p; their weights are p
  kTopThenSoftmax,  // the k largest l; their weights are the softmax over these k
  kSigmoid,         // p = sigmoid(l); the k largest p + correction; their weights are p
};

}  // namespace rudder::ops
