// Latches: which latch of a slot each gate of a config reads, and the op that fills it. Lowering
// asks it, op by op.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/op_spec.h"

namespace rudder::steer {

// What fills a latch: kScore or kSense.
struct LatchFiller {
  tap::TapOp op;
  Row vector;
  Selector selector;
};

class Latches {
 public:
  struct Latch {
    int32_t number = 0;
    // A score is of the vector times 2^-exponent, whose norm is in [0.5, 1), so that no sample is
    // above |h|: samples are summed in fixed point, clipped to a range (ops::latch_sample). A power
    // of two changes no bit of the score, nor of the gate's constants, which are scaled with it.
    int exponent = 0;
    std::optional<LatchFiller> filler;  // of one that no gate has read before
  };

  // Of the spec's gate, a prompt's score or a control. Gates that read the same share a latch;
  // kInvalidArgument with the spec's `where` when there are more than a slot has.
  Result<Latch> find(const OpSpec& spec);

 private:
  struct Known {
    Gate gate;  // of a control its target, gain and bounds do not count
    int exponent = 0;

    bool is_of(const Gate& other) const;
  };
  std::vector<Known> known_;  // by number
};

}  // namespace rudder::steer
