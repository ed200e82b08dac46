#include "rudder/model/archs/expert_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rudder/model/archs/llama_like.h"

namespace rudder::model {
namespace {

using weights::HfConfig;

constexpr int64_t kMostExperts = 1 << 14;
constexpr std::array<std::string_view, 2> kExpertCounts = {"num_local_experts", "num_experts"};
constexpr int64_t kWidest = 1 << 20;

// Under `key`, or under the names that classes take for it; where several are there they agree.
Result<int32_t> count_of(const HfConfig& config, std::string_view key) {
  std::string_view first = key;
  int64_t count = 0;
  for (const std::string_view name : {key, kExpertCounts[0], kExpertCounts[1]}) {
    if (!config.has(name)) continue;
    RUDDER_TRY(const int64_t one, config.integer(name, 1, kMostExperts));
    if (count == 0) first = name;
    if (count != 0 && one != count) {
      return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is {}, this is {}", name, one, count),
                  config.where(first));
    }
    count = one;
  }
  if (count == 0) {
    RUDDER_TRY(count, config.integer(key, 1, kMostExperts));
  }
  return static_cast<int32_t>(count);
}

}  // namespace

Result<Experts> read_experts(const HfConfig& config, const ModelSpec& spec,
                             const ExpertKeys& keys) {
  Experts experts;
  experts.hidden = spec.hidden;
  experts.activation = experts.shared_activation = activation_of(spec);
  RUDDER_TRY(experts.count, count_of(config, keys.count));
  RUDDER_TRY(const int64_t width, config.integer(keys.width, 1, kWidest));
  experts.width = static_cast<int32_t>(width);
  RUDDER_TRY(const int64_t chosen, config.integer(keys.chosen, 1, kMostExperts));
  if (chosen > experts.count) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("a token chooses {} of {} experts", chosen, experts.count),
                config.where(keys.chosen));
  }
  experts.chosen = static_cast<int32_t>(chosen);
  return experts;
}

Result<Router> read_grouped_router(const HfConfig& config, const Experts& experts) {
  Router router{.kind = ops::RouterKind::kSigmoid, .correction = true};
  RUDDER_TRY(router.renormalises, config.boolean_or("norm_topk_prob", true));
  RUDDER_TRY(const double scale, config.number_or("routed_scaling_factor", 1));
  router.scale = static_cast<float>(scale);
  RUDDER_TRY(const int64_t groups, config.integer_or("n_group", 1, 1, experts.count));
  RUDDER_TRY(const int64_t kept, config.integer_or("topk_group", 1, 1, groups));
  router.groups = static_cast<int32_t>(groups);
  router.kept_groups = static_cast<int32_t>(kept);
  if (experts.count % groups != 0 || experts.chosen > experts.count / groups * kept) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} of {} experts in {} of {} groups", experts.chosen, experts.count,
                            kept, groups),
                config.where("n_group"));
  }
  return router;
}

Result<std::vector<bool>> mixture_layers(const HfConfig& config, size_t num_layers) {
  RUDDER_TRY(const int64_t step, config.integer_or("decoder_sparse_step", 1, 1, 1 << 20));
  std::vector<double> dense;
  if (config.has("mlp_only_layers")) {
    RUDDER_TRY(dense, config.numbers("mlp_only_layers"));
  }
  std::vector<bool> out;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const bool is_dense = std::ranges::find(dense, static_cast<double>(layer)) != dense.end();
    out.push_back(!is_dense && (static_cast<int64_t>(layer) + 1) % step == 0);
  }
  return out;
}

}  // namespace rudder::model
