#include "rudder/model/archs/latent_like.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "rudder/model/archs/expert_layers.h"
#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr int64_t kWidestRow = 1 << 20;

Result<int32_t> latent_dim(const HfConfig& config, std::string_view key) {
  RUDDER_TRY(const int64_t value, config.integer(key, 1, kWidestRow));
  return static_cast<int32_t>(value);
}

Result<LatentAttention> read_latent(const HfConfig& config, const ModelSpec& spec,
                                    LatentRope turns) {
  const Attention& plain = *attention_of(spec.layers.front());
  LatentAttention latent{.hidden = spec.hidden, .bias = plain.qkv_bias};
  ops::LatentShape& shape = latent.shape;
  shape.num_heads = plain.num_heads;
  RUDDER_TRY(shape.rank, latent_dim(config, "kv_lora_rank"));
  RUDDER_TRY(shape.nope_dim, latent_dim(config, "qk_nope_head_dim"));
  if (turns == LatentRope::kNone) {
    RUDDER_TRY_VOID(config.integer("qk_rope_head_dim", 0, 0));
    latent.rope = kNoRope;
  } else {
    RUDDER_TRY(shape.rope_dim, latent_dim(config, "qk_rope_head_dim"));
  }
  RUDDER_TRY(shape.value_dim, latent_dim(config, "v_head_dim"));
  if (shape.rope_dim % 2 != 0) {
    return fail(ErrorCode::kCorruptFile, "an odd part of a head cannot be rotated",
                config.where("qk_rope_head_dim"));
  }
  if (config.has("q_lora_rank")) {
    RUDDER_TRY(latent.query_rank, latent_dim(config, "q_lora_rank"));
  }
  const int64_t widest = std::max({latent.query_width(), latent.read_width(),
                                   shape.num_heads * (int64_t{shape.nope_dim} + shape.value_dim),
                                   latent.value_width()});
  if (widest > kWidestRow) {
    return fail(ErrorCode::kCorruptFile, fmt::format("{} heads are too wide", shape.num_heads),
                config.where("num_attention_heads"));
  }
  RUDDER_TRY(latent.neighbours, config.boolean_or("rope_interleave", true));
  latent.scale = 1 / std::sqrt(static_cast<float>(shape.query_dim()));
  return latent;
}

// What a rope that stretches multiplies all scores by, besides what it does to cos and sin
// (yarn_apply_mscale of modeling_deepseek_v2.py).
Result<double> score_factor(const HfConfig& rope) {
  RUDDER_TRY(const std::string type,
             rope.string_or(rope.has("rope_type") ? "rope_type" : "type", "default"));
  RUDDER_TRY(const double all_dim, rope.number_or("mscale_all_dim", 0));
  if (type == "default" || all_dim == 0) return 1;
  RUDDER_TRY(const double factor, rope.number("factor"));
  const double scale = factor <= 1 ? 1 : 0.1 * all_dim * std::log(factor) + 1;
  return scale * scale;
}

Result<RopeSpec> read_latent_rope(const HfConfig& config, const HfConfig& rope,
                                  const ops::LatentShape& shape, LatentRope turns) {
  const bool is_part = turns == LatentRope::kPartOfQuery && rope.has("partial_rotary_factor");
  const auto whole = static_cast<int32_t>(is_part ? shape.query_dim() : shape.rope_dim);
  RUDDER_TRY(RopeSpec out, read_rope(config, whole, {.is_partial = is_part}));
  if (out.rotary_dim == shape.rope_dim) return out;
  return fail(ErrorCode::kCorruptFile,
              fmt::format("{} elements turn, and the rope's part of a head has {}", out.rotary_dim,
                          shape.rope_dim),
              rope.where("partial_rotary_factor"));
}

}  // namespace

Result<ModelSpec> latent_like(const HfConfig& config, LatentRope turns) {
  LlamaDefaults defaults;
  defaults.one_rope = false;
  if (turns == LatentRope::kNone) defaults.head_dim = 2;  // widths of heads are the keys below
  // Widths of heads are the keys below.
  const HfConfig whole = config.with_defaults(R"({"head_dim": 2})");
  RUDDER_TRY(ModelSpec spec, llama_like(whole, defaults));
  RUDDER_TRY(LatentAttention latent, read_latent(config, spec, turns));
  if (turns != LatentRope::kNone) {
    RUDDER_TRY(const HfConfig rope, rope_object(config));
    RUDDER_TRY(RopeSpec one, read_latent_rope(config, rope, latent.shape, turns));
    RUDDER_TRY(const double factor, score_factor(rope));
    spec.ropes.push_back(std::move(one));
    latent.scale =
        static_cast<float>(factor / std::sqrt(static_cast<double>(latent.shape.query_dim())));
  }
  for (LayerSpec& layer : spec.layers) layer.mixer = latent;
  return spec;
}

Result<Experts> read_experts_beside_shared(const HfConfig& config, const ModelSpec& spec) {
  RUDDER_TRY(Experts experts, read_experts(config, spec, {.count = "n_routed_experts"}));
  RUDDER_TRY(const int64_t shared, config.integer_or("n_shared_experts", 1, 0, 64));
  experts.shared_width = static_cast<int32_t>(shared * experts.width);
  return experts;
}

Result<void> set_experts_from(const HfConfig& config, const Experts& experts, ModelSpec& spec) {
  RUDDER_TRY(const int64_t dense, config.integer("first_k_dense_replace", 0, 1 << 20));
  RUDDER_TRY(const int64_t every, config.integer_or("moe_layer_freq", 1, 1, 1 << 20));
  if (every != 1) {
    return fail(ErrorCode::kUnsupported, "layers behind a mixture of experts are mixtures",
                config.where("moe_layer_freq"));
  }
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (static_cast<int64_t>(layer) >= dense) spec.layers[layer].mlp = experts;
  }
  return {};
}

Result<void> set_experts_by_layer(const HfConfig& config, const Experts& experts, ModelSpec& spec) {
  constexpr std::string_view kTypes = "mlp_layer_types";
  if (!config.has(kTypes)) return set_experts_from(config, experts, spec);
  RUDDER_TRY(const std::vector<std::string> types, config.strings(kTypes));
  if (types.size() != spec.layers.size()) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} types for {} layers", types.size(), spec.layers.size()),
                config.where(kTypes));
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == "sparse") {
      spec.layers[layer].mlp = experts;
    } else if (types[layer] != "dense") {
      return fail(ErrorCode::kUnsupported, fmt::format("the type '{}' is not known", types[layer]),
                  config.where(kTypes));
    }
  }
  return {};
}

WeightNames shared_expert_names(std::vector<std::string_view> ignored) {
  WeightNames names;
  Experts::Names& experts = names.of<Experts>();
  experts.shared_gate_up = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
  experts.shared_down = "mlp.shared_experts.down_proj";
  names.ignored_prefixes = std::move(ignored);
  return names;
}

}  // namespace rudder::model
