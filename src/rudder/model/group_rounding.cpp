#include "rudder/model/group_rounding.h"

namespace rudder::model {

using tensor::DType;

void read_wide_row(const tensor::View& view, int64_t row, std::vector<float>& values) {
  const int64_t width = view.shape[view.shape.rank() - 1];
  values.resize(static_cast<size_t>(width));
  for (int64_t k = 0; k < width; ++k) {
    const int64_t at = row * width + k;
    values[static_cast<size_t>(k)] = view.dtype == DType::kF32 ? view.as<float>()[at]
                                     : view.dtype == DType::kF16
                                         ? tensor::to_float(view.as<tensor::F16>()[at])
                                         : tensor::to_float(view.as<tensor::BF16>()[at]);
  }
}

float group_scale(std::span<const float> values, const QuantiseScheme& scheme) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  if (most == 0) return 1;
  constexpr float kMostE4m3 = 448;
  const float range = scheme.is_float ? kMostE4m3 : static_cast<float>((1 << scheme.bits) - 1) / 2;
  const float scale = most / range;
  return scheme.is_packed() ? tensor::to_float(tensor::to_bf16(scale)) : scale;
}

}  // namespace rudder::model
