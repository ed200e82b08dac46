#include "rudder/model/archs/check_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/log.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr std::string_view kTextKey = "text_config";

// Types of weights that a loader can read (model/binder.h).
constexpr std::array<std::string_view, 4> kDtypes = {"float32", "float16", "bfloat16",
                                                     "float8_e4m3fn"};

// A key of some published architecture, what it asks for, and the number that asks for nothing
// (true is 1, false 0); an empty list and a list of full attention ask for nothing either.
struct Mechanism {
  std::string_view key;
  std::string_view what;
  double none = 0;
};
constexpr Mechanism kMechanisms[] = {
    {"num_local_experts", "a mixture of experts"},
    {"num_experts", "a mixture of experts"},
    {"n_routed_experts", "a mixture of experts"},
    {"n_shared_experts", "a mixture of experts"},
    {"num_experts_per_tok", "a mixture of experts"},
    {"moe_intermediate_size", "a mixture of experts"},
    {"enable_moe_block", "a mixture of experts"},
    {"kv_lora_rank", "a latent KV cache"},
    {"q_lora_rank", "latent queries"},
    {"layer_types", "layers of several kinds"},
    {"layers_block_type", "layers of several kinds"},
    {"linear_num_value_heads", "linear attention"},
    {"linear_conv_kernel_dim", "linear attention"},
    {"full_attention_interval", "linear attention"},
    {"hybrid_override_pattern", "a recurrent mixer"},
    {"mamba_d_state", "a recurrent mixer"},
    {"ssm_state_size", "a recurrent mixer"},
    {"embedding_multiplier", "scaled embeddings", 1},
    {"scale_emb", "scaled embeddings", 1},
    {"residual_multiplier", "scaled branches", 1},
    {"scale_depth", "scaled branches", 1},
    {"attention_multiplier", "a scale of scores of its own"},
    {"logits_scaling", "scaled logits", 1},
    {"logit_scale", "scaled logits", 1},
    {"dim_model_base", "scaled logits"},
    {"attn_logit_softcapping", "a soft-cap of scores"},
    {"final_logit_softcapping", "a soft-cap of logits"},
    {"query_pre_attn_scalar", "a scale of scores of its own"},
    {"no_rope_layers", "layers without rope"},
    {"no_rope_layer_interval", "layers without rope"},
    {"rope_interleave", "rope of interleaved pairs"},
    {"rope_interleaved", "rope of interleaved pairs"},
    {"lm_head_bias", "a bias of the head"},
    {"rotary_pct", "partial rope under another name", 1},
    {"alibi", "ALiBi"},
    {"attention_chunk_size", "attention in chunks"},
    {"attn_output_gate", "gated attention"},
    {"attention_k_eq_v", "keys that are values"},
    {"global_head_dim", "head_dim by layer"},
    {"num_global_key_value_heads", "KV heads by layer"},
    {"per_layer_config", "heads by layer"},
    {"num_kv_shared_layers", "KV shared between layers"},
    {"hidden_size_per_layer_input", "embeddings by layer"},
    {"use_qk_norm", "normed queries and keys"},
    {"qk_layernorm", "normed queries and keys"},
    {"clip_qkv", "clipped projections"},
    {"fir_k", "a gate of scores"},
    {"swiglu_limit", "a clamped activation"},
    {"hc_mult", "a residual of several streams"},
    {"hc_count", "a residual of several streams"},
    {"hc_pre_from_prev_sublayer", "streams that are read by numbers of the branch before"},
    {"index_topk", "keys that an indexer chooses"},
    {"use_parallel_residual", "parallel branches"},
    {"parallel_attn", "parallel branches"},
    {"use_bidirectional_attention", "attention to later tokens"},
    {"layer_rope_theta", "a base of the rope by layer"},
    {"use_cla", "KV shared between layers"},
    {"gating", "gated attention"},
    {"num_attention_heads_per_layer", "heads by layer"},
    {"add_cross_attention", "an encoder"},
    {"is_encoder_decoder", "an encoder"},
    {"is_causal", "attention to later tokens", 1},
    {"rope_scaling", "a rope that all layers have"},
};

// No forward pass of an architecture that leaves them unread depends on them: in transformers they
// are for training, generation, another modality, or for what an unset key switches on.
constexpr std::string_view kPassedOver[] = {"architectures",
                                            "model_type",
                                            "torch_dtype",
                                            "dtype",
                                            "transformers_version",
                                            "use_cache",
                                            "attention_dropout",
                                            "hidden_dropout",
                                            "embd_pdrop",
                                            "resid_pdrop",
                                            "initializer_range",
                                            "initializer_factor",
                                            "bos_token_id",
                                            "eos_token_id",
                                            "pad_token_id",
                                            "sep_token_id",
                                            "pretraining_tp",
                                            "auto_map",
                                            "_name_or_path",
                                            "quantization_config",
                                            "output_router_logits",
                                            "router_aux_loss_coef",
                                            "initial_context_length",
                                            "experts_per_token",
                                            "num_nextn_predict_layers",
                                            "num_mtp_layers",
                                            "return_dict",
                                            "output_attentions",
                                            "output_hidden_states",
                                            "chunk_size_feed_forward",
                                            "problem_type",
                                            "id2label",
                                            "label2id",
                                            "_attn_implementation",
                                            "_attn_implementation_autoset",
                                            "unsloth_version",
                                            "unsloth_fixed",
                                            "vision_config",
                                            "text_config",
                                            "max_window_layers",
                                            "sliding_window",
                                            "use_sliding_window",
                                            "rope_theta",
                                            "head_dim",
                                            "_sliding_window_pattern",
                                            "cache_implementation",
                                            "tie_word_embeddings",
                                            "hidden_act",
                                            "original_max_position_embeddings",
                                            "top_k_experts",
                                            "router_jitter_noise",
                                            "z_loss_coefficient",
                                            "num_logits_to_keep",
                                            "chunk_size",
                                            "mamba_chunk_size",
                                            "use_mamba_kernels",
                                            "mamba_ssm_cache_dtype",
                                            "expand",
                                            "mamba_expand",
                                            "time_step_max",
                                            "time_step_floor",
                                            "time_step_limit",
                                            "mamba_dt_max",
                                            "mamba_dt_init_floor",
                                            "mamba_dt_limit",
                                            "moe_shared_expert_overlap",
                                            "mtp_layers_block_type",
                                            "mtp_hybrid_override_pattern",
                                            "residual_in_fp32",
                                            "rescale_prenorm_residual",
                                            "qk_head_dim",
                                            "residual_dropout",
                                            "eod_token_id",
                                            "projector_hidden_act",
                                            "projector_hidden_size",
                                            "multimodal_projector_bias",
                                            "vision_feature_layer",
                                            "vision_feature_select_strategy",
                                            "vision_start_token_id",
                                            "vision_end_token_id",
                                            "spatial_merge_size",
                                            "image_seq_length",
                                            "downsample_ratio",
                                            "audio_config",
                                            "mm_tokens_per_image",
                                            "image_token_id",
                                            "image_start_token_id",
                                            "image_end_token_id",
                                            "video_start_token_id",
                                            "video_end_token_id",
                                            "learnable_sink_init",
                                            "image_token_index",
                                            "video_token_id",
                                            "audio_token_id",
                                            "boi_token_id",
                                            "boi_token_index",
                                            "eoi_token_id",
                                            "eoi_token_index",
                                            "boa_token_id",
                                            "eoa_token_index"};

bool asks_for_nothing(const HfConfig& config, const Mechanism& mechanism) {
  if (const auto number = config.number(mechanism.key)) return *number == mechanism.none;
  if (const auto flag = config.boolean(mechanism.key)) return *flag == (mechanism.none == 1);
  if (const auto list = config.strings(mechanism.key)) {
    return std::all_of(list->begin(), list->end(),
                       [](const std::string& item) { return item == "full_attention"; });
  }
  return false;
}

// Of several the first is meant without the key.
Result<void> check_type(std::span<const std::string_view> wanted, const HfConfig& config) {
  constexpr std::string_view kKey = "model_type";
  RUDDER_TRY(const std::string type, config.string_or(kKey, std::string(wanted.front())));
  if (std::ranges::find(wanted, type) != wanted.end()) return {};
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("it is '{}', the architecture's is '{}'", type, fmt::join(wanted, "', '")),
      config.where(kKey));
}

// The config of the text, where the keys of the text are not beside the others.
Result<std::optional<HfConfig>> text_of(const Architecture& architecture, const HfConfig& config) {
  if (!architecture.has_text_config()) return std::nullopt;
  if (architecture.may_be_flat && !config.has(kTextKey)) return std::nullopt;
  RUDDER_TRY(HfConfig text, config.object(kTextKey));
  return text;
}

Result<void> check_dtypes(const HfConfig& config) {
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    if (!config.has(key)) continue;
    RUDDER_TRY(const std::string dtype, config.string(key));
    if (std::find(kDtypes.begin(), kDtypes.end(), dtype) != kDtypes.end()) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("'{}' is not one of {}", dtype, fmt::join(kDtypes, ", ")),
                config.where(key));
  }
  return {};
}

Result<void> check_unread(const Architecture& architecture, const HfConfig& config) {
  std::vector<std::string> unknown;
  for (const std::string& key : config.unread_keys()) {
    const auto* const found =
        std::find_if(std::begin(kMechanisms), std::end(kMechanisms),
                     [&](const Mechanism& mechanism) { return mechanism.key == key; });
    if (found == std::end(kMechanisms)) {
      if (!is_passed_over(key)) unknown.push_back(key);
      continue;
    }
    if (asks_for_nothing(config, *found)) continue;
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("it asks for {}, which {} does not have", found->what, architecture.name),
        config.where(key));
  }
  if (!unknown.empty()) {
    log_info("{}: keys that nothing here depends on: {}", config.where(), fmt::join(unknown, ", "));
  }
  return {};
}

}  // namespace

bool is_passed_over(std::string_view key) {
  return std::find(std::begin(kPassedOver), std::end(kPassedOver), key) != std::end(kPassedOver);
}

bool has_verdict(std::string_view key) {
  return is_passed_over(key) ||
         std::any_of(std::begin(kMechanisms), std::end(kMechanisms),
                     [&](const Mechanism& mechanism) { return mechanism.key == key; });
}

Result<void> check_names(const Architecture& architecture, const HfConfig& config) {
  RUDDER_TRY_VOID(check_type({&architecture.model_type, 1}, config));
  RUDDER_TRY_VOID(check_dtypes(config));
  RUDDER_TRY(const std::optional<HfConfig> text, text_of(architecture, config));
  if (!text) return {};
  const std::span<const std::string_view> own(&architecture.text_model_type, 1);
  RUDDER_TRY_VOID(check_type(architecture.wraps.empty() ? own : architecture.wraps, *text));
  return check_dtypes(*text);
}

Result<void> check_unread_keys(const Architecture& architecture, const HfConfig& config) {
  RUDDER_TRY_VOID(check_unread(architecture, config));
  RUDDER_TRY(const std::optional<HfConfig> text, text_of(architecture, config));
  return text ? check_unread(architecture, *text) : Result<void>();
}

}  // namespace rudder::model
