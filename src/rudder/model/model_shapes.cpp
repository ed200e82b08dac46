// The published shapes that make_model knows. Sources: the config.json of each model on the Hugging
// Face hub; keys that no reader of weights needs are left out.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <string>

#include "rudder/base/json.h"
#include "rudder/model/make_model.h"

namespace rudder::model {
namespace {

struct ModelShape {
  std::string_view name;
  std::string_view architecture;
  int32_t hidden, width, layers, heads, kv_heads, head_dim, vocab, max_positions;
  double theta, eps;
  bool tied;
  std::string_view more;  // further keys
  int32_t full_each = 0;  // each so-manieth layer has no window, by "layer_types"; 0: not said
  // So many of the last layers read the KV of others, where others of each kind are in front.
  int32_t kv_shared = 0;
};

constexpr std::string_view kLlama = "LlamaForCausalLM";
constexpr std::string_view kQwen2 = "Qwen2ForCausalLM";
constexpr std::string_view kQwen3 = "Qwen3ForCausalLM";
constexpr std::string_view kMistral = "MistralForCausalLM";
constexpr std::string_view kGemma2 = "Gemma2ForCausalLM";
constexpr std::string_view kGemma3 = "Gemma3ForCausalLM";
constexpr std::string_view kGemma4 = "Gemma4ForCausalLM";
constexpr std::string_view kPhi3 = "Phi3ForCausalLM";
constexpr std::string_view kOlmo2 = "Olmo2ForCausalLM";
constexpr std::string_view kAsyncT = "AsyncTForCausalLM";
constexpr std::string_view kQwen3Moe = "Qwen3MoeForCausalLM";
constexpr std::string_view kMixtral = "MixtralForCausalLM";
constexpr std::string_view kOlmoe = "OlmoeForCausalLM";
constexpr std::string_view kGemma = "GemmaForCausalLM";
constexpr std::string_view kMinistral3 = "Ministral3ForCausalLM";
constexpr std::string_view kSmolLm3 = "SmolLM3ForCausalLM";
constexpr std::string_view kOlmo3 = "Olmo3ForCausalLM";
constexpr std::string_view kExaone4 = "Exaone4ForCausalLM";
constexpr std::string_view kGranite = "GraniteForCausalLM";
constexpr std::string_view kGlm4 = "Glm4ForCausalLM";
constexpr std::string_view kSeedOss = "SeedOssForCausalLM";
constexpr std::string_view kErnie = "Ernie4_5ForCausalLM";
constexpr std::string_view kHunyuan = "HunYuanDenseV1ForCausalLM";
constexpr std::string_view kHelium = "HeliumForCausalLM";
constexpr std::string_view kCwm = "CwmForCausalLM";

constexpr std::string_view kGptOss = "GptOssForCausalLM";
constexpr std::string_view kGlm4Moe = "Glm4MoeForCausalLM";
constexpr std::string_view kDeepSeekV2 = "DeepseekV2ForCausalLM";
constexpr std::string_view kDeepSeekV3 = "DeepseekV3ForCausalLM";
constexpr std::string_view kGlm4MoeLite = "Glm4MoeLiteForCausalLM";
constexpr std::string_view kHybridNext = "Qwen3NextForCausalLM";
constexpr std::string_view kHybrid = "Qwen3_5ForCausalLM";
constexpr std::string_view kHybridMoe = "Qwen3_5MoeForCausalLM";

constexpr std::string_view kLfm2 = "Lfm2ForCausalLM";
constexpr std::string_view kLfm2Moe = "Lfm2MoeForCausalLM";
constexpr std::string_view kGraniteHybrid = "GraniteMoeHybridForCausalLM";
constexpr std::string_view kFalconH1 = "FalconH1ForCausalLM";
constexpr std::string_view kNemotronH = "NemotronHForCausalLM";

constexpr std::string_view kSilu = R"("hidden_act": "silu")";
constexpr std::string_view kLlama31 =
    R"("hidden_act": "silu", "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";
constexpr std::string_view kLlama32 =
    R"("hidden_act": "silu", "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";
constexpr std::string_view kWindow4096 = R"("hidden_act": "silu", "sliding_window": 4096)";
constexpr std::string_view kNoWindow = R"("hidden_act": "silu", "sliding_window": null)";
constexpr std::string_view kWindow2047 = R"("hidden_act": "silu", "sliding_window": 2047)";
constexpr std::string_view kGemma2Small =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256)";
constexpr std::string_view kGemma2Large =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 144)";
constexpr std::string_view kGemma3Text =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512,
    "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256)";
constexpr std::string_view kGemma3Small =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 1024,
    "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0})";
constexpr std::string_view kGemma3Large =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 1024,
    "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 168,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0})";
constexpr std::string_view kGemma4Experts =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 1024, "global_head_dim": 512,
    "num_global_key_value_heads": 2, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0, "enable_moe_block": true, "num_experts": 128,
    "top_k_experts": 8, "moe_intermediate_size": 704)";
constexpr std::string_view kGemma4E2b =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512, "global_head_dim": 512,
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
    "final_logit_softcapping": 30.0, "use_double_wide_mlp": true)";
constexpr std::string_view kGemma4E4b =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512, "global_head_dim": 512,
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
    "final_logit_softcapping": 30.0)";
constexpr std::string_view kGemma4Dense =
    R"("hidden_activation": "gelu_pytorch_tanh", "sliding_window": 1024, "global_head_dim": 512,
    "num_global_key_value_heads": 4, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0, "rope_parameters": {
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                         "rope_theta": 1000000.0}})";
constexpr std::string_view kQwen3Experts =
    R"("hidden_act": "silu", "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": true, "decoder_sparse_step": 1)";
constexpr std::string_view kMixtralExperts =
    R"("hidden_act": "silu", "num_local_experts": 8, "num_experts_per_tok": 2,
    "sliding_window": null)";
constexpr std::string_view kOlmoeExperts =
    R"("hidden_act": "silu", "num_experts": 64, "num_experts_per_tok": 8,
    "norm_topk_prob": false)";
// The rest is the default of the class, and 128 experts too.
constexpr std::string_view kGptOss32 = R"("hidden_act": "silu", "num_local_experts": 32)";
constexpr std::string_view kGlmAir =
    R"("hidden_act": "silu", "attention_bias": true, "partial_rotary_factor": 0.5,
    "use_qk_norm": false, "n_routed_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0)";
constexpr std::string_view kGlmFlash =
    R"("hidden_act": "silu", "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 64, "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.8)";
constexpr std::string_view kV2Lite =
    R"("hidden_act": "silu", "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "norm_topk_prob": false, "routed_scaling_factor": 1.0, "rope_scaling": {"type": "yarn",
    "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096})";
constexpr std::string_view kV3Experts =
    R"("hidden_act": "silu", "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8,
    "topk_group": 4, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "rope_scaling": {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096})";
constexpr std::string_view kNextExperts =
    R"("hidden_act": "silu", "partial_rotary_factor": 0.25, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": true,
    "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1)";
constexpr std::string_view k35Experts =
    R"("hidden_act": "silu", "partial_rotary_factor": 0.25, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512)";
constexpr std::string_view k35Dense =
    R"("hidden_act": "silu", "partial_rotary_factor": 0.25, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48)";
constexpr std::string_view kLfm2Dense =
    R"("full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "conv_bias": false,
    "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": true,
    "norm_eps": 1e-5)";
constexpr std::string_view kLfm2Experts =
    R"("full_attn_idxs": [2, 6, 10, 14, 18, 21], "conv_L_cache": 3, "conv_bias": false,
    "norm_eps": 1e-5, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
    "moe_intermediate_size": 1792, "use_expert_bias": true, "norm_topk_prob": true,
    "routed_scaling_factor": 1.0)";
constexpr std::string_view kGraniteTiny =
    R"("hidden_act": "silu", "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125, "logits_scaling": 6.0, "position_embedding_type": "nope",
    "num_local_experts": 64, "num_experts_per_tok": 6, "shared_intermediate_size": 1024,
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128,
    "mamba_d_conv": 4, "mamba_expand": 2, "layer_types": [
    "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba",
    "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba",
    "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba",
    "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"])";
constexpr std::string_view kFalconSmall =
    R"("hidden_act": "silu", "embedding_multiplier": 5.656854249492381,
    "lm_head_multiplier": 0.0390625, "key_multiplier": 0.390625, "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 0.9375, "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.23570226039551587, "mlp_multipliers": [0.8838834764831844, 0.5859375],
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
    "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_n_groups": 1,
    "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_rms_norm": false,
    "mamba_norm_before_gate": false)";
constexpr std::string_view kNemotronNano =
    R"("hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "layer_norm_epsilon": 1e-5, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "n_routed_experts": 128, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
    "routed_scaling_factor": 2.5, "mlp_hidden_act": "relu2")";
constexpr std::string_view kGeluTanh = R"("hidden_act": "gelu_pytorch_tanh")";
constexpr std::string_view kGrowth =
    R"("hidden_act": "silu", "sliding_window": null, "rope_parameters": {
    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1})";
constexpr std::string_view kOlmo3Rope =
    R"("hidden_act": "silu", "sliding_window": 4096, "rope_scaling": {"rope_type": "yarn",
    "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.2079441541679836,
    "original_max_position_embeddings": 8192})";
constexpr std::string_view kExaoneAllFull =
    R"("hidden_act": "silu", "sliding_window": null, "rope_scaling": {"rope_type": "llama3",
    "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192})";
constexpr std::string_view kExaoneHybrid =
    R"("hidden_act": "silu", "sliding_window": 4096, "sliding_window_pattern": 4,
    "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";
constexpr std::string_view kGranite2b =
    R"("hidden_act": "silu", "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.015625, "logits_scaling": 8.0)";
constexpr std::string_view kGranite8b =
    R"("hidden_act": "silu", "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125, "logits_scaling": 16.0)";
constexpr std::string_view kHalfOfHead =
    R"("hidden_act": "silu", "attention_bias": false, "partial_rotary_factor": 0.5)";
constexpr std::string_view kQkvBias =
    R"("hidden_act": "silu", "attention_bias": true, "attention_out_bias": false)";
constexpr std::string_view kWidened =
    R"("hidden_act": "silu", "rope_scaling": {"type": "dynamic", "alpha": 1000.0,
    "factor": 1.0})";
constexpr std::string_view kCwmWindows =
    R"("hidden_act": "silu", "sliding_window": 8192, "rope_scaling": {"rope_type": "llama3",
    "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192})";
constexpr std::string_view kGates =
    R"("hidden_act": "relu", "fir_k": 3, "fir_relu_pre": true, "fir_clip": [0.0, 1.0])";

// Not published: asynct-0.6b has the parameters of qwen3-0.6b in 35 layers of half the heads,
// asynct-0.6b-28l its layers and heads.
// clang-format off
constexpr ModelShape kShapes[] = {
    // name, architecture, hidden, width, layers, heads, kv, head_dim, vocab, positions, theta, eps, tied
    {"llama-2-7b", kLlama, 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e4, 1e-5, false, kSilu},
    {"llama-3.1-8b", kLlama, 4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5, 1e-5, false, kLlama31},
    {"llama-3.1-70b", kLlama, 8192, 28672, 80, 64, 8, 128, 128256, 131072, 5e5, 1e-5, false, kLlama31},
    {"llama-3.2-1b", kLlama, 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5, 1e-5, true, kLlama32},
    {"llama-3.2-3b", kLlama, 3072, 8192, 28, 24, 8, 128, 128256, 131072, 5e5, 1e-5, true, kLlama32},
    {"mistral-7b", kMistral, 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e4, 1e-5, false, kWindow4096},
    {"mistral-nemo-12b", kMistral, 5120, 14336, 40, 32, 8, 128, 131072, 131072, 1e6, 1e-5, false, kNoWindow},
    {"qwen2.5-0.5b", kQwen2, 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e6, 1e-6, true, kSilu},
    {"qwen2.5-1.5b", kQwen2, 1536, 8960, 28, 12, 2, 128, 151936, 32768, 1e6, 1e-6, true, kSilu},
    {"qwen2.5-3b", kQwen2, 2048, 11008, 36, 16, 2, 128, 151936, 32768, 1e6, 1e-6, true, kSilu},
    {"qwen2.5-7b", kQwen2, 3584, 18944, 28, 28, 4, 128, 152064, 32768, 1e6, 1e-6, false, kSilu},
    {"qwen2.5-14b", kQwen2, 5120, 13824, 48, 40, 8, 128, 152064, 32768, 1e6, 1e-6, false, kSilu},
    {"qwen2.5-32b", kQwen2, 5120, 27648, 64, 40, 8, 128, 152064, 32768, 1e6, 1e-6, false, kSilu},
    {"qwen2.5-72b", kQwen2, 8192, 29568, 80, 64, 8, 128, 152064, 32768, 1e6, 1e-6, false, kSilu},
    {"qwen3-0.6b", kQwen3, 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6, true, kSilu},
    {"qwen3-1.7b", kQwen3, 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6, true, kSilu},
    {"qwen3-4b", kQwen3, 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e6, 1e-6, true, kSilu},
    {"qwen3-8b", kQwen3, 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e6, 1e-6, false, kSilu},
    {"qwen3-14b", kQwen3, 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e6, 1e-6, false, kSilu},
    {"qwen3-32b", kQwen3, 5120, 25600, 64, 64, 8, 128, 151936, 40960, 1e6, 1e-6, false, kSilu},
    {"gemma-2-2b", kGemma2, 2304, 9216, 26, 8, 4, 256, 256000, 8192, 1e4, 1e-6, true, kGemma2Small},
    {"gemma-2-9b", kGemma2, 3584, 14336, 42, 16, 8, 256, 256000, 8192, 1e4, 1e-6, true, kGemma2Small},
    {"gemma-2-27b", kGemma2, 4608, 36864, 46, 32, 16, 128, 256000, 8192, 1e4, 1e-6, true, kGemma2Large},
    {"gemma-3-1b", kGemma3, 1152, 6912, 26, 4, 1, 256, 262144, 32768, 1e6, 1e-6, true, kGemma3Text},
    {"gemma-3-4b", kGemma3, 2560, 10240, 34, 8, 4, 256, 262208, 131072, 1e6, 1e-6, true, kGemma3Small},
    {"gemma-3-12b", kGemma3, 3840, 15360, 48, 16, 8, 256, 262208, 131072, 1e6, 1e-6, true, kGemma3Small},
    {"gemma-3-27b", kGemma3, 5376, 21504, 62, 32, 16, 128, 262208, 131072, 1e6, 1e-6, true, kGemma3Large},
    {"gemma-4-31b", kGemma4, 5376, 21504, 60, 32, 16, 256, 262144, 262144, 1e6, 1e-6, true, kGemma4Dense},
    {"gemma-4-26b-a4b", kGemma4, 2816, 2112, 30, 16, 8, 256, 262144, 262144, 1e6, 1e-6, true, kGemma4Experts},
    {"gemma-4-e2b", kGemma4, 1536, 6144, 35, 8, 1, 256, 262144, 131072, 1e6, 1e-6, true, kGemma4E2b, 5, 20},
    {"gemma-4-e4b", kGemma4, 2560, 10240, 42, 8, 2, 256, 262144, 131072, 1e6, 1e-6, true, kGemma4E4b, 6, 18},
    {"phi-3-mini", kPhi3, 3072, 8192, 32, 32, 32, 96, 32064, 4096, 1e4, 1e-5, false, kWindow2047},
    {"phi-4", kPhi3, 5120, 17920, 40, 40, 10, 128, 100352, 16384, 2.5e5, 1e-5, false, kSilu},
    {"olmo-2-1b", kOlmo2, 2048, 8192, 16, 16, 16, 128, 100352, 4096, 5e5, 1e-6, false, kSilu},
    {"olmo-2-7b", kOlmo2, 4096, 11008, 32, 32, 32, 128, 100352, 4096, 5e5, 1e-6, false, kSilu},
    {"asynct-0.6b", kAsyncT, 1024, 3072, 35, 8, 4, 128, 151936, 40960, 1e6, 1e-6, true, kGates},
    {"asynct-0.6b-28l", kAsyncT, 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6, true, kGates},
    {"qwen3-30b-a3b", kQwen3Moe, 2048, 6144, 48, 32, 4, 128, 151936, 40960, 1e6, 1e-6, false, kQwen3Experts},
    {"mixtral-8x7b", kMixtral, 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e6, 1e-5, false, kMixtralExperts},
    {"olmoe-1b-7b", kOlmoe, 2048, 1024, 16, 16, 16, 128, 50304, 4096, 1e4, 1e-5, false, kOlmoeExperts},
    {"gpt-oss-20b", kGptOss, 2880, 2880, 24, 64, 8, 64, 201088, 131072, 1.5e5, 1e-5, false, kGptOss32},
    {"gpt-oss-120b", kGptOss, 2880, 2880, 36, 64, 8, 64, 201088, 131072, 1.5e5, 1e-5, false, kSilu},
    {"glm-4.5-air", kGlm4Moe, 4096, 10944, 46, 96, 8, 128, 151552, 131072, 1e6, 1e-5, false, kGlmAir},
    {"glm-4.7-flash", kGlm4MoeLite, 2048, 10240, 47, 20, 20, 64, 154880, 202752, 1e6, 1e-5, false, kGlmFlash},
    {"deepseek-v2-lite", kDeepSeekV2, 2048, 10944, 27, 16, 16, 64, 102400, 163840, 1e4, 1e-6, false, kV2Lite},
    {"deepseek-v3", kDeepSeekV3, 7168, 18432, 61, 128, 128, 64, 129280, 163840, 1e4, 1e-6, false, kV3Experts},
    {"qwen3-next-80b-a3b", kHybridNext, 2048, 5120, 48, 16, 2, 256, 151936, 262144, 1e7, 1e-6, false, kNextExperts},
    {"qwen3.5-35b-a3b", kHybridMoe, 2048, 512, 40, 16, 2, 256, 248320, 262144, 1e7, 1e-6, false, k35Experts},
    {"qwen3.6-27b", kHybrid, 5120, 17408, 64, 24, 4, 256, 248320, 262144, 1e7, 1e-6, false, k35Dense},
    {"lfm2-1.2b", kLfm2, 2048, 12288, 16, 32, 8, 64, 65536, 128000, 1e6, 1e-5, true, kLfm2Dense},
    {"lfm2-8b-a1b", kLfm2Moe, 2048, 7168, 24, 32, 8, 64, 65536, 128000, 1e6, 1e-5, true, kLfm2Experts},
    {"granite-4.0-h-tiny", kGraniteHybrid, 1536, 512, 40, 12, 4, 128, 100352, 131072, 1e4, 1e-5, true, kGraniteTiny},
    {"falcon-h1-0.5b", kFalconH1, 1024, 2048, 36, 8, 2, 64, 32784, 16384, 1e11, 1e-5, false, kFalconSmall},
    {"nemotron-3-nano-30b-a3b", kNemotronH, 2688, 1856, 52, 32, 2, 128, 131072, 262144, 1e4, 1e-5, false, kNemotronNano},
    {"gemma-2b", kGemma, 2048, 16384, 18, 8, 1, 256, 256000, 8192, 1e4, 1e-6, true, kGeluTanh},
    {"gemma-7b", kGemma, 3072, 24576, 28, 16, 16, 256, 256000, 8192, 1e4, 1e-6, true, kGeluTanh},
    {"mistral-small-24b", kMistral, 5120, 32768, 40, 32, 8, 128, 131072, 32768, 1e8, 1e-5, false, kNoWindow},
    {"ministral-3-8b", kMinistral3, 4096, 14336, 34, 32, 8, 128, 131072, 262144, 1e6, 1e-5, false, kGrowth},
    {"smollm3-3b", kSmolLm3, 2048, 11008, 36, 16, 4, 128, 128256, 65536, 5e6, 1e-6, true, kSilu},
    {"olmo-3-7b", kOlmo3, 4096, 11008, 32, 32, 32, 128, 100278, 65536, 5e5, 1e-6, false, kOlmo3Rope},
    {"olmo-3-32b", kOlmo3, 5120, 27648, 64, 40, 8, 128, 100278, 65536, 5e5, 1e-6, false, kOlmo3Rope},
    {"exaone-4-1.2b", kExaone4, 2048, 4096, 30, 32, 8, 64, 102400, 65536, 1e6, 1e-5, true, kExaoneAllFull},
    {"exaone-4-32b", kExaone4, 5120, 27392, 64, 40, 8, 128, 102400, 131072, 1e6, 1e-5, false, kExaoneHybrid},
    {"granite-3.3-2b", kGranite, 2048, 8192, 40, 32, 8, 64, 49159, 131072, 1e7, 1e-5, true, kGranite2b},
    {"granite-3.3-8b", kGranite, 4096, 12800, 40, 32, 8, 128, 49159, 131072, 1e7, 1e-5, true, kGranite8b},
    {"glm-4-32b-0414", kGlm4, 6144, 23040, 61, 48, 2, 128, 151552, 32768, 1e4, 1e-5, false, kHalfOfHead},
    {"seed-oss-36b", kSeedOss, 5120, 27648, 64, 80, 8, 128, 155136, 524288, 1e7, 1e-6, false, kQkvBias},
    {"ernie-4.5-0.3b", kErnie, 1024, 3072, 18, 16, 2, 128, 103424, 131072, 5e5, 1e-5, true, kSilu},
    {"hunyuan-7b", kHunyuan, 4096, 14336, 32, 32, 8, 128, 128167, 32768, 1e4, 1e-5, true, kWidened},
    {"helium-1-preview-2b", kHelium, 2560, 7040, 24, 20, 20, 128, 48000, 4096, 1e5, 1e-8, false, kSilu},
    {"cwm-32b", kCwm, 6144, 21504, 64, 48, 8, 128, 128256, 131072, 1e6, 1e-5, false, kCwmWindows},
    {"olmo-2-13b", kOlmo2, 5120, 13824, 40, 40, 40, 128, 100352, 4096, 5e5, 1e-6, false, kSilu},
};
// clang-format on

// "layer_types" and "num_kv_shared_layers" of so many layers, the last of which has no window.
std::string by_layer_text(const ModelShape& shape, int32_t layers) {
  if (shape.full_each == 0) return "";
  std::string types;
  for (int32_t i = 1; i <= layers; ++i) {
    const bool is_full = i == layers || i % shape.full_each == 0;
    types += fmt::format("{}\"{}\"", i == 1 ? "" : ", ",
                         is_full ? "full_attention" : "sliding_attention");
  }
  const int32_t shared = std::clamp(layers - shape.full_each, 0, shape.kv_shared);
  return fmt::format(R"(, "layer_types": [{}], "num_kv_shared_layers": {})", types, shared);
}

struct AssistantShape {
  std::string_view name;
  std::string_view config;
};
constexpr AssistantShape kAssistants[] = {{"gemma-4-31b-assistant", R"({
    "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
    "backbone_hidden_size": 5376, "use_ordered_embeddings": false, "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma4_text", "hidden_size": 1024, "intermediate_size": 8192,
      "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 16,
      "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4,
      "attention_k_eq_v": true, "num_kv_shared_layers": 4, "sliding_window": 1024,
      "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                      "full_attention"],
      "vocab_size": 262144, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
      "hidden_size_per_layer_input": 0, "tie_word_embeddings": true}})"}};

}  // namespace

namespace {

// The config with what its lists say of the first layers.
Result<std::string> first_layers(const std::string& text, int32_t num_layers) {
  RUDDER_TRY(boost::json::value config, parse_json(text, "config.json"));
  boost::json::object& keys = config.as_object();
  if (boost::json::value* const types = keys.if_contains("layer_types")) {
    boost::json::array& list = types->as_array();
    if (std::ssize(list) > num_layers) list.resize(static_cast<size_t>(num_layers));
  }
  if (boost::json::value* const pattern = keys.if_contains("hybrid_override_pattern")) {
    *pattern = std::string(pattern->as_string()).substr(0, static_cast<size_t>(num_layers));
  }
  if (boost::json::value* const indices = keys.if_contains("full_attn_idxs")) {
    boost::json::array& list = indices->as_array();
    while (!list.empty() && list.back().as_int64() >= num_layers) list.pop_back();
  }
  return to_json_text(config);
}

}  // namespace

std::vector<std::string_view> make_assistant_names() {
  std::vector<std::string_view> names;
  for (const AssistantShape& shape : kAssistants) names.push_back(shape.name);
  return names;
}

Result<std::string> make_assistant_config(std::string_view name) {
  const auto* const shape = std::ranges::find(kAssistants, name, &AssistantShape::name);
  if (shape != std::end(kAssistants)) return std::string(shape->config);
  return fail(ErrorCode::kInvalidArgument, fmt::format("there is no assistant '{}'", name), "like");
}

std::vector<std::string_view> make_model_names() {
  std::vector<std::string_view> names;
  for (const ModelShape& shape : kShapes) names.push_back(shape.name);
  return names;
}

Result<std::string> make_model_config(std::string_view name, int32_t num_layers) {
  const auto* shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                   [&](const ModelShape& s) { return s.name == name; });
  if (shape == std::end(kShapes)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("there is no shape '{}'", name), "like");
  }
  const int32_t layers = num_layers > 0 ? num_layers : shape->layers;
  const std::string text = fmt::format(
      R"({{"architectures": ["{}"], "hidden_size": {}, "intermediate_size": {},
    "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
    "vocab_size": {}, "max_position_embeddings": {}, "rope_theta": {:.1f}, "rms_norm_eps": {},
    "tie_word_embeddings": {}, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 2,
    {}{}}})",
      shape->architecture, shape->hidden, shape->width, layers, shape->heads, shape->kv_heads,
      shape->head_dim, shape->vocab, shape->max_positions, shape->theta, shape->eps, shape->tied,
      shape->more, by_layer_text(*shape, layers));
  return num_layers > 0 ? first_layers(text, num_layers) : text;
}

}  // namespace rudder::model
