// What sequences keep on the device between steps, as everything above the executor sees it:
// objects that have a kind, a size and an id, and that are copied whole. Nobody looks inside one.
// Plain data. Normative text: docs/contracts/cache.md.
//
// Three kinds:
//   per block     one object for each block of a KV group (KvGroups): its id is the block's.
//   per sequence  one object for each sequence that runs: all that its layers keep besides blocks
//                 (the state of a recurrence, the last inputs of a convolution). Its id is a
//                 state's.
//   checkpoint    such an object as it was at the end of one full block, for a sequence to go on
//                 from. Its id is a state's too: both kinds share one pool.
#pragma once

#include <cstdint>

namespace rudder::step {

using StateId = int32_t;
inline constexpr StateId kNoState = -1;

// The pool of objects per sequence and of checkpoints; by default the model has none.
struct StatePool {
  int32_t count = 0;  // ids 0 .. count - 1; where there are any at least two: see cache.C6
  int64_t bytes = 0;  // of one object
  // Blocks of a sequence from one checkpoint to the next; 0: there is one alone, at the end of its
  // prompt.
  int32_t checkpoint_blocks = 0;
  // StepPlan.copies_before may take longer than their step: StepResult.copies_done says which are
  // done, and before that no plan runs a sequence whose state is copied to. Plans of nothing wait
  // for the next.
  bool slow_copies = false;

  bool empty() const { return count == 0; }
  bool operator==(const StatePool&) const = default;
};

// Where an object lies.
enum class Store : uint8_t {
  kBlocks,  // the pool of blocks
  kStates,  // the pool of states
};

struct ObjectRef {
  Store store = Store::kStates;
  int32_t group = 0;  // the KV group of a block; 0 of a state
  int64_t index = 0;  // BlockId or StateId

  bool operator==(const ObjectRef&) const = default;
};

// A copy of a whole object to another of the same store and group.
struct ObjectCopy {
  ObjectRef from;
  ObjectRef to;

  bool operator==(const ObjectCopy&) const = default;
};

inline ObjectRef state_ref(StateId state) {
  return {.store = Store::kStates, .group = 0, .index = state};
}

}  // namespace rudder::step
