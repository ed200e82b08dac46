// AdapterGroup: tokens of a step that have one adapter, so that its matrices are read once for all
// of them. The host cuts a step's tokens into groups (adapter_batch.h), kernels read them: C++17.
#pragma once

#include <cstdint>

namespace rudder::ops {

inline constexpr int32_t kAdapterGroupTokens = 8;  // at most

struct alignas(16) AdapterGroup {
  int32_t row = -1;   // of the adapter table
  int32_t begin = 0;  // of its tokens in AdapterBatch.order
  int32_t count = 0;  // 0: none, and none in the groups behind
  int32_t unused = 0;
};

}  // namespace rudder::ops
