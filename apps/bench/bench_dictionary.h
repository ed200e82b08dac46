// The dictionaries that `rudder bench steering` clamps features of, in our own format.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/base/result.h"
#include "rudder/tap/site.h"

namespace rudder::apps {

// Random rows, at resid_post of the layer in the middle.
struct BenchDictionary {
  int32_t num_features = 0;
  int32_t k = 0;  // topk; 0: jumprelu

  std::string name() const;
};
inline constexpr BenchDictionary kBenchColumns = {.num_features = 64};
// As many active features as published ones have.
inline constexpr int32_t kBenchActive = 64;

// What readouts encode rows by.
inline constexpr BenchDictionary kBenchRead = {.num_features = 16384};

// In `folder`, which is made.
Result<void> write_bench_dictionary(const BenchDictionary& dictionary,
                                    const tap::Geometry& geometry, const std::string& folder);

// The body of a request that sets the dictionary's first `count` features: each of them reads its
// encoder row, and adds its decoder row.
std::string feature_clamps(const BenchDictionary& dictionary, int32_t count);
// The body that adds the bench module's vector where the dictionary's first feature is active.
std::string gated_add(const BenchDictionary& dictionary, const tap::Geometry& geometry);
// The value of `stop_when`: the same feature, at a value that it never has.
std::string watched_feature(const BenchDictionary& dictionary);
// Of one whose row is what the dictionary makes of it.
std::string reconstruction(const BenchDictionary& dictionary);

}  // namespace rudder::apps
