// How wide weights become codes with a scale a group, by round to nearest: what quantise_checkpoint
// stores, and what channel_scales tries out. Pure functions; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rudder/tensor/dtype.h"
#include "rudder/tensor/view.h"

namespace rudder::model {

// What a scale is shared by: a row of the weight (group 0), or so many inputs of a row.
struct QuantiseScheme {
  std::string_view name;    // "w4a16"
  std::string_view format;  // of quantization_config
  int32_t bits = 8;
  bool is_float = false;  // E4M3
  int32_t group = 0;
  bool quantises_inputs = false;  // by token, while the model runs

  bool is_packed() const { return format == "pack-quantized"; }
};

// Row `row` of a view [rows, columns] of F32, F16 or BF16; of a vector, `row` 0 is all of it.
void read_wide_row(const tensor::View& view, int64_t row, std::vector<float>& values);

// The scale of `values`, as it is stored: the largest magnitude falls on the largest code of E4M3,
// or on half the range of codes of an integer (compressed-tensors, calculate_qparams, symmetric).
float group_scale(std::span<const float> values, const QuantiseScheme& scheme);

// The code of a value that was divided by its scale.
inline int32_t integer_code(float value, int32_t bits) {
  const float most = static_cast<float>(1 << (bits - 1));
  return static_cast<int32_t>(std::clamp(std::nearbyint(value), -most, most - 1));
}

}  // namespace rudder::model
