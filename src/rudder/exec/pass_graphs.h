// PassGraphs: graphs of the passes in which a draft head guesses a tree (guess_tree.cpp), from its
// layer to the sampled tokens. Where every sequence of a pass guesses the whole tree, what the pass
// launches follows from their number and the pass's depth; near an answer's end a sequence guesses
// less, and its passes run op by op. A pass is padded to the next number of sequences that graphs
// have.
//
// A graph is captured when such a pass comes for the second time, as those of prompts are: the
// first one runs padded and op by op, and with it the backend sets up what no capture may contain.
//
// Used by the executor's worker thread.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "rudder/base/result.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/recurring.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/draft_tree.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class PassGraphs {
 public:
  // `ops` and `decoder` outlive it; `capacity` is that of the proposer's own steps.
  PassGraphs(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity,
             const step::DraftTree& tree);

  // Pads the pass where it may have a graph. True: capture() and replay() are for it.
  bool pad(int32_t depth, PackedStep& packed);
  // Captures what the padded pass lacks; `step` is that pass on the device. An Error is the
  // device's.
  Result<void> capture(int32_t depth, const PackedStep& packed, const DeviceStep& step);
  // Runs it to its sampled tokens.
  void replay(int32_t depth, const PackedStep& packed) const;

 private:
  struct Key {
    int64_t num_seqs = 0;
    int32_t depth = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Captured {
    std::unique_ptr<DeviceStep> step;
    std::unique_ptr<ops::Graph> graph;
  };
  // Of one sequence.
  struct Sizes {
    int64_t tokens = 0;
    int64_t rows = 0;
  };

  Sizes sizes_of(int32_t depth) const;

  ops::Ops& ops_;
  model::Decoder& decoder_;
  const step::Capacity capacity_;
  const step::DraftTree tree_;
  Recurring<Key, Captured> captured_;
};

}  // namespace rudder::exec
