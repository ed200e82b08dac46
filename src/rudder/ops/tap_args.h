// Taps: the argument by which a macro-op steers and captures the rows that it computes. An op
// without taps is the plain op, bit for bit; so is the result of a token with row 0 and capture set
// -1. Formulas: tap/tap_op.h. Every View is device memory.
#pragma once

#include <cstdint>

#include "rudder/ops/pattern_entry.h"
#include "rudder/ops/tap_entry.h"
#include "rudder/tap/capture.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Programs and capture sets, at fixed addresses: a change of them is a change of data, and captured
// graphs stay valid. exec allocates it once.
struct TapTable {
  tensor::View points;   // [num_rows, num_points, kTapEntryWords] i32: TapEntry
  tensor::View ops;      // [num_ops, sizeof(TapOp) / 4] i32: tap::TapOp
  tensor::View vectors;  // [num_floats] f32
  // [S + 1, kNumLatches, 2] i64: sum of the samples times 2^kLatchBits, rounded to nearest, and the
  // sum of their latch_tally(). Whole numbers, so that the order of the tokens does not matter.
  // Of kSense: latch_reading() of the last two tokens.
  tensor::View latches;
  tensor::View
      relays;  // [max tokens of a step, kNumRelays] f32: what kFeature ops leave for others
  tensor::View captures;  // [num_sets, num_points, 2] i32: a row's offset in its token's record in
                          // units of kCaptureAlign, before and after the point's ops; -1: none
  // [.] act: records; a step in flight has a part of its own. Where patterns() is run, ranks of a
  // group have the first one's (Comm::shared_memory) and write their rows there.
  tensor::View ring;
  // [num_sets, num_layers, kPatternWords] i32: PatternEntry; without elements where patterns() is
  // not run.
  tensor::View patterns;
  // [ring elements / kPatternSumElements, 2] f32: what patterns() keeps of rows that it takes in
  // several parts; without elements where it is not run.
  tensor::View pattern_sums;
  // Of encode(); without elements where it is not run.
  tensor::View encoded_rows;  // [kEncodedRows, widest row] f32
  // [kEncodedRows, feature_row_floats(Limits.max_features)] f32: of the last product, in the order
  // of its tokens.
  tensor::View features;
  tensor::View
      carried;  // [max tokens of a step, widest residual row] f32: of kEncode, for kCarried
};

// Which rows of the table the tokens of a step use. Views of i32 [T]; empty without taps.
struct TapBatch {
  tensor::View row;            // of TapTable.points; 0 = identity
  tensor::View since_prompt;   // n of tap::ScheduleKind: position - length of the prompt
  tensor::View slot;           // row of TapTable.latches
  tensor::View capture_set;    // row of TapTable.captures; -1: captured nowhere
  tensor::View capture_begin;  // of the token's record in the ring, in units of kCaptureAlign
  tensor::View token;          // row of TapTable.relays: one of its own for each token of the step
  // [T, num_points, kTapEntryWords] i32: for each token its row of TapTable.points, with kCaptured
  // set where it is captured. begin_step writes them; it may not directly precede an op with taps
  // (tap.T9).
  tensor::View entries;
  // The programs do nothing but add one vector at points of the residual stream.
  bool only_adds = false;

  bool empty() const { return row.empty(); }
  int64_t num_tokens() const { return row.num_rows(); }
  // Those of `count` tokens from `begin`.
  TapBatch tokens(int64_t begin, int64_t count) const {
    const auto some = [&](const tensor::View& view) { return view.rows(begin, count); };
    return {.row = some(row),
            .since_prompt = some(since_prompt),
            .slot = some(slot),
            .capture_set = some(capture_set),
            .capture_begin = some(capture_begin),
            .token = some(token),
            .entries = some(entries),
            .only_adds = only_adds};
  }
};

// The taps of one op at one point; those of an op without are empty.
struct Taps {
  const TapTable* table = nullptr;
  const TapBatch* batch = nullptr;  // of the rows that the op works on
  int32_t point = 0;                // tap::Point::index()

  bool empty() const { return table == nullptr; }
};

// The rest of a point's taps, for tokens whose entry says kEncodes: encodes them by dictionaries,
// and runs what stands behind that. It directly follows the macro-op that passes the point, whose
// result it changes in place. Tokens are gathered on the device, so the op has the same shapes for
// any of them.
struct EncodeArgs {
  tensor::View x;  // [T, width] act
  Taps taps;       // of a point, with a table
};

// All of a point's taps, encode() included, on rows of which each rank of a group has a share
// (comm.h): the heads of attn_z, the neurons of mlp_act. Every rank runs them on the whole row, so
// that all have the same bits, and keeps its share of what they make. Of ranks alone.
struct TapSharesArgs {
  tensor::View x;       // [T, width] act: this rank's columns, which lie in the order of ranks
  tensor::View out;     // [T, width] act: the same columns, tapped; other memory than x
  tensor::View rows;    // [., width times ranks] act: memory for whole rows, so many at a time
  Taps taps;            // of a point, with a table
  bool encodes = true;  // whether a token may encode at the point
};

}  // namespace rudder::ops
