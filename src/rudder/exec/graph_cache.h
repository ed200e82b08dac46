// GraphCache: captures decode steps as graphs at start, and replays them: one launch instead of one
// for each op. A step in which every sequence gives one token and wants logits is padded to the
// next captured number of sequences and replayed; steps with prompts are PromptGraphs'. Nobody else
// captures: every other step runs op by op. A step that waits for masks replays a graph of the
// forward pass alone, and samples with an op of its own.
//
// Where sequences have drafts, a step gives one token at most for each of its tokens, all of whose
// logits are wanted. Such a step is padded to the next captured number of tokens, of the first
// family of graphs whose sequences may be as long as its own. Steps with trees have a family of
// their own, where the executor takes any; a chain beside them is in no tree where it is short, and
// else a tree of one path. Where the executor's proposer guesses trees, or the host makes nothing
// else, steps of chains have that family too.
//
// Where the executor has taps, there are four tap sets of every graph: without taps, for steps that
// neither steer nor capture; for steps whose programs only add vectors at layer ends; for steps
// with any taps at layer ends; and for all others (docs/contracts/exec.md). Where only prompts are
// captured there is one set, and the few steps with captures that look like decode steps run op by
// op. Beside those with taps are narrow graphs (narrow_graphs.h), of steps that tap few macro-ops
// and come back often.
//
// Rare taps have graphs of their own: steps that tap what mixers make, and steps that encode. Which
// points those are decides what a graph launches, so nobody can capture them at start. The first
// step with some rare taps runs op by op; at the second its graph is captured, beside the server's
// work, and kept until many others were used since. It is a wide one: in all layers it taps the
// kinds of macro-ops that the step taps in some.
//
// Made before the first step; used by the executor's worker thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/exec/narrow_graphs.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/prompt_graphs.h"
#include "rudder/exec/recurring.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// Numbers of sequences that are captured, ascending, to `most`: close together where one more is a
// large share of the step.
std::vector<int32_t> graph_buckets(int32_t most);
// Numbers of tokens that are captured for steps with drafts, from the first that is not below
// `least`.
std::vector<int32_t> draft_graph_buckets(int32_t least, int32_t most);

class GraphCache {
 public:
  // What a step runs on; all outlive the cache.
  struct Parts {
    ops::Ops& ops;
    model::Decoder& decoder;
    StepBuffers& buffers;
    std::span<const ops::KvLayer> kv = {};  // all layers, where steps may have trees
    ops::TokenRows head_rows = {};          // beside them, where a draft head reads some
    bool samples = true;  // false: a stage that others are behind; its graphs are forward passes
    NarrowRules narrow = {};
  };

  // Captures every graph, the largest first, so that the others fit in what it needed of the
  // device. Nothing else is in flight.
  static Result<std::unique_ptr<GraphCache>> capture(const Parts& parts,
                                                     const step::Capacity& capacity,
                                                     const ProgressFn& progress);

  // True when the step is one of those captured: it is then padded. Steps with rare taps are
  // counted.
  bool pad(PackedStep& packed);
  // Captures what a padded step needs and lacks, or has come back often enough for; `step` is that
  // step on the device. Returns whether there was something. An Error is the device's.
  Result<bool> capture_missing(const PackedStep& packed, const DeviceStep& step);
  // Runs a padded step, from embedding to sampled tokens.
  void replay(const PackedStep& packed, const DeviceStep& step);
  // Runs a padded step to its logits, which are returned.
  ops::View replay_forward(const PackedStep& packed, const DeviceStep& step);

 private:
  // Sampling has kernels that are much cheaper when nobody asks for more than the largest logit.
  enum Sampling { kPlainGreedy, kGeneral, kNumSamplings };
  // What of a step is tapped.
  enum TapSet { kNoTaps, kLayerEndAdds, kLayerEndTaps, kAllTaps, kNumTapSets };
  struct Captured {
    // Where it lies; graphs read taps through it.
    std::unique_ptr<DeviceStep> step;
    std::array<std::unique_ptr<ops::Graph>, kNumSamplings> graphs;
    std::unique_ptr<ops::Graph> forward;
    ops::View logits;  // that `forward` leaves
  };
  struct Bucket {
    int32_t rows = 0;                            // of logits: one a token
    std::array<Captured, kNumTapSets> captured;  // kNoTaps alone where there are no taps
  };

  // A step with taps, of a captured number of tokens, but for the macro-ops that it taps.
  struct TappedKind {
    int32_t max_q_len = 1;  // of the family
    bool has_trees = false;
    int32_t rows = 0;
    bool only_adds = false;
    std::vector<int32_t> encodes = {};
    auto operator<=>(const TappedKind&) const = default;
  };
  using Narrow = NarrowGraphs<TappedKind, Captured>;
  using TappedKey = Narrow::Key;
  // Graphs of sequences of at most `max_q_len` tokens: 1, or with drafts; with `has_trees` those
  // that are no trees.
  struct Family {
    int32_t max_q_len = 1;
    bool has_trees = false;
    std::vector<Bucket> buckets = {};  // ascending
  };

  GraphCache(const Parts& parts, const step::Capacity& capacity);

  void add_family(int32_t max_q_len, bool has_trees, const std::vector<int32_t>& rows);
  void add_drafted_families();
  // To so many tokens, as graphs of the family have them.
  void pad_to(const Family& family, int32_t rows, PackedStep& packed) const;
  Result<void> capture_step(const Family& family, int32_t rows, TapSet taps, Captured& captured);
  // How many sequences a padded step of so many tokens has.
  int64_t padded_seqs(const Family& family, int32_t rows) const;
  const Family* family_of(const PackedStep& packed) const;
  // The first that holds the step; null: none.
  static const Bucket* bucket_of(const Family& family, const PackedStep& packed);
  const Captured& find(const PackedStep& packed, const DeviceStep& step);
  static TapSet tap_set_of(const PackedTaps& taps);
  bool is_rare(const PackedTaps& taps) const;
  // Of a step with taps: what it uses, and what its wide graph has.
  static TappedKey key_of(const PackedStep& packed, const Family& family, const Bucket& bucket);
  TappedKey rare_key(const PackedStep& packed, const Family& family, const Bucket& bucket) const;
  tap::PassageSet wide_taps(const PackedTaps& taps) const;
  // The graph of it that runs the step.
  std::unique_ptr<ops::Graph>& graph_in(Captured& captured, const PackedStep& packed) const;
  Narrow::Found narrow_of(const PackedStep& packed, const TappedKey& key);
  Result<void> capture_tapped(const PackedStep& packed, const DeviceStep& step,
                              const TappedKey& key, Captured& captured);
  Sampling sampling_of(const PackedStep& packed) const;
  void run(const DeviceStep& step);

  const Parts parts_;
  const step::Capacity capacity_;
  const tap::Passages rare_passages_;
  const tap::Passages common_passages_;  // all others
  std::vector<Family> families_;         // ascending, those with trees last
  int32_t longest_beside_trees_ = 0;     // chain that is no tree, in their graphs
  Recurring<TappedKey, Captured> rare_;
  Narrow narrow_;
  PromptGraphs prompts_;
};

}  // namespace rudder::exec
