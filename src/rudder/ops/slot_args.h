// What the device keeps of every sequence between steps, and the macro-ops that open a step on it
// and go on to its next iteration.
// Sampled tokens and stop checks live here, so that a step can be enqueued before the tokens of the
// one before it have reached the host. Allocated once by exec.
#pragma once

#include <cstdint>

#include "rudder/ops/tap_args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// One row a slot; row S is of padding and never read by anyone.
struct SlotState {
  tensor::View carry;         // [S + 1] i32 the last sampled token; -1 before the first
  tensor::View ended;         // [S + 1] i32 1 = the sequence has ended: its later rows are masked
  tensor::View block_table;   // [S + 1, max_blocks] i32
  tensor::View output_count;  // [S + 1, vocab] i32 occurrences in the output; for penalties
  tensor::View prompt_seen;   // [S + 1, vocab] u8 1 where the prompt has the token
};

// A slot that is opened under a new generation: ended = 0, carry = -1.
struct OpenedSlot {
  int32_t slot = 0;
  int32_t has_counts = 0;  // 1: its rows of output_count and prompt_seen are cleared
};

struct BlockWrite {  // block_table[slot, index] = block
  int32_t slot = 0;
  int32_t index = 0;
  int32_t block = 0;
};

struct HistoryToken {  // of an opened slot with counts
  int32_t slot = 0;
  int32_t token = 0;
  int32_t is_prompt = 0;  // 1: into prompt_seen, 0: into output_count
};

// In this order: slots are opened, their history is counted, blocks are written, carried tokens are
// put in place. Rows of a slot that has ended read and write no more than padding does. Beside them
// the entries of the step's taps are gathered.
struct BeginStepArgs {
  SlotState state;
  tensor::View opened;   // [.] OpenedSlot as i32 [n, 2]; optional
  tensor::View history;  // [.] HistoryToken as i32 [n, 3]; optional
  tensor::View blocks;   // [.] BlockWrite as i32 [n, 3]; optional
  // [T] i32, in place; optional, with kv_slot: lists that are long come in several calls, and only
  // the last has them. In: a token, or -1 - slot for the slot's carry. Out: the token, 0 where
  // nothing was ever sampled.
  tensor::View ids;
  tensor::View kv_slot;  // [T] i32, in place: -1 where ids named a slot that has ended
  // Of both batches `entries` are written, from `row` and `capture_set`. Null: there are no taps.
  const TapTable* tap_table = nullptr;
  TapBatch taps = {};
  TapBatch rows_taps = {};
};

// Between two iterations of a step of single tokens: each row goes on to the token that its slot
// has just sampled, one position further. Row r is a token, a sequence and a sampled row at once. A
// row of a slot that has ended, or of padding, gets kv_slot -1 and is else left as it is.
struct AdvanceStepArgs {
  SlotState state;
  tensor::View ids;           // [R] i32 in place; the carry
  tensor::View positions;     // [R] i32 in place; + 1
  tensor::View kv_slot;       // [R] i32 in place; where block_table has the position
  tensor::View kv_len;        // [R] i32 in place; + 1
  tensor::View sample_rows;   // [R, sizeof(SampleRow)] u8 in place; position + 1, ban_stop_ids - 1
  tensor::View since_prompt;  // [R] i32 in place; + 1; optional: TapBatch.since_prompt
  int32_t block_size = 16;
};

}  // namespace rudder::ops
