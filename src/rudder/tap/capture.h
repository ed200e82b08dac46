// Capture: which activations leave the device, and the form in which they reach the host. Plain
// data: steer makes capture sets, plans carry them to the executor, results carry the captured rows
// back. Normative text: docs/contracts/taps.md.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "rudder/tap/site.h"
#include "rudder/tap/tap_op.h"
#include "rudder/tensor/dtype.h"

namespace rudder::tap {

struct CapturePoint {
  Point point;
  bool after = false;  // the row after this point's own ops, not before them
  bool operator==(const CapturePoint&) const = default;
};

// Attention patterns of a layer (ADR 0050): for each head the weights with which the token reads
// the keys from position 0 on.
struct CapturePattern {
  int32_t layer = 0;
  int32_t keys = 0;            // of each row; a token behind them has rows of zeros
  std::vector<int32_t> heads;  // ascending, each below kMaxPatternHeads
  bool operator==(const CapturePattern&) const = default;
  int64_t elements() const { return int64_t{keys} * std::ssize(heads); }
};

// The points at which a sequence's captured tokens are captured, and their patterns. The record of
// one token holds its rows at these points, in this order, then the patterns, [heads, keys] each;
// every row, and every layer's patterns, begin at a multiple of kCaptureAlign elements. Immutable
// once shared.
struct CaptureSet {
  std::vector<CapturePoint> points;           // by (point, after) ascending, no two alike
  std::vector<CapturePattern> patterns = {};  // by layer ascending, no two alike
  bool operator==(const CaptureSet&) const = default;
};

// Elements of a token's record, each as large as one of Geometry.dtype, whatever dtype a row has
// (Geometry::dtype_at); `offsets`, when given, gets the offset of each row in it, then that of each
// layer's patterns.
int64_t record_elements(const CaptureSet& set, const Geometry& geometry,
                        std::vector<int64_t>* offsets = nullptr);

// One token's record.
struct CapturedToken {
  int32_t seq = 0;       // index into StepPlan.seqs
  int32_t position = 0;  // of the token in its sequence
  int32_t set = 0;       // number of the capture set
  int64_t begin = 0;     // of the record, in elements from CapturedRows.data
};

// The rows that one step captured. The object holds host memory of a bounded pool until its last
// pointer is dropped, so drop it soon. Any thread.
struct CapturedRows {
  // Null: no buffer was free, and the rows of `tokens` are lost.
  const void* data = nullptr;
  tensor::DType dtype = tensor::DType::kBF16;  // Geometry.dtype: of an element of a record
  std::vector<CapturedToken> tokens;
  std::shared_ptr<const void> lease;  // of `data`
};

// Bounds of the tables and buffers that an executor keeps for taps. All zero: it has none.
struct Limits {
  int32_t num_rows = 0;    // of programs, with row 0, the empty program
  int32_t num_ops = 0;     // of all programs together
  int64_t num_floats = 0;  // of all vectors together
  int32_t num_capture_sets = 0;
  int64_t capture_elements = 0;  // of all records of one step
  // Features of a dictionary that is encoded whole; 0: the backend encodes none.
  int32_t max_features = 0;
  // Capture sets may name patterns.
  bool patterns = false;
  // Only the server's own embeddings capture: clients may not, and steps that only decode do not.
  bool captures_prompts_only = false;

  bool steering() const { return num_rows > 1; }
  bool capture() const { return num_capture_sets > 0; }
};

}  // namespace rudder::tap
