// Long runs of a sequence's tokens through ops::RecurArgs by chunks of 64, where a head's decay is
// one number a token. With G the sum of a chunk's g up to a token, S the state in front of the
// chunk, and rows of tokens:
//   A[t][i] = beta_t exp(G_t - G_i) (k_t . k_i) for i < t;   T = (I + A)^-1
//   D = T R;  R_t = beta_t (v_t - exp(G_t) k_t^T S)          (kSum: D_t = beta_t v_t)
//   M[t][i] = exp(G_t - G_i) (q_t . k_i) for i <= t
//   out_t = exp(G_t) q_t^T S + (M D)_t + skip * v_t
//   S = exp(G_end) S + sum over t of exp(G_end - G_t) k_t D_t^T
// Every exponent is at most 0. Source: Yang et al., Gated Delta Networks (the UT transform of a
// chunk); Dao and Gu, Transformers are SSMs (kSum).
// Two kernels: solve_chunks makes T and M of all chunks at once, a block for a chunk of a value
// head; pass_states walks the chunks, a warp for 16 columns of a head's state, which stays in its
// registers in f32. Sums of products are those of tensor cores, in f32, of bf16 operands: q, k and
// v as they come, with norms and decays as factors of rows of f32; S, T, R and D as sums of two
// bf16 where the state depends on them, so that it is as near as f32 has it. What only `out` reads
// (S of q^T S, M, D of M D) is one bf16.
// Floor of a layer of 2,048 tokens, 32 value heads of 128 and 16 key heads of 128 on one H200:
//   bytes: q, k, v and out once 25 MB, records written and read 34 MB: 14 us at 4.4 TB/s
//   products: of pass_states 400 of 16 x 8 x 16 a warp and chunk, 1.7 GMAC a layer in solve_chunks
//   and 6.7 in pass_states: 25 us if all tensor cores were busy (mma.sync, 2.6 TMAC/s a GPU of its
//   620 TFLOP/s); but a warp takes its chunks in turn and has one tensor core to itself, 8 cycles a
//   product: 32 chunks * 400 * 8 = 58 us
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/states/states.h"

namespace rudder::cuda {

inline constexpr int32_t kChunk = 64;         // tokens
inline constexpr int32_t kChunkKeys = 128;    // rows of a state that chunks have room for
inline constexpr int32_t kLeastRun = kChunk;  // tokens of a sequence in a step that take chunks

// What solve_chunks leaves of a chunk of a value head: tiles of T and M on and below the diagonal,
// in the order in which lanes take them as the right operand of mma.m16n8k16 (lane (g, t) has k 2t,
// 2t + 1, 2t + 8, 2t + 9 of column n = g), then factors of tokens, then exp(G_end).
struct ChunkRecord {
  // Of T: 8 tokens n by 16 tokens k; a lane has four upper bf16, then four lower ones.
  __host__ __device__ static constexpr int32_t solved_unit(int32_t n, int32_t k) {
    return n / 2 * (n / 2 + 1) + n % 2 * (n / 2 + 1) + k;
  }
  static constexpr int32_t kSolvedUnits = 20;
  // Of M: 16 tokens n by 16 tokens k; a lane has those of the first 8, then of the others.
  __host__ __device__ static constexpr int32_t mixed_unit(int32_t n, int32_t k) {
    return n * (n + 1) / 2 + k;
  }
  static constexpr int32_t kMixedUnits = 10;
  static constexpr int32_t kUnitBytes = 512;  // 16 a lane

  static constexpr int32_t kMixedBegin = kSolvedUnits * kUnitBytes;
  static constexpr int32_t kFactorsBegin = kMixedBegin + kMixedUnits * kUnitBytes;
  static constexpr int32_t kEndBegin = kFactorsBegin + kChunk * 16;
  static constexpr int32_t kUsedBytes = kEndBegin + 16;
  static constexpr int32_t kBytes = (kUsedBytes + 127) / 128 * 128;
};
// Of a token, as ChunkRecord has it. Those behind the end of a run have beta 0.
struct alignas(16) ChunkFactors {
  float of_value;  // beta
  float of_known;  // beta |k|^-1 exp(G)
  float of_query;  // |q|^-1 exp(G)
  float of_key;    // |k|^-1 exp(G_end - G)
};

// A chunk begins in a tile of 64 tokens of the step. At most two do: the first of a run, and one of
// the run in front of it; so each has a slot without a count of those before.
constexpr int32_t chunk_slots(int32_t tokens) {
  return 2 * ((tokens + kChunk - 1) / kChunk);
}
__host__ __device__ constexpr int32_t chunk_slot(int32_t begin, bool is_first) {
  return begin / kChunk * 2 + (is_first ? 1 : 0);
}
// Of RecurParams::chunks.
constexpr int64_t chunk_bytes(int32_t tokens, int32_t value_heads) {
  return int64_t{chunk_slots(tokens)} * value_heads * ChunkRecord::kBytes;
}

// Whether a step of `params` goes by chunks where it has long runs; else its tokens are walked.
bool takes_chunks(const RecurParams& params);
// The runs of at least kLeastRun tokens without drafts of steps that take chunks.
cudaError_t launch_chunks(const RecurParams& params, int32_t num_sms, cudaStream_t stream);
cudaError_t launch_solve_chunks(const RecurParams& params, cudaStream_t stream);
cudaError_t launch_pass_states(const RecurParams& params, int32_t num_sms, cudaStream_t stream);

}  // namespace rudder::cuda
