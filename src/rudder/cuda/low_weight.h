// What the CUDA backend makes of low-bit formats: all of them become LowBits (kernels/products/
// low_bits.h) when a weight is made. Plain functions; the thread of the Ops.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "rudder/base/result.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/kernels/products/low_bits.h"
#include "rudder/cuda/uploader.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

struct CudaWeight;

// Codes of 4 or 8 bits with f16 scales and minima, in groups of 16 to 128; what has a table of
// whole numbers takes 8 bits. kUnsupported, by name: e4m3 in blocks, other tables, groups that are
// no multiples of 16.
Result<ops::WeightFormat> low_stored_format(const ops::WeightFormat& file);

// Fills weight, scale and low of `weight`, of the parts of so many experts, as many of each, one
// after the other (1: a weight); rows of one that interleaves lie as few_pairs.h has them. Parts of
// several formats become codes of 8 bits where one of them needs these, in groups of the smallest;
// wide parts are rounded to `of_wide`, to nearest. The value: what that is.
Result<ops::WeightFormat> make_low_weight(std::span<const ops::LinearPart> parts, int64_t experts,
                                          const ops::WeightFormat& of_wide, DeviceMemory& memory,
                                          Uploader& uploader, cudaStream_t stream,
                                          CudaWeight& weight);

}  // namespace rudder::cuda
