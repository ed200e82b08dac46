// What a kernel needs to steer and capture the rows that pass through it: the table of programs and
// what the tokens have of it, as plain pointers. Meaning: ops/tap_args.h, docs/contracts/taps.md;
// TapOpParams and TapEntryParams are tap/program.h's TapOp and ops' TapEntry, byte by byte.
#pragma once

#include <cstdint>

namespace rudder::cuda {

enum class TapKind : int32_t {
  kPatch,
  kAxis,
  kSwap,
  kRotate,
  kAdd,
  kAddNorm,
  kAddRenorm,
  kScore,
};
enum class TapGate : int32_t { kNone, kHard, kSoft, kScoreHard, kScoreSoft };
enum class TapSchedule : int32_t { kConstant, kRamp, kWindow };

inline constexpr int kTapLatches = 4;              // of a slot
inline constexpr int kTapLatchBits = 24;           // of a sample's fraction
inline constexpr float kTapLatchMost = 262144.0f;  // samples beyond it are clipped
inline constexpr int64_t kTapCaptureUnit = 64;     // elements

struct TapOpParams {
  TapKind kind;
  TapGate gate;
  TapSchedule schedule;
  int32_t latch;
  int32_t v1, v2, gate_vector;  // in floats, from TapTableParams.vectors
  float strength;
  float a, b, lo, hi;
  float norm_squared;
  float threshold, sharpness;
  int32_t begin, end;
  float from, to;
  int32_t unused;
};
static_assert(sizeof(TapOpParams) == 80);

// What a token does at a point; zeros for nothing.
struct TapEntryParams {
  int32_t ops;     // first << 8 | number
  int32_t vector;  // of the first: its v1 and strength
  float strength;
  int32_t flags;
};
static_assert(sizeof(TapEntryParams) == 16);
inline constexpr int32_t kTapPlainAdd = 1;  // the first op is kAdd and no more
inline constexpr int32_t kTapCaptured = 2;  // one of the point's places of the token is not -1

// Tables are 16-byte aligned.
struct TapTableParams {
  const TapOpParams* ops = nullptr;       // [num_ops]
  unsigned long long* latches = nullptr;  // [S + 1, kTapLatches, 2] sum, count: two's complement
  const int32_t* captures = nullptr;      // [num_sets, num_points, 2] places before, after; or -1
  void* ring = nullptr;                   // bf16
  const float* vectors = nullptr;         // each at a multiple of 16 floats
  int32_t num_points = 0;
};

// Entries may be read before the kernel ahead has ended (tap.T9).
struct TapBatchParams {
  const TapEntryParams* entries = nullptr;  // [T, num_points]
  const int32_t* since_prompt = nullptr;    // [T]
  const int32_t* slot = nullptr;            // [T] of latches
  const int32_t* capture_set = nullptr;     // [T] of captures; -1: none
  const int32_t* capture_begin = nullptr;   // [T] in the ring, in units of kTapCaptureUnit
  bool only_adds = false;                   // as in ops::TapBatch
};

// From the table's rows to the tokens' entries.
struct GatherTapsParams {
  const TapEntryParams* points = nullptr;  // [num_rows, num_points]
  const int32_t* captures = nullptr;       // as in TapTableParams
  const int32_t* row = nullptr;            // [T]
  const int32_t* capture_set = nullptr;    // [T]; -1: none
  TapEntryParams* entries = nullptr;       // [T, num_points]
  int64_t tokens = 0;                      // T
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
