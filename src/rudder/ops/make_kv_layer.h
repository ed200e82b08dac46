// The KV cache of one layer that stands alone: of benches and tests. Layers of a server's model
// share a pool (exec/kv_layout.h).
#pragma once

#include "rudder/ops/ops.h"

namespace rudder::ops {

// `shape` has block_size, num_kv_heads, head_dim and parts. An Error is the device's.
inline Result<KvLayer> make_kv_layer(Ops& ops, int64_t num_blocks, KvLayer shape) {
  const KvFormat format = ops.kv_format();
  RUDDER_TRY(shape.storage,
             ops.allocate(format.dtype, {num_blocks, shape.parts, shape.num_kv_heads,
                                         int64_t{shape.block_size} * shape.head_dim}));
  if (!format.scales_tokens) return shape;
  RUDDER_TRY(
      shape.token_scales,
      ops.allocate(tensor::DType::kF32,
                   {num_blocks, int64_t{shape.parts} * shape.num_kv_heads * shape.block_size}));
  return shape;
}

}  // namespace rudder::ops
