#include "rudder/steer/features/fold_gain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::steer {
namespace {

// Without the quotients, whose size is checked where they are made.
Result<void> check_foldable(const features::Dictionary& dictionary, const tap::NormGain& gain,
                            const std::string& where) {
  if (dictionary.norm != tap::FeatureNorm::kNone) {
    return fail(ErrorCode::kUnsupported,
                "it reads the row without the model's gain and norms it again: the two do not "
                "commute",
                where);
  }
  if (dictionary.is_autoencoder()) {
    return fail(ErrorCode::kUnsupported,
                "it reads the row without the norm's gain and would write it without, too: only "
                "what writes elsewhere can read that row",
                where);
  }
  if (gain.values.empty()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("it reads the row without the norm's gain, which is not known of layer "
                            "{} of this model",
                            dictionary.read.layer),
                where);
  }
  RUDDER_CHECK(std::ssize(gain.values) == dictionary.d_in, "{} gains of {} columns",
               gain.values.size(), dictionary.d_in);
  // Written so that NaN is one of them.
  const auto small = std::ranges::find_if(
      gain.values, [](float g) { return !(std::abs(g) >= kSmallestGain && std::isfinite(g)); });
  if (small == gain.values.end()) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("it reads the row without the norm's gain, and column {} of the model's "
                          "'{}' multiplies by {}: what the dictionary reads there is not in the "
                          "model's row",
                          small - gain.values.begin(), gain.tensor, *small),
              where);
}

// Each row of `from` divided by the gain; its size is a multiple of the row's.
Result<void> divide(std::span<const float> from, const tap::NormGain& gain, std::string_view what,
                    const std::string& where, std::span<float> to) {
  const size_t width = gain.values.size();
  for (size_t i = 0; i < from.size(); ++i) {
    const double quotient = double{from[i]} / double{gain.values[i % width]};
    if (!(std::abs(quotient) <= kMaxMagnitude)) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("column {} of row {} of its {} is {} when divided by column {} of the "
                      "model's '{}', above {}",
                      i % width, i / width, what, quotient, i % width, gain.tensor, kMaxMagnitude),
          where);
    }
    to[i] = static_cast<float>(quotient);
  }
  return {};
}

// What the input bias takes from each y_j goes into the biases that stand behind it.
void fold_input_bias(const features::Dictionary& dictionary, features::Dictionary& out) {
  if (dictionary.input_bias.empty()) return;
  for (int32_t j = 0; j < dictionary.num_features; ++j) {
    const auto feature = static_cast<size_t>(j);
    const features::FeatureForm form = dictionary.form(j);
    out.encoder_bias[feature] = static_cast<float>(form.bias);
    if (dictionary.activation == features::Activation::kGated) {
      out.gate_bias[feature] = static_cast<float>(-form.gate);
    }
  }
  out.input_bias.clear();
}

}  // namespace

Result<std::shared_ptr<const features::Dictionary>> fold_gain(
    const features::Dictionary& dictionary, const tap::NormGain& gain, const std::string& where) {
  RUDDER_CHECK(dictionary.input_gain == features::InputGain::kRemoved,
               "it reads the model's own row");
  RUDDER_TRY_VOID(check_foldable(dictionary, gain, where));
  features::Dictionary out = dictionary;
  out.input_gain = features::InputGain::kFolded;
  fold_input_bias(dictionary, out);
  const auto count =
      static_cast<size_t>(dictionary.num_features) * static_cast<size_t>(dictionary.d_in);
  auto encoder = std::make_shared_for_overwrite<float[]>(count);
  RUDDER_TRY_VOID(
      divide({dictionary.encoder.get(), count}, gain, "encoder", where, {encoder.get(), count}));
  out.encoder = std::move(encoder);
  RUDDER_TRY_VOID(divide(dictionary.skip, gain, "skip", where, out.skip));
  return std::make_shared<const features::Dictionary>(std::move(out));
}

Result<void> bind_to_model(features::DictionarySet& set, const Model& model) {
  for (auto& dictionary : set.layers) {
    RUDDER_TRY_VOID(check_fits(*dictionary, model.geometry, set.source));
    if (dictionary->input_gain != features::InputGain::kRemoved) continue;
    const auto layer = static_cast<size_t>(dictionary->read.layer);
    const bool is_known = layer < model.mlp_gains.size();
    const tap::NormGain gain = is_known ? model.mlp_gains[layer] : tap::NormGain{};
    RUDDER_TRY(dictionary, fold_gain(*dictionary, gain, set.source));
  }
  return {};
}

}  // namespace rudder::steer
