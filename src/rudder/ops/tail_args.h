// Parameters of place_tails and keep_guess, around the passes of a proposer that does not wait for
// the host: the last tokens of sequences go into a pass from where the slots of the model have
// them, and what the pass samples goes to the slots' guesses. The pass has a state of slots of its
// own, with the model's slot numbers.
#pragma once

#include <cstdint>

#include "rudder/ops/sample_row.h"
#include "rudder/ops/slot_args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Sequence s of the pass has q_begin[s + 1] - q_begin[s] tokens, at least one, and row s of logits;
// sequences and rows of the slot behind the last are padding, and stay as they are. With `len` the
// tokens of the slot's sequence, carry_position + 1, the sequence of the pass gets those that end
// at position len - 1 + num_ahead: out of `history`, and of position len the pass's own carry. A
// token is run at its position - shift, and what is before position `shift` is not run; a sequence
// that is shorter than its part begins with its first token, and what is behind its last is filled
// up with id 0, whose KV is not written. Each row of logits is that of the sequence's last token.
//
// Row s has the sequence's max_len, and in `num_guess` how many tokens are guessed at most. It gets
// `position`, len + num_ahead, as `num_guess` how many tokens are guessed, none that the sequence
// could have no token behind, and a max_len at which the pass's own slot ends with the last of
// them. A slot whose sequence has ended, or that nothing can be guessed for, has ended in the pass;
// of such a slot no KV is written.
//
// A pass that keeps no KV has kv_slot -1, and its kv_len counts the tokens in front of the part.
// With `step_rows`, those of the step that the slots come from, a pass of
// single tokens goes on from rows of that step's logits: goes_on_rows has each sequence's first one
// and gets the one that its last token was sampled from.
struct PlaceTailsArgs {
  SlotState model;                 // history, carry_position and ended are read
  SlotState own;                   // carry and the first group's block_table are read; ended
  tensor::View q_begin;            // [num_seqs + 1] i32
  tensor::View table_row;          // [num_seqs] i32 the slot
  tensor::View ids;                // [T] i32 out
  tensor::View positions;          // [T] i32 out
  tensor::View kv_slot;            // [T] i32 out
  tensor::View kv_len;             // [num_seqs] i32 out
  tensor::View logits_rows;        // [R] i32 out
  tensor::View sample_rows;        // [R, sizeof(SampleRow)] u8 in place
  tensor::View step_rows = {};     // [., sizeof(SampleRow)] u8; optional
  tensor::View goes_on_rows = {};  // [T] i32 in place, with step_rows
  bool keeps_kv = true;
  int32_t num_ahead = 0;  // 0, or 1: the pass has guessed a token
  int32_t shift = 0;      // 0 or 1
  int32_t block_size = 16;
};

// Token `index` of the guess of each row's slot is what the row sampled; where that is none, or the
// row's `num_guess` is no more than `index`, the guess stays as it is. Rows of padding change
// nothing.
struct KeepGuessArgs {
  SlotState model;       // guess
  tensor::View rows;     // [R, sizeof(SampleRow)] u8
  tensor::View sampled;  // [R, 4] i32: SampledToken
  int32_t index = 0;     // below guess.shape[1]
};

}  // namespace rudder::ops
