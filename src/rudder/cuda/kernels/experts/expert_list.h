// ExpertList: which rows go through which expert, made on the device, so that a captured step
// serves any choice. A *pair* is a token and one of the experts that it chose, by number t * k + j.
// The pairs lie by expert; a *run* is up to `run_pairs` of one expert, what a tile of a product
// takes. Plain data; any thread.
#pragma once

#include <cstdint>

namespace rudder::cuda {

struct ExpertRun {
  int32_t expert;
  int32_t first;  // of `pairs`
  int32_t count;
  int32_t unused;
};
static_assert(sizeof(ExpertRun) == 16);

struct ExpertList {
  ExpertRun* runs = nullptr;    // [most_runs()]
  int32_t* num_runs = nullptr;  // [1]
  int32_t* pairs = nullptr;     // [num_pairs]
  int32_t* offsets = nullptr;   // [num_pairs] of a pair among those of its expert
  // [experts + 1] zeros between launches: how many pairs an expert has; blocks that are done.
  int32_t* counts = nullptr;
  int64_t* hits = nullptr;  // [2 * kHitSizes]: lists and experts that they name, by tokens
  int32_t run_pairs = 0;
};

inline constexpr int kHitSizes = 24;  // of ExpertList.hits: of up to 2^i tokens

// Runs that so many pairs may make.
constexpr int64_t most_runs(int64_t pairs, int64_t experts, int64_t run_pairs) {
  return (pairs < experts ? pairs : experts) + pairs / run_pairs;
}

}  // namespace rudder::cuda
