// Converts the arguments of qkv_prep into the struct of its kernel: pointers instead of views. The
// scales of the product, and what other ranks have, are the caller's to add. Called by CudaOps.
#pragma once

#include "rudder/cuda/kernels/qkv/qkv_prep.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

QkvPrepParams qkv_params(const ops::QkvPrepArgs& args);

}  // namespace rudder::cuda
