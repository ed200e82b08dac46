// Taps: the argument by which a macro-op steers and captures the rows that it computes. An op
// without taps is the plain op, bit for bit; so is the result of a token with row 0 and capture set
// -1. Formulas: tap/program.h. Every View is device memory.
#pragma once

#include <cmath>
#include <cstdint>

#include "rudder/tap/program.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// The ops of a program at one point; all zeros: none. It repeats the fields of the first op that
// most programs need, so a kernel rarely has to read the op itself.
struct TapEntry {
  int32_t ops = 0;     // first << 8 | number
  int32_t vector = 0;  // the first's v1, in floats
  float strength = 0;  // the first's
  int32_t flags = 0;   // of the below

  static constexpr int32_t kPlainAdd = 1;  // the first op is h + strength v1, always
  static constexpr int32_t kCaptured = 2;  // of a token's entry: its capture set has the point

  // The program's next op at this point, which is the table's op `index`.
  void add(int64_t index, const tap::TapOp& op) {
    if (ops == 0) {
      ops = static_cast<int32_t>(index << 8);
      vector = op.v1;
      strength = op.strength;
      const bool is_plain_add = op.kind == tap::OpKind::kAdd && op.gate == tap::GateKind::kNone &&
                                op.schedule == tap::ScheduleKind::kConstant;
      flags |= is_plain_add ? kPlainAdd : 0;
    }
    ++ops;
  }
  bool operator==(const TapEntry&) const = default;
  int32_t num_ops() const { return ops & 0xff; }
  bool adds_at_most() const { return ops == 0 || ((flags & kPlainAdd) != 0 && num_ops() == 1); }
};
inline constexpr int64_t kTapEntryWords = sizeof(TapEntry) / sizeof(int32_t);

// Programs and capture sets, at fixed addresses: a change of them is a change of data, and captured
// graphs stay valid. exec allocates it once.
struct TapTable {
  tensor::View points;   // [num_rows, num_points, kTapEntryWords] i32: TapEntry
  tensor::View ops;      // [num_ops, sizeof(TapOp) / 4] i32: tap::TapOp
  tensor::View vectors;  // [num_floats] f32
  // [S + 1, kNumLatches, 2] i64: sum of the samples times 2^kLatchBits, rounded to nearest, and
  // their number. Whole numbers, so that the order of the tokens does not matter.
  tensor::View latches;
  tensor::View captures;  // [num_sets, num_points, 2] i32: a row's offset in its token's record in
                          // units of kCaptureAlign, before and after the point's ops; -1: none
  tensor::View ring;      // [.] act: records; a step in flight has a part of its own
};
inline constexpr int kLatchBits = 24;
// The fixed-point form of a score that latches add up: clipped at +-2^18, so that no prompt
// overflows a sum; NaN gives 0.
inline int64_t latch_sample(float score) {
  constexpr float kMost = 262144.0f;
  if (std::isnan(score)) return 0;
  const float clipped = score < -kMost ? -kMost : score > kMost ? kMost : score;
  return std::llrint(std::ldexp(double{clipped}, kLatchBits));
}

// Which rows of the table the tokens of a step use. Views of i32 [T]; empty without taps.
struct TapBatch {
  tensor::View row;            // of TapTable.points; 0 = identity
  tensor::View since_prompt;   // n of tap::ScheduleKind: position - length of the prompt
  tensor::View slot;           // row of TapTable.latches
  tensor::View capture_set;    // row of TapTable.captures; -1: captured nowhere
  tensor::View capture_begin;  // of the token's record in the ring, in units of kCaptureAlign
  // [T, num_points, kTapEntryWords] i32: for each token its row of TapTable.points, with kCaptured
  // set where it is captured. begin_step writes them; it may not directly precede an op with taps
  // (tap.T9).
  tensor::View entries;
  // The programs do nothing but add one vector at points of the residual stream.
  bool only_adds = false;

  bool empty() const { return row.empty(); }
  int64_t num_tokens() const { return row.num_rows(); }
};

// The taps of one op at one point; those of an op without are empty.
struct Taps {
  const TapTable* table = nullptr;
  const TapBatch* batch = nullptr;  // of the rows that the op works on
  int32_t point = 0;                // tap::Point::index()

  bool empty() const { return table == nullptr; }
};

}  // namespace rudder::ops
