#include "rudder/model/archs/channel_delta.h"

#include <fmt/format.h>

#include <string>

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr Alias kLinearAliases[] = {{"head_dim", "linear_head_dim"},
                                    {"num_heads", "linear_num_heads"},
                                    {"short_conv_kernel_size", "linear_conv_kernel_dim"}};
constexpr int64_t kMost = 1 << 30;

}  // namespace

Result<HfConfig> renamed(const HfConfig& from, std::span<const Alias> aliases,
                         const HfConfig& into) {
  HfConfig whole = into;
  for (const Alias& alias : aliases) {
    if (!from.has(alias.published)) continue;
    std::string value;
    if (alias.is_number) {
      RUDDER_TRY(const int64_t number, from.integer(alias.published, 0, kMost));
      value = fmt::format("{}", number);
    } else {
      RUDDER_TRY(const bool is, from.boolean(alias.published));
      value = is ? "true" : "false";
    }
    whole = whole.with_defaults(fmt::format(R"({{"{}": {}}})", alias.name, value));
  }
  return whole;
}

Result<HfConfig> with_linear_keys(const HfConfig& config) {
  if (!config.has(kLinearConfig)) return config;
  RUDDER_TRY(const HfConfig linear, config.object(kLinearConfig));
  return renamed(linear, kLinearAliases, config);
}

Result<GatedDelta> read_channel_delta(const HfConfig& config) {
  GatedDelta delta;
  RUDDER_TRY(const int64_t heads, config.integer("linear_num_heads", 1, 1 << 12));
  RUDDER_TRY(const int64_t dim, config.integer("linear_head_dim", 1, 1 << 12));
  RUDDER_TRY(const int64_t length, config.integer("linear_conv_kernel_dim", 1, 1 << 8));
  delta.key_heads = delta.value_heads = static_cast<int32_t>(heads);
  delta.key_dim = delta.value_dim = delta.gate_rank = static_cast<int32_t>(dim);
  delta.conv_length = static_cast<int32_t>(length);
  return delta;
}

}  // namespace rudder::model
