// Behind the sampling of trees of drafts: the KV of the path that was sampled, and what a draft
// head reads of its tokens, goes to where a chain has it (ops::KeepPathsArgs). Launched by CudaOps,
// once a step. Reference: cpu/keep_paths.cpp.
//
// A block has a tree and a layer; each of its threads a column of the cache, 16 bytes of a head's k
// or v, which it moves from token to token in ascending order: a path's n-th token is never before
// the n-th, so nothing is overwritten that is still to be read. Floor: 4 * num_kv_heads * head_dim
// elements of the cache a layer and token that moves (k and v, read and written); and where nothing
// moves, a few words a sequence and layer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace rudder::cuda {

inline constexpr int32_t kMaxKeptLayers = 112;  // of a launch

// The cache of a layer: [., heads, block_size, row_bytes], heads of k and of v; the scales of its
// tokens likewise. Or rows that lie beside it, of one head.
struct KeptLayer {
  void* storage = nullptr;
  int32_t group = 0;
  int32_t group_layers = 1;  // a block of the table is so many of these
  int32_t heads = 0;
  int32_t block_size = 0;
  int32_t row_bytes = 0;    // of a head
  int32_t block_bytes = 0;  // from one block to the next; 0: they are dense
};

struct KeepPathsParams {
  const int32_t* q_begin = nullptr;      // [num_seqs + 1]
  const int32_t* kv_len = nullptr;       // [num_seqs]
  const int32_t* table_row = nullptr;    // [num_seqs]
  const int32_t* block_table = nullptr;  // [groups * group_rows, max_blocks]
  const uint64_t* ancestors = nullptr;   // [T]
  const int32_t* logits_rows = nullptr;  // [num_rows] ascending
  const int32_t* sampled = nullptr;      // [num_rows, 4] ops::SampledToken
  int64_t max_blocks = 0;
  int64_t num_rows = 0;
  int32_t group_rows = 0;
  int32_t num_seqs = 0;
  int32_t num_layers = 0;
  KeptLayer layers[kMaxKeptLayers];
};
static_assert(sizeof(KeepPathsParams) <= 4096, "a kernel's parameters");

cudaError_t launch_keep_paths(const KeepPathsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
