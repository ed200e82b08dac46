// Prompt lookup behind the sampling of a step (ops/look_up_args.h): the tokens that were sampled go
// to the histories of their slots, and what followed the longest n-gram at their ends becomes the
// slots' guesses. Launched by CudaOps, last in a step. Reference: cpu/look_up.cpp.
//
// A block has a sequence. It reads the history once, 16 bytes a thread at a time, and compares
// further back only where a token is the last one. Floor: 4 bytes a token of the history, of
// sequences that are guessed for; of others a few words a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/ops/sample_row.h"

namespace rudder::cuda {

struct LookUpParams {
  const ops::SampleRow* rows = nullptr;  // [num_rows]
  const int32_t* sampled = nullptr;      // [num_rows, 4] ops::SampledToken
  int32_t* history = nullptr;            // [S + 1, max_len]
  int32_t* guess = nullptr;              // [S + 1, most]
  int64_t max_len = 0;                   // a multiple of 4
  int32_t num_rows = 0;
  int32_t most = 0;          // <= 1024
  int32_t padding_slot = 0;  // S
  int32_t min_n = 1;         // 1 <= min_n <= max_n <= ops::kMaxNgram
  int32_t max_n = 1;
};
cudaError_t launch_look_up(const LookUpParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
