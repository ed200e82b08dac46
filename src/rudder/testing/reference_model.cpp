#include "rudder/testing/reference_model.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rudder/model/rope.h"
#include "rudder/testing/reference_latent.h"
#include "rudder/testing/reference_recurrences.h"
#include "rudder/testing/reference_residual.h"

namespace rudder::testing {
namespace {

class ReferencePass {
 public:
  ReferencePass(const model::ModelSpec& spec, const model::Weights& weights,
                const RememberingOps& ops, std::span<const int32_t> ids,
                const ReferenceHooks& hooks, std::vector<std::vector<Matrix>>* patterns)
      : spec_(spec),
        weights_(weights),
        ops_(ops),
        ids_(ids),
        hooks_(hooks),
        patterns_(patterns),
        residual_(spec, weights) {}

  Matrix run() {
    Streams x = residual_.begun(embedded());
    const Matrix layer_rows = spec_.layer_embedding.exists() ? rows_by_layer(x[0]) : Matrix();
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const model::LayerSpec& layer = spec_.layers[i];
      const model::LayerWeights& w = weights_.layers[i];
      show(x, {static_cast<int32_t>(i), tap::Site::kResidPre});
      if (layer.has_mixer()) {
        residual_.write(x, i, Part::kMixer,
                        branch(mix(i, layer.mixer, w.mixer,
                                   normed(residual_.read(x, i, Part::kMixer), w.mixer_pre_norm)),
                               w.mixer_post_norm));
      } else {
        next_patterns();
      }
      if (layer.has_mixer() && layer.has_mlp()) {
        show(x, {static_cast<int32_t>(i), tap::Site::kResidMid});
      }
      if (layer.has_mlp()) {
        residual_.write(x, i, Part::kMlp,
                        branch(feed(layer.mlp, w.mlp,
                                    normed(residual_.read(x, i, Part::kMlp), w.mlp_pre_norm), x[0]),
                               w.mlp_post_norm));
      }
      if (spec_.layer_embedding.exists()) {
        const Matrix added = layer_row(w.layer_embedding, x[0],
                                       layer_rows.slice(0, x[0].rows, columns_of(i), row_width()));
        x[0] = sum_of({x[0], added}, {1, 1});
      }
      for (Matrix& stream : x) {
        for (double& value : stream.values) value *= double{w.scale};
      }
      show(x, {static_cast<int32_t>(i), tap::Site::kResidPost});
    }
    Matrix logits =
        linear(normed(residual_.read(x, spec_.layers.size() - 1, Part::kEnd), weights_.final_norm),
               weights_.head);
    for (double& value : logits.values) {
      value = reference_soft_cap(value * double{spec_.logit_scale}, double{spec_.final_softcap});
    }
    return logits;
  }

 private:
  using Streams = std::vector<Matrix>;
  using Part = ReferenceResidual::Part;

  void show(Streams& x, tap::Point point) const {
    if (hooks_.residual) hooks_.residual(point, x);
  }
  // The sum of the streams, each times its number.
  static Matrix sum_of(const Streams& x, const std::vector<double>& numbers) {
    return ReferenceResidual::sum_of(x, numbers);
  }

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

  int64_t row_width() const { return spec_.layer_embedding.width; }
  int64_t columns_of(size_t layer) const { return static_cast<int64_t>(layer) * row_width(); }

  // model/layer_embedding.h
  Matrix rows_by_layer(const Matrix& x) const {
    const model::LayerEmbedding::ModelWeights& w = weights_.layer_embedding;
    const Matrix table = to_matrix(w.table);
    Matrix made = linear(x, w.projection);
    for (double& value : made.values) value /= std::sqrt(static_cast<double>(spec_.hidden));
    made = normed(made, w.norm);
    for (int64_t t = 0; t < made.rows; ++t) {
      for (int64_t i = 0; i < made.cols; ++i) {
        const double stored = table.at(ids_[static_cast<size_t>(t)], i);
        made.at(t, i) += stored * std::sqrt(static_cast<double>(row_width()));
        made.at(t, i) *= std::sqrt(0.5);
      }
    }
    return made;
  }
  Matrix layer_row(const model::LayerEmbedding::Weights& w, const Matrix& x,
                   const Matrix& row) const {
    const Matrix gate = linear(x, w.gate);
    Matrix both(x.rows, 2 * row.cols);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t i = 0; i < row.cols; ++i) {
        both.at(t, i) = gate.at(t, i);
        both.at(t, row.cols + i) = row.at(t, i);
      }
    }
    const auto activation = spec_.layer_embedding.activation;
    return normed(linear(reference_gated_act(both, activation), w.out), w.post_norm);
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

  // What is written of it.
  Matrix branch(const Matrix& made, const ops::NormSpec& post_norm) const {
    Matrix delta = normed(made, post_norm);
    for (double& value : delta.values) value *= double{spec_.branch_scale};
    return delta;
  }

  std::vector<Matrix>* next_patterns() const {
    return patterns_ == nullptr ? nullptr : &patterns_->emplace_back();
  }

  Matrix table_of(int32_t index) const {
    if (index == model::kNoRope) return {};
    const auto length = static_cast<int32_t>(ids_.size());
    const model::RopeSpec& rope = spec_.ropes[static_cast<size_t>(index)];
    const std::vector<float> values = model::rope_table(rope, length);
    Matrix table(length, rope.rotary_dim);
    table.values.assign(values.begin(), values.end());
    return table;
  }

  Matrix rotated(const Matrix& x, const model::Attention& attention) const {
    if (attention.rope == model::kNoRope) return x;
    const Matrix table = table_of(attention.rope);
    std::vector<int32_t> positions(ids_.size());
    std::iota(positions.begin(), positions.end(), 0);
    return reference_rope(x, attention.head_dim, table, positions);
  }

  // Queries, each times what it grows by with its position.
  Matrix grown(Matrix q) const {
    const model::QueryGrowth& growth = spec_.query_growth;
    for (int64_t t = 0; t < q.rows; ++t) {
      const double periods = std::floor(static_cast<double>(t) / growth.period);
      for (int64_t i = 0; i < q.cols; ++i) q.at(t, i) *= 1 + growth.slope * std::log(1 + periods);
    }
    return q;
  }

  template <typename MixerWeights>
  Matrix mix(size_t layer, const model::Mixer& mixer, const MixerWeights& w, const Matrix& in) {
    const auto* const attention = std::get_if<model::Attention>(&mixer);
    if (const auto* const latent = std::get_if<model::LatentAttention>(&mixer))
      return read_latent(layer, *latent, std::get<model::LatentAttention::Weights>(w), in);
    if (const auto* const delta = std::get_if<model::GatedDelta>(&mixer)) {
      return recur(layer, *delta, std::get<model::GatedDelta::Weights>(w), in);
    }
    if (const auto* const space = std::get_if<model::StateSpace>(&mixer)) {
      next_patterns();  // it has none
      return read_space(layer, *space, std::get<model::StateSpace::Weights>(w), in, true);
    }
    if (const auto* const both = std::get_if<model::Parallel>(&mixer)) {
      const auto& weights = std::get<model::Parallel::Weights>(w);
      return sum_of({attend(layer, both->attention, weights.attention, in),
                     read_space(layer, both->space, weights.space, in, false)},
                    {1, 1});
    }
    if (const auto* const conv = std::get_if<model::ShortConv>(&mixer)) {
      return convolve(layer, *conv, std::get<model::ShortConv::Weights>(w), in);
    }
    return attention == nullptr
               ? decayed(std::get<model::CustomMixer::Weights>(w), in)
               : attend(layer, *attention, std::get<model::Attention::Weights>(w), in);
  }

  // The toy mixer (decayed_sum.h), of each token from all before it.
  Matrix decayed(const model::CustomMixer::Weights& w, const Matrix& in) const {
    const Matrix values = linear(in, w.in);
    const Matrix gains = to_matrix(w.vector);
    Matrix sums(values.rows, values.cols);
    for (int64_t t = 0; t < sums.rows; ++t) {
      for (int64_t i = 0; i < sums.cols; ++i) {
        const auto head = static_cast<size_t>(i * w.vector.num_rows() / sums.cols);
        const double kept = 1 - gains.values[head] / 10;
        for (int64_t s = 0; s <= t; ++s) {
          sums.at(t, i) += std::pow(kept, static_cast<double>(t - s)) * values.at(s, i);
        }
      }
    }
    return linear(sums, w.out);
  }

  Matrix recur(size_t layer, const model::GatedDelta& delta, const model::GatedDelta::Weights& w,
               const Matrix& in) const {
    const Matrix inputs = linear(in, w.in);
    const Matrix gates = linear(in, w.gates);
    const bool by_channel = delta.by_channel();
    const auto columns = [&](const Matrix& of, int64_t begin, int64_t count) {
      return of.slice(0, of.rows, begin, count);
    };
    Matrix filters = to_matrix(w.conv);
    filters.rows = delta.conv_width();
    filters.cols = delta.conv_length;
    const Matrix qkv =
        reference_convolve(columns(inputs, 0, delta.conv_width()), filters, {}, true);
    const Matrix read = reference_recur(
        {.key_heads = delta.key_heads,
         .value_heads = delta.value_heads,
         .key_dim = delta.key_dim,
         .value_dim = delta.value_dim,
         .decay_floor = double{delta.decay_floor},
         .a_log = to_matrix(w.a_log),
         .step_bias = to_matrix(w.step_bias)},
        columns(qkv, 0, delta.key_width()), columns(qkv, delta.key_width(), delta.key_width()),
        columns(qkv, 2 * delta.key_width(), delta.value_width()),
        by_channel ? linear(linear(in, w.decay_down), w.decay)
                   : columns(gates, delta.value_heads, delta.value_heads),
        columns(gates, 0, delta.value_heads));
    Matrix mixed = reference_gate_rows(
        {.function = by_channel ? ops::GateFunction::kSigmoid : ops::GateFunction::kSilu,
         .norm = to_matrix(w.norm.weight),
         .run = delta.value_dim,
         .eps = double{w.norm.eps}},
        read,
        by_channel ? linear(linear(in, w.gate_down), w.gate)
                   : columns(inputs, delta.conv_width(), delta.value_width()));
    next_patterns();  // it has none
    if (hooks_.mixed) hooks_.mixed(layer, mixed);
    return linear(mixed, w.out);
  }

  Matrix read_latent(size_t layer, const model::LatentAttention& mixer,
                     const model::LatentAttention::Weights& w, const Matrix& in) const {
    const Matrix from = mixer.query_rank > 0 ? normed(linear(in, w.q_down), w.q_norm) : in;
    Matrix mixed =
        reference_latent({.shape = mixer.shape,
                          .scale = double{mixer.scale},
                          .neighbours = mixer.neighbours,
                          .norm = {to_matrix(w.kv_norm.weight), {}, double{w.kv_norm.eps}},
                          .up = ops_.product_of(w.kv_up).weight,
                          .sinks = mixer.sinks ? to_matrix(w.sinks).values : std::vector<double>(),
                          .table = table_of(mixer.rope)},
                         grown(linear(from, w.q)), linear(in, w.kv_down), next_patterns());
    if (mixer.out_gate) mixed = reference_gate_rows({}, mixed, linear(in, w.gate));
    if (hooks_.mixed) hooks_.mixed(layer, mixed);
    return linear(mixed, w.out);
  }

  // `shows`: what is read is the layer's attn_z.
  Matrix read_space(size_t layer, const model::StateSpace& space,
                    const model::StateSpace::Weights& w, const Matrix& in, bool shows) const {
    const Matrix inputs = linear(in, w.in);
    Matrix filters = to_matrix(w.conv);
    filters.rows = space.conv_width();
    filters.cols = space.conv_length;
    const Matrix xbc = reference_convolve(inputs.slice(0, inputs.rows, 0, space.conv_width()),
                                          filters, to_matrix(w.conv_bias), true);
    const auto columns = [&](const Matrix& of, int64_t begin, int64_t count) {
      return of.slice(0, of.rows, begin, count);
    };
    const int64_t width = space.width();
    const int64_t group = space.group_width();
    const Matrix read = reference_recur(
        {.key_heads = space.groups,
         .value_heads = space.heads,
         .key_dim = space.state_dim,
         .value_dim = space.head_dim,
         .is_delta = false,
         .step_low = double{space.step_low},
         .step_high = double{space.step_high},
         .a_log = to_matrix(w.a_log),
         .step_bias = to_matrix(w.step_bias),
         .skip = to_matrix(w.skip)},
        columns(xbc, width + group, group), columns(xbc, width, group), columns(xbc, 0, width),
        columns(inputs, space.conv_width() + width, space.heads), {});
    Matrix mixed = reference_gate_rows({.function = ops::GateFunction::kSilu,
                                        .norm = to_matrix(w.norm.weight),
                                        .run = space.norm_runs == 0 ? 0 : width / space.norm_runs,
                                        .eps = double{w.norm.eps},
                                        .gates_first = space.gates_first},
                                       read, columns(inputs, space.conv_width(), width));
    if (shows && hooks_.mixed) hooks_.mixed(layer, mixed);
    return linear(mixed, w.out);
  }

  Matrix convolve(size_t layer, const model::ShortConv& conv, const model::ShortConv::Weights& w,
                  const Matrix& in) const {
    const Matrix inputs = linear(in, w.in);
    const auto third = [&](int64_t i) {
      return inputs.slice(0, inputs.rows, i * conv.width, conv.width);
    };
    const ReferenceRowGate itself{.function = ops::GateFunction::kItself};
    Matrix filters = to_matrix(w.filter);
    filters.rows = conv.width;
    filters.cols = conv.length;
    Matrix mixed =
        reference_gate_rows(itself,
                            reference_convolve(reference_gate_rows(itself, third(0), third(2)),
                                               filters, to_matrix(w.bias), false),
                            third(1));
    next_patterns();  // it has none
    if (hooks_.mixed) hooks_.mixed(layer, mixed);
    return linear(mixed, w.out);
  }

  Matrix attend(size_t layer, const model::Attention& attention, const model::Attention::Weights& w,
                const Matrix& in) {
    const Matrix qkv = linear(in, w.qkv);
    const int64_t q_width = attention.q_width();
    const int64_t kv_width = attention.kv_width();
    const auto prepared = [&](const Matrix& part, const ops::NormSpec& norm) {
      return attention.norms_rotated ? normed(rotated(part, attention), norm)
                                     : rotated(normed(part, norm), attention);
    };
    const Matrix q = grown(prepared(qkv.slice(0, qkv.rows, 0, q_width), w.q_norm));
    keys_.resize(spec_.layers.size());
    values_.resize(spec_.layers.size());
    if (attention.own_kv) {
      keys_[layer] = prepared(qkv.slice(0, qkv.rows, q_width, kv_width), w.k_norm);
      values_[layer] = normed(qkv.slice(0, qkv.rows, q_width + kv_width, kv_width), w.v_norm);
    }
    const Matrix& k = keys_[model::kv_layer_of(spec_, layer)];
    const Matrix& v = values_[model::kv_layer_of(spec_, layer)];
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
    Matrix mixed = reference_attention(reference, q, k, v, next_patterns());
    if (attention.out_gate) mixed = reference_gate_rows({}, mixed, linear(in, w.out_gate));
    if (hooks_.mixed) hooks_.mixed(layer, mixed);
    return linear(mixed, w.out);
  }

  template <typename MlpWeights>
  Matrix feed(const model::Mlp& mlp, const MlpWeights& w, const Matrix& in,
              const Matrix& residual) const {
    if (const auto* const experts = std::get_if<model::Experts>(&mlp)) {
      return chosen_sum(*experts, std::get<model::Experts::Weights>(w), in, residual);
    }
    const auto& gated = std::get<model::GatedMlp::Weights>(w);
    return linear(
        reference_gated_act(linear(in, gated.gate_up), std::get<model::GatedMlp>(mlp).activation),
        gated.down);
  }

  Matrix chosen_sum(const model::Experts& mlp, const model::Experts::Weights& w,
                    const Matrix& shared_in, const Matrix& residual) const {
    const Matrix in = mlp.own_norms ? normed(residual, w.pre_norm) : shared_in;
    const Matrix logits = linear(mlp.own_norms ? normed(residual, w.router_norm) : in, w.router);
    const Matrix scales = w.expert_scales.empty() ? Matrix() : to_matrix(w.expert_scales);
    const Matrix correction = w.correction.empty() ? Matrix() : to_matrix(w.correction);
    const auto through = [&](const Matrix& row, const ops::LinearWeight& weight, int32_t e) {
      const auto& [all, bias] = ops_.product_of(weight);
      return reference_linear(
          row, all.slice(e * weight.out, weight.out, 0, all.cols),
          bias.cols == 0 ? Matrix() : bias.slice(0, 1, e * weight.out, weight.out));
    };
    Matrix out(in.rows, in.cols);
    for (int64_t t = 0; t < in.rows; ++t) {
      const Matrix row = in.slice(t, 1, 0, in.cols);
      for (const ReferenceChoice& choice :
           reference_route(logits.slice(t, 1, 0, logits.cols).values, correction.values,
                           {.kind = mlp.router.kind,
                           .renormalises = mlp.router.renormalises,
                           .scale = mlp.router.scale,
                           .groups = mlp.router.groups,
                           .kept_groups = mlp.router.kept_groups,
                           .chosen = mlp.chosen,
                           .expert_scales = scales.values})) {
        const Matrix made =
            through(reference_gated_act(through(row, w.gate_up, choice.expert), mlp.activation),
                    w.down, choice.expert);
        for (int64_t i = 0; i < out.cols; ++i) out.at(t, i) += choice.weight * made.at(0, i);
      }
    }
    if (mlp.shared_width == 0) return out;
    Matrix shared =
        linear(reference_gated_act(linear(shared_in, w.shared_gate_up), mlp.shared_activation),
               w.shared_down);
    if (mlp.own_norms) {
      out = normed(out, w.post_norm);
      shared = normed(shared, w.shared_post_norm);
    }
    const Matrix gate = mlp.shared_gate ? linear(in, w.shared_gate) : Matrix();
    for (int64_t t = 0; t < out.rows; ++t) {
      const double share = mlp.shared_gate ? 1 / (1 + std::exp(-gate.at(t, 0))) : 1;
      for (int64_t i = 0; i < out.cols; ++i) out.at(t, i) += share * shared.at(t, i);
    }
    return out;
  }

  const model::ModelSpec& spec_;
  const model::Weights& weights_;
  const RememberingOps& ops_;
  std::span<const int32_t> ids_;
  const ReferenceHooks& hooks_;
  std::vector<std::vector<Matrix>>* const patterns_;
  ReferenceResidual residual_;
  std::vector<Matrix> keys_;  // of each layer that has its own
  std::vector<Matrix> values_;
};

}  // namespace

Matrix reference_forward(const model::ModelSpec& spec, const model::Weights& weights,
                         const RememberingOps& ops, std::span<const int32_t> ids,
                         const ReferenceHooks& hooks, std::vector<std::vector<Matrix>>* patterns) {
  return ReferencePass(spec, weights, ops, ids, hooks, patterns).run();
}

}  // namespace rudder::testing
