// Watch: a number that the engine itself reads from the captured row of each generated token: the
// row's product with a vector, or the value of a dictionary's feature. StopWhen: the end of an
// answer that hangs on it. Plain values, immutable once shared; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "rudder/steer/op_spec.h"
#include "rudder/tap/capture.h"

namespace rudder::steer::capture {

struct Watch {
  tap::CapturePoint point;
  Row vector;  // of a probe, as wide as the point's row
  std::shared_ptr<const features::Dictionary> dictionary =
      {};  // not null: the value of its `feature`
  int32_t feature = 0;

  std::string_view kind() const { return dictionary == nullptr ? "probe" : "feature"; }
};

// h . vector, or the feature's value of h; sums in double precision. `row` is h [width].
double watch_score(const Watch& watch, std::span<const float> row);

// The answer ends with the first token that completes `count` generated tokens in a row whose
// scores are above `above`. A score that is not a number is not above anything.
struct StopWhen {
  Watch watch;
  double above = 0;
  int32_t count = 1;
};

// How far a choice has come towards that end. It sees the choice's generated tokens in order.
class StopCount {
 public:
  // The captured row of the token at `position`; one that was read before changes nothing.
  void read(const StopWhen& stop, int32_t position, std::span<const float> row);
  bool is_met(const StopWhen& stop) const { return in_row_ >= stop.count; }

 private:
  int32_t next_position_ = 0;
  int32_t in_row_ = 0;
};

}  // namespace rudder::steer::capture
