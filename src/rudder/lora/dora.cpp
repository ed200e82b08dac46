#include "rudder/lora/dora.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::lora {
namespace {

using tensor::DType;
using tensor::View;

// Elements [begin, begin + count) as f32.
void to_floats(const View& from, int64_t begin, int64_t count, float* to) {
  const auto each = [&](const auto* values) {
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<decltype(values), const float*>) {
        to[i] = values[begin + i];
      } else {
        to[i] = tensor::to_float(values[begin + i]);
      }
    }
  };
  if (from.dtype == DType::kF32) return each(static_cast<const float*>(from.data));
  if (from.dtype == DType::kF16) return each(static_cast<const tensor::F16*>(from.data));
  RUDDER_CHECK(from.dtype == DType::kBF16, "{}", tensor::dtype_name(from.dtype));
  each(static_cast<const tensor::BF16*>(from.data));
}

std::vector<float> floats_of(const View& from) {
  std::vector<float> out(static_cast<size_t>(from.shape.numel()));
  to_floats(from, 0, from.shape.numel(), out.data());
  return out;
}

double norm_of(const std::vector<float>& row) {
  constexpr size_t kSums = 8;  // that do not wait for each other
  double sums[kSums] = {};
  for (size_t i = 0; i < row.size(); ++i) sums[i % kSums] += static_cast<double>(row[i]) * row[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return std::sqrt(sum);
}

}  // namespace

Result<void> set_gains(const BaseTensors& base, const View& magnitudes, Delta& delta) {
  const int64_t out = delta.b.shape[0];
  const int64_t in = delta.a.shape[1];
  const int64_t rank = delta.rank();
  RUDDER_CHECK(base.weight.shape == tensor::Shape({out, in}) && magnitudes.shape.numel() == out);
  const std::vector<float> a = floats_of(delta.a);
  const std::vector<float> b = floats_of(delta.b);
  const std::vector<float> lengths = floats_of(magnitudes);
  const std::vector<float> bias = base.bias.empty() ? std::vector<float>() : floats_of(base.bias);
  std::vector<float> row(static_cast<size_t>(in));
  delta.gains.resize(static_cast<size_t>(out));
  if (!bias.empty()) delta.offsets.resize(static_cast<size_t>(out));
  for (int64_t o = 0; o < out; ++o) {
    to_floats(base.weight, o * in, in, row.data());
    for (int64_t r = 0; r < rank; ++r) {
      const float factor = delta.scale * b[static_cast<size_t>(o * rank + r)];
      const float* const from = a.data() + r * in;
      for (int64_t i = 0; i < in; ++i) row[static_cast<size_t>(i)] += factor * from[i];
    }
    const auto at = static_cast<size_t>(o);
    const auto gain = static_cast<float>(lengths[at] / norm_of(row));
    if (!std::isfinite(gain)) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("row {} has the magnitude {}, and the weight that it scales has no "
                              "length to divide by",
                              o, lengths[at]),
                  "");
    }
    delta.gains[at] = gain;
    if (!bias.empty()) delta.offsets[at] = bias[at] - gain * bias[at];
  }
  return {};
}

}  // namespace rudder::lora
