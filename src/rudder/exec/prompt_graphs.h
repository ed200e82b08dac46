// PromptGraphs: graphs of steps that have prompts. What such a step launches up to the last layer's
// mixer follows from the number of its tokens alone; what comes behind follows from the number of
// rows of logits, which is another in each step. So a graph is of the first part (Decoder::begin),
// for a number of tokens, and the second runs op by op, a dozen launches of hundreds. A stage that
// others are behind has no second part.
//
// Trees of drafts beside prompts change nothing of that: which rows a row sees are words on the
// device. Steps with such words have graphs of their own, so that others do not read any.
//
// Numbers of tokens are multiples of kPromptStepMultiple, which the scheduler aims at where a
// prompt goes on in a later step; a step that is a few tokens short of one is padded. A graph is
// captured when its number of tokens comes for the second time, beside the server's work: the first
// such step runs op by op, and with it the backend sets up what no capture may contain. Of steps
// with taps that is a wide graph; those that come back often get a narrow one (narrow_graphs.h).
//
// Used by the executor's worker thread.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/narrow_graphs.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/recurring.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

inline constexpr int32_t kPromptStepMultiple = 64;

class PromptGraphs {
 public:
  // `ops` and `decoder` outlive it. `common` are the passages that steps with taps are captured
  // with, beside what they tap besides; `is_last`: the stage has rows of logits.
  PromptGraphs(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity,
               tap::Passages common, bool is_last, const NarrowRules& rules);

  // Pads the step where it may have a graph. True: capture() and replay() are for it.
  bool pad(PackedStep& packed);
  // Captures what a padded step lacks; `step` is that step on the device. An Error is the device's.
  // Returns whether there was something.
  Result<bool> capture(const PackedStep& packed, const DeviceStep& step);
  // Runs a padded step to its logits, which are returned; they are empty where none are wanted.
  ops::View replay(const PackedStep& packed, const DeviceStep& step);

 private:
  struct Kind {
    int32_t num_tokens = 0;
    int32_t max_q_len = 0;   // no sequence is longer that is no tree
    bool has_trees = false;  // words of ancestors are read
    bool has_taps = false;
    bool only_adds = false;
    std::vector<int32_t> encodes = {};
    auto operator<=>(const Kind&) const = default;
  };
  struct Captured {
    // Where the step lies; the graph reads taps through it.
    std::unique_ptr<model::ForwardBatch> batch;
    std::unique_ptr<ops::Graph> graph;
    model::Decoder::Begun begun;
  };

  using Narrow = NarrowGraphs<Kind, Captured>;
  using Key = Narrow::Key;

  // What the step uses, and what its wide graph has.
  Key key_of(const PackedStep& packed) const;
  Key wide_key(const PackedStep& packed) const;
  // None for a step without taps.
  Narrow::Found narrow_of(const PackedStep& packed, const Key& key);
  Result<void> capture(const DeviceStep& step, const Key& key, Captured& captured);

  ops::Ops& ops_;
  model::Decoder& decoder_;
  const step::Capacity capacity_;
  const tap::Passages common_;
  const bool is_last_;
  Recurring<Key, Captured> captured_;
  Narrow narrow_;
};

}  // namespace rudder::exec
