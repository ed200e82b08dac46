// The state that the device keeps for every sequence between steps, and the macro-ops that begin a
// step and advance it to its next iteration. Sampled tokens and stop checks are part of this state,
// so a step can be enqueued before the tokens of the step in front of it have reached the host.
// exec allocates it once.
#pragma once

#include <cstdint>

#include "rudder/ops/tap_args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// One row for each slot; row S belongs to padding, nothing reads it.
struct SlotState {
  tensor::View carry;  // [S + 1] i32 the last sampled token; -1 before the first
  // [S + 1] i32 its position, which is also how many tokens the sequence has in KV; optional: only
  // where there are drafts does the host not know it.
  tensor::View carry_position = {};
  tensor::View ended;         // [S + 1] i32 1 = the sequence has ended: its later rows are masked
  tensor::View block_table;   // [groups * (S + 1), max_blocks] i32, one KV group behind another
  tensor::View output_count;  // [S + 1, vocab] i32 occurrences in the output; for penalties
  tensor::View prompt_seen;   // [S + 1, vocab] u8 1 where the prompt has the token
  // Both optional, for look_up(): [S + 1, max_len] i32 the sequence's tokens by position; and
  // [S + 1, most] i32 what is guessed to follow the carry, -1 behind it.
  tensor::View history = {};
  tensor::View guess = {};
};

// A slot that is opened under a new generation: ended = 0, carry = -1.
struct OpenedSlot {
  int32_t slot = 0;
  int32_t has_counts = 0;  // 1: its rows of output_count and prompt_seen are cleared
};

struct BlockWrite {  // block_table[row, index] = block
  int32_t row = 0;   // group * (S + 1) + slot
  int32_t index = 0;
  int32_t block = 0;
};

struct HistoryToken {  // of an opened slot with counts
  int32_t slot = 0;
  int32_t token = 0;
  int32_t is_prompt = 0;  // 1: into prompt_seen, 0: into output_count
};

struct KeptToken {  // history[slot, position] = token
  int32_t slot = 0;
  int32_t position = 0;
  int32_t token = 0;
};

// Order: open slots, count and keep their history, write blocks, replace the ids of carried tokens
// by the tokens. Tokens of a slot that has ended get kv_slot -1, as padding has. The op also writes
// the entries of the step's taps.
struct BeginStepArgs {
  // Where the sequences of a step stand; all parts, or none where there are no drafts.
  struct Placement {
    tensor::View q_begin;                 // [num_seqs + 1] i32
    tensor::View table_row;               // [num_seqs] i32 the sequence's slot
    tensor::View kv_len;                  // [num_seqs] i32, in place, as all below
    tensor::View positions;               // [T] i32
    tensor::View sample_rows;             // [R, sizeof(SampleRow)] u8
    tensor::View logits_rows;             // [R] i32 the token of each, ascending; read alone
    tensor::View since_prompt = {};       // [T] i32; optional
    tensor::View rows_since_prompt = {};  // [R] i32; optional
    int32_t block_size = 16;

    bool empty() const { return q_begin.empty(); }
  };

  SlotState state;
  tensor::View opened;   // [.] OpenedSlot as i32 [n, 2]; optional
  tensor::View history;  // [.] HistoryToken as i32 [n, 3]; optional
  tensor::View blocks;   // [.] BlockWrite as i32 [n, 3]; optional
  tensor::View kept;     // [.] KeptToken as i32 [n, 3]; optional
  // [T] i32, in place; optional, together with kv_slot: long lists come in several calls, of which
  // only the last has ids and kv_slot. In: a token, or -1 - slot for the slot's carry. Out: the
  // token, or 0 where the slot has sampled nothing yet.
  tensor::View ids;
  tensor::View kv_slot;  // [groups * T] i32, in place: -1 where ids named a slot that has ended
  // A sequence that begins with its slot's carry is moved to where that stands: the host may have
  // put it further on, by drafts that were rejected. Of one that has ended, no token is written.
  // Its tokens are written one behind another, whatever their positions are: those of a tree are
  // not in a row. Below 0, the id of its n-th token behind the carry is that of the slot's guess,
  // and so is a draft that is kNoDraft; of a shorter guess the id is 0, and the draft stays.
  Placement placement = {};
  // The op writes `entries` of both batches from their `row` and `capture_set`. Null: no taps.
  const TapTable* tap_table = nullptr;
  TapBatch taps = {};
  TapBatch rows_taps = {};
};

// Runs between two iterations of a step of single tokens: each row takes the token that its slot
// has just sampled, one position further. Row r stands for a token, a sequence and a row of logits
// at once. A row of a slot that has ended, or of padding, gets kv_slot -1; its other values do not
// change.
struct AdvanceStepArgs {
  SlotState state;
  tensor::View ids;           // [R] i32 in place; the carry
  tensor::View positions;     // [R] i32 in place; + 1
  tensor::View kv_slot;       // [groups * R] i32 in place; where block_table has the position
  tensor::View kv_len;        // [R] i32 in place; + 1
  tensor::View sample_rows;   // [R, sizeof(SampleRow)] u8 in place; position + 1
  tensor::View since_prompt;  // [R] i32 in place; + 1; optional: TapBatch.since_prompt
  int32_t block_size = 16;
};

}  // namespace rudder::ops
