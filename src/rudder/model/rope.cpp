#include "rudder/model/rope.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "rudder/base/check.h"

namespace rudder::model {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// theta^(-2i / dim): _compute_default_rope_parameters.
std::vector<double> plain_frequencies(double theta, int32_t dim) {
  std::vector<double> result(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
  }
  return result;
}

std::vector<double> frequencies(const RopeDefault&, const RopeSpec& rope, int32_t) {
  return plain_frequencies(rope.theta, rope.rotary_dim);
}

// _compute_linear_scaling_rope_parameters.
std::vector<double> frequencies(const RopeLinear& scaling, const RopeSpec& rope, int32_t) {
  std::vector<double> result = plain_frequencies(rope.theta, rope.rotary_dim);
  for (double& f : result) f /= scaling.factor;
  return result;
}

// _compute_dynamic_ntk_parameters with seq_len = the longest sequence.
std::vector<double> frequencies(const RopeDynamic& scaling, const RopeSpec& rope,
                                int32_t max_seq_len) {
  const double original = scaling.original_max_positions;
  const double length = std::max<double>(max_seq_len, original);
  const double stretch = scaling.factor * length / original - (scaling.factor - 1);
  const double dim = rope.rotary_dim;
  return plain_frequencies(rope.theta * std::pow(stretch, dim / (dim - 2)), rope.rotary_dim);
}

// _compute_llama3_parameters: long waves are stretched, short ones kept, between them a blend.
std::vector<double> frequencies(const RopeLlama3& scaling, const RopeSpec& rope, int32_t) {
  const double original = scaling.original_max_positions;
  const double longest_kept = original / scaling.high_freq_factor;
  const double shortest_stretched = original / scaling.low_freq_factor;
  std::vector<double> result = plain_frequencies(rope.theta, rope.rotary_dim);
  for (double& f : result) {
    const double wave = kTwoPi / f;
    if (wave < longest_kept) continue;
    if (wave > shortest_stretched) {
      f /= scaling.factor;
      continue;
    }
    const double smooth = (original / wave - scaling.low_freq_factor) /
                          (scaling.high_freq_factor - scaling.low_freq_factor);
    f = (1 - smooth) * f / scaling.factor + smooth * f;
  }
  return result;
}

// _compute_yarn_parameters: dimensions that turn more than beta_fast times within the original
// length are kept, those that turn less than beta_slow times are stretched, a ramp between them.
std::vector<double> frequencies(const RopeYarn& scaling, const RopeSpec& rope, int32_t) {
  const double dim = rope.rotary_dim;
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(scaling.original_max_positions / (rotations * kTwoPi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(scaling.beta_fast);
  double high = dimension_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  std::vector<double> result = plain_frequencies(rope.theta, rope.rotary_dim);
  for (size_t i = 0; i < result.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    result[i] = result[i] / scaling.factor * stretched + result[i] * (1 - stretched);
  }
  return result;
}

// _compute_longrope_parameters with seq_len = the longest sequence.
std::vector<double> frequencies(const RopeLong& scaling, const RopeSpec& rope,
                                int32_t max_seq_len) {
  const std::vector<double>& factor =
      max_seq_len > scaling.original_max_positions ? scaling.long_factor : scaling.short_factor;
  std::vector<double> result = plain_frequencies(rope.theta, rope.rotary_dim);
  RUDDER_CHECK(factor.size() == result.size(), "{} rope factors for {} pairs", factor.size(),
               result.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] /= factor[i];
  return result;
}

// _compute_proportional_rope_parameters.
std::vector<double> frequencies(const RopeProportional& scaling, const RopeSpec& rope, int32_t) {
  std::vector<double> result = plain_frequencies(rope.theta, rope.rotary_dim);
  const auto turning = static_cast<size_t>(scaling.part * rope.rotary_dim / 2);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = i < turning ? result[i] / scaling.factor : 0;
  }
  return result;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& rope, int32_t max_seq_len) {
  return std::visit([&](const auto& scaling) { return frequencies(scaling, rope, max_seq_len); },
                    rope.scaling);
}

double rope_attention_factor(const RopeSpec& rope) {
  if (const auto* yarn = std::get_if<RopeYarn>(&rope.scaling)) return yarn->attention_factor;
  if (const auto* longrope = std::get_if<RopeLong>(&rope.scaling)) {
    return longrope->attention_factor;
  }
  return 1;
}

namespace {

int32_t times(int32_t positions, double factor) {
  const double product = positions * std::max(factor, 1.0);
  return static_cast<int32_t>(std::min<double>(product, std::numeric_limits<int32_t>::max()));
}

// A config whose declared length is beyond the original one declares the stretched length.
int32_t stretched_or(int32_t declared, int32_t original, double factor) {
  return declared > original ? declared : times(original, factor);
}

Reach reach(const RopeDefault&, int32_t declared) {
  return {declared, declared};
}
Reach reach(const RopeProportional&, int32_t declared) {
  return {declared, declared};
}
Reach reach(const RopeLinear& scaling, int32_t declared) {
  const int32_t all = times(declared, scaling.factor);
  return {all, all};
}
// Its frequencies, and so every answer, depend on the longest sequence: only who asks gets others.
Reach reach(const RopeDynamic&, int32_t declared) {
  return {declared, std::numeric_limits<int32_t>::max()};
}
Reach reach(const RopeLlama3& scaling, int32_t declared) {
  const int32_t all = stretched_or(declared, scaling.original_max_positions, scaling.factor);
  return {all, all};
}
Reach reach(const RopeYarn& scaling, int32_t declared) {
  const int32_t all = std::max(declared, times(scaling.original_max_positions, scaling.factor));
  return {all, all};
}
// As of a dynamic one: it has two sets of frequencies.
Reach reach(const RopeLong& scaling, int32_t declared) {
  return {declared, stretched_or(declared, scaling.original_max_positions, scaling.factor)};
}

}  // namespace

Reach reach_of(std::span<const RopeSpec> ropes, int32_t declared) {
  if (ropes.empty()) return {declared, declared};
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  Reach out{kMost, kMost};
  for (const RopeSpec& rope : ropes) {
    const Reach one =
        std::visit([&](const auto& scaling) { return reach(scaling, declared); }, rope.scaling);
    out = {std::min(out.usual, one.usual), std::min(out.longest, one.longest)};
  }
  return out;
}

std::vector<float> query_scales(const QueryGrowth& growth, int32_t max_seq_len) {
  std::vector<float> scales(static_cast<size_t>(max_seq_len));
  for (int32_t position = 0; position < max_seq_len; ++position) {
    const auto periods = position / growth.period;  // whole ones
    scales[static_cast<size_t>(position)] =
        static_cast<float>(1 + growth.slope * std::log1p(static_cast<double>(periods)));
  }
  return scales;
}

std::vector<float> rope_table(const RopeSpec& rope, int32_t max_seq_len) {
  const std::vector<double> freqs = rope_frequencies(rope, max_seq_len);
  const double factor = rope_attention_factor(rope);
  const size_t half = freqs.size();
  std::vector<float> table(half * 2 * static_cast<size_t>(max_seq_len));
  float* row = table.data();
  for (int32_t position = 0; position < max_seq_len; ++position, row += 2 * half) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = position * freqs[i];
      row[i] = static_cast<float>(std::cos(angle) * factor);
      row[half + i] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  return table;
}

}  // namespace rudder::model
