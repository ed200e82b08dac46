// The arguments by which a kernel steers and captures the rows that it computes: the table of
// programs and the entries of the tokens, as plain pointers. Meaning: ops/tap_args.h,
// docs/contracts/taps.md.
#pragma once

#include <cstdint>

#include "rudder/ops/tap_entry.h"
#include "rudder/tap/tap_op.h"

namespace rudder::cuda {

// Tables are 16-byte aligned.
struct TapTableParams {
  const tap::TapOp* ops = nullptr;  // [num_ops]
  unsigned long long* latches =
      nullptr;                        // [S + 1, tap::kNumLatches, 2] sum, count: two's complement
  const int32_t* captures = nullptr;  // [num_sets, num_points, 2] offsets before, after; or -1
  void* ring = nullptr;               // bf16
  float* relays = nullptr;            // [., tap::kNumRelays]
  float* carried = nullptr;           // [., hidden]
  const float* vectors = nullptr;     // each at a multiple of 16 floats
  int32_t num_points = 0;
};

// Entries may be read before the kernel ahead has ended (tap.T9).
struct TapBatchParams {
  const ops::TapEntry* entries = nullptr;  // [T, num_points]
  const int32_t* since_prompt = nullptr;   // [T]
  const int32_t* slot = nullptr;           // [T] of latches
  const int32_t* capture_set = nullptr;    // [T] of captures; -1: none
  const int32_t* capture_begin = nullptr;  // [T] in the ring, in units of tap::kCaptureAlign
  const int32_t* token = nullptr;          // [T] of relays
  bool only_adds = false;                  // as in ops::TapBatch
  // Of tokens that encode, and of them alone, the ops that stand behind the last of these.
  bool is_behind_encode = false;
};

// From the table's rows to the tokens' entries.
struct GatherTapsParams {
  const ops::TapEntry* points = nullptr;  // [num_rows, num_points]
  const int32_t* captures = nullptr;      // as in TapTableParams
  const int32_t* row = nullptr;           // [T]
  const int32_t* capture_set = nullptr;   // [T]; -1: none
  ops::TapEntry* entries = nullptr;       // [T, num_points]
  int64_t tokens = 0;                     // T
  int32_t num_points = 0;
};

// Of one op, whose kernel passes kPoints points of a token. What steps of plain adds read lies
// together, from `vectors` to `entries`: a launch's parameters come from memory, line by line.
template <int kPoints>
struct TapParams {
  TapTableParams table;
  int32_t point[kPoints];  // -1: the op has none here
  TapBatchParams batch;
};

}  // namespace rudder::cuda
