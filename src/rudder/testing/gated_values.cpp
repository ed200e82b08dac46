#include "rudder/testing/gated_values.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/shard.h"
#include "rudder/model/tensors.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::testing {
namespace {

using model::CustomMixer;
using tensor::DType;
using tensor::View;

float value_at(const View& rows, int64_t index) {
  return rows.dtype == DType::kF32 ? rows.as<const float>()[index]
                                   : tensor::to_float(rows.as<const tensor::BF16>()[index]);
}

// values *= 1 + tanh(row . gate / sqrt(hidden)) / 2, row by row.
void multiply_by_gates(const View& values, const View& rows, const View& gate) {
  const int64_t hidden = rows.shape[1];
  const int64_t width = values.shape[1];
  for (int64_t t = 0; t < rows.shape[0]; ++t) {
    float dot = 0;
    for (int64_t k = 0; k < hidden; ++k) {
      dot += value_at(rows, t * hidden + k) * gate.as<const float>()[k];
    }
    const float factor = 1 + std::tanh(dot / std::sqrt(static_cast<float>(hidden))) / 2;
    for (int64_t i = t * width; i < (t + 1) * width; ++i) {
      const float value = factor * value_at(values, i);
      if (values.dtype == DType::kF32) {
        values.as<float>()[i] = value;
      } else {
        values.as<tensor::BF16>()[i] = tensor::to_bf16(value);
      }
    }
  }
}

class GatedValues final : public model::MixerKind {
 public:
  explicit GatedValues(int64_t width) : width_(width) {}

  Result<std::shared_ptr<const MixerKind>> share(ops::Rank rank) const override {
    if (width_ % rank.count != 0) {
      return model::indivisible(fmt::format("the {} values of a toy mixer", width_), rank);
    }
    return make_gated_values(width_ / rank.count);
  }

  void list_tensors(int64_t hidden, CustomMixer::Weights* weights,
                    model::LayerTensors& out) const override {
    const model::Extent width{width_, ops::equal_share(width_, out.rank)};
    out.add_vector("mixer.gate", hidden, target_in(weights, &CustomMixer::Weights::vector));
    out.add_linear({"mixer.in_proj"}, {width}, hidden, false,
                   target_in(weights, &CustomMixer::Weights::in));
    out.add_linear({"mixer.out_proj"}, {hidden}, width, false,
                   target_in(weights, &CustomMixer::Weights::out));
  }

  std::vector<int64_t> scratch_widths() const override { return {width_, width_}; }
  model::StateBytes state_bytes() const override { return {}; }
  bool reads_act() const override { return true; }

  model::Mixed mix(const CustomMixer::Weights& weights, const model::Operand& in,
                   const model::LayerStep& step) const override {
    const model::Scratch<2> scratch(step.scratch, step.max_tokens, {width_, width_});
    RUDDER_CHECK(in.act.dtype == step.ops.act_dtype(), "rows of {}",
                 tensor::dtype_name(in.act.dtype));
    const View values = step.products.project(weights.in, in, scratch[0]);
    ForwardingOps::run_on(step.ops, [values, rows = in.act, gate = weights.vector] {
      multiply_by_gates(values, rows, gate);
    });
    return {.out = values, .buffer = scratch[0], .free = scratch[1]};
  }

 private:
  const int64_t width_;
};

}  // namespace

std::shared_ptr<const model::MixerKind> make_gated_values(int64_t width) {
  return std::make_shared<GatedValues>(width);
}

}  // namespace rudder::testing
