// GraphCache: captures decode steps as graphs when the executor starts, and replays them: one
// launch in place of one for each op. The executor makes the cache and owns it; its worker thread
// alone calls it behind the start. A graph reads a step where StepBuffers puts steps of its size,
// so the same graph runs every step of that size.
//
// A step is a decode step where every sequence gives one token and wants logits. The cache pads it
// to the next captured number of sequences and replays it. PromptGraphs has the steps with prompts.
// Every other step runs op by op. A step that waits for masks replays a graph of the forward pass
// alone; the executor then samples with an op of its own.
//
// Where sequences have drafts, a step gives at most as many tokens as it runs, and wants the logits
// of all of them. The cache pads such a step to the next captured number of tokens. A family of
// graphs is made for sequences of up to so many tokens; a step takes the first family whose
// sequences may be as long as its own. Steps with trees have a family of their own, where the
// executor takes trees. A short chain beside trees is in no tree there; a long one is a tree of one
// path. Where the executor's proposer guesses trees, or the host makes nothing but trees, steps of
// chains take that family too.
//
// Where the executor has taps, every graph is made for four tap sets: steps without taps; steps
// whose programs only add vectors at layer ends; steps with any taps at layer ends; all other steps
// (docs/contracts/exec.md). Where only prompts are captured there is one set, and the few decode
// steps with captures run op by op. Beside the sets with taps are narrow graphs (narrow_graphs.h),
// for steps that tap few macro-ops and come back often.
//
// Rare taps have graphs of their own: those of steps that tap what mixers make, and of steps that
// encode. The points that are tapped decide what such a graph launches, so the cache cannot capture
// it at the start. The first step with some rare taps runs op by op. At the second such step the
// cache captures a graph, while the server works. It keeps the graph until many others were used
// since. The graph is a wide one: it taps in all layers the kinds of macro-ops that the step taps
// in some layers.
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
#include "rudder/exec/sample_step.h"
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
    SampleReaders readers = {};
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
