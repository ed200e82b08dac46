// LowPrecisionOps: imitates the precision of a GPU backend on the CPU: activations are bf16;
// products multiply bf16 by bf16, or F8E4M3 by F8E4M3 with shapes that must be multiples of 16; the
// KV cache is either. Every op computes like the reference between roundings, and rounds where the
// CUDA backend rounds. GPU results are compared with this, not with the exact model. It takes code
// paths that the CPU's own backends do not: quantised operands in the decoder, tolerances in the
// conformance suite. Tests only.
#pragma once

#include <memory>

#include "rudder/ops/ops.h"

namespace rudder::testing {

struct LowPrecision {
  tensor::DType linear = tensor::DType::kF8E4M3;  // or kBF16
  tensor::DType head = tensor::DType::kBF16;      // of the output head; kF8E4M3: as `linear`
  ops::KvFormat kv = {tensor::DType::kBF16};      // or codes
  bool rounds_queries = false;  // of every row, with a cache of F8E4M3 with scales of its heads
  bool keeps_fp8 = true;        // false: F8E4M3 parts multiply what wide ones do, as on a CPU
};
std::unique_ptr<ops::Ops> make_low_precision_ops(const LowPrecision& precision = {});

}  // namespace rudder::testing
