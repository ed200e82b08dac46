#include "rudder/cuda/kernels/experts/few_pairs.cuh"

namespace rudder::cuda {

bool few_pairs_take(const ExpertProductParams& p) {
  if (p.form == ExpertForm::kLow) return true;
  const bool are_sixteens = p.out % 16 == 0;
  // Eight rows of x and what a block adds up.
  const int64_t bytes = 8 * (p.in * (p.form == ExpertForm::kE4m3 ? 1 : 2) + 512) + (12 << 10);
  if (p.in_one_order || !are_sixteens || bytes > kMostFewShared) return false;
  // Of numbers as they are tiles of wgmma are near their floor with more pairs.
  return p.list.run_pairs <= (p.form == ExpertForm::kE2m1 ? 8 * kMostFewEights : kFewestPairs);
}

cudaError_t launch_few_pairs(const ExpertProductParams& asked, int32_t num_sms,
                             cudaStream_t stream) {
  switch (asked.form) {
    case ExpertForm::kE2m1:
      return launch_few_of<FewCodes>(asked, num_sms, stream);
    case ExpertForm::kE4m3:
      return launch_few<FewWide<true>, 1, 1>(asked, num_sms, stream);
    case ExpertForm::kBf16:
      return launch_few<FewWide<false>, 1, 1>(asked, num_sms, stream);
    case ExpertForm::kLow:
      return launch_few_pairs_low(asked, num_sms, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
