// GraphKey: what a captured step or pass is. Steps of equal keys share a graph: a key has all that
// decides which kernels a step launches and where the step lies in StepBuffers. It also says what a
// step is padded to before it runs from the graph. Plain data.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "rudder/tap/passage.h"

namespace rudder::exec {

enum class StepKind : uint8_t {
  kDecode,  // every token has a row of logits
  kPrompt,  // some tokens have none
  kPass     // of a proposer
};
inline constexpr size_t kNumStepKinds = 3;

// All but the macro-ops that run with taps. A graph may run steps of its shape that use fewer.
struct GraphShape {
  StepKind kind = StepKind::kDecode;
  // The padded step. A prompt step has as many rows of logits as it happens to have: its graph ends
  // before them, and `rows` is 0.
  int32_t tokens = 0;
  int32_t seqs = 0;
  int32_t rows = 0;
  int32_t max_q_len = 0;     // of sequences that are no trees; attention chooses its kernel by it
  bool has_trees = false;    // words of ancestors are read
  bool goes_on = false;      // tokens go on from rows that a draft head left
  bool only_adds = false;    // ops::TapBatch; false without taps
  bool adapts = false;       // some token has an adapter
  bool one_adapter = false;  // all that have one have the same
  std::vector<int32_t> encodes = {};  // model::ForwardBatch

  auto operator<=>(const GraphShape&) const = default;
};

struct GraphKey {
  GraphShape shape = {};
  std::optional<tap::PassageSet> tapped = {};  // none: the step has no taps

  auto operator<=>(const GraphKey&) const = default;
};

// What a graph has behind the forward pass. Sampling has kernels that are much cheaper when no
// sequence asks for more than the likeliest token.
enum class GraphEnd : uint8_t {
  kGreedy,   // samples, and every sequence is plain greedy; or there is nothing to sample
  kSampled,  // samples in any way
  kLogits    // leaves the logits to ops behind the graph
};
inline constexpr size_t kNumGraphEnds = 3;

}  // namespace rudder::exec
