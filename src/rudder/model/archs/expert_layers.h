// Layers that are mixtures of experts, as the configs of several families describe them. Load time,
// one thread; errors name the key.
#pragma once

#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

// What a family calls the width of an expert, and how many there are: `count` or
// "num_local_experts", whichever is there, as classes of transformers take both names for one
// number.
struct ExpertKeys {
  std::string_view width = "moe_intermediate_size";
  std::string_view count = "num_experts";
  std::string_view chosen = "num_experts_per_tok";
};

// An expert is as the MLPs of `spec` are, but for its width. The router is the caller's.
Result<Experts> read_experts(const weights::HfConfig& config, const ModelSpec& spec,
                             const ExpertKeys& keys = {});

// Sigmoids with a correction, in groups: "n_group", "topk_group", "norm_topk_prob",
// "routed_scaling_factor".
Result<Router> read_grouped_router(const weights::HfConfig& config, const Experts& experts);

// Whether each layer is a mixture: every "decoder_sparse_step"-th, but for "mlp_only_layers".
Result<std::vector<bool>> mixture_layers(const weights::HfConfig& config, size_t num_layers);

}  // namespace rudder::model
