// What a proposer's passes read of the slots of the model, and what they leave there
// (ops/tail_args.h). Launched by CudaOps, in front of a pass and behind it. Reference:
// cpu/tails.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/sampling/step.h"
#include "rudder/ops/sample_row.h"

namespace rudder::cuda {

// A warp a sequence: 24 bytes a token and 120 a sequence; 12 more of one that goes on from a row.
struct PlaceTailsParams {
  SlotStateParams model;
  SlotStateParams own;
  const int32_t* q_begin = nullptr;           // [num_seqs + 1]
  const int32_t* table_row = nullptr;         // [num_seqs]
  int32_t* ids = nullptr;                     // [T]
  int32_t* positions = nullptr;               // [T]
  int32_t* kv_slot = nullptr;                 // [T]
  int32_t* kv_len = nullptr;                  // [num_seqs]
  int32_t* logits_rows = nullptr;             // [R]
  ops::SampleRow* sample_rows = nullptr;      // [R]
  const ops::SampleRow* step_rows = nullptr;  // or null
  int32_t* goes_on_rows = nullptr;            // [T], with step_rows
  bool keeps_kv = true;
  int32_t num_seqs = 0;      // of them, those that have a row
  int32_t padding_slot = 0;  // S
  int32_t num_ahead = 0;
  int32_t shift = 0;
  int32_t block_size = 1;
};
cudaError_t launch_place_tails(const PlaceTailsParams& params, cudaStream_t stream);

// A thread a row: 12 bytes a row.
struct KeepGuessParams {
  const ops::SampleRow* rows = nullptr;  // [num_rows]
  const int32_t* sampled = nullptr;      // [num_rows, 4] ops::SampledToken
  int32_t* guess = nullptr;              // [S + 1, most]
  int32_t num_rows = 0;
  int32_t most = 0;
  int32_t index = 0;
  int32_t padding_slot = 0;  // S
};
cudaError_t launch_keep_guess(const KeepGuessParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
