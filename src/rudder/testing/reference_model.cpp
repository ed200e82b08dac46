#include "rudder/testing/reference_model.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rudder/cpu/reference_ops.h"
#include "rudder/model/rope.h"

namespace rudder::testing {
namespace {

void append_rows(Matrix& to, const Matrix& rows) {
  to.cols = rows.cols;
  to.rows += rows.rows;
  to.values.insert(to.values.end(), rows.values.begin(), rows.values.end());
}

void append_columns(Matrix& to, const Matrix& row) {
  to.rows = 1;
  to.cols += row.cols;
  to.values.insert(to.values.end(), row.values.begin(), row.values.end());
}

class ReferencePass {
 public:
  ReferencePass(const model::ModelSpec& spec, const model::Weights& weights,
                const RememberingOps& ops, std::span<const int32_t> ids, const MixedHook& hook,
                std::vector<std::vector<Matrix>>* patterns)
      : spec_(spec), weights_(weights), ops_(ops), ids_(ids), hook_(hook), patterns_(patterns) {}

  Matrix run() const {
    Matrix x = embedded();
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const model::LayerSpec& layer = spec_.layers[i];
      const model::LayerWeights& w = weights_.layers[i];
      const auto& attention = std::get<model::Attention>(layer.mixer);
      const auto& mlp = std::get<model::GatedMlp>(layer.mlp);
      add_branch(x,
                 attend(i, attention, std::get<model::Attention::Weights>(w.mixer),
                        normed(x, w.mixer_pre_norm)),
                 w.mixer_post_norm);
      add_branch(x, feed(mlp, std::get<model::GatedMlp::Weights>(w.mlp), normed(x, w.mlp_pre_norm)),
                 w.mlp_post_norm);
      for (double& value : x.values) value *= double{w.scale};
    }
    Matrix logits = linear(normed(x, weights_.final_norm), weights_.head);
    for (double& value : logits.values) {
      value = reference_soft_cap(value * double{spec_.logit_scale}, double{spec_.final_softcap});
    }
    return logits;
  }

 private:
  Matrix embedded() const {
    const Matrix table =
        spec_.tied_head ? ops_.product_of(weights_.head).weight : to_matrix(weights_.embedding);
    Matrix x(static_cast<int64_t>(ids_.size()), spec_.hidden);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t i = 0; i < x.cols; ++i) {
        x.at(t, i) = table.at(ids_[static_cast<size_t>(t)], i) * double{spec_.embed_scale};
      }
    }
    return x;
  }

  static Matrix normed(const Matrix& x, const ops::NormSpec& norm) {
    return reference_norm(x, {.weight = to_matrix(norm.weight),
                              .alpha = to_matrix(norm.alpha),
                              .eps = double{norm.eps}});
  }

  Matrix linear(const Matrix& x, const ops::LinearWeight& weight) const {
    const RememberingOps::Product& product = ops_.product_of(weight);
    return reference_linear(x, product.weight, product.bias);
  }

  void add_branch(Matrix& x, const Matrix& branch, const ops::NormSpec& post_norm) const {
    const Matrix delta = normed(branch, post_norm);
    for (size_t i = 0; i < x.values.size(); ++i) {
      x.values[i] += double{spec_.branch_scale} * delta.values[i];
    }
  }

  Matrix rotated(const Matrix& x, const model::Attention& attention) const {
    if (attention.rope == model::kNoRope) return x;
    const auto length = static_cast<int32_t>(ids_.size());
    const model::RopeSpec& rope = spec_.ropes[static_cast<size_t>(attention.rope)];
    const std::vector<float> values = model::rope_table(rope, length);
    Matrix table(length, rope.rotary_dim);
    table.values.assign(values.begin(), values.end());
    std::vector<int32_t> positions(ids_.size());
    std::iota(positions.begin(), positions.end(), 0);
    return reference_rope(x, attention.head_dim, table, positions);
  }

  Matrix attend(size_t layer, const model::Attention& attention, const model::Attention::Weights& w,
                const Matrix& in) const {
    const Matrix qkv = linear(in, w.qkv);
    const int64_t q_width = attention.q_width();
    const int64_t kv_width = attention.kv_width();
    const Matrix q = rotated(normed(qkv.slice(0, qkv.rows, 0, q_width), w.q_norm), attention);
    const Matrix k =
        rotated(normed(qkv.slice(0, qkv.rows, q_width, kv_width), w.k_norm), attention);
    const Matrix v = normed(qkv.slice(0, qkv.rows, q_width + kv_width, kv_width), w.v_norm);
    ReferenceAttention reference{.num_heads = attention.num_heads,
                                 .num_kv_heads = attention.num_kv_heads,
                                 .scale = double{attention.scale},
                                 .window = attention.window};
    if (const auto* const gate = std::get_if<model::Gate>(&attention.weighting)) {
      reference.gate = {.sigma = to_matrix(w.gate_sigma).values,
                        .gamma = to_matrix(w.gate_gamma).values,
                        .length = gate->length,
                        .relu_pre = gate->relu_pre,
                        .low = double{gate->low},
                        .high = double{gate->high}};
    } else {
      reference.softcap = double{std::get<model::Softmax>(attention.weighting).softcap};
      reference.sinks = to_matrix(w.sinks).values;
    }
    std::vector<Matrix>* const patterns =
        patterns_ == nullptr ? nullptr : &patterns_->emplace_back();
    Matrix mixed = reference_attention(reference, q, k, v, patterns);
    if (hook_) hook_(layer, mixed);
    return linear(mixed, w.out);
  }

  Matrix feed(const model::GatedMlp& mlp, const model::GatedMlp::Weights& w,
              const Matrix& in) const {
    return linear(reference_gated_act(linear(in, w.gate_up), mlp.activation), w.down);
  }

  const model::ModelSpec& spec_;
  const model::Weights& weights_;
  const RememberingOps& ops_;
  std::span<const int32_t> ids_;
  const MixedHook& hook_;
  std::vector<std::vector<Matrix>>* const patterns_;
};

}  // namespace

RememberingOps::RememberingOps() : PassingOps(cpu::make_reference_ops()) {}

Result<ops::LinearWeight> RememberingOps::make_linear(std::span<const ops::LinearPart> parts) {
  RUDDER_TRY(ops::LinearWeight weight, PassingOps::make_linear(parts));
  Product& product = products_[weight.packed.get()];
  for (const ops::LinearPart& part : parts) {
    append_rows(product.weight, to_matrix(part.weight));
    if (!part.bias.empty()) append_columns(product.bias, to_matrix(part.bias));
  }
  return weight;
}

Matrix reference_forward(const model::ModelSpec& spec, const model::Weights& weights,
                         const RememberingOps& ops, std::span<const int32_t> ids,
                         const MixedHook& hook, std::vector<std::vector<Matrix>>* patterns) {
  return ReferencePass(spec, weights, ops, ids, hook, patterns).run();
}

}  // namespace rudder::testing
