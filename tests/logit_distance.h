// How far distributions that two backends predict are from each other. Any thread.
#pragma once

#include <cstddef>
#include <span>

namespace rudder::golden {

// How far the rows of `actual` are from those of `expected`.
struct Distance {
  double mean_kl = 0;    // of softmax(expected) || softmax(actual), less the `uncounted` largest
  double agreement = 0;  // share of rows with the largest logit at the same token
};
Distance distance(std::span<const float> expected, std::span<const float> actual, size_t vocab,
                  size_t uncounted = 0);

}  // namespace rudder::golden
