#include <string>
#include <utility>

#include "rudder/model/gguf/gguf_keys.h"

namespace rudder::model {
namespace {

// What config.json calls how many experts there are, and how many a token chooses.
struct ExpertNames {
  std::string_view architecture;
  std::string_view count;
  std::string_view chosen = "num_experts_per_tok";
  // Of an expert; where a file does not say it, that of "feed_forward_length".
  std::string_view width = "moe_intermediate_size";
};
constexpr ExpertNames kNames[] = {
    {"qwen3moe", "num_experts"},
    {"llama", "num_local_experts", "num_experts_per_tok", "intermediate_size"},
    {"olmoe", "num_experts", "num_experts_per_tok", "intermediate_size"},
    {"gpt-oss", "num_local_experts", "num_experts_per_tok", "intermediate_size"},
    {"glm4moe", "n_routed_experts"},
    {"gemma4", "num_experts", "top_k_experts"},
};

// "expert_gating_func" of llama.cpp.
constexpr int64_t kGateSoftmax = 1;
constexpr int64_t kGateSigmoid = 2;

Result<void> add_glm(GgufKeys& keys) {
  const auto copy = [&](std::string_view name, std::string_view target) -> Result<void> {
    if (!keys.has(name)) return {};
    RUDDER_TRY(const int64_t value, keys.gguf.integer(keys.key(name), 0, kMostGguf));
    keys.out[target] = value;
    return {};
  };
  RUDDER_TRY_VOID(copy("expert_shared_count", "n_shared_experts"));
  RUDDER_TRY_VOID(copy("leading_dense_block_count", "first_k_dense_replace"));
  RUDDER_TRY_VOID(copy("expert_group_count", "n_group"));
  RUDDER_TRY_VOID(copy("expert_group_used_count", "topk_group"));
  RUDDER_TRY_VOID(keys.copy_number("expert_weights_scale", "routed_scaling_factor", keys.out));
  if (keys.has("expert_weights_norm")) {
    RUDDER_TRY(keys.out["norm_topk_prob"],
               keys.gguf.boolean_or(keys.key("expert_weights_norm"), true));
  }
  keys.out["use_qk_norm"] = keys.source.find("blk.0.attn_q_norm.weight") != nullptr;
  return {};
}

// Of layers without a router.
boost::json::array dense_layers(const GgufSource& source, int64_t num_layers) {
  boost::json::array out;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (source.find(fmt::format("blk.{}.ffn_gate_inp.weight", layer)) == nullptr) {
      out.emplace_back(layer);
    }
  }
  return out;
}

}  // namespace

Result<void> add_gguf_experts(GgufKeys& keys, int64_t num_layers) {
  constexpr std::string_view kCount = "expert_count";
  if (!keys.has(kCount)) return {};
  RUDDER_TRY(const int64_t count, keys.gguf.integer(keys.key(kCount), 0, kMostGguf));
  if (count == 0) return {};
  const auto* const names =
      std::ranges::find(kNames, keys.architecture.name, &ExpertNames::architecture);
  if (names == std::end(kNames) || keys.architecture.experts.empty()) {
    return keys.contradiction("experts of this architecture are not served", kCount);
  }
  keys.out[names->count] = count;
  RUDDER_TRY(keys.out[names->chosen], keys.size("expert_used_count"));
  if (keys.has("expert_feed_forward_length")) {
    RUDDER_TRY_VOID(keys.copy_size("expert_feed_forward_length", names->width));
  }
  constexpr std::string_view kGate = "expert_gating_func";
  if (keys.has(kGate)) {
    RUDDER_TRY(const int64_t gate, keys.gguf.integer(keys.key(kGate), 0, 4));
    // gpt-oss chooses first, whatever is written.
    const int64_t own = keys.is("glm4moe") ? kGateSigmoid : kGateSoftmax;
    if (gate != 0 && gate != own && !keys.is("gpt-oss")) {
      return keys.contradiction(fmt::format("routers of kind {} are not served", gate), kGate);
    }
  }
  if (keys.is("gemma4")) keys.out["enable_moe_block"] = true;
  if (keys.is("glm4moe")) return add_glm(keys);
  if (!keys.is("qwen3moe")) return {};
  keys.out["norm_topk_prob"] = true;  // llama.cpp knows it by heart
  keys.out["mlp_only_layers"] = dense_layers(keys.source, num_layers);
  return {};
}

}  // namespace rudder::model
