// The entry of the tap table that a token has at a point, and what latches hold: samples in fixed
// point, or a reading.
// Host and kernels both read and write them. Plain data; this header is C++17, because nvcc reads
// it too.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "rudder/tap/tap_op.h"

namespace rudder::ops {

// The ops of a program at one point; all zeros: none. It repeats the fields of the first op that
// most programs need, so a kernel rarely has to read the op itself.
struct TapEntry {
  int32_t ops = 0;  // first << 8 | number
  // The first's v1, in floats; kNoVector of an op whose kernel does not begin with that.
  int32_t vector = 0;
  float strength = 0;  // the first's
  int32_t flags = 0;   // of the below

  static constexpr int32_t kPlainAdd = 1;  // the first op is h + strength v1, always
  static constexpr int32_t kCaptured = 2;  // of a token's entry: its capture set has the point
  static constexpr int32_t kEncodes = 4;   // Ops::encode() runs its ops from a kEncode on

  // The program's next op at this point, which is the table's op `index`.
  void add(int64_t index, const tap::TapOp& op) {
    if (ops == 0) {
      ops = static_cast<int32_t>(index << 8);
      const bool begins_otherwise =
          op.kind == tap::OpKind::kFeature || op.kind == tap::OpKind::kEncode ||
          op.kind == tap::OpKind::kEncoded || op.kind == tap::OpKind::kCarried;
      vector = begins_otherwise ? tap::kNoVector : op.v1;
      strength = op.strength;
      const bool is_plain_add = op.kind == tap::OpKind::kAdd && op.gate == tap::GateKind::kNone &&
                                op.schedule == tap::ScheduleKind::kConstant;
      flags |= is_plain_add ? kPlainAdd : 0;
    }
    if (op.kind == tap::OpKind::kEncode) flags |= kEncodes;
    ++ops;
  }
  bool operator==(const TapEntry& other) const {
    return ops == other.ops && vector == other.vector && strength == other.strength &&
           flags == other.flags;
  }
  int32_t num_ops() const { return ops & 0xff; }
  bool adds_at_most() const { return ops == 0 || ((flags & kPlainAdd) != 0 && num_ops() == 1); }
};
static_assert(sizeof(TapEntry) == 16);
static_assert(tap::kMaxOpsPerPoint <= 0xff, "the number of ops is the low byte of a word");
inline constexpr int64_t kTapEntryWords = sizeof(TapEntry) / sizeof(int32_t);

inline constexpr int kLatchBits = 24;           // of a sample's fraction
inline constexpr float kLatchMost = 262144.0f;  // 2^18: samples beyond it are clipped
// A score as a latch takes it: clipped, so that no prompt overflows a sum; NaN is 0.
inline int64_t latch_sample(float score) {
  if (std::isnan(score)) return 0;
  const float clipped = score < -kLatchMost ? -kLatchMost : score > kLatchMost ? kLatchMost : score;
  return std::llrint(std::ldexp(double{clipped}, kLatchBits));
}

// A latch's second word: its samples in the low half, those of them that were clipped in the high.
inline constexpr int kClippedShift = 32;
// What one sample adds to it.
inline int64_t latch_tally(float score) {
  const bool is_clipped = score < -kLatchMost || score > kLatchMost;
  return 1 + (is_clipped ? int64_t{1} << kClippedShift : 0);
}
inline int64_t latch_samples(int64_t tally) {
  return tally & ((int64_t{1} << kClippedShift) - 1);
}
inline int64_t latch_clipped(int64_t tally) {
  return tally >> kClippedShift;
}

// A latch of kSense has the readings of the last two tokens, that of the token n behind the
// prompt's end (tap::ScheduleKind; the prompt's last is -1) in word n & 1: so a token may leave its
// own before or after the ops that ask for the one before. The high half of a word says whose it
// is, as n + 2, which a word of an empty latch is not; the low half has the bits of the float.
inline constexpr int kReadingShift = 32;
inline int64_t latch_reading(int32_t n, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return (int64_t{n} + 2) << kReadingShift | int64_t{bits};
}
inline bool is_reading_of(int64_t word, int32_t n) {
  return n >= -1 && word >> kReadingShift == int64_t{n} + 2;
}
inline float reading_value(int64_t word) {
  const auto bits = static_cast<uint32_t>(word);
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace rudder::ops
