// Features of several rows at once: what encode() gives, in fp32 and many times as fast, because an
// encoder row is read once for several rows. Pure functions; any thread.
//
// An error of fp32's rounding remains: of values, and so of which features at a threshold are
// active. A row's result does not depend on the rows beside it.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/features/dictionary.h"

namespace rudder::features {

// `rows` is [n, d_in], `features` [n, num_features].
void encode_rows(const Dictionary& dictionary, std::span<const float> rows,
                 std::span<float> features);

// Of these features alone, whose encoder rows alone are read: `values` is [n, which]. Of kTopK a
// feature depends on all others: not of such.
void encode_columns(const Dictionary& dictionary, std::span<const float> rows,
                    std::span<const int32_t> which, std::span<float> values);

}  // namespace rudder::features
