// The macro-op encode on the CPU: gathers the tokens that ask for it, a batch of rows and one
// dictionary at a time, and runs their programs. A row's result does not depend on its batch: each
// feature is one sum in fp64. Scratch memory is the tap table's.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/base/thread_pool.h"
#include "rudder/cpu/tap_program.h"
#include "rudder/ops/tap_args.h"

namespace rudder::cpu {

// x is f32. `pool` may be null.
void encode_rows(const ops::EncodeArgs& args, ThreadPool* pool);

// What read_features() shares with it.
void normalise_row(tap::FeatureNorm norm, const float* h, int64_t width, float* out);
// Of a normed row, with its activation, but for the k largest.
float feature_of(const DictionaryView& dictionary, int64_t feature, const float* normed);
// Keeps the k largest, of equal ones the first; the others become 0.
void keep_largest(std::span<float> values, int32_t k);

}  // namespace rudder::cpu
