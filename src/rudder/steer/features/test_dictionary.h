// A random dictionary of any activation and norm, for the tests of this room and of others.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rudder/features/dictionary.h"

namespace rudder::steer {

struct DictionaryAsk {
  int32_t width = 4;
  int32_t num_features = 6;
  tap::Point read = {1, tap::Site::kResidPost};
  tap::Point write = {1, tap::Site::kResidPost};
  int32_t num_writes = 1;
  features::Activation activation = features::Activation::kRelu;
  tap::FeatureNorm norm = tap::FeatureNorm::kNone;
  bool subtracts_bias = false;
};

inline features::Dictionary random_dictionary(const DictionaryAsk& ask, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  const auto list = [&](int64_t count, float scale) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = scale * normal(engine);
    return values;
  };
  const auto shared = [&](int64_t count, float scale) {
    const std::vector<float> values = list(count, scale);
    auto buffer = std::make_shared<float[]>(values.size());
    std::copy(values.begin(), values.end(), buffer.get());
    return buffer;
  };
  features::Dictionary dictionary;
  dictionary.d_in = dictionary.d_out = ask.width;
  dictionary.num_features = ask.num_features;
  dictionary.read = ask.read;
  dictionary.write = ask.write;
  dictionary.num_writes = ask.num_writes;
  dictionary.activation = ask.activation;
  dictionary.k = 2;
  dictionary.norm = ask.norm;
  const int64_t size = int64_t{ask.width} * ask.num_features;
  const float unit = 1 / std::sqrt(static_cast<float>(ask.width));
  dictionary.encoder = shared(size, unit);
  dictionary.decoder = shared(size * ask.num_writes, unit);
  dictionary.encoder_bias = list(ask.num_features, 0.3f);
  dictionary.output_bias = list(int64_t{ask.width} * ask.num_writes, 0.3f);
  if (ask.activation == features::Activation::kJumpRelu) {
    dictionary.threshold = list(ask.num_features, 0.5f);
    for (float& value : dictionary.threshold) value = std::abs(value);
  }
  if (ask.activation == features::Activation::kGated) {
    dictionary.gate_bias = list(ask.num_features, 0.3f);
    dictionary.gate_log_scale = list(ask.num_features, 0.3f);
  }
  if (ask.subtracts_bias) dictionary.input_bias = dictionary.output_bias;
  return dictionary;
}

// One dictionary under a name.
inline std::shared_ptr<const features::DictionarySet> named_set(std::string name,
                                                                features::Dictionary dictionary) {
  auto set = std::make_shared<features::DictionarySet>();
  set->name = std::move(name);
  set->source = "memory";
  set->format = "test";
  set->layers.push_back(std::make_shared<const features::Dictionary>(std::move(dictionary)));
  return set;
}

}  // namespace rudder::steer
