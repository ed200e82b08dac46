// How the products of expert_product.h are cut up: few pairs of an expert in a tile, so that what
// is read of W decides, or many. An element has the same bits in either. Plain data; any thread.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// Of a tile, where so few experts are hit that their rows of W are cut small, so that each
// multiprocessor has as many of them.
inline constexpr int32_t kFewestPairs = 8;
inline constexpr int32_t kFewPairs = 64;    // of a tile, at most
inline constexpr int32_t kManyPairs = 192;  // of a tile

// Of the runs of a list for so many tokens, which choose `k` of `experts` each. Few tokens leave
// room for more of W on its way; what falls on one expert beyond a run is another tile, whose W is
// in L2.
constexpr int32_t run_pairs(int64_t tokens, int64_t k, int64_t experts) {
  const int64_t mean = tokens * k / experts;  // of an expert
  if (tokens <= 8) return kFewestPairs;
  if (mean <= 4) return 16;
  if (mean <= 16) return 32;
  return mean <= 48 ? kFewPairs : kManyPairs;
}

}  // namespace rudder::cuda
