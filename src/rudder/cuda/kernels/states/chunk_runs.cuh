// Which runs of a step go by chunks, and where their chunks begin. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/states/chunks.h"
#include "rudder/cuda/kernels/states/state_part.cuh"

namespace rudder::cuda {

// Whether rows of q, k, v and out of every head are whole runs of 16 bytes.
__device__ inline bool has_aligned_rows(const RecurParams& p) {
  const auto elements = static_cast<uint64_t>(p.qkv_stride) | p.q_begin | p.k_begin | p.v_begin |
                        p.key_dim | p.value_dim;
  const auto addresses = reinterpret_cast<uintptr_t>(p.qkv) | reinterpret_cast<uintptr_t>(p.out);
  return elements % 8 == 0 && addresses % 16 == 0;
}

__device__ inline bool goes_by_chunks(const StatePart& part) {
  return part.count >= kLeastRun && !part.has_drafts && part.accepted == 0;
}

// The last sequence that begins at `token` or in front of it. By all lanes of a warp.
__device__ inline int sequence_at(const StateParams& p, int token) {
  int begun = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < p.seqs; i += 32) {
    if (p.q_begin[i] <= token) ++begun;
  }
  return static_cast<int>(__reduce_add_sync(0xffffffffu, static_cast<unsigned>(begun))) - 1;
}

// A chunk of a run: its tokens of the step.
struct ChunkOfRun {
  StatePart part;
  int seq = -1;   // -1: there is none
  int begin = 0;  // first token
  int count = 0;
};

// The chunk of `tile` that is the first of its run, or the one that is not.
__device__ inline ChunkOfRun find_chunk(const StateParams& p, int tile, bool is_first) {
  ChunkOfRun found;
  const int tokens = p.q_begin[p.seqs];
  const int low = tile * kChunk;
  if (low >= tokens) return found;
  // What begins in a tile and is long is the last of it.
  const int seq = sequence_at(p, is_first ? min(low + kChunk, tokens) - 1 : low);
  if (seq < 0) return found;
  found.part = load_part(p, seq);
  if (!goes_by_chunks(found.part)) return found;
  const int behind = low - found.part.begin;
  found.begin =
      is_first ? found.part.begin : found.part.begin + (behind + kChunk - 1) / kChunk * kChunk;
  const int end = found.part.begin + found.part.count;
  const bool is_there =
      is_first ? behind <= 0 : behind > 0 && found.begin < end && found.begin < low + kChunk;
  if (!is_there) return found;
  found.seq = seq;
  found.count = min(kChunk, end - found.begin);
  return found;
}

}  // namespace rudder::cuda
