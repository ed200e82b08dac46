// Which branch each layer of a hybrid has, and state spaces as the configs of several families
// describe them. Load time, one thread; errors name the key.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

inline constexpr int64_t kWidestBranch = 1 << 20;  // that a config may ask for

enum class LayerKind : uint8_t { kAttention, kRecurrent, kConvolution, kMlp, kExperts };

// Of a list of words, one a layer: those of transformers 5, and what they were before.
Result<std::vector<LayerKind>> layer_kinds(const weights::HfConfig& config, std::string_view key,
                                           size_t num_layers);
// Of a letter a layer: M, *, - and E.
Result<std::vector<LayerKind>> pattern_kinds(const weights::HfConfig& config, std::string_view key);

// What a family calls the numbers of its state spaces.
struct SpaceKeys {
  std::string_view heads = "mamba_n_heads";
  std::string_view groups = "mamba_n_groups";
  std::string_view head_dim = "mamba_d_head";  // or "auto": of `width`
  std::string_view state_dim = "mamba_d_state";
  std::string_view conv_length = "mamba_d_conv";
  std::string_view conv_bias = "mamba_conv_bias";
  std::string_view bias = "mamba_proj_bias";
};

// `width`: of all heads; 0: the config says nothing of it. The limits of steps are those of
// "time_step_limit", the norm is over all channels, behind its gate.
Result<StateSpace> read_state_space(const weights::HfConfig& config, int64_t width,
                                    const SpaceKeys& keys = {});

}  // namespace rudder::model
