// Attention patterns of captured tokens (ops::PatternArgs, ADR 0050): once a layer the scores of
// its rows, a chunk of keys at a time, then once a step the sums of rows of several chunks. Grids
// are fixed: their blocks count the work on the device, so a step can be captured. A row's bits
// depend on its own sequence alone: chunks begin at multiples of their size. Reference:
// cpu/attention_patterns.cpp.
//
// Floor: head_dim elements of K for each captured token, KV head with a head that is asked for (16
// of its heads share a read) and key that the token sees; 2 bytes written for each head and key of
// a record, and, where a row's keys lie in several chunks, 4 more to bring them to one sum.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/attention/attention.h"
#include "rudder/ops/pattern_entry.h"

namespace rudder::cuda {

constexpr int32_t pattern_max_head_dim(KvType type) {
  return is_narrow(type) ? 512 : 576;
}

// Which tokens of a step are captured, and where.
struct PatternBatch {
  // The kernel in front of launch_patterns writes none of these, which are read ahead of its end.
  const int32_t* q_begin = nullptr;            // [num_seqs + 1]
  const int32_t* kv_len = nullptr;             // [num_seqs]; 0 = padding
  const int32_t* capture_set = nullptr;        // [T]; -1: none
  const ops::PatternEntry* entries = nullptr;  // [num_sets, num_layers]
  const int32_t* capture_begin = nullptr;      // [T] in the ring, in units of tap::kCaptureAlign
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;  // T
  int32_t num_layers = 0;
  void* ring = nullptr;  // bf16, 16-byte aligned; of a rank that of the first, on its GPU
  // [ring elements / ops::kPatternSumElements] of each chunk of a row of several chunks the largest
  // score, and the sum of the exponentials relative to it: {-infinity, 0} where there is nothing to
  // bring to one sum. Need not be initialised.
  float2* sums = nullptr;
  int32_t num_sms = 132;  // multiprocessors of the device
};

struct PatternParams {
  PatternBatch batch;
  int32_t layer = 0;
  const void* q = nullptr;   // [T, num_heads * head_dim] bf16, 16-byte aligned
  const void* kv = nullptr;  // [., parts, num_kv_heads, block_size, head_dim], 16-byte aligned
  int32_t parts = 2;         // keys and values; 1: a row is both
  KvType kv_type = KvType::kBf16;
  KvScales scales;
  const int32_t* table_row = nullptr;    // [num_seqs]
  const int32_t* block_table = nullptr;  // [., max_blocks]
  int64_t max_blocks = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // up to pattern_max_head_dim()
  int32_t block_size = 0;
  int32_t window = 0;  // 0 = all
  float scale = 1.0f;
  float softcap = 0.0f;          // 0 = off
  const float* sinks = nullptr;  // [num_heads]; null: none
  GateParams gate;  // its gamma is not read; with it there are no soft-cap and no sinks
};

// Once a layer. Where nothing is asked of the layer, blocks leave at once. Rows of several chunks
// lack their common sum. cudaErrorInvalidValue for a larger head_dim.
cudaError_t launch_patterns(const PatternParams& params, cudaStream_t stream);

// Once a step, behind launch_patterns of layers [first_layer, end_layer): makes their rows whole.
cudaError_t launch_end_patterns(const PatternBatch& batch, int32_t first_layer, int32_t end_layer,
                                cudaStream_t stream);

}  // namespace rudder::cuda
