// The ops of mixers that keep a state, and gates of rows (ops/state_args.h has their formulas).
// A part of a state begins with how many tokens it is of (i32, ops::kStateLine bytes), then what
// the op keeps, f32. Where drafts are taken, launch_keep_rows() follows each of the others: until
// all of its blocks have read them, neither the kept rows nor that number may change.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/ops/state_kind.h"

namespace rudder::cuda {

// Where the sequences of a step have their states.
struct StateParams {
  const int32_t* q_begin = nullptr;    // [seqs + 1]
  const int32_t* table_row = nullptr;  // [seqs] slots
  const int32_t* positions = nullptr;  // [tokens]
  const int32_t* state = nullptr;      // [seqs] -1: padding
  const int32_t* num_draft = nullptr;  // [seqs]
  int32_t seqs = 0;
  int32_t tokens = 0;
  uint8_t* pool = nullptr;  // the op's part of state 0
  int64_t pool_stride = 0;  // in bytes
  float* kept = nullptr;    // the op's part of the first row of slot 0; null: no drafts are taken
  int64_t slot_stride = 0;  // in floats, as the next
  int64_t row_stride = 0;
  int32_t kept_rows = 0;  // of a slot
};

inline constexpr int32_t kMostFilter = 8;
struct ConvolveParams {
  StateParams state;
  const void* x = nullptr;  // bf16
  int64_t x_stride = 0;     // of rows, in elements, as below
  const float* weight = nullptr;
  const float* bias = nullptr;  // optional
  int32_t channels = 0;
  int32_t length = 1;  // up to kMostFilter
  bool silu = false;
  void* out = nullptr;  // [tokens, channels] bf16
};
// Moves x and out once, and two states of the channels for each sequence. A sequence's first tokens
// and its state are those of one block for some channels, its other tokens those of further blocks:
// what the filter reads of them lies in x.
cudaError_t launch_convolve(const ConvolveParams& params, cudaStream_t stream);

// What the decay (a) and the step (b) of a token are made of.
struct RecurGates {
  const void* rows = nullptr;  // bf16; those of all heads begin at these columns
  int64_t stride = 0;
  const void* b_rows = nullptr;  // likewise, of b
  int64_t b_stride = 0;
  int32_t a_begin = 0;
  int32_t b_begin = -1;  // -1: there is no b
  bool a_by_channel = false;
  float decay_floor = 0;  // of logarithms of decays by channel; 0: they have none
};
inline constexpr int32_t kMostKeyDim = 256;
struct RecurParams {
  StateParams state;
  const void* qkv = nullptr;  // bf16; q, k and v of all heads begin at these columns
  int64_t qkv_stride = 0;
  int32_t q_begin = 0;
  int32_t k_begin = 0;
  int32_t v_begin = 0;
  RecurGates gates;
  int32_t key_heads = 1;
  int32_t value_heads = 1;
  int32_t key_dim = 1;  // up to kMostKeyDim
  int32_t value_dim = 1;
  ops::RecurRule rule = ops::RecurRule::kDelta;
  float step_low = 0;
  float step_high = 0;
  const float* a_log = nullptr;
  const float* step_bias = nullptr;
  const float* skip = nullptr;  // optional
  void* out = nullptr;          // [tokens, value_heads * value_dim] bf16
  int32_t columns = 0;          // of a state that a thread has: 1, 2 or 4; 0: what suits the step
  // chunk_bytes() of the step (chunks.h), 16-byte aligned: long runs may go by chunks, in another
  // order of sums. Null: none does.
  uint8_t* chunks = nullptr;
};
// Runs that do not go by chunks:
// token by token, with the state in registers: it is read once and written once, which is the floor
// of a decode. A sum over keys has the same order for any step and any `columns`. Of a long
// prompt it takes a token's latency for each token, 600 ns on an H200.
cudaError_t launch_recur(const RecurParams& params, int32_t num_sms, cudaStream_t stream);

// What a row is kept of: `count` numbers of each row, side by side.
struct KeptRun {
  const void* rows = nullptr;  // bf16, its first column that is kept
  int64_t stride = 0;
  int32_t count = 0;
};
struct KeepRowsParams {
  StateParams state;
  KeptRun runs[5];
};
// Keeps the rows of sequences with drafts, and notes of how many tokens every state is.
cudaError_t launch_keep_rows(const KeepRowsParams& params, cudaStream_t stream);

struct GateRowsParams {
  const void* x = nullptr;  // bf16
  int64_t x_stride = 0;
  const void* gate = nullptr;  // bf16, its first column
  int64_t gate_stride = 0;
  ops::GateFunction function = ops::GateFunction::kSigmoid;
  const float* norm = nullptr;  // optional: of a run, or of the width
  bool norm_is_whole = false;
  float eps = 0;
  int64_t run = 0;
  bool gates_first = false;
  int64_t rows = 0;
  int64_t width = 0;
  void* out = nullptr;  // [rows, width] bf16; may be x
};
cudaError_t launch_gate_rows(const GateRowsParams& params, cudaStream_t stream);

}  // namespace rudder::cuda
