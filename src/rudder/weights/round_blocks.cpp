#include "rudder/weights/round_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "rudder/tensor/dtype.h"

namespace rudder::weights {
namespace {

constexpr int kSmallBlock = 32;
constexpr int kLargeBlock = 256;
constexpr float kLeastScale = 1e-15f;  // ggml's GROUP_MAX_EPS

float half_of(float value) {
  return tensor::to_float(tensor::to_f16(value));
}
void store_half(std::byte* to, float value) {
  const tensor::F16 half = tensor::to_f16(value);
  std::memcpy(to, &half, sizeof(half));
}
void store_byte(std::byte* to, int value) {
  *to = static_cast<std::byte>(value);
}
int nearest(float value) {
  return static_cast<int>(std::nearbyint(value));
}

// The number of the largest magnitude, with its sign.
float largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    if (std::abs(value) > std::abs(largest)) largest = value;
  }
  return largest;
}

// Of kBits bits around the middle: the largest magnitude becomes the lowest code.
template <int kBits>
void round_middle(const float* x, std::byte* out) {
  constexpr int kMiddle = 1 << (kBits - 1);
  const float scale = largest_of({x, kSmallBlock}) / -kMiddle;
  const float inverse = scale != 0 ? 1 / scale : 0;
  store_half(out, scale);
  std::byte* const low = out + 2 + (kBits == 5 ? 4 : 0);
  uint32_t high = 0;
  for (int j = 0; j < kSmallBlock / 2; ++j) {
    const auto code = [&](int i) {
      const auto shifted = static_cast<int>(x[i] * inverse + (kMiddle + 0.5f));
      return std::min(2 * kMiddle - 1, shifted);
    };
    const int first = code(j);
    const int second = code(j + kSmallBlock / 2);
    store_byte(low + j, (first & 15) | (second & 15) << 4);
    high |= static_cast<uint32_t>(first >> 4 & 1) << j;
    high |= static_cast<uint32_t>(second >> 4 & 1) << (j + kSmallBlock / 2);
  }
  if constexpr (kBits == 5) std::memcpy(out + 2, &high, sizeof(high));
}

void round_q8_0(const float* x, std::byte* out) {
  const float scale = std::abs(largest_of({x, kSmallBlock})) / 127;
  const float inverse = scale != 0 ? 1 / scale : 0;
  store_half(out, scale);
  for (int j = 0; j < kSmallBlock; ++j) {
    store_byte(out + 2 + j, static_cast<int>(std::round(x[j] * inverse)));
  }
}

// The scale of codes [-most, most) with the least squared error, weighed by x^2 (make_qx_quants
// with rmse_type 1).
float search_scale(std::span<const float> x, int most) {
  const float largest = largest_of(x);
  if (std::abs(largest) < kLeastScale) return 0;
  float scale = 0;
  float best = 0;  // what the scale takes off the error
  for (int step = 0; step <= 18; ++step) {
    // First as it is, then -0.9 to 0.9 around it.
    const int by = step == 0 ? 0 : step <= 9 ? step - 10 : step - 9;
    const float inverse = -(static_cast<float>(most) + 0.1f * static_cast<float>(by)) / largest;
    float products = 0;
    float squares = 0;
    for (const float value : x) {
      const auto code = static_cast<float>(std::clamp(nearest(inverse * value), -most, most - 1));
      const float weight = value * value;
      products += weight * value * code;
      squares += weight * code * code;
    }
    if (step > 0 && (squares <= 0 || products * products <= best * squares)) continue;
    scale = squares > 0 ? products / squares : 0;
    best = scale * products;
  }
  return scale;
}

void round_q6_k(const float* x, std::byte* out) {
  constexpr int kGroup = 16;
  constexpr int kGroups = kLargeBlock / kGroup;
  std::byte* const low = out;
  std::byte* const high = out + kLargeBlock / 2;
  std::byte* const scales_at = high + kLargeBlock / 4;
  std::byte* const scale_at = scales_at + kGroups;
  std::array<float, kGroups> scales;
  for (size_t g = 0; g < kGroups; ++g) {
    scales[g] = search_scale({x + g * kGroup, kGroup}, 32);
  }
  const float largest = largest_of(scales);
  std::memset(out, 0, static_cast<size_t>(scale_at - out) + 2);
  if (std::abs(largest) < kLeastScale) return;
  const float inverse = -128 / largest;
  store_half(scale_at, 1 / inverse);
  const float scale = half_of(1 / inverse);
  std::array<int, kLargeBlock> codes;
  for (int g = 0; g < kGroups; ++g) {
    const int own = std::min(127, nearest(inverse * scales[static_cast<size_t>(g)]));
    store_byte(scales_at + g, own);
    const float step = scale * static_cast<float>(own);
    for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) {
      codes[static_cast<size_t>(i)] =
          step == 0 ? 32 : std::clamp(nearest(x[i] / step), -32, 31) + 32;
    }
  }
  for (int half = 0; half < 2; ++half) {
    const int* const c = codes.data() + half * 128;
    for (int l = 0; l < 32; ++l) {
      store_byte(low + half * 64 + l, (c[l] & 15) | (c[l + 64] & 15) << 4);
      store_byte(low + half * 64 + 32 + l, (c[l + 32] & 15) | (c[l + 96] & 15) << 4);
      store_byte(high + half * 32 + l,
                 c[l] >> 4 | (c[l + 32] >> 4) << 2 | (c[l + 64] >> 4) << 4 | (c[l + 96] >> 4) << 6);
    }
  }
}

struct ScaleAndMinimum {
  float scale = 0;
  float minimum = 0;  // a number is scale * code - minimum
};

// With the least squared error over codes [0, most] (make_qkx2_quants: from -1 on in 20 steps of
// 0.1, errors as squares).
ScaleAndMinimum search_minimum(std::span<const float> x, std::span<const float> weights, int most) {
  float low = x[0];
  float high = x[0];
  float sum_w = 0;
  float sum_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  low = std::min(low, 0.0f);
  if (high == low) return {0, -low};
  const float range = high - low;
  const auto code_of = [&](float value, float inverse) {
    return static_cast<float>(std::clamp(nearest(inverse * (value - low)), 0, most));
  };
  const auto error_of = [&](float inverse, float scale, float minimum) {
    float error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float miss = scale * code_of(x[i], inverse) + minimum - x[i];
      error += weights[i] * miss * miss;
    }
    return error;
  };
  const float plain = static_cast<float>(most) / range;
  float scale = 1 / plain;
  float minimum = low;
  float best = error_of(plain, scale, minimum);
  for (int step = 0; step <= 20; ++step) {
    const float inverse =
        (-1.0f + 0.1f * static_cast<float>(step) + static_cast<float>(most)) / range;
    float sum_c = 0;
    float sum_cc = 0;
    float sum_xc = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float code = code_of(x[i], inverse);
      sum_c += weights[i] * code;
      sum_cc += weights[i] * code * code;
      sum_xc += weights[i] * code * x[i];
    }
    const float determinant = sum_w * sum_cc - sum_c * sum_c;
    if (determinant <= 0) continue;
    float its_scale = (sum_w * sum_xc - sum_x * sum_c) / determinant;
    float its_minimum = (sum_cc * sum_x - sum_c * sum_xc) / determinant;
    if (its_minimum > 0) {
      its_minimum = 0;
      its_scale = sum_xc / sum_cc;
    }
    const float error = error_of(inverse, its_scale, its_minimum);
    if (error >= best) continue;
    best = error;
    scale = its_scale;
    minimum = its_minimum;
  }
  return {scale, -minimum};
}

void round_q4_k(const float* x, std::byte* out) {
  constexpr int kGroup = 32;
  constexpr int kGroups = kLargeBlock / kGroup;
  std::array<ScaleAndMinimum, kGroups> found;
  float most_scale = 0;
  float most_minimum = 0;
  for (size_t g = 0; g < kGroups; ++g) {
    const std::span<const float> own(x + g * kGroup, kGroup);
    float squares = 0;
    for (const float value : own) squares += value * value;
    const float mean = std::sqrt(squares / kGroup);
    std::array<float, kGroup> weights;
    for (size_t i = 0; i < kGroup; ++i) weights[i] = mean + std::abs(own[i]);
    found[g] = search_minimum(own, weights, 15);
    most_scale = std::max(most_scale, found[g].scale);
    most_minimum = std::max(most_minimum, found[g].minimum);
  }
  const auto inverse = [](float most) { return most > 0 ? 63 / most : 0; };
  store_half(out, most_scale / 63);
  store_half(out + 2, most_minimum / 63);
  const float scale = half_of(most_scale / 63);
  const float minimum = half_of(most_minimum / 63);
  std::byte* const packed = out + 4;  // 12 bytes: six bits of each
  std::byte* const codes_at = packed + 12;
  std::memset(packed, 0, 12);
  std::array<int, kLargeBlock> codes = {};
  for (int g = 0; g < kGroups; ++g) {
    const ScaleAndMinimum& own = found[static_cast<size_t>(g)];
    const int its_scale = std::min(63, nearest(inverse(most_scale) * own.scale));
    const int its_minimum = std::min(63, nearest(inverse(most_minimum) * own.minimum));
    if (g < 4) {
      packed[g] |= static_cast<std::byte>(its_scale);
      packed[g + 4] |= static_cast<std::byte>(its_minimum);
    } else {
      packed[g + 4] = static_cast<std::byte>((its_scale & 15) | (its_minimum & 15) << 4);
      packed[g - 4] |= static_cast<std::byte>(its_scale >> 4 << 6);
      packed[g] |= static_cast<std::byte>(its_minimum >> 4 << 6);
    }
    const float step = scale * static_cast<float>(its_scale);
    if (step == 0) continue;
    const float offset = minimum * static_cast<float>(its_minimum);
    for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) {
      codes[static_cast<size_t>(i)] = std::clamp(nearest((x[i] + offset) / step), 0, 15);
    }
  }
  for (int j = 0; j < kLargeBlock; j += 64) {
    const int* const c = codes.data() + j;
    for (int l = 0; l < 32; ++l) store_byte(codes_at + j / 2 + l, c[l] | c[l + 32] << 4);
  }
}

template <void (*kRound)(const float*, std::byte*), int kValues, int kBytes>
void round_all(const float* values, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) kRound(values + i * kValues, out + i * kBytes);
}

void round_f32(const float* x, std::byte* out) {
  std::memcpy(out, x, sizeof(*x));
}
void round_f16(const float* x, std::byte* out) {
  store_half(out, *x);
}
void round_bf16(const float* x, std::byte* out) {
  const tensor::BF16 value = tensor::to_bf16(*x);
  std::memcpy(out, &value, sizeof(value));
}

constexpr std::pair<std::string_view, RoundBlocks> kRounders[] = {
    {"F32", round_all<round_f32, 1, 4>},          {"F16", round_all<round_f16, 1, 2>},
    {"BF16", round_all<round_bf16, 1, 2>},        {"Q4_0", round_all<round_middle<4>, 32, 18>},
    {"Q5_0", round_all<round_middle<5>, 32, 22>}, {"Q8_0", round_all<round_q8_0, 32, 34>},
    {"Q4_K", round_all<round_q4_k, 256, 144>},    {"Q6_K", round_all<round_q6_k, 256, 210>},
};

}  // namespace

RoundBlocks block_rounder(const BlockType& type) {
  for (const auto& [name, round] : kRounders) {
    if (name == type.name) return round;
  }
  return nullptr;
}

}  // namespace rudder::weights
