#include "rudder/model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

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
};

constexpr std::string_view kGgufLayer = "blk.";
constexpr GgufModule kGgufTop[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                   {"output_norm.weight", "model.norm.weight"},
                                   {"output.weight", "lm_head.weight"}};

}  // namespace

Result<const GgufArchitecture*> find_gguf_architecture(std::string_view name) {
  std::string known;
  for (const GgufArchitecture& one : kGgufTable) {
    if (one.name == name) return &one;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
  }
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
  const std::string_view module = name.substr(number + 1, suffix - number - 1);
  const auto found = std::ranges::find(architecture.modules, module, &GgufModule::first);
  if (found == architecture.modules.end()) return std::string(name);
  return fmt::format("model.layers.{}.{}{}", layer, found->second, name.substr(suffix));
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
