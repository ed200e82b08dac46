// Which of a layer's five tappable macro-ops passes a site, as a bit, and sets of such macro-ops. A
// step gives taps only to the macro-ops whose points its programs and captures use
// (docs/contracts/taps.md). Plain values; any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/tap/site.h"

namespace rudder::tap {

using Passages = uint8_t;
inline constexpr Passages kLayerEnd = 1;     // adds the MLP branch and norms for the next layer
inline constexpr Passages kLayerMiddle = 2;  // adds the attention branch and norms for the MLP
inline constexpr Passages kActivation = 4;   // the MLP's
inline constexpr Passages kMixerEnd = 8;     // nothing but the taps, on what the mixer made
// No site: the macro-op that captures attention patterns, beside the mixer.
inline constexpr Passages kMixerWeights = 16;
inline constexpr Passages kRouter = 32;  // chooses experts
inline constexpr Passages kAllPassages =
    kLayerEnd | kLayerMiddle | kActivation | kMixerEnd | kRouter;

constexpr Passages passage(Site site) {
  switch (site) {
    case Site::kAttnZ:
      return kMixerEnd;
    case Site::kAttnOut:
    case Site::kAttnPostMix:
    case Site::kAttnResMix:
    case Site::kResidMid:
    case Site::kMlpIn:
      return kLayerMiddle;
    case Site::kRouterLogits:
    case Site::kRoutedExperts:
      return kRouter;
    case Site::kMlpAct:
      return kActivation;
    default:
      return kLayerEnd;
  }
}

// Of layers: an end is that of the layer in front.
inline constexpr int32_t kPassagesOfLayer = 6;

// Points of one stage are tapped inside one op, where the tokens of a step have no order: a block's
// output together with the next one's input and their norm, and so on (tap.T10).
constexpr int32_t stage_of(Point point) {
  const int32_t first = kPassagesOfLayer * point.layer;  // behind it is the one without a site
  switch (point.site) {
    case Site::kResidPre:
    case Site::kAttnIn:
      return first;
    case Site::kAttnZ:
      return first + 2;
    case Site::kAttnOut:
    case Site::kAttnPostMix:
    case Site::kAttnResMix:
    case Site::kResidMid:
    case Site::kMlpIn:
      return first + 3;
    case Site::kRouterLogits:
    case Site::kRoutedExperts:
      return first + 4;
    case Site::kMlpAct:
      return first + 5;
    default:
      return first + kPassagesOfLayer;
  }
}

// Macro-ops of a model's layers that have taps.
class PassageSet {
 public:
  PassageSet() = default;
  // Those of these kinds, in every layer.
  static PassageSet all(Passages kinds, int32_t num_layers);

  // The one that passes the point.
  void add(Point point);
  // The one that captures the layer's attention patterns.
  void add_patterns(int32_t layer);
  void add(const PassageSet& others);
  void clear();

  bool has(Point point) const { return has_stage(stage_of(point)); }
  bool has_patterns(int32_t layer) const { return has_stage(patterns_of(layer)); }
  bool contains(const PassageSet& others) const;
  Passages kinds() const { return kinds_; }
  int32_t size() const;
  auto operator<=>(const PassageSet&) const = default;

 private:
  static int32_t patterns_of(int32_t layer) { return kPassagesOfLayer * layer + 1; }
  bool has_stage(int32_t stage) const {
    const auto word = static_cast<size_t>(stage) / 64;
    return word < stages_.size() && (stages_[word] >> (stage % 64) & 1) != 0;
  }
  void add_stage(int32_t stage);

  Passages kinds_ = 0;
  std::vector<uint64_t> stages_;  // a bit each; the last word is not 0
};

}  // namespace rudder::tap
