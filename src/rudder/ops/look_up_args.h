// Parameters of the look_up macro-op: prompt lookup in the tokens that slots keep.
#pragma once

#include <cstdint>

#include "rudder/ops/sample_row.h"
#include "rudder/ops/slot_args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Runs behind sample() and reads what came of it. The rows of one slot, which lie one behind
// another, are a sequence: its tokens that count go to the slot's history, at their positions. Then
// the slot gets a new guess at what follows the last of them, `num_guess` of the first row at most
// and no token that the sequence could have no token behind: the tokens that followed the last
// earlier occurrence of the longest n-gram at the history's end, of min_n to max_n tokens. An
// occurrence that reaches the end goes on with what was guessed. Nothing is guessed where no such
// n-gram occurs earlier, nor for a sequence that has ended.
struct LookUpArgs {
  SlotState state;       // history and guess
  tensor::View rows;     // [R, sizeof(SampleRow)] u8
  tensor::View sampled;  // [R, 4] i32: SampledToken
  int32_t min_n = 1;     // 1 <= min_n <= max_n <= kMaxNgram
  int32_t max_n = 1;

  bool empty() const { return rows.empty(); }
};

}  // namespace rudder::ops
