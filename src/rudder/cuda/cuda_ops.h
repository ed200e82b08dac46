// The CUDA backend: activations bf16, weights bf16 or fp8, one GPU of compute capability 9.0. Made
// by apps at start; used by one thread. Its memory is freed with it.
//
// Weights that become fp8 are quantised when they are loaded, a scale for each channel of the
// output; those that a checkpoint has as fp8 keep their bytes and scales, whatever linear_dtype is.
// What they multiply is quantised a token at a time by the op before (LinearWeight::x_dtype).
//
// Batch-invariant, a row's bits depend neither on the other rows of a call nor on its place among
// them, nor on how a sequence is cut into steps. What is fixed for it, at a cost:
// - a shape of weight has one kernel for any number of tokens, the library's, which adds each sum
// in
//   one go; it is not measured, and a check when the model is loaded multiplies the same rows in
//   batches of many sizes and refuses to start where bits differ. Without it each number of tokens
//   has the kernel that was fastest, which cuts sums in its own way.
// - attention has one kernel for prompts and decodes, whose tiles of keys begin at multiples of
//   their size. Without it decodes are cut where it fills the device.
// Everything else (norms, rope, quantisation, activations, sampling) works on a row or a token at a
// time in an order that its width alone decides, in either mode.
#pragma once

#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/ops/ops.h"

namespace rudder::cuda {

struct CudaOpsSettings {
  tensor::DType linear_dtype = tensor::DType::kBF16;  // or kF8E4M3: quantised as they are loaded
  tensor::DType kv_dtype = tensor::DType::kBF16;      // or kF8E4M3
  std::string
      cublaslt_path;        // a file or a folder; empty: cublaslt_api.h says where it is looked for
  std::string policy_path;  // of what was measured (kernel_policy.h); empty: it is not kept
  bool tune = true;         // measure the products of a model when it is loaded
  bool batch_invariant = false;  // see above
  // Tests of tiny models: attention of shapes that no tuned kernel takes runs on a plain, slow one
  // instead of being refused.
  bool plain_attention = false;
  bool synchronous = false;  // wait after each op, so that a fault names its op; not in a capture
};

// A device that this build has kernels for: what `--device auto` asks. Needs no driver to be there.
bool has_cuda_device();

// An Error: no such device, no cuBLASLt, a dtype that is none of the above.
Result<std::unique_ptr<ops::Ops>> make_cuda_ops(const CudaOpsSettings& settings);

}  // namespace rudder::cuda
