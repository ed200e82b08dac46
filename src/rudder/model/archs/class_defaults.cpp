#include "rudder/model/archs/class_defaults.h"

#include <algorithm>
#include <array>

namespace rudder::model {
namespace {

using weights::HfConfig;

// Where the classes say "or None", although their default is another.
constexpr std::array<std::string_view, 5> kMayBeNull = {
    "sliding_window", "q_lora_rank", "num_key_value_heads", "attn_logit_softcapping",
    "final_logit_softcapping"};

}  // namespace

Result<HfConfig> with_class_defaults(const HfConfig& config, std::string_view defaults) {
  RUDDER_TRY(const HfConfig known, HfConfig::parse(defaults, "defaults"));
  for (const std::string& key : known.keys()) {
    if (!config.is_null(key)) continue;
    if (std::find(kMayBeNull.begin(), kMayBeNull.end(), key) != kMayBeNull.end()) continue;
    return fail(ErrorCode::kCorruptFile, "null is no value of it", config.where(key));
  }
  return config.with_missing(known);
}

}  // namespace rudder::model
