// DoRA: a product whose rows are scaled to trained lengths, y = m / ||W + s B A|| (W x + s B A x),
// each of the magnitude m and the norm one number an output. Source: Liu et al., "DoRA:
// Weight-Decomposed Low-Rank Adaptation", arXiv 2402.09353, and Hugging Face peft,
// tuners/lora/dora.py, DoraLinearLayer: the bias is not scaled. Pure functions; any thread.
#pragma once

#include "rudder/base/result.h"
#include "rudder/lora/adapter.h"
#include "rudder/lora/base_tensors.h"

namespace rudder::lora {

// Sets the gains and offsets of `delta`, whose scale, a and b are set. `magnitudes`: [out] of f32,
// f16 or bf16. Norms are taken of fp32 numbers, in fp64: out * in * rank multiplications. An Error
// has no place yet: a row of W + s B A without length, or a gain that is not finite.
Result<void> set_gains(const BaseTensors& base, const tensor::View& magnitudes, Delta& delta);

}  // namespace rudder::lora
