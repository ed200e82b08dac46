// Which op of a layer passes a site (docs/contracts/taps.md), as a bit: a step taps the ops that
// its tokens have something to do at, and leaves the others plain. Plain values; any thread.
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

// Whether what stands there is the residual itself, which most steering adds to.
constexpr bool is_residual(Site site) {
  return site == Site::kResidPre || site == Site::kResidMid || site == Site::kResidPost;
}

}  // namespace rudder::tap
