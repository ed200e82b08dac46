#include "rudder/features/batch_encode.h"

#include <algorithm>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::features {
namespace {

// Rows whose sums a processor's registers hold; loops are unrolled so that they do.
constexpr size_t kRowsAtOnce = 4;
constexpr size_t kSums = 8;  // of a row, side by side
// Products that are summed in fp32, before their sum is added in double.
constexpr size_t kBlock = 64 * kSums;

// sums[r] = rows[r] . weights, in an order that the width alone decides.
template <size_t kRows>
void multiply(const float* const* rows, const float* weights, size_t width, double* sums) {
  std::fill_n(sums, kRows, 0.0);
  size_t i = 0;
  while (i + kSums <= width) {
    const size_t end = i + std::min(kBlock, (width - i) / kSums * kSums);
    float parts[kRows][kSums] = {};
    for (; i < end; i += kSums) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (size_t j = 0; j < kSums; ++j) parts[r][j] += rows[r][i + j] * weights[i + j];
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (const float part : parts[r]) sums[r] += double{part};
    }
  }
  for (; i < width; ++i) {
    for (size_t r = 0; r < kRows; ++r) sums[r] += double{rows[r][i]} * double{weights[i]};
  }
}

// Normed, and without the input bias.
std::vector<float> encoder_inputs(const Dictionary& dictionary, std::span<const float> rows) {
  std::vector<float> inputs(rows.size());
  const auto width = static_cast<size_t>(dictionary.d_in);
  for (size_t begin = 0; begin < rows.size(); begin += width) {
    const NormedRow normed = normed_row(dictionary.norm, rows.subspan(begin, width));
    for (size_t i = 0; i < width; ++i) {
      const double bias = dictionary.input_bias.empty() ? 0 : double{dictionary.input_bias[i]};
      inputs[begin + i] = static_cast<float>(normed.values[i] - bias);
    }
  }
  return inputs;
}

// Of feature which(i) of `count`.
template <typename Which>
void encode_some(const Dictionary& dictionary, std::span<const float> rows, size_t count,
                 const Which& which, std::span<float> values) {
  const auto width = static_cast<size_t>(dictionary.d_in);
  const size_t num_rows = rows.size() / width;
  RUDDER_CHECK(rows.size() == num_rows * width && values.size() == num_rows * count,
               "{} elements, {} values", rows.size(), values.size());
  const std::vector<float> inputs = encoder_inputs(dictionary, rows);
  for (size_t i = 0; i < count; ++i) {
    const int32_t feature = which(i);
    const FeatureForm form = dictionary.form_of_input(feature);
    const float* const weights = dictionary.encoder_row(feature).values().data();
    for (size_t begin = 0; begin < num_rows; begin += kRowsAtOnce) {
      const size_t at_once = std::min(kRowsAtOnce, num_rows - begin);
      const float* from[kRowsAtOnce];
      for (size_t r = 0; r < at_once; ++r) from[r] = inputs.data() + (begin + r) * width;
      double sums[kRowsAtOnce];
      if (at_once == kRowsAtOnce) {
        multiply<kRowsAtOnce>(from, weights, width, sums);
      } else {
        for (size_t r = 0; r < at_once; ++r) multiply<1>(from + r, weights, width, sums + r);
      }
      for (size_t r = 0; r < at_once; ++r) {
        values[(begin + r) * count + i] = static_cast<float>(form.value(sums[r]));
      }
    }
  }
}

}  // namespace

void encode_rows(const Dictionary& dictionary, std::span<const float> rows,
                 std::span<float> features) {
  const auto count = static_cast<size_t>(dictionary.num_features);
  encode_some(
      dictionary, rows, count, [](size_t i) { return static_cast<int32_t>(i); }, features);
  if (dictionary.activation != Activation::kTopK) return;
  for (size_t begin = 0; begin < features.size(); begin += count) {
    keep_largest(features.subspan(begin, count), dictionary.k);
  }
}

void encode_columns(const Dictionary& dictionary, std::span<const float> rows,
                    std::span<const int32_t> which, std::span<float> values) {
  RUDDER_CHECK(dictionary.activation != Activation::kTopK,
               "a feature of a topk dictionary depends on all others");
  encode_some(
      dictionary, rows, which.size(), [&](size_t i) { return which[i]; }, values);
}

}  // namespace rudder::features
