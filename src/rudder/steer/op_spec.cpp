#include "rudder/steer/op_spec.h"

#include <algorithm>
#include <array>

namespace rudder::steer {
namespace {

struct OpEntry {
  std::string_view name;
  Group group;
};
constexpr std::array<OpEntry, kNumOps> kOps = {{{"patch", Group::kPatch},
                                                {"ablate", Group::kProjectAway},
                                                {"mean_ablate", Group::kProjectAway},
                                                {"orthogonal", Group::kProjectAway},
                                                {"swap", Group::kProjectAway},
                                                {"rotate", Group::kProjectAway},
                                                {"add", Group::kAdd},
                                                {"add_norm", Group::kAdd},
                                                {"add_renorm", Group::kAdd},
                                                {"clamp", Group::kClamp},
                                                {"cap", Group::kClamp},
                                                {"set", Group::kClamp}}};

}  // namespace

std::string_view op_name(OpName op) {
  return kOps[static_cast<size_t>(op)].name;
}

Group group_of(OpName op) {
  return kOps[static_cast<size_t>(op)].group;
}

std::optional<OpName> find_op(std::string_view name) {
  const auto* found = std::ranges::find(kOps, name, &OpEntry::name);
  if (found == kOps.end()) return std::nullopt;
  return static_cast<OpName>(found - kOps.begin());
}

}  // namespace rudder::steer
