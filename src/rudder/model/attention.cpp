#include "rudder/model/attention.h"

#include <string>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

// The scales of an fp8 KV cache, by the names that exporters give them.
void list_kv_scales(const Attention::Names& names, const Extent& kv_heads,
                    Attention::Weights* weights, LayerTensors& out) {
  const std::string module = out.prefix + std::string(names.out.substr(0, names.out.rfind('.')));
  const auto add = [&](std::string_view letter, size_t part, View* target) {
    const std::string stored = out.prefix + std::string(names.qkv[part]);
    const std::string scale = "." + std::string(letter) + "_scale";
    out.scales.push_back(
        {{module + ".kv_scale", module + scale, stored + scale, stored + ".output_scale"},
         kv_heads,
         target});
  };
  const size_t parts = names.qkv.size();
  add("k", parts > 1 ? 1 : 0, target_in(weights, &Attention::Weights::k_scale));
  add("v", parts - 1, target_in(weights, &Attention::Weights::v_scale));
}

// Rows of a tensor that has two runs of `dim` rows for each head: the first ones, or the second.
std::vector<Extent> every_other(const Extent& heads, int64_t dim, int64_t which) {
  std::vector<Extent> runs;
  for (int64_t head = 0; head < heads.stored; ++head) {
    const bool is_here = head >= heads.share.begin && head < heads.share.begin + heads.count();
    for (int64_t i = 0; i < 2; ++i) {
      runs.emplace_back(dim, ops::Share{0, is_here && i == which ? dim : 0});
    }
  }
  return runs;
}

// The rows of q and of k, which have a tensor each.
void turn_neighbours(const Attention& attention, LinearModule& qkv) {
  RUDDER_CHECK(attention.qk_norm == QkNorm::kNone && qkv.parts.size() > 1 && !attention.v_is_k);
  for (size_t part = 0; part < (attention.own_kv ? 2 : 1); ++part) {
    qkv.parts[part].order = {attention.head_dim, attention.neighbours};
  }
}

}  // namespace

void list_tensors(const Attention& attention, int64_t hidden, const Attention::Names& names,
                  Attention::Weights* weights, LayerTensors& out) {
  using Weights = Attention::Weights;
  const auto [heads, kv_heads, q, kv] = attention_extents(attention, out.rank);
  if (attention.qk_norm != QkNorm::kNone) {
    const bool per_head = attention.qk_norm == QkNorm::kPerHead;
    out.add_norm(names.q_norm, per_head ? Extent{attention.head_dim} : q, attention.qk_norm_kind,
                 target_in(weights, &Weights::q_norm));
    if (attention.own_kv) {
      out.add_norm(names.k_norm, per_head ? Extent{attention.head_dim} : kv, attention.qk_norm_kind,
                   target_in(weights, &Weights::k_norm));
    }
  }
  if (attention.own_kv && attention.v_norm) {
    out.add_plain_norm(attention.head_dim, target_in(weights, &Weights::v_norm));
  }
  const Softmax* const softmax = std::get_if<Softmax>(&attention.weighting);
  if (softmax == nullptr) {
    out.add_vector(names.gate_sigma, heads, target_in(weights, &Weights::gate_sigma),
                   ValueKind::kGateSigma);
    out.add_vector(names.gate_gamma, heads, target_in(weights, &Weights::gate_gamma),
                   ValueKind::kGain);
  } else if (softmax->sinks) {
    out.add_vector(names.sinks, heads, target_in(weights, &Weights::sinks));
  }
  std::vector<std::string_view> qkv = names.qkv;
  std::vector<Extent> rows = {q, kv, kv};
  if (attention.v_is_k) qkv.back() = qkv[1];  // the same rows twice: products stay as they are
  if (!attention.own_kv) {
    qkv.resize(1);
    rows.resize(1);
  }
  if (attention.out_gate && names.out_gate.empty()) {
    RUDDER_CHECK(attention.own_kv && qkv.size() == 3);
    out.add_parts({{std::string(qkv[0]), every_other(heads, attention.head_dim, 0)},
                   {std::string(qkv[1]), {kv}},
                   {std::string(qkv[2]), {kv}}},
                  hidden, target_in(weights, &Weights::qkv));
    out.linears.back().bias = attention.qkv_bias;
    out.add_parts({{std::string(qkv[0]), every_other(heads, attention.head_dim, 1)}}, hidden,
                  target_in(weights, &Weights::out_gate));
    out.linears.back().bias = attention.qkv_bias;
  } else {
    out.add_linear(qkv, rows, hidden, attention.qkv_bias, target_in(weights, &Weights::qkv));
    if (attention.out_gate) {
      out.add_linear({names.out_gate}, {q}, hidden, attention.qkv_bias,
                     target_in(weights, &Weights::out_gate));
    }
  }
  if (attention.neighbours > 0) turn_neighbours(attention, out.linears.back());
  out.add_linear({names.out}, {hidden}, q, attention.out_bias, target_in(weights, &Weights::out));
  out.linears.back().parts.front().factor = attention.out_factor;
  if (attention.own_kv) list_kv_scales(names, kv_heads, weights, out);
  if (attention.kv_layer < 0) return;
  for (const std::string_view module : {names.qkv[1], names.qkv[2], names.k_norm}) {
    out.unread.push_back(out.prefix + std::string(module) + ".weight");
  }
}

std::array<int64_t, 4> scratch_widths(const Attention& attention) {
  return {attention.qkv_width(), attention.q_width(), attention.q_width(),
          attention.out_gate ? attention.q_width() : 0};
}

Mixed mix(const Attention& attention, const Attention::Weights& weights, const Operand& in,
          const LayerStep& step) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(attention));
  ops::KvLayer kv = step.kv;
  if (attention.own_kv && kv.format() == ops::KvFormat{DType::kF8E4M3}) {
    kv.k_scale = weights.k_scale;
    kv.v_scale = weights.v_scale;
  }
  ops::KvLayer written = kv;
  if (!attention.own_kv) written.num_kv_heads = 0;
  const View qkv = step.products.project(weights.qkv, in, scratch[0]);
  const View gate =
      attention.out_gate ? step.products.project(weights.out_gate, in, scratch[3]) : View{};
  const View q = shaped(scratch[1], in.rows(), attention.q_width());
  step.ops.qkv_prep(
      {.qkv = qkv,
       .num_heads = attention.num_heads,
       .q_norm = weights.q_norm,
       .k_norm = weights.k_norm,
       .rope = attention.rope == kNoRope ? View{} : step.ropes[static_cast<size_t>(attention.rope)],
       .rope_row = step.batch.positions,
       .kv_slot = step.batch.kv_slot.rows(kv.group * in.rows(), in.rows()),
       .kv = written,
       .q_out = q,
       .v_norm = weights.v_norm,
       .norms_rotated = attention.norms_rotated,
       .q_scale = step.query_scales,
       .norms_span_ranks = attention.qk_norm == QkNorm::kAllHeads});
  const View out = shaped(scratch[2], in.rows(), attention.q_width());
  ops::AttentionArgs args{.q = q,
                          .kv = kv,
                          .num_heads = attention.num_heads,
                          .scale = attention.scale,
                          .window = attention.window,
                          .out = out};
  if (const Softmax* const softmax = std::get_if<Softmax>(&attention.weighting)) {
    args.softcap = softmax->softcap;
    args.sinks = weights.sinks;
  } else {
    const Gate& gate = std::get<Gate>(attention.weighting);
    args.gate = {.sigma = weights.gate_sigma,
                 .gamma = weights.gate_gamma,
                 .length = gate.length,
                 .relu_pre = gate.relu_pre,
                 .low = gate.low,
                 .high = gate.high};
  }
  capture_patterns(args, step);
  step.ops.attention(args);
  if (attention.out_gate) {
    step.ops.state_ops()->gate_rows(
        {.x = out, .gate = gate, .function = ops::GateFunction::kSigmoid, .out = out});
  }
  return {.out = out, .buffer = scratch[2], .free = scratch[1]};
}

}  // namespace rudder::model
