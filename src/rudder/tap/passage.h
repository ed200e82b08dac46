// Which of a layer's four tappable macro-ops passes a site, as a bit. A step gives taps only to
// the macro-ops whose points its programs and captures use (docs/contracts/taps.md). Plain values;
// any thread.
#pragma once

#include <cstdint>

#include "rudder/tap/site.h"

namespace rudder::tap {

using Passages = uint8_t;
inline constexpr Passages kLayerEnd = 1;     // adds the MLP branch and norms for the next layer
inline constexpr Passages kLayerMiddle = 2;  // adds the attention branch and norms for the MLP
inline constexpr Passages kActivation = 4;   // the MLP's
inline constexpr Passages kMixerEnd = 8;     // nothing but the taps, on what the mixer made
inline constexpr Passages kAllPassages = kLayerEnd | kLayerMiddle | kActivation | kMixerEnd;
// No site: the macro-op that captures attention patterns, beside the mixer.
inline constexpr Passages kMixerWeights = 16;

constexpr Passages passage(Site site) {
  switch (site) {
    case Site::kAttnZ:
      return kMixerEnd;
    case Site::kAttnOut:
    case Site::kResidMid:
    case Site::kMlpIn:
      return kLayerMiddle;
    case Site::kMlpAct:
      return kActivation;
    default:
      return kLayerEnd;
  }
}

// Points of one stage are tapped inside one op, where the tokens of a step have no order: a block's
// output together with the next one's input and their norm, and so on (tap.T10).
constexpr int32_t stage_of(Point point) {
  switch (point.site) {
    case Site::kResidPre:
    case Site::kAttnIn:
      return 4 * point.layer;
    case Site::kAttnZ:
      return 4 * point.layer + 1;
    case Site::kAttnOut:
    case Site::kResidMid:
    case Site::kMlpIn:
      return 4 * point.layer + 2;
    case Site::kMlpAct:
      return 4 * point.layer + 3;
    default:
      return 4 * point.layer + 4;
  }
}

// Whether the site is the residual stream itself; most steering adds to it.
constexpr bool is_residual(Site site) {
  return site == Site::kResidPre || site == Site::kResidMid || site == Site::kResidPost;
}

}  // namespace rudder::tap
