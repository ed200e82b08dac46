// LowPrecisionOps: a backend as a GPU's may be, on the CPU: activations are bf16, linears multiply
// bf16 by bf16 or F8E4M3 by F8E4M3, whose shapes are multiples of 16 or refused, and the KV cache
// is either. Every op is the reference's between roundings, and rounds where the CUDA backend does:
// what a GPU computes is held to this, not to the exact model. Takes the paths that the CPU's own
// backends do not: quantised operands in the decoder, tolerances in the conformance suite. Tests
// only.
#pragma once

#include <memory>

#include "rudder/ops/ops.h"

namespace rudder::testing {

struct LowPrecision {
  tensor::DType linear = tensor::DType::kF8E4M3;  // or kBF16
  tensor::DType kv = tensor::DType::kBF16;        // or kF8E4M3
  bool keeps_fp8 = true;  // false: F8E4M3 parts multiply what wide ones do, as on a CPU
};
std::unique_ptr<ops::Ops> make_low_precision_ops(const LowPrecision& precision = {});

}  // namespace rudder::testing
