#include "rudder/cuda/kernels/experts/few_pairs.cuh"

namespace rudder::cuda {

cudaError_t launch_few_pairs_low(const ExpertProductParams& asked, int32_t num_sms,
                                 cudaStream_t stream) {
  const int32_t group = asked.low.group;
  switch (asked.low.code) {
    case LowCode::kU4:
      return group == kLowChunk ? launch_few_of<FewLow<LowCode::kU4, 1>>(asked, num_sms, stream)
             : group > 16       ? launch_few_of<FewLow<LowCode::kU4, 4>>(asked, num_sms, stream)
                                : launch_few_of<FewLow<LowCode::kU4, 8>>(asked, num_sms, stream);
    case LowCode::kI8:
      return group == kLowChunk ? launch_few_of<FewLow<LowCode::kI8, 1>>(asked, num_sms, stream)
             : group > 16       ? launch_few_of<FewLow<LowCode::kI8, 4>>(asked, num_sms, stream)
                                : launch_few_of<FewLow<LowCode::kI8, 8>>(asked, num_sms, stream);
    case LowCode::kE4M3:
      return group == kLowChunk ? launch_few_of<FewLow<LowCode::kE4M3, 1>>(asked, num_sms, stream)
             : group > 16       ? launch_few_of<FewLow<LowCode::kE4M3, 4>>(asked, num_sms, stream)
                                : launch_few_of<FewLow<LowCode::kE4M3, 8>>(asked, num_sms, stream);
    case LowCode::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
