// Binds a dictionary that reads a row without its norm's gain to a model: the model's row is x g,
// so encoder and skip are divided by g, column by column, and read that row as they would have read
// x. Load time; any thread.
#pragma once

#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/features/dictionary.h"
#include "rudder/steer/config.h"
#include "rudder/tap/norm_gain.h"

namespace rudder::steer {

// Gains below it, in magnitude, are refused: 1 / g would be above what a number of a file may be.
// Above it nothing is lost: the model's row holds x g as precisely as it would hold x, in f32 and
// in bf16.
inline constexpr float kSmallestGain = 1e-6f;

// `dictionary` has InputGain::kRemoved and fits the model. The input bias, which is subtracted from
// x, becomes part of the encoder's biases. Errors, at `where`: a gain that is too small or not
// known, a norm of the dictionary's own, which does not commute with the gain, an autoencoder,
// whose output would lack the gain, a quotient above kMaxMagnitude.
Result<std::shared_ptr<const features::Dictionary>> fold_gain(
    const features::Dictionary& dictionary, const tap::NormGain& gain, const std::string& where);

// The model has the points of every dictionary, with their widths, and what reads a row without its
// norm's gain is folded. An Error of check_fits or fold_gain at the set's source.
Result<void> bind_to_model(features::DictionarySet& set, const Model& model);

}  // namespace rudder::steer
