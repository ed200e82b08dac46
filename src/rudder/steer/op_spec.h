// OpSpec: one steering op of a request or module: checked against the model, not yet lowered to the
// device's forms. The parser and the loaders make it, Config reads it. Plain values; buffers are
// shared and immutable.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/features/dictionary.h"
#include "rudder/steer/selector.h"
#include "rudder/tap/feature.h"
#include "rudder/tap/program.h"
#include "rudder/tap/row.h"

namespace rudder::steer {

using tap::Row;

// Formulas: docs/steering.md. The order of the groups is the order in which ops of one point run;
// within a group they run in the order of the request.
enum class OpName : uint8_t {
  kPatch,
  kAblate,
  kMeanAblate,
  kOrthogonal,
  kSwap,
  kRotate,
  kAdd,
  kAddNorm,
  kAddRenorm,
  kClamp,
  kCap,
  kSet,
  kExperts,
  kFeature,
};
inline constexpr int32_t kNumOps = 14;
std::string_view op_name(OpName op);
std::optional<OpName> find_op(std::string_view name);

std::string_view feature_edit_name(tap::FeatureEdit edit);  // "set", "add", …
std::optional<tap::FeatureEdit> find_feature_edit(std::string_view name);

enum class Group : uint8_t {
  kScore,
  kPatch,
  kProjectAway,
  kAdd,
  kClamp,
  kFeature,
  kFeatureAdd,
  kExperts
};
Group group_of(OpName op);

// What a control does with the reading r of the token before: g = clip(gain (target - r), min,
// max). r is y = h . vector at the point, or of a feature y > gate ? max(scale y + bias, 0) : 0.
struct Control {
  double target = 0;
  double gain = 0;
  double min = 0;
  double max = 0;
  bool of_feature = false;
  double scale = 1;
  double bias = 0;
  double gate = -std::numeric_limits<double>::infinity();

  bool reads_as(const Control& other) const {
    return of_feature == other.of_feature && scale == other.scale && bias == other.bias &&
           gate == other.gate;
  }
  bool operator==(const Control&) const = default;
};

// g of the op. A probe reads the row that the op is about to change. A score is the mean of
// h . vector over the prompt's tokens at a point of its own. It is complete at the prompt's last
// token, at later points of that step; the gated op works from there on. A control reads each token
// at a point of its own, and acts on the generated token behind it.
struct Gate {
  enum class Kind : uint8_t { kNone, kProbe, kPromptScore, kControl };
  Kind kind = Kind::kNone;
  Row vector;
  tap::Point point;  // of a score or a control
  double threshold = 0;
  std::optional<double> sharpness;  // none: 0 or 1 at the threshold
  Control control;
  bool operator==(const Gate&) const = default;
};

// Over n, the number of generated tokens before this one; a prompt has the value of n = 0.
struct Schedule {
  tap::ScheduleKind kind = tap::ScheduleKind::kConstant;
  int32_t begin = 0;
  int32_t end = 0;
  double from = 0;
  double to = 0;
  bool operator==(const Schedule&) const = default;
};

// Of the op kFeature: what becomes of one feature's value.
struct FeatureClamp {
  static constexpr int32_t kNoFeature = -1;

  std::shared_ptr<const features::Dictionary> dictionary;
  int32_t feature = 0;  // kNoFeature: none is changed, with `full` alone
  tap::FeatureEdit edit = tap::FeatureEdit::kAdd;
  double value = 0;
  bool only_if_active = false;  // only where the feature's value is above 0

  bool full = false;  // the row becomes what the dictionary makes of it
  // It needs all features of the row.
  bool encodes() const;
  // What it adds does not depend on the row.
  bool is_plain_add() const;
  bool operator==(const FeatureClamp&) const = default;
};

struct OpSpec {
  OpName op = OpName::kAdd;
  tap::Point point;
  Row vector;                  // experts: 1 where one is activated, -1 where it is deactivated
  std::vector<Row> more_axes;  // of an ablation, besides `vector`
  Row second;                  // target of swap, other axis of rotate, mean of mean_ablate
  // 1 at the elements that the op is for, 0 elsewhere, where the vectors are 0 too: heads of
  // attn_z. Empty: all.
  Row chosen;
  double scale = 1;  // s
  // coefficient of orthogonal, mean projection of mean_ablate without `second`, degrees of rotate
  double parameter = 0;
  double lo = -std::numeric_limits<double>::infinity();  // clamp, cap and set
  double hi = std::numeric_limits<double>::infinity();
  bool adaptive = false;      // rotate: only where the row points along `vector`
  bool offset = false;        // rotate: by the angle, not to it
  bool only_if_grew = false;  // add_renorm: keeps the norm of what became shorter
  // feature: `vector` is the decoder row that the op writes. A feature that is read at another
  // point than it is written has one more op, without vector, where it is read.
  FeatureClamp clamp;
  Gate gate;
  Schedule schedule;
  Selector select;
  std::string where;  // JSON path or tensor, for errors
  bool operator==(const OpSpec&) const = default;
};

// No element of a vector, scale or parameter is larger, no threshold than its square: what the
// device makes of them in f32, sums of squares of their products among it, stays finite.
inline constexpr double kMaxMagnitude = 1e6;

}  // namespace rudder::steer
