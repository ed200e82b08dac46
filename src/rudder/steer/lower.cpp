#include "rudder/steer/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/features/dictionary.h"
#include "rudder/steer/axes.h"
#include "rudder/steer/clamped_features.h"
#include "rudder/steer/dot.h"
#include "rudder/steer/latches.h"
#include "rudder/steer/reconstructions.h"
#include "rudder/tap/passage.h"

namespace rudder::steer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double norm_squared(const Row& row) {
  return dot(row.values(), row.values());
}

tap::TapOp axis_form(double a, double b, double lo, double hi) {
  tap::TapOp op;
  op.kind = tap::OpKind::kAxis;
  op.a = static_cast<float>(a);
  op.b = static_cast<float>(b);
  op.lo = static_cast<float>(lo);
  op.hi = static_cast<float>(hi);
  return op;
}

class Lowering {
 public:
  explicit Lowering(const tap::Geometry& geometry) : geometry_(geometry) {}

  Result<void> add(const OpSpec& spec);
  Result<Lowered> finish();

 private:
  using Forms = std::vector<LoweredOp>;

  Result<Forms> forms_of(const OpSpec& spec);
  Result<Forms> project_away(const OpSpec& spec);
  Result<Forms> rotate(const OpSpec& spec);
  Result<Forms> clamp_feature(const OpSpec& spec);
  // Of `rows`, made once however many layers they are used at.
  Result<std::vector<Row>> axes_of(const OpSpec& spec, std::vector<Row> rows, bool all_needed);
  Result<void> add_gate(const OpSpec& spec, Forms& forms);
  Result<Latches::Latch> latch_of(const OpSpec& spec);
  // Of a feature that is read at one point and written at others; equal clamps share it.
  Result<int32_t> relay_of(const OpSpec& spec);
  Result<void> place(const OpSpec& spec, Selector selector, Forms forms);
  Result<int32_t> selector_index(const OpSpec& spec, Selector selector);

  // The rows that axes were made of, by place in their buffer: two are enough to tell lists apart,
  // since rows of one list lie in one buffer.
  using AxesKey = std::tuple<const float*, const float*, size_t>;

  const tap::Geometry& geometry_;
  Lowered lowered_;
  std::map<AxesKey, std::vector<Row>> axes_;
  Latches latches_;
  std::vector<FeatureClamp> relays_;  // whose changes they have
  Reconstructions reconstructions_;
  int32_t num_specs_ = 0;
  ClampedFeatures clamped_;
};

Result<std::vector<Row>> Lowering::axes_of(const OpSpec& spec, std::vector<Row> rows,
                                           bool all_needed) {
  const AxesKey key = {rows.front().values().data(), rows.back().values().data(), rows.size()};
  const auto [found, is_new] = axes_.try_emplace(key);
  if (is_new) found->second = orthonormal(rows);
  const std::vector<Row>& axes = found->second;
  if (axes.empty() || (all_needed && axes.size() < rows.size())) {
    return fail(ErrorCode::kInvalidArgument,
                axes.empty() ? "a vector of norm 0 has no direction"
                             : "the two vectors have the same direction, or one of them none",
                spec.where);
  }
  return axes;
}

Result<Lowering::Forms> Lowering::project_away(const OpSpec& spec) {
  Forms forms;
  if (spec.op == OpName::kSwap) {
    RUDDER_TRY(const std::vector<Row> from, axes_of(spec, {spec.vector}, true));
    RUDDER_TRY(const std::vector<Row> to, axes_of(spec, {spec.second}, true));
    LoweredOp& form = forms.emplace_back();
    form.op.kind = tap::OpKind::kSwap;
    form.v1 = from[0];
    form.v2 = to[0];
    return forms;
  }
  std::vector<Row> rows = {spec.vector};
  rows.insert(rows.end(), spec.more_axes.begin(), spec.more_axes.end());
  RUDDER_TRY(const std::vector<Row> axes, axes_of(spec, std::move(rows), false));
  for (const Row& axis : axes) {
    double a = 0;
    double b = 0;
    if (spec.op == OpName::kOrthogonal) a = spec.parameter;
    if (spec.op == OpName::kMeanAblate) {
      b = spec.second.empty() ? spec.parameter : dot(spec.second.values(), axis.values());
    }
    LoweredOp& form = forms.emplace_back();
    form.op = axis_form(a, b, -kInfinity, kInfinity);
    form.v1 = axis;
  }
  return forms;
}

Result<Lowering::Forms> Lowering::rotate(const OpSpec& spec) {
  RUDDER_TRY(const std::vector<Row> axes, axes_of(spec, {spec.vector, spec.second}, true));
  const double angle = spec.parameter * std::numbers::pi / 180;
  Forms forms;
  if (!spec.offset) {
    LoweredOp& form = forms.emplace_back();
    form.op.kind = tap::OpKind::kRotate;
    form.op.a = static_cast<float>(std::cos(angle));
    form.op.b = static_cast<float>(std::sin(angle));
    form.op.lo = spec.adaptive ? 1.0f : 0.0f;
    form.v1 = axes[0];
    form.v2 = axes[1];
    return forms;
  }
  // Reflections across two lines of the plane at half the angle to one another.
  std::vector<double> half(axes[0].values().size());
  for (size_t i = 0; i < half.size(); ++i) {
    half[i] = std::cos(angle / 2) * double{axes[0].values()[i]} +
              std::sin(angle / 2) * double{axes[1].values()[i]};
  }
  for (const Row& line : {axes[0], to_row(half)}) {
    LoweredOp& form = forms.emplace_back();
    form.op = axis_form(-1, 0, -kInfinity, kInfinity);
    form.v1 = line;
  }
  return forms;
}

// The device's forms of the op, without gate and schedule.
Result<Lowering::Forms> Lowering::forms_of(const OpSpec& spec) {
  Forms forms(1);
  LoweredOp& form = forms[0];
  form.v1 = spec.vector;
  switch (spec.op) {
    case OpName::kPatch:
      form.op.kind = tap::OpKind::kPatch;
      form.v2 = spec.chosen;
      return forms;
    case OpName::kAblate:
    case OpName::kMeanAblate:
    case OpName::kOrthogonal:
    case OpName::kSwap:
      return project_away(spec);
    case OpName::kRotate:
      return rotate(spec);
    case OpName::kAdd:
      form.op.kind = tap::OpKind::kAdd;
      return forms;
    case OpName::kAddNorm: {
      RUDDER_TRY(const std::vector<Row> axis, axes_of(spec, {spec.vector}, true));
      form.op.kind = tap::OpKind::kAddNorm;
      form.v1 = axis[0];
      form.v2 = spec.chosen;
      return forms;
    }
    case OpName::kAddRenorm:
      form.op.kind = tap::OpKind::kAddRenorm;
      form.v2 = spec.chosen;
      form.op.sum = static_cast<float>(norm_squared(spec.vector));
      form.op.lo = spec.only_if_grew ? 1.0f : 0.0f;
      return forms;
    case OpName::kClamp:
    case OpName::kCap:
    case OpName::kSet: {
      RUDDER_TRY(const std::vector<Row> axis, axes_of(spec, {spec.vector}, true));
      form.op = axis_form(1, 0, spec.lo, spec.hi);
      form.v1 = axis[0];
      return forms;
    }
    case OpName::kExperts: {
      form.op.kind = tap::OpKind::kExperts;
      const auto layer = static_cast<size_t>(spec.point.layer);
      form.op.lo = geometry_.routing[layer].by_scores ? 1.0f : 0.0f;
      return forms;
    }
    case OpName::kFeature:
      return clamp_feature(spec);
  }
  RUDDER_CHECK(false, "op {}", static_cast<int>(spec.op));
}

Result<Lowering::Forms> Lowering::clamp_feature(const OpSpec& spec) {
  const FeatureClamp& clamp = spec.clamp;
  const features::Dictionary& dictionary = *clamp.dictionary;
  Forms forms(1);
  LoweredOp& form = forms[0];
  form.v1 = spec.vector;
  if (clamp.is_plain_add()) {
    form.op.kind = tap::OpKind::kAdd;
    form.scale = clamp.value;
    return forms;
  }
  form.op.kind = tap::OpKind::kFeature;
  form.op.edit = clamp.edit;
  form.op.value = static_cast<float>(clamp.value);
  if (clamp.feature == FeatureClamp::kNoFeature && spec.point != dictionary.read) {
    form.op.kind = tap::OpKind::kCarried;
    form.dictionary = clamp.dictionary;
    form.feature = clamp.feature;
    form.full = true;
    return forms;
  }
  if (!dictionary.is_autoencoder() && clamp.feature != FeatureClamp::kNoFeature) {
    RUDDER_TRY(form.op.relay, relay_of(spec));
    if (!spec.vector.empty()) return forms;
  }
  form.dictionary = clamp.dictionary;
  form.feature = clamp.feature;
  form.full = clamp.full;
  form.encodes = clamp.encodes();
  form.op.hi = clamp.only_if_active ? 1.0f : 0.0f;
  if (form.encodes) return forms;
  const features::FeatureForm feature = dictionary.form(clamp.feature);
  form.op.a = static_cast<float>(feature.scale);
  form.op.b = static_cast<float>(feature.bias);
  form.op.lo = static_cast<float>(feature.gate);
  form.op.norm = dictionary.norm;
  form.v2 = dictionary.encoder_row(clamp.feature);
  if (form.op.norm == tap::FeatureNorm::kLayerNorm) {
    const auto row = form.v2.values();
    form.op.sum = static_cast<float>(std::accumulate(row.begin(), row.end(), 0.0));
  }
  return forms;
}

Result<int32_t> Lowering::relay_of(const OpSpec& spec) {
  const auto found = std::ranges::find(relays_, spec.clamp);
  const auto relay = static_cast<int32_t>(found - relays_.begin());
  if (found != relays_.end()) return relay;
  if (relay == tap::kNumRelays) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("more than {} clamps of features that are written at another point than "
                    "they are read",
                    tap::kNumRelays),
        spec.where);
  }
  relays_.push_back(spec.clamp);
  return relay;
}

// Adds the op that fills it where that is new.
Result<Latches::Latch> Lowering::latch_of(const OpSpec& spec) {
  RUDDER_TRY(Latches::Latch latch, latches_.find(spec));
  if (!latch.filler) return latch;
  LoweredOp fill;
  fill.point = spec.gate.point;
  fill.group = Group::kScore;
  fill.op = latch.filler->op;
  fill.v1 = latch.filler->vector;
  RUDDER_TRY(fill.selector, selector_index(spec, latch.filler->selector));
  const bool is_score = fill.op.kind == tap::OpKind::kScore;
  lowered_.needs_whole_prompt = lowered_.needs_whole_prompt || is_score;
  lowered_.is_controlled = lowered_.is_controlled || !is_score;
  lowered_.ops.push_back(std::move(fill));
  return latch;
}

Result<void> Lowering::add_gate(const OpSpec& spec, Forms& forms) {
  const Gate& gate = spec.gate;
  if (gate.kind == Gate::Kind::kNone) return {};
  const bool probe = gate.kind == Gate::Kind::kProbe;
  if (forms.size() > 1 && (probe || spec.offset)) {
    // The second form would be gated by what the first one made of the row.
    return fail(ErrorCode::kInvalidArgument,
                "an op of several axes, or a rotation by an angle, takes no such gate", spec.where);
  }
  Latches::Latch latch;
  if (!probe) {
    RUDDER_TRY(latch, latch_of(spec));
  }
  for (LoweredOp& form : forms) {
    if (gate.kind == Gate::Kind::kControl) {
      form.op.gate = tap::GateKind::kControl;
      form.op.latch = latch.number;
      form.op.threshold = static_cast<float>(gate.control.target);
      form.op.sharpness = static_cast<float>(gate.control.gain);
      form.op.from = static_cast<float>(gate.control.min);
      form.op.to = static_cast<float>(gate.control.max);
      continue;
    }
    if (probe) {
      form.op.gate = gate.sharpness ? tap::GateKind::kSoft : tap::GateKind::kHard;
      form.gate = gate.vector;
    } else {
      form.op.gate = gate.sharpness ? tap::GateKind::kScoreSoft : tap::GateKind::kScoreHard;
      form.op.latch = latch.number;
    }
    form.op.threshold = static_cast<float>(std::ldexp(gate.threshold, -latch.exponent));
    if (gate.sharpness) {
      form.op.sharpness = static_cast<float>(std::ldexp(*gate.sharpness, latch.exponent));
    }
  }
  return {};
}

Result<int32_t> Lowering::selector_index(const OpSpec& spec, Selector selector) {
  const auto found = std::ranges::find(lowered_.selectors, selector);
  const auto index = static_cast<int32_t>(found - lowered_.selectors.begin());
  if (found != lowered_.selectors.end()) return index;
  if (lowered_.selectors.size() == kMaxSelectors) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("more than {} different selections of tokens", kMaxSelectors),
                spec.where);
  }
  lowered_.selectors.push_back(std::move(selector));
  return index;
}

// True when the form leaves every row as it is.
bool is_identity(const LoweredOp& form) {
  const tap::TapOp& op = form.op;
  const bool fills = op.kind == tap::OpKind::kScore || op.kind == tap::OpKind::kSense;
  if (fills || form.full) return false;
  if (op.kind == tap::OpKind::kFeature &&
      ((op.edit == tap::FeatureEdit::kAdd && op.value == 0) ||
       (op.edit == tap::FeatureEdit::kMultiply && op.value == 1))) {
    return true;
  }
  return form.scale == 0 || (op.kind == tap::OpKind::kAxis && op.a == 1 && op.b == 0 &&
                             op.lo == -kInfinity && op.hi == kInfinity);
}

Result<void> Lowering::place(const OpSpec& spec, Selector selector, Forms forms) {
  RUDDER_TRY(const int32_t index, selector_index(spec, std::move(selector)));
  for (LoweredOp& form : forms) {
    form.point = spec.point;
    form.group = group_of(spec.op);
    // Behind the clamps, which so read a row without it.
    if (form.group == Group::kFeature && form.op.kind == tap::OpKind::kAdd) {
      form.group = Group::kFeatureAdd;
    }
    form.selector = index;
    form.folds = form.op.kind == tap::OpKind::kAdd && form.op.gate == tap::GateKind::kNone &&
                 form.op.schedule == tap::ScheduleKind::kConstant;
    form.op.strength = static_cast<float>(form.scale);
    if (form.op.schedule != tap::ScheduleKind::kConstant) {
      lowered_.scheduled |= uint64_t{1} << static_cast<unsigned>(index);
    }
    if (form.full && form.feature == FeatureClamp::kNoFeature &&
        !reconstructions_.is_first(form.point, index, form.dictionary.get())) {
      continue;
    }
    const bool writes_feature = spec.op == OpName::kFeature && !spec.vector.empty() &&
                                spec.clamp.feature != FeatureClamp::kNoFeature;
    if (writes_feature) {
      form.clamped = clamped_.first_with(spec.clamp);
      form.clamped_feature = spec.clamp.feature;
      form.spec = num_specs_;
      clamped_.note(form);
    }
    form.changes_nothing = is_identity(form);
    if (form.changes_nothing && !clamped_.is_clamped_before(form)) continue;
    lowered_.ops.push_back(std::move(form));
  }
  return {};
}

// The part of `selector` among generated tokens [begin, end); false when there is none.
bool within_generation(Selector& selector, int32_t begin, int32_t end) {
  if (selector.phase == Phase::kPrefill) return false;
  if (!selector.prompt.empty() && selector.generation.empty()) return false;
  if (selector.generation.empty()) selector.generation = {{}};
  for (Window& window : selector.generation) {
    window = {std::max(window.begin, begin), std::min(window.end, end)};
  }
  std::erase_if(selector.generation, [](const Window& w) { return w.begin >= w.end; });
  selector.prompt.clear();
  selector.phase = Phase::kDecode;
  selector.from_last_prompt = false;
  return !selector.generation.empty();
}

Result<void> Lowering::add(const OpSpec& spec) {
  ++num_specs_;
  RUDDER_TRY_VOID(reconstructions_.add(spec));
  const bool only_reads = spec.op == OpName::kFeature && spec.vector.empty();
  RUDDER_CHECK(only_reads || spec.vector.width == geometry_.width(spec.point),
               "{}: a vector of {} elements", spec.where, spec.vector.width);
  RUDDER_TRY(Forms forms, forms_of(spec));
  for (LoweredOp& form : forms) form.scale *= spec.scale;
  RUDDER_TRY_VOID(add_gate(spec, forms));

  Selector selector = spec.select;
  if (spec.gate.kind == Gate::Kind::kPromptScore) {
    selector.from_last_prompt = true;
    if (stage_of(spec.point) <= stage_of(spec.gate.point)) {
      if (selector.phase == Phase::kPrefill) {
        return fail(ErrorCode::kInvalidArgument,
                    "a prompt's score is known after its own point at the prompt's last token: it "
                    "gates no earlier point of the prompt",
                    spec.where);
      }
      selector.phase = Phase::kDecode;
      selector.from_last_prompt = false;  // says nothing more
    }
  }
  if (spec.gate.kind == Gate::Kind::kControl && !within_generation(selector, 0, tap::kNoEnd)) {
    return fail(ErrorCode::kInvalidArgument,
                "a control acts on generated tokens, and none is selected", spec.where);
  }
  const Schedule& schedule = spec.schedule;
  switch (schedule.kind) {
    case tap::ScheduleKind::kConstant:
      return place(spec, std::move(selector), std::move(forms));
    case tap::ScheduleKind::kWindow:
      if (!within_generation(selector, schedule.begin, schedule.end)) return {};
      return place(spec, std::move(selector), std::move(forms));
    case tap::ScheduleKind::kRamp:
      break;
  }
  if (forms.size() > 1 && spec.offset) {
    return fail(ErrorCode::kInvalidArgument, "a rotation by an angle takes no ramp", spec.where);
  }
  if (selector.phase != Phase::kDecode) {
    Forms of_prompt = forms;
    for (LoweredOp& form : of_prompt) form.scale *= schedule.from;
    Selector prompt = selector;
    prompt.phase = Phase::kPrefill;
    RUDDER_TRY_VOID(place(spec, std::move(prompt), std::move(of_prompt)));
  }
  if (!within_generation(selector, 0, tap::kNoEnd)) return {};
  for (LoweredOp& form : forms) {
    form.op.schedule = tap::ScheduleKind::kRamp;
    form.op.begin = schedule.begin;
    form.op.end = schedule.end;
    form.op.from = static_cast<float>(schedule.from);
    form.op.to = static_cast<float>(schedule.to);
  }
  return place(spec, std::move(selector), std::move(forms));
}

Result<Lowered> Lowering::finish() {
  std::vector<LoweredOp>& ops = lowered_.ops;
  std::ranges::stable_sort(ops, {}, [](const LoweredOp& op) {
    return std::pair(op.point.index(), static_cast<int32_t>(op.group));
  });
  int64_t floats = 0;
  std::set<std::pair<int32_t, const features::Dictionary*>> encodes;  // each of which is an op, too
  for (size_t i = 0, at_point = 0; i < ops.size(); ++i) {
    at_point = i > 0 && ops[i].point == ops[i - 1].point ? at_point + 1 : 1;
    if (ops[i].encodes && ops[i].feature == FeatureClamp::kNoFeature) --at_point;
    if (ops[i].encodes && encodes.emplace(ops[i].point.index(), ops[i].dictionary.get()).second) {
      ++at_point;
    }
    if (at_point > tap::kMaxOpsPerPoint) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("more than {} ops at {} of layer {}", tap::kMaxOpsPerPoint,
                              tap::site_name(ops[i].point.site), ops[i].point.layer),
                  "steering");
    }
    floats += int64_t{3} * (geometry_.width(ops[i].point) + tap::kVectorAlign);
  }
  if (floats > std::numeric_limits<int32_t>::max()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("steering with {} numbers in its vectors", floats), "steering");
  }
  return std::move(lowered_);
}

}  // namespace

Result<Lowered> lower(const tap::Geometry& geometry, const std::vector<OpSpec>& specs) {
  Lowering lowering(geometry);
  for (const OpSpec& spec : specs) RUDDER_TRY_VOID(lowering.add(spec));
  return lowering.finish();
}

}  // namespace rudder::steer
