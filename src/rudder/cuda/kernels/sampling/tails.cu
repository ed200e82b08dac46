#include "rudder/cuda/kernels/sampling/tails.h"

#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 128;

__device__ void place_tail(const PlaceTailsParams& p, int seq, int lane) {
  const int64_t slot = p.table_row[seq];
  if (slot >= p.padding_slot) return;
  const int32_t begin = p.q_begin[seq];
  const int32_t q_len = p.q_begin[seq + 1] - begin;
  const int32_t len = p.model.carry_position[slot] + 1;
  const int32_t last = len - 1 + p.num_ahead;
  const int32_t first = max(p.shift, last - q_len + 1);
  ops::SampleRow& row = p.sample_rows[seq];
  const int32_t count = min(row.num_guess, row.max_len - len - 1);
  const bool has_ended = p.own.ended[slot] != 0 || p.model.ended[slot] != 0 || count <= 0;
  __syncwarp();  // all lanes have read what is written now
  if (lane == 0) {
    row.position = last + 1;
    row.max_len = len + count;
    row.num_guess = count;
    if (has_ended) p.own.ended[slot] = 1;
    p.kv_len[seq] = first - p.shift + (p.keeps_kv ? q_len : 0);
    p.logits_rows[seq] = begin + last - first;
    if (p.step_rows != nullptr && !has_ended) {
      int32_t& goes_on = p.goes_on_rows[begin];
      goes_on += len - 1 - p.step_rows[goes_on].position;
    }
  }
  const int32_t* const history = p.model.history + slot * p.model.max_len;
  const int32_t* const table = p.own.block_table + slot * p.own.max_blocks;
  for (int32_t i = lane; i < q_len; i += 32) {
    const int32_t token = first + i;
    const int32_t offset = token - p.shift;
    int32_t id = 0;
    if (token < len) {
      id = history[token];
    } else if (token == len && p.num_ahead > 0) {
      id = max(p.own.carry[slot], 0);
    }
    int32_t kv_slot = -1;
    if (token <= last && !has_ended && p.keeps_kv) {
      kv_slot = table[offset / p.block_size] * p.block_size + offset % p.block_size;
    }
    p.ids[begin + i] = id;
    p.positions[begin + i] = offset;
    p.kv_slot[begin + i] = kv_slot;
  }
}

__global__ void __launch_bounds__(kThreads) place_tails_kernel(const PlaceTailsParams p) {
  dependency_wait();
  dependency_trigger();
  const int seq = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / 32);
  if (seq < p.num_seqs) place_tail(p, seq, static_cast<int>(threadIdx.x) % 32);
}

__global__ void __launch_bounds__(kThreads) keep_guess_kernel(const KeepGuessParams p) {
  dependency_wait();
  dependency_trigger();
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= p.num_rows) return;
  const int64_t slot = p.rows[row].slot;
  const int32_t token = p.sampled[int64_t{row} * 4];
  if (slot >= p.padding_slot || token < 0 || p.index >= p.rows[row].num_guess) return;
  p.guess[slot * p.most + p.index] = token;
}

dim3 grid_of(int threads) {
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
}

}  // namespace

cudaError_t launch_place_tails(const PlaceTailsParams& p, cudaStream_t stream) {
  if (p.num_seqs == 0) return cudaSuccess;
  return launch_pdl(place_tails_kernel, grid_of(p.num_seqs * 32), dim3(kThreads), 0, stream, p);
}

cudaError_t launch_keep_guess(const KeepGuessParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (p.index < 0 || p.index >= p.most) return cudaErrorInvalidValue;
  return launch_pdl(keep_guess_kernel, grid_of(p.num_rows), dim3(kThreads), 0, stream, p);
}

}  // namespace rudder::cuda
