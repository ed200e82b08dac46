// Index maps of the paged cache and of qkv_prep's lanes, shared by the kernels and the host. Plain
// arithmetic; any thread, host and device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

// Index of the first element of a token's k (part 0) or v (part 1) of one head in a layer's cache,
// [num_blocks, 2, num_kv_heads, block_size, head_dim]. slot = block * block_size + offset.
__host__ __device__ constexpr int64_t kv_offset(int64_t slot, int part, int64_t head,
                                                int64_t block_size, int64_t num_kv_heads,
                                                int64_t head_dim) {
  const int64_t block = slot / block_size;
  return (((block * 2 + part) * num_kv_heads + head) * block_size + slot % block_size) * head_dim;
}

// The two runs of 8 elements of a head that one lane works on. The first half_rot / 8 lanes have a
// run and the one that it turns with; the others have two neighbours of what is not rotated.
struct RunPair {
  int low;  // index of the first element; head_dim: none
  int high;
  bool is_rotated;
};
__host__ __device__ constexpr RunPair run_pair(int lane, int head_dim, int half_rot) {
  constexpr int kRunElements = 8;
  const int rotated = half_rot / kRunElements;
  if (lane < rotated) return {lane * kRunElements, lane * kRunElements + half_rot, true};
  const int low = 2 * half_rot + 2 * (lane - rotated) * kRunElements;
  const int high = low + kRunElements;
  return {low < head_dim ? low : head_dim, high < head_dim ? high : head_dim, false};
}

// Lanes that qkv_prep gives a head, a power of two; 0: its general kernel has to do it.
__host__ __device__ constexpr int lanes_of_head(int head_dim, int half_rot) {
  if (head_dim % 8 != 0 || half_rot % 8 != 0) return 0;
  return head_dim <= 64 ? 4 : head_dim <= 128 ? 8 : head_dim <= 256 ? 16 : head_dim <= 512 ? 32 : 0;
}

}  // namespace rudder::cuda
