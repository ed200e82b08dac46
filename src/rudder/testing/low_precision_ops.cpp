#include "rudder/testing/low_precision_ops.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/round_query_row.h"

namespace rudder::testing {
namespace {

using tensor::BF16;
using tensor::DType;
using tensor::F8E4M3;
using tensor::View;

// An f32 copy of a tensor of the backend. An empty view stays empty.
class Wide {
 public:
  explicit Wide(const View& narrow) : shape_(narrow.shape), is_empty_(narrow.empty()) {
    values_.resize(is_empty_ ? 0 : static_cast<size_t>(shape_.numel()));
    if (narrow.dtype != DType::kBF16) return;
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = tensor::to_float(narrow.as<BF16>()[i]);
    }
  }
  // Of F8E4M3 with a scale a row.
  Wide(const View& narrow, const View& scale) : Wide(narrow) {
    RUDDER_CHECK(narrow.dtype == DType::kF8E4M3 && scale.num_rows() == narrow.num_rows());
    for (size_t i = 0; i < values_.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / shape_[1];
      values_[i] = tensor::to_float(narrow.as<F8E4M3>()[i]) * scale.as<float>()[row];
    }
  }

  View view() { return is_empty_ ? View{} : View{values_.data(), DType::kF32, shape_}; }
  void round_to(const View& narrow) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      narrow.as<BF16>()[i] = tensor::to_bf16(values_[i]);
    }
  }

 private:
  std::vector<float> values_;
  tensor::Shape shape_;
  bool is_empty_;
};

// What an op writes: bf16 by way of f32, F8E4M3 at once.
class Out {
 public:
  explicit Out(const View& narrow) : narrow_(narrow), wide_(narrow) {}
  View view() { return is_f8() ? narrow_ : wide_.view(); }
  void done() const {
    if (!narrow_.empty() && !is_f8()) wide_.round_to(narrow_);
  }

 private:
  bool is_f8() const { return narrow_.dtype == DType::kF8E4M3; }
  const View narrow_;
  Wide wide_;
};

class LowPrecisionOps final : public PassingOps {
 public:
  explicit LowPrecisionOps(const LowPrecision& precision)
      : PassingOps(cpu::make_reference_ops()), precision_(precision) {}

  std::string name() const override { return "low-precision"; }
  ops::FeatureOps* feature_ops() override { return nullptr; }  // it rounds nothing between encodes
  ops::PatternOps* pattern_ops() override { return nullptr; }
  ops::LatentOps* latent_ops() override { return nullptr; }
  DType act_dtype() const override { return DType::kBF16; }
  ops::KvFormat kv_format() const override { return precision_.kv; }  // the reference takes each
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const override {
    if (!file.is_wide() && file != ops::kFp8Rows) {
      return fail(ErrorCode::kUnsupported, "no products of " + ops::format_name(file));
    }
    const bool keeps = !file.is_wide() && precision_.keeps_fp8;
    if (keeps || precision_.linear == DType::kF8E4M3) return ops::kFp8Rows;
    return ops::wide_format(precision_.linear);
  }
  Result<ops::WeightFormat> format_for(const ops::WeightFormat& file,
                                       ops::ProductUse use) const override {
    const bool is_hidden = use != ops::ProductUse::kHead && use != ops::ProductUse::kRouter;
    const DType kept = use == ops::ProductUse::kHead ? precision_.head : DType::kBF16;
    if (is_hidden || !file.is_wide() || kept == DType::kF8E4M3) return stored_format(file);
    return ops::wide_format(kept);
  }

  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    const ops::LinearPart& first = parts.front();
    RUDDER_TRY(const ops::WeightFormat format, format_for(first.format, first.use));
    const bool is_f8 = format == ops::kFp8Rows;
    std::vector<ops::LinearPart> rounded(parts.begin(), parts.end());
    for (ops::LinearPart& part : rounded) {
      if (is_f8 && (part.out() % 16 != 0 || part.in() % 16 != 0)) {
        return fail(ErrorCode::kUnsupported, "no product of " + part.codes.shape.to_string());
      }
      if (!part.bias.empty()) {
        RUDDER_TRY(part.bias, inner_->upload(part.bias, DType::kBF16));
      }
      if (!part.format.is_wide()) continue;
      RUDDER_TRY(const View weight, inner_->upload(part.codes, is_f8 ? DType::kF32 : DType::kBF16));
      for (int64_t row = 0; is_f8 && row < part.out(); ++row) round_row(weight.rows(row, 1));
      part = ops::wide_part(weight, part.bias);
    }
    RUDDER_TRY(ops::LinearWeight weight, inner_->make_linear(rounded));
    weight.format = format;
    weight.input = is_f8 ? ops::InputForm::kF8Rows : ops::InputForm::kAct;
    weight.bytes = ops::stored_parts(format, weight.out, weight.in).bytes();
    if (!parts.front().bias.empty()) weight.bytes += weight.out * int64_t{sizeof(BF16)};
    return weight;
  }

  Result<ops::LinearWeight> make_experts(std::span<const ops::LinearPart> parts,
                                         int64_t experts) override {
    RUDDER_TRY(const ops::WeightFormat format, stored_format(parts.front().format));
    const bool is_f8 = format == ops::kFp8Rows;
    std::vector<ops::LinearPart> rounded(parts.begin(), parts.end());
    for (ops::LinearPart& part : rounded) {
      if (is_f8 && part.in() % 16 != 0) {
        return fail(ErrorCode::kUnsupported, "no product of " + part.codes.shape.to_string());
      }
      if (!part.format.is_wide()) continue;
      RUDDER_TRY(const View weight, inner_->upload(part.codes, is_f8 ? DType::kF32 : DType::kBF16));
      for (int64_t row = 0; is_f8 && row < part.out(); ++row) round_row(weight.rows(row, 1));
      part = ops::wide_part(weight, part.bias);
    }
    RUDDER_TRY(ops::LinearWeight weight, inner_->expert_ops()->make_experts(rounded, experts));
    weight.format = format;
    weight.input = is_f8 ? ops::InputForm::kF8Rows : ops::InputForm::kAct;
    weight.bytes = experts * ops::stored_parts(format, weight.out, weight.in).bytes();
    if (!parts.front().bias.empty()) weight.bytes += experts * weight.out * int64_t{sizeof(BF16)};
    return weight;
  }
  void route(const ops::RouteArgs& args) override { route_tapped({args, {}, {}}); }
  void route_tapped(const ops::RouteTappedArgs& args) override {
    ops::RouteTappedArgs wide = args;
    ops::RouteArgs& route = wide.route;
    if (route.router != nullptr) {
      linear({.x = route.x, .x_scale = {}, .weight = route.router, .out = route.logits});
    }
    route.router = nullptr;
    Wide logits(route.logits);
    route.logits = logits.view();
    inner_->expert_ops()->router_taps()->route_tapped(wide);
  }
  void expert_linear(const ops::ExpertLinearArgs& args) override {
    Wide x = operand(args.x, args.x_scale);
    Out out(args.out);
    inner_->expert_ops()->expert_linear({.x = x.view(),
                                         .x_scale = {},
                                         .chosen = args.chosen,
                                         .weight = args.weight,
                                         .first = args.first,
                                         .activation = args.activation,
                                         .out = out.view()});
    out.done();
  }
  void combine_experts(const ops::CombineExpertsArgs& args) override {
    Wide x(args.x);
    Wide shared(args.shared);
    Wide shared_gate(args.shared_gate);
    Out out(args.out);
    inner_->expert_ops()->combine_experts({.x = x.view(),
                                           .weights = args.weights,
                                           .shared = shared.view(),
                                           .shared_gate = shared_gate.view(),
                                           .out = out.view()});
    out.done();
  }
  void convolve(const ops::ConvolveArgs& args) override {
    Wide x(args.x);
    Out out(args.out);
    ops::ConvolveArgs wide = args;
    wide.x = x.view();
    wide.out = out.view();
    inner_->state_ops()->convolve(wide);
    out.done();
  }
  void recur(const ops::RecurArgs& args) override {
    Wide qkv(args.qkv);
    Wide gates(args.gates);
    Wide b(args.b.rows);
    Out out(args.out);
    ops::RecurArgs wide = args;
    wide.qkv = qkv.view();
    wide.gates = gates.view();
    wide.b.rows = b.view();
    wide.out = out.view();
    inner_->state_ops()->recur(wide);
    out.done();
  }
  void gate_rows(const ops::GateRowsArgs& args) override {
    Wide x(args.x);
    Wide gate(args.gate);
    Out out(args.out);
    ops::GateRowsArgs wide = args;
    wide.x = x.view();
    wide.gate = gate.view();
    wide.out = out.view();
    inner_->state_ops()->gate_rows(wide);
    out.done();
  }

  void embed(const ops::EmbedArgs& args) override { run(&ops::Ops::embed, args, args.out); }

  void residual_norm(const ops::ResidualNormArgs& args) override {
    Wide x(args.x);
    Wide delta(args.delta);
    ops::ResidualNormArgs wide = args;
    wide.x = x.view();
    wide.delta = delta.view();
    Out act(args.out_act);
    wide.out_act = act.view();
    run(&ops::Ops::residual_norm, wide, args.out);
    act.done();
    if (args.out.data != args.x.data) x.round_to(args.x);
  }

  void linear(const ops::LinearArgs& args) override {
    Wide x = operand(args.x, args.x_scale);
    run(&ops::Ops::linear, ops::LinearArgs{x.view(), {}, args.weight, {}}, args.out);
  }

  void qkv_prep(const ops::QkvPrepArgs& args) override {
    Wide qkv(args.qkv);
    Out q(args.q_out);
    ops::QkvPrepArgs wide = args;
    wide.qkv = qkv.view();
    wide.q_out = q.view();
    inner_->qkv_prep(wide);
    q.done();
  }

  void attention(const ops::AttentionArgs& args) override {
    Wide q(args.q);
    ops::AttentionArgs wide = args;
    wide.q = q.view();
    if (precision_.rounds_queries && precision_.kv == ops::KvFormat{DType::kF8E4M3}) {
      const auto head_dim = static_cast<size_t>(args.kv.head_dim);
      const auto count = static_cast<size_t>(wide.q.shape.numel());
      for (size_t i = 0; i < count; i += head_dim) {
        round_query_row(std::span(wide.q.as<float>() + i, head_dim));
      }
    }
    run(&ops::Ops::attention, wide, args.out);
  }

  void gated_act(const ops::GatedActArgs& args) override {
    Wide x(args.x);
    ops::GatedActArgs wide = args;
    wide.x = x.view();
    run(&ops::Ops::gated_act, wide, args.out);
  }

  void residual_act(const ops::ResidualActArgs& args) override {
    Wide x(args.x);
    Wide y(args.y);
    inner_->draft_ops()->residual_act({x.view(), y.view()});
    x.round_to(args.x);
  }

  // The streams are read as they are stored.
  void mix_streams(const ops::MixStreamsArgs& args) override {
    if (!args.delta.empty()) {
      Wide x(args.x);
      Wide delta(args.delta);
      inner_->stream_ops()->mix_streams(
          {.x = x.view(), .delta = delta.view(), .write = args.write, .mix = args.mix});
      x.round_to(args.x);
    }
    if (args.out.empty()) return;
    Wide x(args.x);
    Out out(args.out);
    inner_->stream_ops()->mix_streams({.x = x.view(), .read = args.read, .out = out.view()});
    out.done();
  }

  void connect_streams(const ops::ConnectStreamsArgs& args) override {
    ops::ConnectStreamsArgs part = args;
    if (!args.delta.empty()) {
      Wide x(args.x);
      Wide delta(args.delta);
      part.x = x.view();
      part.delta = delta.view();
      part.out = {};
      inner_->stream_ops()->connect_streams(part);
      x.round_to(args.x);
    }
    if (args.out.empty()) return;
    Wide x(args.x);
    Out out(args.out);
    part.x = x.view();
    part.delta = {};
    part.post_taps = {};
    part.mix_taps = {};
    part.out = out.view();
    inner_->stream_ops()->connect_streams(part);
    out.done();
  }

  void gate_streams(const ops::GateStreamsArgs& args) override {
    if (!args.delta.empty()) {
      Wide x(args.x);
      Wide delta(args.delta);
      inner_->stream_ops()->gate_streams(
          {.x = x.view(), .delta = delta.view(), .write = args.write, .post_taps = args.post_taps});
      x.round_to(args.x);
    }
    if (args.out.empty()) return;
    Wide x(args.x);
    Out out(args.out);
    inner_->stream_ops()->gate_streams({.x = x.view(), .read = args.read, .out = out.view()});
    out.done();
  }

  void scale_add(const ops::ScaleAddArgs& args) override {
    Wide x(args.x);
    Wide delta(args.delta);
    ops::ScaleAddArgs wide = args;
    wide.x = x.view();
    wide.delta = delta.view();
    inner_->stream_ops()->scale_add(wide);
    x.round_to(args.x);
  }

  void sum_blocks(const ops::SumBlocksArgs& args) override {
    Wide x(args.x);
    Wide delta(args.delta);
    Out out(args.out);
    if (!args.delta.empty()) {
      inner_->stream_ops()->sum_blocks(
          {.x = x.view(), .delta = delta.view(), .finished = args.finished});
      x.round_to(args.x);
    }
    if (args.out.empty()) return;
    ops::SumBlocksArgs read = args;
    Wide stored(args.x);
    read.x = stored.view();
    read.delta = {};
    read.out = out.view();
    inner_->stream_ops()->sum_blocks(read);
    out.done();
  }

  void shrink_adapters(const ops::AdaptArgs& args) override {
    Wide x(args.x);
    Wide a(args.weights->a);
    ops::AdapterWeights weights = *args.weights;
    weights.a = a.view();
    ops::AdaptArgs wide = args;
    wide.x = x.view();
    wide.weights = &weights;
    inner_->adapter_ops()->shrink_adapters(wide);
  }
  void expand_adapters(const ops::AdaptArgs& args) override {
    Wide x(args.x);
    Wide b(args.weights->b);
    Wide out(args.out);
    ops::AdapterWeights weights = *args.weights;
    weights.b = b.view();
    ops::AdaptArgs wide = args;
    wide.x = x.view();
    wide.weights = &weights;
    wide.out = out.view();
    inner_->adapter_ops()->expand_adapters(wide);
    out.round_to(args.out);
  }

  void quantise(const ops::QuantiseArgs& args) override {
    Wide x(args.x);
    inner_->quantise({x.view(), args.out, args.out_scale});
  }

  void logits(const ops::LogitsArgs& args) override {
    Wide x = operand(args.x, args.x_scale);
    inner_->logits({x.view(), {}, args.head, args.softcap, args.out, args.scale});
  }

 private:
  // What a product takes: F8E4M3 with a scale a row, or bf16.
  static Wide operand(const View& x, const View& scale) {
    return scale.empty() ? Wide(x) : Wide(x, scale);
  }

  // Calls the reference with its output in place of `out`.
  template <typename Args>
  void run(void (ops::Ops::*op)(const Args&), Args wide, const View& narrow) {
    Out out(narrow);
    wide.out = out.view();
    (*inner_.*op)(wide);
    out.done();
  }

  static void round_row(const View& row) {
    const int64_t width = row.shape[1];
    float* x = row.as<float>();
    float highest = 0;
    for (int64_t i = 0; i < width; ++i) highest = std::max(highest, std::abs(x[i]));
    const float scale = highest > 0 ? highest / tensor::kMaxF8E4M3 : 1;
    for (int64_t i = 0; i < width; ++i) {
      x[i] = tensor::to_float(tensor::to_f8e4m3(x[i] / scale)) * scale;
    }
  }

  const LowPrecision precision_;
};

}  // namespace

std::unique_ptr<ops::Ops> make_low_precision_ops(const LowPrecision& precision) {
  return std::make_unique<LowPrecisionOps>(precision);
}

}  // namespace rudder::testing
