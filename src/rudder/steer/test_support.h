// Shared by the tests and the bench of this room: a small model, vectors, random numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/steer/config.h"

namespace rudder::steer {

inline constexpr int32_t kTestLayers = 4;
inline constexpr int32_t kTestHidden = 24;
inline constexpr tap::Point kTestPoint = {1, tap::Site::kResidPost};

inline Model test_model() {
  Model model;
  model.geometry.num_layers = kTestLayers;
  model.geometry.hidden = kTestHidden;
  model.geometry.mlp_width.assign(kTestLayers, 40);
  model.geometry.heads.assign(kTestLayers, {3, 10});
  model.geometry.sites.assign(kTestLayers, tap::dense_sites_but(tap::Site::kFinalNorm));
  model.geometry.sites.back() = tap::kDenseSites;
  model.limits = {33, 4096, 1 << 20, 0, 0};
  model.hash_secret = {0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  return model;
}

inline std::shared_ptr<const Model> shared_test_model() {
  return std::make_shared<const Model>(test_model());
}

inline Row test_row(const std::vector<float>& values) {
  auto buffer = std::make_shared<float[]>(values.size());
  std::ranges::copy(values, buffer.get());
  return {std::move(buffer), 0, static_cast<int32_t>(values.size())};
}

inline std::string base64_of(std::span<const std::byte> bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<uint32_t>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int32_t below(int32_t bound) {
    return std::uniform_int_distribution<int32_t>(0, bound - 1)(engine_);
  }
  bool one_in(int32_t n) { return below(n) == 0; }
  std::vector<float> vector(int32_t width) {
    std::vector<float> values(static_cast<size_t>(width));
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(engine_);
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

inline OpSpec add_spec(tap::Point point, Row vector, double scale = 1) {
  OpSpec spec;
  spec.op = OpName::kAdd;
  spec.point = point;
  spec.vector = std::move(vector);
  spec.scale = scale;
  return spec;
}

}  // namespace rudder::steer
