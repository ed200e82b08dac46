#include "rudder/cuda/kernels/states/recur.cuh"

#include "rudder/cuda/kernels/states/recur_by_channel.h"

namespace rudder::cuda {
namespace {

// Long prompts have few blocks, and each of their tokens waits for the one before: the fewer
// columns a warp has, the sooner. Where there are many sequences, wide loads come first.
int32_t columns_of(const RecurParams& p, int32_t num_sms) {
  constexpr int32_t kFewTokens = 8;  // of a sequence
  if (p.state.tokens > kFewTokens * p.state.seqs || p.key_dim <= 32) return 1;
  for (int32_t columns = p.key_dim > 128 ? 2 : 4; columns > 1; columns /= 2) {
    const int32_t of_block = columns * kColumnLanes * kRecurWarps;
    const bool is_whole =
        p.value_dim % columns == 0 && is_aligned(p.state.pool) && p.state.pool_stride % 16 == 0;
    const int64_t blocks =
        int64_t{p.state.seqs} * p.value_heads * ((p.value_dim + of_block - 1) / of_block);
    if (is_whole && of_block <= p.value_dim && blocks >= 2 * num_sms) return columns;
  }
  return 1;
}

}  // namespace

cudaError_t launch_recur(const RecurParams& p, int32_t num_sms, cudaStream_t stream) {
  if (p.state.seqs == 0 || p.state.tokens == 0) return cudaSuccess;
  if (p.key_dim > kMostKeyDim) return cudaErrorInvalidValue;
  const int32_t columns = p.columns > 0 ? p.columns : columns_of(p, num_sms);
  if (p.gates.a_by_channel) return launch_recur_by_channel(p, columns, stream);
  if (p.rule == ops::RecurRule::kDelta) return launch_recur_of<true, false>(p, columns, stream);
  return launch_recur_of<false, false>(p, columns, stream);
}

}  // namespace rudder::cuda
