// Shared by the tests of products on a device: operands with what they are in fp64, and what a
// product of them may be. Tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "rudder/cuda/device_test.h"
#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/linear.h"

namespace rudder::cuda {

using tensor::DType;
using tensor::View;

inline constexpr int32_t kNumSms = 132;

struct Case {
  int64_t out = 0;
  int64_t in = 0;
  DType dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  bool bias = false;
  float softcap = 0;

  std::string to_string() const {
    return fmt::format("[{} -> {}] {} to {}{}{}", in, out, tensor::dtype_name(dtype),
                       tensor::dtype_name(out_dtype), bias ? ", bias" : "",
                       softcap != 0 ? ", cap" : "");
  }
};

// A weight and tokens on the device, with what they are in fp64.
struct Operands {
  ops::LinearWeight weight;
  View x, x_scale;
  std::vector<float> w_values, x_values;  // as stored, times their scales
  std::vector<float> bias;
};

class LinearDevice : public DeviceTest {
 protected:
  void start_with(DType dtype) {
    CudaOpsSettings settings;
    settings.linear_dtype = dtype;
    settings.tune = false;
    start(settings);
  }

  Operands make(const Case& c, int64_t tokens) {
    Operands o;
    const std::vector<float> w = random(c.out * c.in, 0.05f);
    if (c.bias) o.bias = random(c.out);
    ops::LinearPart part =
        ops::wide_part({const_cast<float*>(w.data()), DType::kF32, {c.out, c.in}});
    if (c.bias) part.bias = {o.bias.data(), DType::kF32, {c.out}};
    o.weight = value_of(ops_->make_linear({&part, 1}));
    o.w_values = w;
    o.x_values = random(tokens * c.in);
    o.x = to_device(o.x_values, {tokens, c.in});
    if (c.dtype == DType::kF8E4M3) {
      const View quantised = poisoned({tokens, c.in}, DType::kF8E4M3);
      o.x_scale = poisoned({tokens}, DType::kF32);
      ops_->quantise({.x = o.x, .out = quantised, .out_scale = o.x_scale});
      o.x = quantised;
      o.x_values = scaled(quantised, o.x_scale, c.in);
      const CudaWeight& stored = cuda_weight(o.weight);
      o.w_values = scaled(stored.weight, stored.scale, c.in);
      expect_quantised(o.w_values, w, c);
    }
    return o;
  }

  // A weight of four bits around 8, or of eight, in groups of 32.
  ops::LinearWeight make_low(int64_t out, int64_t in, bool is_u4) {
    const ops::WeightFormat format{.codes = is_u4 ? ops::Codes::kU4 : ops::Codes::kI8,
                                   .scale = ops::ScaleType::kF32,
                                   .group = 32,
                                   .offset = is_u4 ? ops::Offset::kMiddle : ops::Offset::kNone};
    const ops::StoredParts parts = ops::stored_parts(format, out, in);
    std::vector<uint8_t> codes(static_cast<size_t>(parts.codes.bytes()));
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random_() >> 7);
    std::vector<float> scales(static_cast<size_t>(parts.scales.rows * parts.scales.columns));
    for (float& scale : scales) scale = 1e-4f * static_cast<float>(random_() % 97 + 3);
    const ops::LinearPart part{
        .format = format,
        .codes = {codes.data(), parts.codes.dtype, {parts.codes.rows, parts.codes.columns}},
        .scales = {scales.data(), DType::kF32, {parts.scales.rows, parts.scales.columns}}};
    return value_of(ops_->make_linear({&part, 1}));
  }

  // Of the tokens [first, first + tokens).
  static GemvParams product(const Case& c, const Operands& o, int64_t first, int64_t tokens,
                            const View& y) {
    const CudaWeight& stored = cuda_weight(o.weight);
    GemvParams params;
    params.weight = stored.weight.data;
    params.x = o.x.rows(first, tokens).data;
    params.x_scale = o.x_scale.empty() ? nullptr : o.x_scale.as<float>() + first;
    params.w_scale = static_cast<const float*>(stored.scale.data);
    params.bias = stored.bias.data;
    params.y = y.data;
    params.out = c.out;
    params.in = c.in;
    params.tokens = static_cast<int32_t>(tokens);
    params.softcap = c.softcap;
    params.is_fp8 = c.dtype == DType::kF8E4M3;
    params.y_is_f32 = c.out_dtype == DType::kF32;
    return params;
  }

  std::vector<float> scaled(const View& values, const View& scales, int64_t width) {
    std::vector<float> out = to_host(values);
    const std::vector<float> scale = to_host(scales);
    for (size_t i = 0; i < out.size(); ++i) out[i] *= scale[i / static_cast<size_t>(width)];
    return out;
  }

  // Within half a step of the code: 2^-4 of the value, or of the smallest normal number.
  static void expect_quantised(const std::vector<float>& got, const std::vector<float>& want,
                               const Case& c) {
    std::vector<double> exact(want.begin(), want.end());
    std::vector<double> tolerance;
    for (size_t row = 0; row < want.size() / static_cast<size_t>(c.in); ++row) {
      const auto begin = want.begin() + static_cast<int64_t>(row) * c.in;
      float largest = 0;
      for (auto v = begin; v != begin + c.in; ++v) largest = std::max(largest, std::abs(*v));
      for (auto v = begin; v != begin + c.in; ++v) {
        tolerance.push_back(std::abs(double{*v}) / 15 + double{largest} / 448 / 512);
      }
    }
    expect_near(got, exact, tolerance, c.in, "weights of " + c.to_string());
  }

  // A row's error, relative to the row: what rounding to the type of y leaves, and fp32 sums in
  // another order. Fast fp8 sums have fewer bits; unscaled ones are rounded once more.
  static double row_tolerance(const Case& c) {
    if (c.dtype == DType::kF8E4M3) return c.out_dtype == DType::kBF16 ? 6e-3 : 1e-3;
    // wgmma cuts what it adds to a sum to the sum's last bit, which shows in long ones.
    const double f32 = 1e-5 * std::max(1.0, static_cast<double>(c.in) / 4096);
    return c.out_dtype == DType::kBF16 ? 1.1 / 256 : f32;
  }

  void expect_product(const View& y, const Operands& o, const Case& c, const std::string& what) {
    std::vector<double> want;
    std::vector<double> tolerance;
    std::vector<double>
        norms;  // of the products: kernels of odd widths round before they add the bias
    for (int64_t t = 0; t < y.shape[0]; ++t) {
      double squares = 0;
      for (int64_t n = 0; n < c.out; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < c.in; ++k) {
          sum += double{o.x_values[static_cast<size_t>(t * c.in + k)]} *
                 double{o.w_values[static_cast<size_t>(n * c.in + k)]};
        }
        squares += sum * sum;
        if (c.bias) sum += double{o.bias[static_cast<size_t>(n)]};
        if (c.softcap != 0) sum = double{c.softcap} * std::tanh(sum / double{c.softcap});
        want.push_back(sum);
      }
      norms.push_back(squares);
      const double typical = std::sqrt(squares / static_cast<double>(c.out));
      for (int64_t n = 0; n < c.out; ++n) {
        const double value = want[static_cast<size_t>(t * c.out + n)];
        tolerance.push_back(8 * row_tolerance(c) * typical + std::abs(value) / 128);
      }
    }
    const std::vector<float> got = to_host(y);
    expect_near(got, want, tolerance, c.out, what);
    double worst = 0;
    for (int64_t t = 0; t < y.shape[0]; ++t) {
      double difference = 0;
      double norm = 1e-12;
      for (auto i = static_cast<size_t>(t * c.out); i < static_cast<size_t>((t + 1) * c.out); ++i) {
        difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
        norm += want[i] * want[i];
      }
      const double error = std::sqrt(difference / std::max(norm, norms[static_cast<size_t>(t)]));
      worst = error <= worst ? worst : error;  // a NaN comes through
    }
    EXPECT_LE(worst, row_tolerance(c)) << what << ": error of a row";
  }

  void run_and_compare(const Case& c, int64_t tokens) {
    const Operands o = make(c, tokens);
    const View y = poisoned({tokens, c.out}, c.out_dtype);
    if (c.out_dtype == DType::kF32) {
      ops_->logits(
          {.x = o.x, .x_scale = o.x_scale, .head = &o.weight, .softcap = c.softcap, .out = y});
    } else {
      ops_->linear({.x = o.x, .x_scale = o.x_scale, .weight = &o.weight, .out = y});
    }
    expect_product(y, o, c, fmt::format("{} tokens of {}", tokens, c.to_string()));
  }
};

}  // namespace rudder::cuda
