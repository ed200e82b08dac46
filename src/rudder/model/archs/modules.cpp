#include "rudder/model/archs/modules.h"

#include <fmt/format.h>

#include <numeric>

namespace rudder::model {
namespace {

// `rows` of the parts by name, or their sum where the checkpoint stores them as one.
LinearModule linear(const std::string& prefix, const std::vector<std::string_view>& names,
                    const std::vector<int64_t>& rows, int64_t in, bool bias) {
  LinearModule out{{}, in, bias};
  if (names.size() == 1) {
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    out.parts.push_back({fmt::format("{}{}", prefix, names[0]), all});
    return out;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    out.parts.push_back({fmt::format("{}{}", prefix, names[i]), rows[i]});
  }
  return out;
}

}  // namespace

LinearModule head_module(const ModelSpec& spec, const WeightNames& names) {
  return {{{std::string(names.head), spec.vocab}}, spec.hidden, false};
}

LayerModules layer_modules(const ModelSpec& spec, const WeightNames& names, size_t layer) {
  const AttentionSpec& attention = spec.layers[layer].attention;
  const MlpSpec& mlp = spec.layers[layer].mlp;
  const int64_t hidden = spec.hidden;
  const int64_t q = attention.q_width();
  const int64_t kv = int64_t{attention.num_kv_heads} * attention.head_dim;
  const std::string prefix = fmt::format("{}layers.{}.", names.prefix, layer);
  const auto norm = [&](std::string_view name, int64_t width) {
    if (name.empty()) return NormModule{};
    return NormModule{fmt::format("{}{}.weight", prefix, name), width};
  };

  LayerModules out;
  out.attn_pre_norm = norm(names.attn_pre_norm, hidden);
  out.attn_post_norm = norm(names.attn_post_norm, hidden);
  out.mlp_pre_norm = norm(names.mlp_pre_norm, hidden);
  out.mlp_post_norm = norm(names.mlp_post_norm, hidden);
  if (attention.qk_norm != QkNorm::kNone) {
    const bool per_head = attention.qk_norm == QkNorm::kPerHead;
    out.q_norm = norm(names.q_norm, per_head ? attention.head_dim : q);
    out.k_norm = norm(names.k_norm, per_head ? attention.head_dim : kv);
  }
  out.qkv = linear(prefix, names.qkv, {q, kv, kv}, hidden, attention.qkv_bias);
  out.attn_out = linear(prefix, {names.attn_out}, {hidden}, q, attention.out_bias);
  out.gate_up = linear(prefix, names.gate_up, {mlp.width, mlp.width}, hidden, mlp.bias);
  out.down = linear(prefix, {names.down}, {hidden}, mlp.width, mlp.bias);
  return out;
}

}  // namespace rudder::model
