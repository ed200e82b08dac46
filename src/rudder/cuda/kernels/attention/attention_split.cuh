// What the kernels of split rows share: what a row sees, and rows of padding. Included by
// attention_split.cu and attention_wide.cu only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/attention/attention_weights.cuh"
#include "rudder/cuda/kernels/attention/attention_work.cuh"
#include "rudder/cuda/kernels/tree_path.cuh"

namespace rudder::cuda {

// What rows of a sequence see that may be a tree.
struct SplitSight : Sight {
  const uint64_t* ancestors;  // of the step's tokens; nullptr: no trees
  const SplitSeq& seq;

  __device__ SplitSight(const AttentionParams& p, const SplitSeq& seq, const QueryRows& rows,
                        int32_t row)
      : Sight(rows, row, row + 8, rows.prefix, seq.kv_len - 1, p.config.window),
        ancestors(p.ancestors),
        seq(seq) {}

  __device__ void hide(float (&s)[2][4], int32_t begin, int lane) const {
    Sight::hide(s, begin, lane);
    if (ancestors == nullptr) return;
    const int32_t prefix = seq.kv_len - seq.q_len;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t path = ancestors[seq.q_begin + last[half] - prefix];
      if (path == 0) continue;
      const uint32_t seen = path_tokens(path, begin - prefix);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int token = n * 8 + lane % 4 * 2 + e;
          if ((seen >> token & 1) == 0) s[n][2 * half + e] = minus_infinity();
        }
      }
    }
  }
};

// Rows of padding.
template <int kHeadDim, int kThreads>
__device__ void write_zeros(const AttentionParams& p, const WorkspaceView& work,
                            int32_t num_empty) {
  const int32_t row_chunks = p.config.num_heads * kHeadDim / 8;
  for (int32_t e = blockIdx.x; e < num_empty; e += gridDim.x) {
    const EmptySeq seq = work.empty[e];
    auto* out = static_cast<uint4*>(p.out) + int64_t{seq.q_begin} * row_chunks;
    for (int64_t i = threadIdx.x; i < int64_t{seq.q_len} * row_chunks; i += kThreads) {
      out[i] = uint4{};
    }
  }
}

}  // namespace rudder::cuda
