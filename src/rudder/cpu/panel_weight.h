// A linear weight in panels of f32 or bf16 (layout: kernels.h).
#pragma once

#include <memory>
#include <span>

#include "rudder/cpu/fast_weight.h"

namespace rudder::cpu {

// Stacks the parts along `out`; values, those of low-bit parts times their scales, are rounded to
// `element`.
Result<std::shared_ptr<const FastWeight>> pack_panels(std::span<const ops::LinearPart> parts,
                                                      Element element, ThreadPool& pool);

}  // namespace rudder::cpu
