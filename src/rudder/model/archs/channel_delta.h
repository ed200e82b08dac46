// Delta rules whose decays are those of channels (KDA), as the configs of several families describe
// them, and other names that published files have for keys. Load time, one thread; errors name the
// key.
#pragma once

#include <span>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

struct Alias {
  std::string_view published;
  std::string_view name;
  bool is_number = true;  // else a boolean
};

// `into` with the values of `from` under other names.
Result<weights::HfConfig> renamed(const weights::HfConfig& from, std::span<const Alias> aliases,
                                  const weights::HfConfig& into);

inline constexpr std::string_view kLinearConfig = "linear_attn_config";

// With what that object says of heads and the convolution under the names that are read here.
Result<weights::HfConfig> with_linear_keys(const weights::HfConfig& config);

// "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim".
Result<GatedDelta> read_channel_delta(const weights::HfConfig& config);

}  // namespace rudder::model
