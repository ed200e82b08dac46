// Kernels that begin a step on the device's state of the slots, and advance it to its next
// iteration; ops/slot_args.h defines them. Launched by the host classes of this room, first in a
// step and between its iterations.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/taps/taps.h"
#include "rudder/ops/sample_row.h"

namespace rudder::cuda {

// SlotState as raw pointers; S + 1 rows each, row S is of padding.
struct SlotStateParams {
  int32_t* carry = nullptr;           // [S + 1]
  int32_t* carry_position = nullptr;  // [S + 1] or null
  int32_t* ended = nullptr;           // [S + 1]
  int32_t* block_table = nullptr;     // [groups * (S + 1), max_blocks]
  int32_t* output_count = nullptr;    // [S + 1, vocab]
  uint8_t* prompt_seen = nullptr;     // [S + 1, vocab]
  int32_t* history = nullptr;         // [S + 1, max_len] or null
  int32_t* guess = nullptr;           // [S + 1, most_guessed] or null
  int64_t max_blocks = 0;
  int64_t vocab = 0;
  int64_t max_len = 0;
  int32_t most_guessed = 0;
};

// Where the sequences of a step stand: ops::BeginStepArgs::Placement.
struct PlacementParams {
  const int32_t* q_begin = nullptr;       // [num_seqs + 1]
  int32_t* kv_len = nullptr;              // [num_seqs] in place, as all but logits_rows
  int32_t* positions = nullptr;           // [T]
  ops::SampleRow* sample_rows = nullptr;  // [R]
  const int32_t* logits_rows = nullptr;   // [R] ascending
  int32_t* since_prompt = nullptr;        // [T] or null
  int32_t* rows_since_prompt = nullptr;   // [R] or null
  int64_t num_seqs = 0;
  int64_t num_rows = 0;  // R
  int32_t block_size = 1;
  int32_t num_slots = 0;  // S
};

// A launch where a slot is opened, one for lists and taps where there are any, and one that places
// sequences, with what their slots guess, or else one of ids. Clearing a slot's counts moves 5
// bytes a token of the vocabulary, gathering taps 32 bytes a token and point, and 8 more of one
// that is captured; placing 16 bytes a token and 8 a row of logits, of sequences that begin with a
// carry; everything else a few bytes an entry. A (row, index) is in `blocks` once at most. A token
// of `history` outside [0, vocab) is passed over: it cannot be sampled.
struct BeginStepParams {
  SlotStateParams state;
  const int32_t* opened = nullptr;  // [num_opened, 2] slot, has_counts
  int64_t num_opened = 0;
  const int32_t* history = nullptr;  // [num_history, 3] slot, token, is_prompt
  int64_t num_history = 0;
  const int32_t* blocks = nullptr;  // [num_blocks, 3] row, index, block
  int64_t num_blocks = 0;
  const int32_t* kept = nullptr;  // [num_kept, 3] slot, position, token
  int64_t num_kept = 0;
  int32_t* ids = nullptr;      // [T] in place
  int32_t* kv_slot = nullptr;  // [groups, T] in place
  int64_t rows = 0;            // T
  int32_t num_groups = 1;
  PlacementParams placement;  // no sequences: none are placed
  GatherTapsParams taps[2];   // no tokens: none
};
cudaError_t launch_begin_step(const BeginStepParams& params, cudaStream_t stream);

// One launch, a thread a row: about 150 bytes a row. Reference: cpu/host_ops.cpp.
struct AdvanceStepParams {
  SlotStateParams state;
  int32_t num_slots = 0;                  // S; a row of slot S is of padding
  int32_t* ids = nullptr;                 // [R] in place, as all that follow
  int32_t* positions = nullptr;           // [R]
  int32_t* kv_slot = nullptr;             // [groups, R]
  int32_t* kv_len = nullptr;              // [R]
  ops::SampleRow* sample_rows = nullptr;  // [R]
  int32_t* since_prompt = nullptr;        // [R] or null
  int64_t rows = 0;                       // R
  int32_t num_groups = 1;
  int32_t block_size = 1;
};
cudaError_t launch_advance_step(const AdvanceStepParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
