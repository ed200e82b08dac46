// What adapters add to products (ops/adapter_args.h): two launches behind a product. The first
// multiplies rows of x by A, in slices of the inputs, and leaves the sums of each slice; the second
// adds the slices in their order, multiplies by B and adds to the product's rows. The order of sums
// depends on the shapes alone. Matrices are fetched before the kernel in front has ended: uploads
// write them, kernels do not.
//
// Floor: an adapter's matrices, read once a step: of rank 16 for all products of an 8B model 84 MB,
// 19 us at 4.4 TB/s; of 32 adapters 0.6 ms. Beside it two launches a product.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/products/product_scales.h"

namespace rudder::cuda {

inline constexpr int kMostAdapterParts = 3;  // ops::kMaxAdapterParts
inline constexpr int kMostAdapterSlices = 16;

// Inputs that one block of the first launch multiplies, and how many slices there are.
inline constexpr int64_t kAdapterRun = 1024;
constexpr int64_t adapter_slice_width(int64_t in) {
  const int64_t least = (in + kMostAdapterSlices - 1) / kMostAdapterSlices;
  return (least + kAdapterRun - 1) / kAdapterRun * kAdapterRun;
}
constexpr int64_t adapter_slices(int64_t in) {
  return (in + adapter_slice_width(in) - 1) / adapter_slice_width(in);
}

struct AdapterParams {
  const void* x = nullptr;  // [tokens, in] bf16
  const int32_t* rows = nullptr;
  // [tokens], those of equal rows together: they share what a block has fetched. Null: as they are.
  const int32_t* order = nullptr;
  int64_t tokens = 0;
  int64_t in = 0;
  int64_t out = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const float* scales = nullptr;
  int parts = 0;
  int rank = 0;  // a multiple of 16
  int64_t part_end[kMostAdapterParts] = {};
  float* mid = nullptr;   // [tokens, slices, parts * rank]
  void* y = nullptr;      // [tokens, out] bf16
  ProductScales product;  // that y lacks
};
cudaError_t launch_add_adapters(const AdapterParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
