// Which of a layer's three tappable macro-ops passes a site, as a bit. A step gives taps only to
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
inline constexpr Passages kAllPassages = kLayerEnd | kLayerMiddle | kActivation;

constexpr Passages passage(Site site) {
  switch (site) {
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

// Whether the site is the residual stream itself; most steering adds to it.
constexpr bool is_residual(Site site) {
  return site == Site::kResidPre || site == Site::kResidMid || site == Site::kResidPost;
}

}  // namespace rudder::tap
