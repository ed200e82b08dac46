#include "rudder/cuda/kernels/experts/few_pairs.cuh"

namespace rudder::cuda {

bool few_pairs_take(const ExpertProductParams& p) {
  if (p.form == ExpertForm::kLow) return true;
  // Eight rows of x and what a block adds up.
  const int64_t bytes = 8 * (2 * p.in + 512) + (12 << 10);
  if (p.form != ExpertForm::kE2m1 || p.in_one_order || bytes > kMostFewShared) return false;
  // With 32 pairs tiles of wgmma are faster where W has no gate.
  return p.list.run_pairs <= (p.is_gated ? 32 : 16);
}

cudaError_t launch_few_pairs(const ExpertProductParams& asked, int32_t num_sms,
                             cudaStream_t stream) {
  switch (asked.form) {
    case ExpertForm::kE2m1:
      return launch_few_of<FewCodes>(asked, num_sms, stream);
    case ExpertForm::kLow:
      return launch_few_pairs_low(asked, num_sms, stream);
    case ExpertForm::kE4m3:
    case ExpertForm::kBf16:  // expert_product.h
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
