// Latent attention as the configs of several families describe it, and mixtures of experts behind
// layers that have none. Load time, one thread; errors name the key.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/spec.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

// What of a head turns: "qk_rope_head_dim" elements ("partial_rotary_factor" is of these, or of a
// whole query), or nothing ("qk_rope_head_dim" is 0).
enum class LatentRope : uint8_t { kPart, kPartOfQuery, kNone };

// What llama_like reads, with latent attention in every layer: "kv_lora_rank", "q_lora_rank" (null:
// queries are made of the input), "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
// "rope_interleave", and the rope's "mscale_all_dim", whose factor squared multiplies the scores.
Result<ModelSpec> latent_like(const weights::HfConfig& config,
                              LatentRope turns = LatentRope::kPart);

// Layers from "first_k_dense_replace" on are mixtures of "n_routed_experts" with a shared MLP as
// wide as "n_shared_experts" of them.
Result<Experts> read_experts_beside_shared(const weights::HfConfig& config, const ModelSpec& spec);
Result<void> set_experts_from(const weights::HfConfig& config, const Experts& experts,
                              ModelSpec& spec);
// Where "mlp_layer_types" says of each layer whether it is one, these.
Result<void> set_experts_by_layer(const weights::HfConfig& config, const Experts& experts,
                                  ModelSpec& spec);

// Names of those families: `ignored` are prefixes of layers that guess further tokens.
WeightNames shared_expert_names(std::vector<std::string_view> ignored);

}  // namespace rudder::model
