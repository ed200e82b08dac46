// The macro-op read_features on the CPU: features of rows that are given, of one dictionary. Each
// is the sum in fp64 that encode() makes. Called by a reader, on its thread.
#pragma once

#include "rudder/base/thread_pool.h"
#include "rudder/ops/feature_args.h"

namespace rudder::cpu {

// x is f32. `pool` may be null.
void read_features(const ops::ReadFeaturesArgs& args, ThreadPool* pool);

}  // namespace rudder::cpu
