// Graphs: the captured graphs of one decoder. A graph replays in one launch what a step launches op
// by op, on the buffers and with the host values of its capture. The executor owns one Graphs for
// the model's steps; a proposer that guesses in passes owns one for these. Behind the start the
// executor's worker thread alone calls them. Graphs owns the captured graphs, the host memory that
// they point to, and counts of the steps that it has seen. The ops, the decoder and the step
// buffers outlive it.
//
// A GraphKey says what a step is (graph_shapes.h); steps of one key share a graph. A graph is
// captured at one of three times:
//
// - At the start: decode steps, without taps and with the usual ones. These graphs stay.
// - At the second step of its key: prompt steps, passes, and decode steps with rare taps. The first
//   such step runs op by op, and the backend sets up what no capture may contain. Of each kind of
//   step a number of keys is kept; the key that was used longest ago goes first.
// - When steps with the same few taps keep coming (NarrowRules): a narrow graph, which taps just
//   the macro-ops that these steps use. All graphs above are wide: they tap the macro-ops of a kind
//   in every layer, since nobody knows at the capture where programs will be; and a macro-op that
//   is tapped for no token is slower than a plain one. A step runs the narrowest graph that taps
//   what the step uses. Which graph runs changes no bit (tap.T1).
//
// The steps alone decide when something is captured, never a clock: ranks of a group, and stages,
// capture in the same steps. A capture behind the start takes the worker some milliseconds, which
// Setup tells. Before a graph is destroyed, Graphs waits for the device.
//
// A step makes three calls, all of them before the next step's: pad() while the step is packed,
// capture() once the step lies on the device, replay() for each of its iterations. Where a step
// waits for masks or has prompts, its graph is a part of the step, and ops behind it do the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/exec/graph_key.h"
#include "rudder/exec/pack.h"
#include "rudder/exec/sample_step.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

struct NarrowRules {
  int64_t least_steps = 32;   // that used the macro-ops, before a graph is captured of them
  int64_t spacing = 64;       // steps with taps from one capture to the next
  size_t most_graphs = 64;    // of a kind of step; the one used longest ago goes first,
  int64_t idle_steps = 1024;  // and not before so many steps with taps went by without it
  size_t most_counted = 256;  // steps that differ, likewise the oldest
};

// The part of a step behind the replay of its graph. It returns the step's logits. Null: the graph
// has all of the step.
using GraphRest = std::function<ops::View(const DeviceStep& step)>;

// What a Graphs captures, and of what; all that differs from one decoder to another.
struct GraphBinding {
  // The key of the graph that taps just what the step uses; none: the step runs op by op.
  std::function<std::optional<GraphKey>(PackedStep& packed)> key_of;
  // The key of the wide graph for steps of that key.
  std::function<GraphKey(const GraphKey& key)> widened;
  // Enqueues the part of a step that a graph of this key and end has.
  std::function<GraphRest(const GraphKey& key, GraphEnd end, DeviceStep& step)> launch;
  std::vector<GraphKey> at_start = {};  // in the order of their captures
  bool samples = true;                  // false: a stage that others are behind
};
// Of the model's steps. `readers` read the tokens that a step samples.
GraphBinding bind_steps(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity,
                        const SampleReaders& readers, bool samples);
// Of passes of a proposer, from the first layer to the sampled tokens; `capacity` is that of the
// passes.
GraphBinding bind_passes(ops::Ops& ops, model::Decoder& decoder, const step::Capacity& capacity);

class Graphs {
 public:
  Graphs(ops::Ops& ops, const step::Capacity& capacity, GraphBinding binding,
         const NarrowRules& rules = {})
      : ops_(ops), capacity_(capacity), binding_(std::move(binding)), rules_(rules) {}

  // Nothing else is in flight. An Error is the device's, here and below.
  Result<void> capture_at_start(StepBuffers& buffers, const ProgressFn& progress);

  // Pads the step where it may have a graph, and counts it. True: the step runs from a graph. What
  // the step makes for later ones is added to `setup`, here and in capture().
  bool pad(PackedStep& packed, Setup& setup);
  // Captures the graph that the step lacks, or has come back often enough for.
  Result<void> capture(const DeviceStep& step, Setup& setup);
  // Runs the step, or its next iteration. Returns its logits where the graph does not sample them;
  // they are empty where none are wanted.
  ops::View replay(const DeviceStep& step) const;

 private:
  struct Captured {
    std::unique_ptr<ops::Graph> graph;
    GraphRest rest;
  };
  // The graphs of one key, which differ in their ends. `step` is what they read: its taps point to
  // the key.
  struct Entry {
    std::optional<DeviceStep> step;
    std::array<Captured, kNumGraphEnds> ends;
    int64_t last_use = 0;
  };
  using Entries = std::map<GraphKey, Entry>;
  using Kept = Entries::value_type;
  struct Count {
    int64_t steps = 0;
    int64_t last_use = 0;
  };
  // What came behind the start of one kind of step.
  struct Shelf {
    Entries seen;  // keys of wide graphs, from their first step on
    int64_t num_seen = 0;
    bool has_forgotten = false;  // what is captured from now on may have been captured before

    Entries narrow;
    std::map<GraphKey, Count> counts;  // of steps with taps
    int64_t num_tapped = 0;            // such steps
    std::optional<int64_t> last_narrow = {};
  };
  // The step at hand.
  struct Asked {
    Shelf* shelf = nullptr;
    GraphKey used;
    GraphKey wide;
    GraphEnd end = GraphEnd::kGreedy;
    Kept* kept = nullptr;  // null: what was seen and is not captured yet, or not looked up
  };

  GraphEnd end_of(StepKind kind, const PackedStep& packed) const;
  Kept* find_narrow();
  bool is_due(int32_t num_tapped) const;
  Result<Kept*> make_narrow();
  Result<void> make_room();
  Result<void> await_device();
  void prepare(Kept& kept, const DeviceStep& step) const;
  Result<void> capture_end(Kept& kept, GraphEnd end);

  ops::Ops& ops_;
  const step::Capacity capacity_;
  const GraphBinding binding_;
  const NarrowRules rules_;
  Entries at_start_;
  std::array<Shelf, kNumStepKinds> shelves_;
  Asked asked_;
};

// Runs a pass, or its next iteration, to its sampled tokens, if any; `graphs`: from its graph.
void run_packed(ops::Ops& ops, model::Decoder& decoder, const Graphs* graphs, DeviceStep& step);

}  // namespace rudder::exec
