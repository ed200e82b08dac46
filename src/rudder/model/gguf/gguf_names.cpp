#include "rudder/model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace rudder::model {
namespace {

constexpr std::array<GgufModule, 9> kLlamaModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr std::array<GgufModule, 11> kQwen3Modules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr std::array<GgufModule, 13> kGemmaModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
}};
constexpr std::array<GgufModule, 6> kPhi3Modules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

constexpr std::array<GgufModule, 9> kSeedOssModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr std::array<GgufModule, 10> kGlm4Modules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"post_attention_norm", "post_self_attn_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_mlp_layernorm"},
}};
constexpr std::array<GgufModule, 11> kHunyuanModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.query_layernorm"},
    {"attn_k_norm", "self_attn.key_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

constexpr std::array<GgufModule, 12> kQwen3MoeModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};
constexpr std::array<GgufModule, 7> kMixtralModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "block_sparse_moe.gate"},
}};
constexpr std::array<GgufModule, 8> kGptOssModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.router"},
}};
constexpr std::array<GgufModule, 16> kGlm4MoeModules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
}};
constexpr std::array<GgufModule, 23> kGemma4Modules = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"ffn_gate_inp", "router.proj"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
}};
constexpr GgufExperts kGgufMlpExperts[] = {
    {"ffn_gate_exps", "mlp.experts", "gate_proj"},
    {"ffn_up_exps", "mlp.experts", "up_proj"},
    {"ffn_down_exps", "mlp.experts", "down_proj"},
    {"ffn_gate_up_exps", "mlp.experts", "gate_proj", "up_proj"},
};
constexpr GgufExperts kGgufMixtralExperts[] = {
    {"ffn_gate_exps", "block_sparse_moe.experts", "w1", "", "ffn_gate"},
    {"ffn_up_exps", "block_sparse_moe.experts", "w3", "", "ffn_up"},
    {"ffn_down_exps", "block_sparse_moe.experts", "w2", "", "ffn_down"},
};
constexpr GgufExperts kGgufGemma4Experts[] = {
    {"ffn_gate_exps", "experts", "gate_proj"},
    {"ffn_up_exps", "experts", "up_proj"},
    {"ffn_down_exps", "experts", "down_proj"},
    {"ffn_gate_up_exps", "experts", "gate_proj", "up_proj"},
};

constexpr GgufArchitecture kGgufTable[] = {
    {"llama", "LlamaForCausalLM", "llama", kLlamaModules, true, false},
    {"mistral3", "MistralForCausalLM", "mistral", kLlamaModules, true, false},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", kLlamaModules, false, false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", kQwen3Modules, false, false},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", kGemmaModules, false, true},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", kGemmaModules, false, true},
    {"phi3", "Phi3ForCausalLM", "phi3", kPhi3Modules, false, false},
    {"olmo2", "Olmo2ForCausalLM", "olmo2", kGemmaModules, false, false},
    {"gemma", "GemmaForCausalLM", "gemma", kLlamaModules, false, true},
    {"qwen2vl", "Qwen2ForCausalLM", "qwen2", kLlamaModules, false, false},
    {"qwen3vl", "Qwen3ForCausalLM", "qwen3", kQwen3Modules, false, false},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", kLlamaModules, true, false},
    {"granite", "GraniteForCausalLM", "granite", kLlamaModules, true, false},
    {"exaone4", "Exaone4ForCausalLM", "exaone4", kGemmaModules, false, false},
    {"seed_oss", "SeedOssForCausalLM", "seed_oss", kSeedOssModules, false, false},
    {"ernie4_5", "Ernie4_5ForCausalLM", "ernie4_5", kLlamaModules, false, false},
    {"glm4", "Glm4ForCausalLM", "glm4", kGlm4Modules, false, false},
    {"hunyuan-dense", "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", kHunyuanModules, false,
     false},
    {"llama", "MixtralForCausalLM", "mixtral", kMixtralModules, true, false, kGgufMixtralExperts},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", kQwen3MoeModules, false, false,
     kGgufMlpExperts},
    {"olmoe", "OlmoeForCausalLM", "olmoe", kQwen3MoeModules, false, false, kGgufMlpExperts},
    {"gpt-oss", "GptOssForCausalLM", "gpt_oss", kGptOssModules, false, false, kGgufMlpExperts},
    {"glm4moe", "Glm4MoeForCausalLM", "glm4_moe", kGlm4MoeModules, false, false, kGgufMlpExperts},
    {"gemma4", "Gemma4ForCausalLM", "gemma4_text", kGemma4Modules, false, false,
     kGgufGemma4Experts},
};

constexpr std::string_view kGgufLayer = "blk.";
constexpr GgufModule kGgufTop[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"}};

}  // namespace

Result<const GgufArchitecture*> find_gguf_architecture(std::string_view name, bool has_experts) {
  std::string known;
  const GgufArchitecture* found = nullptr;
  for (const GgufArchitecture& one : kGgufTable) {
    if (one.name == name && (found == nullptr || has_experts == !one.experts.empty())) found = &one;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
  }
  if (found != nullptr) return found;
  return fail(ErrorCode::kUnsupported,
              fmt::format("the architecture '{}' of this GGUF file is not one of {}", name, known));
}

std::string tensor_name_of(const GgufArchitecture& architecture, std::string_view name) {
  for (const auto& [in_file, own] : kGgufTop) {
    if (name == in_file) return std::string(own);
  }
  const size_t number = name.find('.', kGgufLayer.size());
  const size_t suffix = name.rfind('.');
  if (!name.starts_with(kGgufLayer) || suffix == number || number == std::string_view::npos) {
    return std::string(name);
  }
  const auto layer = name.substr(kGgufLayer.size(), number - kGgufLayer.size());
  const auto whole =
      std::ranges::find(architecture.modules, name.substr(number + 1), &GgufModule::first);
  if (whole != architecture.modules.end()) {
    return fmt::format("model.layers.{}.{}", layer, whole->second);
  }
  const std::string_view module = name.substr(number + 1, suffix - number - 1);
  for (const GgufExperts& one : architecture.experts) {
    if (one.old.empty() || !module.starts_with(fmt::format("{}.", one.old))) continue;
    return fmt::format("model.layers.{}.{}.{}.{}{}", layer, one.experts,
                       module.substr(one.old.size() + 1), one.module, name.substr(suffix));
  }
  const auto found = std::ranges::find(architecture.modules, module, &GgufModule::first);
  if (found == architecture.modules.end()) return std::string(name);
  return fmt::format("model.layers.{}.{}{}", layer, found->second, name.substr(suffix));
}

std::optional<GgufExpertsTensor> experts_tensor(const GgufArchitecture& architecture,
                                                std::string_view name) {
  const size_t number = name.find('.', kGgufLayer.size());
  const size_t suffix = name.rfind('.');
  if (!name.starts_with(kGgufLayer) || number == std::string_view::npos || suffix <= number) {
    return std::nullopt;
  }
  const std::string_view end = name.substr(suffix);
  if (end != ".weight" && end != ".bias") return std::nullopt;
  const auto found = std::ranges::find(
      architecture.experts, name.substr(number + 1, suffix - number - 1), &GgufExperts::in_file);
  if (found == architecture.experts.end()) return std::nullopt;
  return GgufExpertsTensor{&*found, name.substr(kGgufLayer.size(), number - kGgufLayer.size()),
                           end};
}

std::string expert_name(const GgufExpertsTensor& tensor, int64_t expert, std::string_view module) {
  return fmt::format("model.layers.{}.{}.{}.{}{}", tensor.layer, tensor.experts->experts, expert,
                     module, tensor.suffix);
}

int64_t layer_in_file(std::string_view name) {
  if (!name.starts_with(kGgufLayer)) return -1;
  int64_t layer = -1;
  std::from_chars(name.data() + kGgufLayer.size(), name.data() + name.size(), layer);
  return layer;
}

std::optional<std::string> name_in_file(const GgufArchitecture& architecture,
                                        std::string_view name) {
  for (const auto& [in_file, own] : kGgufTop) {
    if (name == own) return std::string(in_file);
  }
  constexpr std::string_view kLayer = "model.layers.";
  const size_t number = name.find('.', kLayer.size());
  const size_t suffix = name.rfind('.');
  if (!name.starts_with(kLayer) || number == std::string_view::npos || suffix <= number) {
    return std::nullopt;
  }
  const auto layer = name.substr(kLayer.size(), number - kLayer.size());
  const std::string_view module = name.substr(number + 1, suffix - number - 1);
  const auto found = std::ranges::find(architecture.modules, module, &GgufModule::second);
  if (found == architecture.modules.end()) return std::nullopt;
  return fmt::format("{}{}.{}{}", kGgufLayer, layer, found->first, name.substr(suffix));
}

bool is_query(std::string_view name) {
  return name.find("self_attn.q_proj.") != std::string_view::npos;
}

bool is_key(std::string_view name) {
  return name.find("self_attn.k_proj.") != std::string_view::npos;
}

bool is_norm(std::string_view name) {
  return name.ends_with("norm.weight");
}

}  // namespace rudder::model
