// A linear weight whose codes stay as its file has them, in panels (layout: code_panels.h).
#pragma once

#include <memory>
#include <span>

#include "rudder/cpu/fast_weight.h"

namespace rudder::cpu {

// Whether there are products of the format's codes: I8 and U4, whose table has multiples of one
// number, with scales of a row's own for 16, a multiple of 32 or all of its inputs.
bool keeps_codes(const ops::WeightFormat& format);

// Stacks the parts, of one such format, along `out`.
Result<std::shared_ptr<const FastWeight>> pack_codes(std::span<const ops::LinearPart> parts,
                                                     ThreadPool& pool);

}  // namespace rudder::cpu
