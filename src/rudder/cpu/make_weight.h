// What the fast backend makes of the parts of a linear weight: panels of codes where it has
// products of the format, panels of numbers where not, and both where the parts differ.
#pragma once

#include <span>

#include "rudder/cpu/fast_weight.h"

namespace rudder::cpu {

// Codes are kept by a backend that computes in bf16; one in f32 multiplies out, and rounds nothing.
Result<ops::WeightFormat> stored_format_of(const ops::WeightFormat& file, tensor::DType dtype);

// Stacks the parts along `out`. `format` of what comes is the first part's, as it is stored.
Result<ops::LinearWeight> make_weight(std::span<const ops::LinearPart> parts, tensor::DType dtype,
                                      ThreadPool& pool);

}  // namespace rudder::cpu
