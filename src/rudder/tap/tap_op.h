// One op of a steering program, and the numbers that host and device must agree on. Plain data that
// kernels read as it lies in memory: this header is C++17, because nvcc reads it too. Formulas: h
// is the row at the point, in fp32, rounded once at the end; v1 and v2 are vectors of the row's
// width; all sums run over the row.
#pragma once

#include <cstdint>

#include "rudder/tap/feature.h"

namespace rudder::tap {

// p = h . v1. A program lists the ops of a point in the order of these groups: patch, axis forms
// that project away, add forms, axis forms that clamp, features, adds of features, choices of
// experts.
enum class OpKind : int32_t {
  kPatch,      // h + s (v1 - h)
  kAxis,       // h + s (clip(a p + b, lo, hi) - p) v1, v1 a unit vector
  kSwap,       // h + s p (v2 - v1), unit vectors
  kRotate,     // p2 = h . v2, r = sqrt(p^2 + p2^2): h + s ((r a - p) v1 + (r b - p2) v2); v1 and v2
               // orthonormal, a = cos, b = sin; with lo > 0 only where p > 0
  kAdd,        // h + s v1
  kAddNorm,    // h + s |h| v1, v1 a unit vector
  kAddRenorm,  // (h + s v1) |h| / |h + s v1|; h itself where the denominator is 0; with lo > 0 only
               // where the denominator is greater than |h|, else h + s v1
  kScore,      // h; the slot's latch `latch` takes p as one more sample
  kFeature,    // y = norm(h) . v2, f = y > lo ? max(a y + b, 0) : 0, f' = `edit` of f with `value`:
               // h + s c (f' - f) v1, norm and c those of `norm`; with hi > 0 only where f > 0
  kEncode,     // f = all features of h, by the dictionary v1 (dictionary_image.h); with lo > 0 the
               // row becomes decode(f), or that is left for kCarried. Its run are kEncoded ops;
               // Ops::encode() runs it, behind the macro-op that passes the point
  kEncoded,    // f' = `edit` of f with `value`, f that of `feature`: h + s c (f' - f) decoder; with
               // hi > 0 only where f > 0
  kCarried,    // the row that a kEncode at an earlier point of the step left for the token
  kSense,      // h; the slot's latch `latch` keeps for the next token what this one reads: p, or
               // with hi > 0 the feature p > lo ? max(a p + b, 0) : 0
  kExperts,    // of router_logits, v1 of 1, -1 and 0: h + s (chosen_logits(h, v1) - h). With lo > 0
               // h, and what the router chooses by, c, becomes c + s (chosen_scores(c, v1) - c)
};

// SteerMoE (arXiv 2509.09660): an expert e is chosen before every other where v(e) is 1, behind
// every other where it is -1. chosen_scores(c, v): where v is 1 max(c) + kExpertMargin, where it is
// -1 min(c) - kExpertMargin, elsewhere c; max and min are those of c. chosen_logits(h, v) =
// chosen_scores(log_softmax(h), v). In fp32, so that the margin outlasts rounding.
inline constexpr float kExpertMargin = 0.01f;

// A feature that is read at one point and written at others is several kFeature ops. The one
// without v1 leaves s c (f' - f) in the token's relay `relay`, and h as it is; those without v2, at
// later points of the same step, are h + s (relay) v1.

// Ops of a point that stand behind a kEncode are run by Ops::encode() too. Where a dictionary
// writes another point than it reads, its kEncoded ops leave s c (f' - f) in their relays, and h as
// it is.

// kPatch, kAddNorm and kAddRenorm with v2 change, and take the norm of, those elements alone where
// v2 is not 0: the heads of attn_z that an op is for. v1 is 0 elsewhere; the other kinds need no
// more than that.

// With a gate the row becomes h + g (op(h) - h). With g = 0, and with s = 0 after its schedule, the
// row keeps its bits. kScore, kSense and kEncode have neither gate nor schedule.
//
// kFeature ops that follow one another may be a run: all of them, and their gates, read the row as
// it is before the first. So several clamps of one dictionary act on the features of one encode.
enum class GateKind : int32_t {
  kNone,       // g = 1
  kHard,       // g = [h . vg - threshold > 0]
  kSoft,       // g = 1 / (1 + exp(-sharpness (h . vg - threshold)))
  kScoreHard,  // as kHard and kSoft, with the mean of the samples of the slot's latch instead of
  kScoreSoft,  // h . vg; g = 0 without samples, and before the last token of the prompt
  kControl,    // g = clip(sharpness (threshold - r), from, to), r what a kSense of the token before
               // left in the slot's latch; g = 0 where it left nothing. Not beside a ramp
};

// A factor on s by n, the number of tokens since the generation began: the first generated token
// has n = 0, the last of the prompt -1.
enum class ScheduleKind : int32_t {
  kConstant,  // 1
  kRamp,      // from + (to - from) clip((n - begin) / (end - begin), 0, 1)
  kWindow,    // [begin <= n < end]
};

inline constexpr int32_t kNoVector = -1;
inline constexpr int32_t kNumLatches = 4;  // of a slot
inline constexpr int32_t kNumRelays = 64;  // of a token of a step
inline constexpr int32_t kMaxOpsPerPoint = 255;
// Vectors begin at multiples of this many floats: kernels read them in 16 bytes.
inline constexpr int64_t kVectorAlign = 16;
static_assert(kVectorAlign % 4 == 0);
// Rows of a captured record begin at multiples of this many elements.
inline constexpr int64_t kCaptureAlign = 64;
inline constexpr int32_t kMaxPatternHeads = 128;  // of a layer, that can be named

// One op, as the device reads it. v1, v2 and gate_vector are offsets in floats: within
// Program.vectors here, within the table's pool on the device. v1 of kEncode is an index of
// Program.dictionaries here, the offset of its image there.
struct TapOp {
  OpKind kind = OpKind::kAdd;
  GateKind gate = GateKind::kNone;
  ScheduleKind schedule = ScheduleKind::kConstant;
  int32_t latch = 0;
  int32_t v1 = kNoVector;
  int32_t v2 = kNoVector;
  int32_t gate_vector = kNoVector;
  float strength = 1.0f;  // s
  float a = 0.0f;
  float b = 0.0f;
  float lo = 0.0f;
  float hi = 0.0f;
  float sum = 0.0f;  // of v1's squared elements, for kAddRenorm; of v2's elements, for kLayerNorm
  float threshold = 0.0f;
  float sharpness = 1.0f;
  int32_t begin = 0;
  int32_t end = 0;
  float from = 0.0f;
  float to = 0.0f;
  // Of kFeature, kEncode and kEncoded.
  int32_t run = 0;  // of the first of a run its length, of the others 0
  FeatureNorm norm = FeatureNorm::kNone;
  FeatureEdit edit = FeatureEdit::kSet;
  float value = 0.0f;
  int32_t relay = 0;
  int32_t feature = 0;  // of kEncoded: its number
};
static_assert(sizeof(TapOp) == 96 && sizeof(TapOp) % 16 == 0);

}  // namespace rudder::tap
