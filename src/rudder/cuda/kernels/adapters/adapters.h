// What adapters add to products (ops/adapter_args.h), in two launches a product: shrink in front of
// it, expand behind. Both work through groups of tokens that have one adapter (AdapterGroup), so a
// matrix is read once for up to 8 tokens, and multiply them by tensor cores together.
//
// Shrink: a cluster of 8 blocks has 16 rows of A and the tokens of a group, each block and each of
// its warps a slice of the inputs; sums of warps are added in their order, then those of blocks. A
// is fetched before the kernel in front has ended, and the product behind may begin meanwhile.
// Expand: a warp has 64 outputs; B is fetched before the product has ended. The middle is
// multiplied as two bf16, which are 16 bits of its 24. The order of sums depends on the shapes
// alone, and a token's columns on no other token's.
//
// Floor of an 8B model (hidden 4096, 8 KV heads of 128, MLP 14336), rank 16, all seven products: an
// adapter's 2.6 MB of a layer are 0.6 us of memory at 4.4 TB/s, 32 adapters' 19 us; y is read and
// written once more, 0.17 MB a token and layer, at 128 tokens 22 MB of L2, 4 us. Beside it eight
// launches a layer, of which expand's four lie on the way from product to product.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/product_scales.h"
#include "rudder/ops/adapter_group.h"

namespace rudder::cuda {

inline constexpr int kMostAdapterParts = 3;  // ops::kMaxAdapterParts

struct AdapterParams {
  const void* x = nullptr;                    // [tokens, in] bf16
  const int32_t* order = nullptr;             // [tokens]
  const ops::AdapterGroup* groups = nullptr;  // [most_groups] at least
  int64_t tokens = 0;
  int64_t in = 0;
  int64_t out = 0;
  int most_groups = 0;  // that so many tokens can have
  const void* a = nullptr;
  const void* b = nullptr;
  const float* scales = nullptr;   // [table rows, parts, 2]
  const float* gains = nullptr;    // [table rows, out]
  const float* offsets = nullptr;  // likewise; null: zeros
  int parts = 0;
  int rank = 0;  // a multiple of 16
  int64_t part_end[kMostAdapterParts] = {};
  float* mid = nullptr;   // [tokens in the order of groups, parts * rank]
  void* y = nullptr;      // [tokens, out] bf16
  ProductScales product;  // that y lacks
};
cudaError_t launch_shrink_adapters(const AdapterParams& params, cudaStream_t stream);
cudaError_t launch_expand_adapters(const AdapterParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
