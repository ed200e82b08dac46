// The dictionary that `rudder bench steering` clamps features of: random rows, in our own format.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/base/result.h"
#include "rudder/tap/site.h"

namespace rudder::apps {

inline constexpr int32_t kBenchFeatures = 64;
inline constexpr const char* kBenchDictionary = "bench";

// A jumprelu dictionary of kBenchFeatures at resid_post of the layer in the middle, in `folder`,
// which is made.
Result<void> write_bench_dictionary(const tap::Geometry& geometry, const std::string& folder);

// The body of a request that sets its first `count` features: each of them reads its encoder row,
// and adds its decoder row.
std::string feature_clamps(int32_t count);

}  // namespace rudder::apps
