#include "rudder/lora/peft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "rudder/weights/hf_config.h"

namespace rudder::lora {
namespace {

using weights::HfConfig;
using weights::NamePattern;

// What decides which modules an adapter was trained on, how, and by whom: the tensors say the rest.
constexpr std::array kWithoutEffect = {"auto_mapping",
                                       "base_model_name_or_path",
                                       "ensure_weight_tying",
                                       "eva_config",
                                       "exclude_modules",
                                       "inference_mode",
                                       "layers_pattern",
                                       "layers_to_transform",
                                       "lora_dropout",
                                       "megatron_core",
                                       "peft_version",
                                       "qalora_group_size",
                                       "revision",
                                       "target_modules",
                                       "task_type",
                                       "runtime_config",
                                       "lora_ga_config",
                                       "corda_config",
                                       "loftq_config"};

// Of init_lora_weights, those that leave the base model as it is.
constexpr std::array kPlainInits = {"gaussian", "orthogonal", "eva", "true", "false"};

Error refused(std::string message, std::string where) {
  return {ErrorCode::kUnsupported, std::move(message), std::move(where)};
}

// Whether the key has a value that asks for anything: not null, false, 0, or empty.
Result<bool> asks(const HfConfig& config, std::string_view key) {
  if (!config.has(key)) return false;
  if (const auto flag = config.boolean(key)) return *flag;
  if (const auto list = config.object(key)) return !list->keys().empty();
  if (const auto text = config.string(key)) return !text->empty();
  if (const auto number = config.number(key)) return *number != 0;
  if (const auto strings = config.strings(key)) return !strings->empty();
  return true;
}

Result<void> check_init(const HfConfig& config) {
  constexpr std::string_view kKey = "init_lora_weights";
  if (!config.has(kKey) || config.boolean(kKey)) return {};
  RUDDER_TRY(const std::string init, config.string(kKey));
  if (std::ranges::find(kPlainInits, init) != kPlainInits.end()) return {};
  return tl::unexpected(refused(
      fmt::format("'{}' changes the base model: such an adapter is served once it is converted to "
                  "plain LoRA",
                  init),
      config.where(kKey)));
}

struct Refusal {
  std::string_view key;
  std::string_view why;
};
constexpr std::array kRefused = {
    Refusal{"modules_to_save", "whole modules of an adapter are not served"},
    Refusal{"lora_bias", "biases of an adapter are not served"},
    Refusal{"fan_in_fan_out", "matrices that are stored transposed are not served"},
    Refusal{"alora_invocation_tokens", "activated LoRA is not served"},
    Refusal{"target_parameters", "adapters of parameters, as experts have, are not served"},
    Refusal{"layer_replication", "layers that an adapter repeats are not served"},
    Refusal{"trainable_token_indices", "embeddings of an adapter are not served"},
    Refusal{"use_qalora", "QALoRA is not served"},
    Refusal{"use_bdlora", "block-diagonal LoRA is not served"},
    Refusal{"megatron_config", "layers of Megatron are not served"}};

Result<void> check_keys(const HfConfig& config, std::vector<std::string>& ignored) {
  for (const Refusal& refusal : kRefused) {
    RUDDER_TRY(const bool is_asked, asks(config, refusal.key));
    if (is_asked) {
      return tl::unexpected(refused(std::string(refusal.why), config.where(refusal.key)));
    }
  }
  RUDDER_TRY(const std::string bias, config.string_or("bias", "none"));
  if (bias != "none") {
    return tl::unexpected(refused(fmt::format("biases of an adapter ('{}') are not served", bias),
                                  config.where("bias")));
  }
  RUDDER_TRY_VOID(check_init(config));
  for (const char* const key : kWithoutEffect) {
    if (config.has(key)) ignored.emplace_back(key);
  }
  for (const std::string& key : config.unread_keys()) {
    if (std::ranges::find(ignored, key) != ignored.end()) continue;
    RUDDER_TRY(const bool is_asked, asks(config, key));
    if (is_asked) {
      return tl::unexpected(refused("nothing is known of this key", config.where(key)));
    }
  }
  return {};
}

// A pattern fits the end of a path, from a dot or the beginning on. Source: peft, utils/other.py,
// get_pattern_key.
Result<NamePattern> pattern_of(const std::string& key, const std::string& where) {
  return NamePattern::parse(fmt::format("re:(?:.*\\.)?(?:{})\\z", key), where);
}

template <typename T>
Result<T> value_of(std::string_view module, const std::vector<std::pair<NamePattern, T>>& patterns,
                   T otherwise) {
  for (const auto& [pattern, value] : patterns) {
    RUDDER_TRY(const bool fits, pattern.matches(module));
    if (fits) return value;
  }
  return otherwise;
}

Result<double> alpha_in(const HfConfig& config, std::string_view key) {
  RUDDER_TRY(const double alpha, config.number(key));
  if (std::abs(alpha) <= 1e6) return alpha;
  return fail(ErrorCode::kCorruptFile, fmt::format("{} is no alpha", alpha), config.where(key));
}

}  // namespace

Result<PeftConfig> PeftConfig::parse(std::string_view text, const std::string& where) {
  RUDDER_TRY(const HfConfig config, HfConfig::parse(text, where));
  PeftConfig out;
  RUDDER_TRY(const std::string type, config.string("peft_type"));
  if (type != "LORA") {
    return tl::unexpected(
        refused(fmt::format("adapters of type '{}' are not served, LORA ones are", type),
                config.where("peft_type")));
  }
  RUDDER_TRY(out.rank_, config.integer("r", 1, kMaxFileRank));
  RUDDER_TRY(out.alpha_, alpha_in(config, "lora_alpha"));
  RUDDER_TRY(out.by_root_, config.boolean_or("use_rslora", false));
  RUDDER_TRY(out.has_magnitudes_, config.boolean_or("use_dora", false));
  if (config.has("rank_pattern")) {
    RUDDER_TRY(const HfConfig patterns, config.object("rank_pattern"));
    for (const std::string& key : patterns.keys()) {
      RUDDER_TRY(NamePattern pattern, pattern_of(key, patterns.where(key)));
      RUDDER_TRY(const int64_t rank, patterns.integer(key, 1, kMaxFileRank));
      out.ranks_.emplace_back(std::move(pattern), rank);
    }
  }
  if (config.has("alpha_pattern")) {
    RUDDER_TRY(const HfConfig patterns, config.object("alpha_pattern"));
    for (const std::string& key : patterns.keys()) {
      RUDDER_TRY(NamePattern pattern, pattern_of(key, patterns.where(key)));
      RUDDER_TRY(const double alpha, alpha_in(patterns, key));
      out.alphas_.emplace_back(std::move(pattern), alpha);
    }
  }
  RUDDER_TRY_VOID(check_keys(config, out.ignored_));
  return out;
}

Result<int64_t> PeftConfig::rank_of(std::string_view module) const {
  return value_of(module, ranks_, rank_);
}

Result<float> PeftConfig::scale_of(std::string_view module) const {
  RUDDER_TRY(const int64_t rank, rank_of(module));
  RUDDER_TRY(const double alpha, value_of(module, alphas_, alpha_));
  const auto by = static_cast<double>(rank);
  return static_cast<float>(alpha / (by_root_ ? std::sqrt(by) : by));
}

}  // namespace rudder::lora
