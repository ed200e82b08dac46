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

#include "rudder/ops/state_args.h"

namespace rudder::model {

using ops::LayerState;
using ops::StateBatch;

// Bytes that a layer registers, a rank's share of them.
struct StateBytes {
  int64_t state = 0;  // of a sequence's state; 0: the layer keeps none
  int64_t row = 0;    // of a token, to move the state over it later
};

}  // namespace rudder::model
