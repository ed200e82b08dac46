// Tiles of bf16 in shared memory, and numbers as bf16 operands of tensor cores. Included by .cu
// files only.
#pragma once

#include "rudder/cuda/kernels/attention/attention_device.cuh"
#include "rudder/cuda/kernels/states/state_part.cuh"

namespace rudder::cuda {

// Rows of [tokens][channels], so far apart that eight of them lie in different banks.
template <int kChannelsOfThis>
struct ChunkTile {
  static constexpr int kChannels = kChannelsOfThis;
  static constexpr int kPitch = kChannels + 8;
  static constexpr int kRuns = kChannels / kRun;  // of 16 bytes a row

  alignas(16) Bf16 rows[64][kPitch];

  // What load_matrices() takes from the lanes: 16 rows and 16 columns, first the rows' halves ...
  __device__ uint32_t rows_first(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return shared_address(&rows[row + lane % 16][column + lane / 16 * 8]);
  }
  // ... or first the columns'.
  __device__ uint32_t columns_first(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return shared_address(&rows[row + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
  }
};

// Sends 16 bytes to shared memory; zeros where there are none.
__device__ inline void send_run(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
__device__ inline void end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// For all but the last kPending groups.
template <int kPending>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// `count` rows of `channels` channels from `from`, zeros around them, by kThreads threads; there
// once they have waited. is_aligned: in whole runs of 16 bytes.
template <int kThreads, int kChannels>
__device__ void send_tile(ChunkTile<kChannels>& to, const Bf16* from, int64_t stride, int count,
                          int channels, bool is_aligned, int thread) {
  using Tile = ChunkTile<kChannels>;
  static_assert(64 * Tile::kRuns % kThreads == 0);
  const auto for_each_run = [&](const auto& send) {
#pragma unroll 4
    for (int i = 0; i < 64 * Tile::kRuns; i += kThreads) {
      const int row = (i + thread) / Tile::kRuns;
      const int column = (i + thread) % Tile::kRuns * kRun;
      const bool is_there = row < count && column < channels;
      send(&to.rows[row][column], is_there ? from + row * stride + column : from,
           is_there ? channels - column : 0);
    }
  };
  if (is_aligned) {
    for_each_run([](Bf16* run, const Bf16* of, int left) { send_run(run, of, left > 0); });
  } else {
    for_each_run([](Bf16* run, const Bf16* of, int left) {
      store_run<true>(run, kRun, load_run<false>(of, left));
    });
  }
}

__device__ inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// Two numbers as bf16, the first one below.
__device__ inline uint32_t pack_upper(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
__device__ inline float lower_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float upper_of(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
// What pack_upper() has left of them.
__device__ inline uint32_t pack_lower(float x, float y, uint32_t upper) {
  return pack_upper(x - lower_of(upper), y - upper_of(upper));
}

}  // namespace rudder::cuda
