#include "rudder/cpu/reference_ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/adapter_adder.h"
#include "rudder/cpu/attention_patterns.h"
#include "rudder/cpu/device_memory.h"
#include "rudder/cpu/double_sums.h"
#include "rudder/cpu/encode.h"
#include "rudder/cpu/host_ops.h"
#include "rudder/cpu/keep_paths.h"
#include "rudder/cpu/plain_attention.h"
#include "rudder/cpu/read_features.h"
#include "rudder/cpu/recurrences.h"
#include "rudder/cpu/sample.h"
#include "rudder/cpu/tap_program.h"
#include "rudder/ops/stored_row.h"

namespace rudder::cpu {
namespace {

using ops::LinearWeight;
using tensor::DType;
using tensor::View;

// [out, in] f32 row-major, and the bias [out] or nothing.
struct ReferenceWeight final : ops::PackedWeight {
  Buffer weight;
  Buffer bias;

  const float* row(int64_t out, int64_t in) const {
    return static_cast<const float*>(weight.data()) + out * in;
  }
};

const ReferenceWeight& reference_weight_of(const LinearWeight& weight) {
  return static_cast<const ReferenceWeight&>(*weight.packed);
}

// y [out] = weight . x [in]
void multiply_row(const float* x, const ReferenceWeight& weight, int64_t in, int64_t out,
                  float* y) {
  int64_t n = 0;
  for (; n + 4 <= out; n += 4) {
    const float* first = weight.row(n, in);
    const auto sums = sums_of_products(x, {first, first + in, first + 2 * in, first + 3 * in}, in);
    for (const double sum : sums) *y++ = static_cast<float>(sum);
  }
  for (; n < out; ++n) *y++ = static_cast<float>(sum_of_products(x, weight.row(n, in), in));
}

float activate(float x, ops::Activation activation) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  switch (activation) {
    case ops::Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case ops::Activation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(kSqrt2OverPi * (x + 0.044715f * x * x * x)));
    case ops::Activation::kGelu:
      return 0.5f * x * std::erfc(-x * 0.70710678118654752f);
    case ops::Activation::kRelu:
      return x < 0 ? 0 : x;
    case ops::Activation::kClampedSwiglu:
    case ops::Activation::kLimitedSilu:
      break;
  }
  RUDDER_CHECK(false, "activation {}", static_cast<int>(activation));
}

// One that is not a number stays so.
float activate_pair(float gate, float up, ops::Activation activation) {
  if (activation == ops::Activation::kLimitedSilu) {
    const float g = gate > ops::kSiluLimit ? ops::kSiluLimit : gate;
    const float u = std::clamp(up, -ops::kSiluLimit, ops::kSiluLimit);
    return g / (1.0f + std::exp(-g)) * u;
  }
  if (activation != ops::Activation::kClampedSwiglu) return activate(gate, activation) * up;
  const float g = gate > ops::kSwigluLimit ? ops::kSwigluLimit : gate;
  const float u = std::clamp(up, -ops::kSwigluLimit, ops::kSwigluLimit);
  return (u + 1.0f) * (g / (1.0f + std::exp(-ops::kSwigluSlope * g)));
}

class ReferenceOps final : public HostOps {
 public:
  explicit ReferenceOps(std::shared_ptr<HostComm> comm) : HostOps(std::move(comm)) {}

  std::string name() const override { return "cpu-reference"; }
  DType act_dtype() const override { return DType::kF32; }
  ops::KvFormat kv_format() const override { return {}; }
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& /*file*/) const override {
    return ops::WeightFormat{.codes = ops::Codes::kF32};
  }

  ops::AdapterOps* adapter_ops() override { return &adapter_adder_; }
  ops::StateOps* state_ops() override { return &recurrences_; }
  Result<LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    LinearWeight linear;
    linear.in = parts.front().in();
    for (const ops::LinearPart& part : parts) linear.out += part.out();
    auto packed = std::make_shared<ReferenceWeight>();
    const size_t row_bytes = static_cast<size_t>(linear.in) * sizeof(float);
    RUDDER_TRY(packed->weight, Buffer::make(static_cast<size_t>(linear.out) * row_bytes));
    const bool biased = !parts.front().bias.empty();
    if (biased) {
      RUDDER_TRY(packed->bias, Buffer::make(static_cast<size_t>(linear.out) * sizeof(float)));
    }
    int64_t first = 0;
    for (const ops::LinearPart& part : parts) {
      RUDDER_CHECK(part.in() == linear.in && part.bias.empty() != biased);
      float* rows = static_cast<float*>(packed->weight.data()) + first * linear.in;
      for (int64_t row = 0; row < part.out(); ++row) {
        read_stored_row(part, row, rows + row * linear.in);
      }
      if (biased) {
        RUDDER_TRY_VOID(convert_values(part.bias.data, part.bias.dtype,
                                       static_cast<float*>(packed->bias.data()) + first,
                                       DType::kF32, part.bias.shape.numel()));
      }
      first += part.out();
    }
    linear.bytes = static_cast<int64_t>(packed->weight.bytes() + packed->bias.bytes());
    linear.format = {.codes = ops::Codes::kF32};
    linear.packed = std::move(packed);
    return linear;
  }

  void embed(const ops::EmbedArgs& args) override {
    const int64_t hidden = args.out.shape[1];
    float* out = args.out.as<float>();
    for (int64_t t = 0; t < args.out.shape[0]; ++t) {
      const int32_t id = args.ids.as<int32_t>()[t];
      if (args.tied != nullptr) {
        std::copy_n(reference_weight_of(*args.tied).row(id, hidden), hidden, out);
      } else {
        const View row = args.table.rows(id, 1);
        RUDDER_CHECK(convert_values(row.data, row.dtype, out, DType::kF32, hidden).has_value());
      }
      for (int64_t i = 0; i < hidden; ++i) out[i] *= args.scale;
      out += hidden;
    }
  }

  void residual_norm(const ops::ResidualNormArgs& asked) override {
    const ops::ResidualNormArgs args = with_ranks_summed(asked, nullptr);
    const int64_t hidden = args.x.shape[1];
    std::vector<float> branch(static_cast<size_t>(hidden));
    std::vector<float> normed(static_cast<size_t>(hidden));
    for (int64_t t = 0; t < args.x.shape[0]; ++t) {
      float* x = args.x.as<float>() + t * hidden;
      if (!args.delta.empty()) {
        const float* delta = args.delta.as<float>() + t * hidden;
        if (args.delta_norm.empty()) {
          std::copy_n(delta, hidden, branch.data());
        } else {
          norm_row(delta, args.delta_norm, hidden, branch.data());
        }
        for (float& value : branch) value *= args.delta_scale;
        run_taps(args.delta_taps, t, branch.data(), hidden);
        for (int64_t i = 0; i < hidden; ++i) x[i] += branch[static_cast<size_t>(i)];
      }
      for (int64_t i = 0; i < hidden; ++i) x[i] *= args.sum_scale;
      for (const ops::Taps& taps : args.x_taps) run_taps(taps, t, x, hidden);
      if (args.out.empty()) continue;
      write_normed(args, t, normed);
    }
  }

  void linear(const ops::LinearArgs& args) override { product(args.x, *args.weight, args.out); }

  void qkv_prep(const ops::QkvPrepArgs& args) override {
    plain_qkv_prep(with_spanning_norms_applied(args), 0, args.qkv.shape[0]);
  }

  void attention(const ops::AttentionArgs& args) override {
    plain_attention(args, batch(), nullptr);
  }
  void keep_paths(const ops::KeepPathsArgs& args) override { cpu::keep_paths(args, plain_move); }

  void patterns(const ops::PatternArgs& args) override {
    write_patterns(args, batch(), plain_key, nullptr);
  }

  void gated_act(const ops::GatedActArgs& args) override {
    const int64_t width = args.out.shape[1];
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t t = 0; t < args.x.shape[0]; ++t) {
      const float* gate = args.x.as<float>() + t * 2 * width;
      for (int64_t i = 0; i < width; ++i) {
        row[static_cast<size_t>(i)] = activate_pair(gate[i], gate[width + i], args.activation);
      }
      run_taps(args.taps, t, row.data(), width);
      write_row(row, t, args.out, args.out_scale);
    }
  }

  void logits(const ops::LogitsArgs& args) override {
    product(args.x, *args.head, args.out);
    float* out = args.out.as<float>();
    for (int64_t i = 0; i < args.out.shape.numel(); ++i) {
      out[i] = soft_cap(out[i] * args.scale, args.softcap);
    }
  }

  uint64_t progress() const override { return num_rows_.load(std::memory_order_relaxed); }
  void tap_shares(const ops::TapSharesArgs& args) override { run_share_taps(args, nullptr); }
  void encode(const ops::EncodeArgs& args) override { encode_rows(args, nullptr); }
  void read_features(const ops::ReadFeaturesArgs& args) override {
    cpu::read_features(args, nullptr);
  }
  void sample(const ops::SampleArgs& args) override { sample_rows(args); }
  void score(const ops::ScoreArgs& args) override { score_rows(args); }

 private:
  static void write_normed(const ops::ResidualNormArgs& args, int64_t t,
                           std::vector<float>& normed) {
    const int64_t hidden = args.x.shape[1];
    const float* x = args.x.as<float>() + t * hidden;
    if (args.norm.empty()) {
      std::copy_n(x, hidden, normed.data());
    } else {
      norm_row(x, args.norm, hidden, normed.data());
    }
    run_taps(args.out_taps, t, normed.data(), hidden);
    write_row(normed, t, args.out, args.out_scale);
    if (!args.out_act.empty()) write_row(normed, t, args.out_act, {});
  }

  // Row t of `out`, quantised when `out` is.
  static void write_row(const std::vector<float>& row, int64_t t, const View& out,
                        const View& out_scale) {
    const auto width = static_cast<int64_t>(row.size());
    if (out.dtype == DType::kF8E4M3) {
      out_scale.as<float>()[t] =
          quantise_row(row.data(), width, out.as<tensor::F8E4M3>() + t * width);
    } else {
      std::copy_n(row.data(), width, out.as<float>() + t * width);
    }
  }

  static void norm_row(const float* x, const ops::NormSpec& norm, int64_t width, float* out) {
    plain_norm(x, norm, width, out);
  }

  void product(const View& x, const LinearWeight& weight, const View& out) {
    RUDDER_CHECK(x.dtype == DType::kF32);
    const ReferenceWeight& packed = reference_weight_of(weight);
    const auto* bias = static_cast<const float*>(packed.bias.data());
    for (int64_t t = 0; t < x.shape[0]; ++t) {
      num_rows_.fetch_add(1, std::memory_order_relaxed);
      const float* row = x.as<float>() + t * weight.in;
      float* y = out.as<float>() + t * weight.out;
      multiply_row(row, packed, weight.in, weight.out, y);
      for (int64_t n = 0; n < weight.out && bias != nullptr; ++n) y[n] += bias[n];
    }
  }

  std::atomic<uint64_t> num_rows_ = 0;  // multiplied
  AdapterAdder adapter_adder_{nullptr};
  Recurrences recurrences_{nullptr, [](const LinearWeight& weight, int64_t index, float* to) {
                             std::copy_n(reference_weight_of(weight).row(index, weight.in),
                                         weight.in, to);
                           }};
};

}  // namespace

std::unique_ptr<ops::Ops> make_reference_ops() {
  return make_reference_rank(nullptr);
}

std::unique_ptr<ops::Ops> make_reference_rank(std::shared_ptr<HostComm> comm) {
  return std::make_unique<ReferenceOps>(std::move(comm));
}

}  // namespace rudder::cpu
