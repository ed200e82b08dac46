// The path of one token of a tree of drafts (ops::AttentionBatch.ancestors), for attention: where
// the key of a position of it lies. Included by .cu files only.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// The position of the n-th of the bits that are set, from 0 on; there are more than n.
__device__ inline int32_t nth_bit(uint64_t bits, int32_t n) {
  int32_t at = 0;
#pragma unroll
  for (int32_t width = 32; width > 0; width /= 2) {
    const int32_t below = __popcll(bits & ((uint64_t{1} << width) - 1));
    if (n < below) continue;
    n -= below;
    bits >>= width;
    at += width;
  }
  return at;
}

struct TreePath {
  uint64_t tokens = 0;  // of the sequence's part of the step; 0: the token is in no tree
  int32_t base = 0;     // KV before that part

  __device__ int32_t end() const { return base + __popcll(tokens); }  // behind its own position
  // Where the key of a position lies in the sequence's pages, counted in tokens.
  __device__ int32_t offset_of(int32_t position) const {
    if (tokens == 0 || position < base) return position;
    return base + nth_bit(tokens, position - base);
  }
};

// Of the tokens [begin, begin + 16) of a part of a step, those on a path, from the lowest bit on;
// of what is in front of the part, all.
__device__ inline uint32_t path_tokens(uint64_t path, int32_t begin) {
  if (begin >= 64) return 0;
  if (begin >= 0) return static_cast<uint32_t>(path >> begin);
  return begin <= -16 ? ~0u : static_cast<uint32_t>(path << -begin) | ((1u << -begin) - 1);
}

}  // namespace rudder::cuda
