// PassGraphs: graphs of the passes in which a draft model or a draft head guesses, from its first
// layer to the sampled tokens: over tokens that the sequences have, over single guesses, and over
// trees (model_proposer.h). What a pass launches follows from its numbers of tokens, of sequences
// and of rows of logits, and each is padded to the next number that graphs have. Passes over many
// tokens run op by op.
//
// A graph is captured when such a pass comes for the second time, as those of prompts are: the
// first one runs padded and op by op, and with it the backend sets up what no capture may contain.
// Both take longer than all that follow, so they are told apart (Setup). That holds until graphs
// are forgotten: what is captured again and again costs what it costs.
//
// Used by the executor's worker thread.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/recurring.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class PassGraphs {
 public:
  // `ops` and `decoder` outlive it; `capacity` is that of the proposer's own steps.
  PassGraphs(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity);

  // Pads the pass where it may have a graph. True: capture() and replay() are for it. What the pass
  // makes is added to `setup`.
  bool pad(PackedStep& packed, Setup& setup);
  // Captures what the padded pass lacks; `step` is that pass on the device. An Error is the
  // device's.
  Result<void> capture(const PackedStep& packed, const DeviceStep& step, Setup& setup);
  // Runs it to its sampled tokens, or its next iteration.
  void replay(const PackedStep& packed) const;

 private:
  struct Key {
    int64_t num_tokens = 0;
    int64_t num_seqs = 0;
    int64_t num_rows = 0;
    int32_t max_q_len = 0;  // that attention's kernels are chosen by
    bool has_trees = false;
    bool goes_on = false;  // from what a draft head left
    auto operator<=>(const Key&) const = default;
  };
  struct Captured {
    std::unique_ptr<DeviceStep> step;
    std::unique_ptr<ops::Graph> graph;
  };
  // What a pass is padded to; no tokens: it has no graph.
  struct Sizes {
    int64_t tokens = 0;
    int64_t seqs = 0;
    int64_t rows = 0;
  };

  static Key key_of(const PackedStep& packed);
  Sizes padded_sizes(const PackedStep& packed) const;

  ops::Ops& ops_;
  model::Decoder& decoder_;
  const step::Capacity capacity_;
  Recurring<Key, Captured> captured_;
};

}  // namespace rudder::exec
