#include "rudder/exec/check_trees.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace rudder::exec {

Result<void> check_trees(const StepLimits& limits, const model::ModelSpec& spec, ops::Ops& ops,
                         int32_t num_stages) {
  const bool has_own = !limits.draft_tree.tree.empty();
  if (!has_own && limits.tree_key.empty()) return {};
  const auto refuse = [&](std::string why) {
    return fail(ErrorCode::kUnsupported, std::move(why) + ": drafts are chains alone",
                "speculative-config." + (has_own ? "speculative_token_tree" : limits.tree_key));
  };
  if (ops.tree_ops() == nullptr) {
    return refuse(fmt::format("the backend {} verifies no trees", ops.name()));
  }
  if (num_stages > 1) return refuse("several stages verify no trees");
  if (model::keeps_states(spec)) return refuse("a layer of the model keeps a state");
  if (!model::runs_trees(spec)) return refuse("a layer of the model has a window or a gate");
  return {};
}

}  // namespace rudder::exec
