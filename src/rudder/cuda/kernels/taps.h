// What a kernel needs to steer and capture the rows that pass through it: the table of programs and
// the tokens' places in it, as plain pointers. Meaning: ops/tap_args.h, docs/contracts/taps.md;
// formulas: tap/program.h, whose TapOp this TapOpParams is, byte by byte.
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

// Tables are 16-byte aligned. What copies ahead of the step wrote here, the latches aside, may be
// read before the kernels ahead have ended (tap.T9).
struct TapTableParams {
  const int32_t* points = nullptr;        // [num_rows, num_points] first op << 8 | number of ops
  const TapOpParams* ops = nullptr;       // [num_ops]
  const float* vectors = nullptr;         // each at a multiple of 16 floats
  const int32_t* armed = nullptr;         // [num_points] 0: nothing to do for any token
  unsigned long long* latches = nullptr;  // [S + 1, kTapLatches, 2] sum, count: two's complement
  const int32_t* captures = nullptr;      // [num_sets, num_points, 2] places before, after; or -1
  void* ring = nullptr;                   // bf16
  int32_t num_points = 0;
};

struct TapBatchParams {
  const int32_t* row = nullptr;            // [T] of points; 0: no program
  const int32_t* since_prompt = nullptr;   // [T]
  const int32_t* slot = nullptr;           // [T] of latches
  const int32_t* capture_set = nullptr;    // [T] of captures; -1: none
  const int32_t* capture_begin = nullptr;  // [T] in the ring, in units of kTapCaptureUnit
};

// Of one op, whose kernel passes kPoints points of a token.
template <int kPoints>
struct TapParams {
  TapTableParams table;
  TapBatchParams batch;
  int32_t point[kPoints];  // -1: the op has none here
};

}  // namespace rudder::cuda
