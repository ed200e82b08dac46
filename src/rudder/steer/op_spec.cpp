#include "rudder/steer/op_spec.h"

#include <algorithm>
#include <array>

#include "rudder/features/dictionary.h"

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
                                                {"set", Group::kClamp},
                                                {"experts", Group::kExperts},
                                                {"feature", Group::kFeature}}};

// By number of tap::FeatureEdit.
constexpr std::array<std::string_view, 5> kEdits = {"set", "add", "multiply", "min", "max"};

}  // namespace

bool FeatureClamp::encodes() const {
  return full || (dictionary->activation == features::Activation::kTopK && !is_plain_add());
}

bool FeatureClamp::is_plain_add() const {
  return edit == tap::FeatureEdit::kAdd && !only_if_active && !full &&
         dictionary->norm == tap::FeatureNorm::kNone;
}

std::string_view feature_edit_name(tap::FeatureEdit edit) {
  return kEdits[static_cast<size_t>(edit)];
}

std::optional<tap::FeatureEdit> find_feature_edit(std::string_view name) {
  const auto* found = std::ranges::find(kEdits, name);
  if (found == kEdits.end()) return std::nullopt;
  return static_cast<tap::FeatureEdit>(found - kEdits.begin());
}

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
