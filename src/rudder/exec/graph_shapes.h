// The shapes that graphs have: which graph a step or pass runs from, as a GraphKey, and which
// graphs the executor captures at its start. Nothing here touches a device. The executor's worker
// thread asks, through Graphs (graphs.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rudder/exec/graph_key.h"
#include "rudder/exec/pack.h"
#include "rudder/ops/comm.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// Prompt steps have graphs of multiples of so many tokens. The scheduler cuts prompts there.
inline constexpr int32_t kPromptStepMultiple = 64;

// Numbers of sequences that are captured, ascending, to `most`: close together where one more is a
// large share of the step.
std::vector<int32_t> graph_buckets(int32_t most);
// Numbers of tokens that are captured for steps with drafts, from the first that is not below
// `least`.
std::vector<int32_t> draft_graph_buckets(int32_t least, int32_t most);

// The shapes of the model's own steps, decode steps and prompt steps.
//
// A decode step is padded to the next captured number of tokens, in the first *family* whose
// sequences may be as long as the step's: of single tokens; of short drafts, which attention has a
// kernel for; of longer drafts; of trees. In the family of trees a short chain has no words, and a
// long one has those of a tree of one path. Where the executor's proposer guesses trees, or the
// host makes nothing but trees, chains take that family too. Every shape is captured without taps
// and, where the executor has taps, in three tap sets (docs/contracts/exec.md).
//
// Some taps are *rare*: those of what mixers make, and whole encodes. The points that are tapped
// decide what such a step launches, so nothing is captured of it at the start.
class StepShapes {
 public:
  StepShapes(const step::Capacity& capacity, ops::Rank rank);

  // Decode steps, each family from its largest on: the others fit in what the largest needs.
  std::vector<GraphKey> at_start() const;
  // Of the graph that taps just what the step uses; none: the step runs op by op. Chains beside
  // trees get their words.
  std::optional<GraphKey> key_of(PackedStep& packed) const;
  // Of the graph that any step of this shape runs from, wherever its programs are: it taps
  // macro-ops of the same kinds in all layers.
  GraphKey widened(GraphKey key) const;

 private:
  struct Family {
    int32_t max_q_len = 1;
    bool has_trees = false;
    std::vector<int32_t> tokens;  // ascending
  };

  void add_drafted_families();
  GraphShape decode_shape(const Family& family, int32_t tokens) const;
  std::optional<GraphKey> decode_key_of(PackedStep& packed) const;
  std::optional<GraphKey> prompt_key_of(const PackedStep& packed) const;

  const step::Capacity capacity_;
  const bool has_taps_;               // decode steps with taps have graphs
  const tap::Passages rare_;          // kinds of macro-ops
  const tap::Passages common_;        // all others
  std::vector<Family> families_;      // ascending, those with trees last
  int32_t longest_beside_trees_ = 0;  // chain that is no tree, in the family of trees
};

// Of a proposer's pass, whose steps have `capacity`: its tokens, sequences and rows of logits are
// each padded. A pass of many tokens, or without a row of logits, has none.
std::optional<GraphKey> pass_key(const step::Capacity& capacity, const PackedStep& packed);

// Pads the step to what graphs of the shape have. Padding belongs to the slot behind the last, sees
// no key and leaves nothing behind.
void pad_to(const GraphShape& shape, const step::Capacity& capacity, PackedStep& packed);

}  // namespace rudder::exec
