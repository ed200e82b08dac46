#include "rudder/model/archs/hyper_like.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr int64_t kMostStreams = 16;
constexpr int64_t kMostIterations = 1000;

Result<float> above_zero(const HfConfig& config, std::string_view key) {
  RUDDER_TRY(const double value, config.number(key));
  if (value > 0) return static_cast<float>(value);
  return fail(ErrorCode::kCorruptFile, fmt::format("{} is not above 0", value), config.where(key));
}

}  // namespace

Result<HyperConnections> read_hyper_connections(const HfConfig& config, bool mixes) {
  HyperConnections out;
  ops::StreamRule& rule = out.rule;
  RUDDER_TRY(const int64_t streams, config.integer("hc_mult", 1, kMostStreams));
  rule.streams = static_cast<int32_t>(streams);
  RUDDER_TRY(rule.eps, above_zero(config, "hc_eps"));
  RUDDER_TRY(rule.norm_eps, above_zero(config, "rms_norm_eps"));
  if (mixes) {
    RUDDER_TRY(const int64_t iterations, config.integer("hc_sinkhorn_iters", 1, kMostIterations));
    rule.iterations = static_cast<int32_t>(iterations);
    return out;
  }
  rule.iterations = 0;
  rule.post_eps = rule.eps;
  RUDDER_TRY(rule.magnitude, above_zero(config, "hc_magnitude"));
  return out;
}

Result<void> limit_to_chosen_keys(const HfConfig& config, ModelSpec& spec) {
  RUDDER_TRY(const int64_t chosen, config.integer("index_topk", 1));
  // Of the indexer itself, which makes no difference there.
  RUDDER_TRY_VOID(config.integer_or("index_n_heads", 1, 1));
  RUDDER_TRY_VOID(config.integer_or("index_head_dim", 1, 1));
  if (config.has("indexer_types")) RUDDER_TRY_VOID(config.strings("indexer_types"));
  spec.max_positions =
      static_cast<int32_t>(std::min(chosen, static_cast<int64_t>(spec.max_positions)));
  return {};
}

Result<ops::Activation> read_limited_silu(const HfConfig& config, const ModelSpec& spec) {
  constexpr std::string_view kLimit = "swiglu_limit";
  RUDDER_TRY(const double limit, config.number(kLimit));
  if (limit <= 0) return activation_of(spec);
  const bool is_limit = limit != ops::kSiluLimit;
  if (!is_limit && activation_of(spec) == ops::Activation::kSilu) {
    return ops::Activation::kLimitedSilu;
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("gates are SiLU and clamped at {}", ops::kSiluLimit),
              config.where(is_limit ? kLimit : "hidden_act"));
}

}  // namespace rudder::model
