// Residuals of several streams (hyper-connections), and layers whose keys an indexer chooses, as
// the configs of several families describe them. Load time, one thread; errors name the key.
#pragma once

#include "rudder/base/result.h"
#include "rudder/model/residual.h"
#include "rudder/model/spec.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

// "hc_mult", "hc_eps", "rms_norm_eps", and with a mix "hc_sinkhorn_iters"; without one
// "hc_magnitude".
Result<HyperConnections> read_hyper_connections(const weights::HfConfig& config, bool mixes);

// Up to "index_topk" positions the indexer chooses all keys that a query sees, so attention is what
// it is without one: the model is served up to there.
Result<void> limit_to_chosen_keys(const weights::HfConfig& config, ModelSpec& spec);

// Gates of SiLU that are clamped at "swiglu_limit", which must be ops::kSiluLimit, or as they are
// where it is not above 0.
Result<ops::Activation> read_limited_silu(const weights::HfConfig& config, const ModelSpec& spec);

}  // namespace rudder::model
