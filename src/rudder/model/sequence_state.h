// What mixers keep of a sequence besides keys and values: a state, which the executor gives them a
// place for, copies whole and never looks into. Normative text: docs/contracts/cache.md. Plain
// data; exec makes the views, mixers read and write through them on the executor's worker thread.
//
// A state stands before the tokens that are not verified. So a mixer moves it over the tokens of a
// sequence that has no drafts in the step; of one that has, it leaves the state where it is and
// keeps a row of each token. It first moves the state over those of the kept rows that turned out
// right, which the position of the sequence's first token in the step says: the mixer notes in the
// state how far that reaches. At position 0 a state is empty, whatever lies there.
#pragma once

#include <cstdint>

#include "rudder/tensor/view.h"

namespace rudder::model {

// Bytes that a layer registers, a rank's share of them.
struct StateBytes {
  int64_t state = 0;  // of a sequence's state; 0: the layer keeps none
  int64_t row = 0;    // of a token, to move the state over it later
};

// Where a layer's part of every state lies, and the rows that it keeps for slots.
struct LayerState {
  tensor::View pool;  // [states, bytes] u8, of all layers
  int64_t begin = 0;  // of the layer's part of a state, in bytes; on a 64-byte line
  tensor::View
      kept;  // [slots + 1, 1 + drafts, bytes of a row] u8; a sequence's table_row names its
};

// Of the sequences of a step.
struct StateBatch {
  tensor::View state;      // [num_seqs] i32, a row of the pool; -1: of padding
  tensor::View num_draft;  // [num_seqs] i32 the last tokens of each that may be wrong

  bool empty() const { return state.empty(); }
};

}  // namespace rudder::model
