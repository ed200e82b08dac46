#include "rudder/features/dictionary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rudder/base/check.h"

namespace rudder::features {
namespace {

// Several sums at once, in an order that depends on the width alone.
double row_product(std::span<const double> a, const float* b) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= a.size(); i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * double{b[i + j]};
  }
  for (; i < a.size(); ++i) sums[i % kSums] += a[i] * double{b[i]};
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

// `shift` is the part of encoder_j . x~ that the caller's y lacks.
FeatureForm form_of(const Dictionary& dictionary, size_t feature, double shift) {
  FeatureForm form;
  form.bias = dictionary.encoder_bias[feature] - shift;
  if (dictionary.activation == Activation::kJumpRelu) {
    form.gate = dictionary.threshold[feature] - form.bias;
  }
  if (dictionary.activation == Activation::kGated) {
    form.scale = std::exp(double{dictionary.gate_log_scale[feature]});
    form.bias = dictionary.encoder_bias[feature] - form.scale * shift;
    form.gate = shift - double{dictionary.gate_bias[feature]};
  }
  return form;
}

Result<void> check_rows(const tap::Geometry& geometry, tap::Point point, int32_t width,
                        std::string_view what, const std::string& where) {
  if (Result<void> known = geometry.check(point); !known) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the dictionary {}: {}", what, known.error().message), where);
  }
  if (geometry.width(point) == width) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the dictionary {} rows of {} elements; {} of layer {} has {}: {}", what,
                          width, tap::site_name(point.site), point.layer, geometry.width(point),
                          geometry.fits(point.layer, width, false)),
              where);
}

}  // namespace

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return "relu";
    case Activation::kJumpRelu:
      return "jumprelu";
    case Activation::kTopK:
      return "topk";
    case Activation::kGated:
      return "gated";
  }
  RUDDER_CHECK(false, "activation {}", static_cast<int>(activation));
}

double FeatureForm::value(double y) const {
  return y > gate ? std::max(scale * y + bias, 0.0) : 0.0;
}

void keep_largest(std::span<float> values, int32_t k) {
  if (static_cast<size_t>(k) >= values.size()) return;
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_larger = [&](int32_t a, int32_t b) {
    const float value_a = values[static_cast<size_t>(a)];
    const float value_b = values[static_cast<size_t>(b)];
    return value_a > value_b || (value_a == value_b && a < b);
  };
  std::nth_element(order.begin(), order.begin() + k, order.end(), is_larger);
  for (auto at = order.begin() + k; at != order.end(); ++at) values[static_cast<size_t>(*at)] = 0;
}

FeatureForm Dictionary::form(int32_t feature) const {
  double shift = 0;
  if (!input_bias.empty()) {
    const std::vector<double> wide(input_bias.begin(), input_bias.end());
    shift = row_product(wide, encoder.get() + int64_t{feature} * d_in);
  }
  return form_of(*this, static_cast<size_t>(feature), shift);
}

FeatureForm Dictionary::form_of_input(int32_t feature) const {
  return form_of(*this, static_cast<size_t>(feature), 0);
}

NormedRow normed_row(tap::FeatureNorm norm, std::span<const float> x) {
  NormedRow normed;
  normed.values.assign(x.begin(), x.end());
  const auto count = static_cast<double>(x.size());
  if (norm == tap::FeatureNorm::kConstantNorm) {
    double squares = 0;
    for (const double value : normed.values) squares += value * value;
    normed.scale = std::sqrt(squares / count);
    if (normed.scale > 0) {
      for (double& value : normed.values) value /= normed.scale;
    }
  } else if (norm == tap::FeatureNorm::kLayerNorm) {
    normed.mean = std::accumulate(normed.values.begin(), normed.values.end(), 0.0) / count;
    double squares = 0;
    for (double& value : normed.values) {
      value -= normed.mean;
      squares += value * value;
    }
    normed.scale = x.size() > 1 ? std::sqrt(squares / (count - 1)) : 0;
    for (double& value : normed.values) value /= normed.scale + tap::kLayerNormEpsilon;
  }
  return normed;
}

void encode(const Dictionary& dictionary, std::span<const float> x, std::span<float> features) {
  RUDDER_CHECK(std::ssize(x) == dictionary.d_in && std::ssize(features) == dictionary.num_features,
               "{} elements, {} features", x.size(), features.size());
  std::vector<double> row = normed_row(dictionary.norm, x).values;
  for (size_t i = 0; i < dictionary.input_bias.size(); ++i) row[i] -= dictionary.input_bias[i];
  for (size_t j = 0; j < features.size(); ++j) {
    const double y = row_product(row, dictionary.encoder.get() + j * row.size());
    features[j] = static_cast<float>(dictionary.form_of_input(static_cast<int32_t>(j)).value(y));
  }
  if (dictionary.activation == Activation::kTopK) keep_largest(features, dictionary.k);
}

void decode(const Dictionary& dictionary, std::span<const float> features, std::span<const float> x,
            int32_t write_index, std::span<float> out) {
  RUDDER_CHECK(std::ssize(out) == dictionary.d_out &&
                   std::ssize(features) == dictionary.num_features &&
                   std::ssize(x) == dictionary.d_in,
               "{} features to {} elements", features.size(), out.size());
  const auto width = static_cast<size_t>(dictionary.d_out);
  const float* bias = dictionary.output_bias.data() + static_cast<size_t>(write_index) * width;
  std::vector<double> sums(bias, bias + width);
  for (int32_t j = 0; j < dictionary.num_features; ++j) {
    const double value = features[static_cast<size_t>(j)];
    if (value == 0) continue;
    const tap::Row row = dictionary.decoder_row(j, write_index);
    for (size_t i = 0; i < width; ++i) sums[i] += value * double{row.values()[i]};
  }
  const NormedRow normed = normed_row(dictionary.norm, x);
  for (double& sum : sums) sum = sum * normed.scale + normed.mean;
  if (!dictionary.skip.empty() && write_index == 0) {
    const std::vector<double> wide(x.begin(), x.end());
    for (size_t i = 0; i < width; ++i) {
      sums[i] += row_product(wide, dictionary.skip.data() + i * x.size());
    }
  }
  std::ranges::transform(sums, out.begin(), [](double sum) { return static_cast<float>(sum); });
}

Result<void> check_fits(const Dictionary& dictionary, const tap::Geometry& geometry,
                        const std::string& where) {
  RUDDER_TRY_VOID(check_rows(geometry, dictionary.read, dictionary.d_in, "reads", where));
  for (int32_t i = 0; i < dictionary.num_writes; ++i) {
    RUDDER_TRY_VOID(
        check_rows(geometry, dictionary.write_point(i), dictionary.d_out, "writes", where));
  }
  return {};
}

const std::shared_ptr<const Dictionary>* DictionarySet::at_layer(int32_t layer) const {
  const auto found = std::ranges::find_if(
      layers, [&](const auto& dictionary) { return dictionary->read.layer == layer; });
  return found == layers.end() ? nullptr : &*found;
}

}  // namespace rudder::features
