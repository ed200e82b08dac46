// Converts the arguments of attention patterns into the struct of their kernels. Called by CudaOps.
#pragma once

#include "rudder/cuda/kernels/patterns/patterns.h"
#include "rudder/ops/args.h"

namespace rudder::cuda {

// `batch` is the step's; the backend has checked the shape when it prepared its attention.
PatternBatch pattern_batch(const ops::EndPatternsArgs& args, const ops::AttentionBatch& batch,
                           int32_t num_sms);
PatternParams pattern_params(const ops::PatternArgs& args, const ops::AttentionBatch& batch,
                             int32_t num_sms);

}  // namespace rudder::cuda
