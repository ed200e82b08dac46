// "gate" of an element of `steering`: a probe, a prompt's score, a feature or a control, and a
// schedule.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "rudder/features/dictionary.h"
#include "rudder/steer/layers.h"
#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

Result<Schedule> read_schedule(const json::value& value, const std::string& path) {
  static constexpr std::array<std::string_view, 5> kRamp = {"kind", "begin", "end", "from", "to"};
  const json::object* object = value.if_object();
  if (object == nullptr) return invalid_field("an object is needed", path);
  RUDDER_TRY(const std::string_view kind, read_text(*object, "kind", path));
  if (kind != "ramp" && kind != "window") {
    return invalid_field("one of \"ramp\", \"window\" is needed", join_path(path, "kind"));
  }
  const bool ramp = kind == "ramp";
  RUDDER_TRY_VOID(check_keys(*object, std::span(kRamp).first(ramp ? 5 : 3),
                             ramp ? "a ramp" : "a window", path));
  Schedule schedule;
  schedule.kind = ramp ? tap::ScheduleKind::kRamp : tap::ScheduleKind::kWindow;
  schedule.end = tap::kNoEnd;
  for (const auto& [key, border] :
       {std::pair("begin", &schedule.begin), std::pair("end", &schedule.end)}) {
    if (const json::value* number = member(*object, key)) {
      RUDDER_TRY(*border, read_int(*number, join_path(path, key)));
    }
  }
  if (schedule.begin < 0) {
    return invalid_field("schedules count generated tokens from 0", join_path(path, "begin"));
  }
  if (schedule.end <= schedule.begin || (ramp && schedule.end == tap::kNoEnd)) {
    return invalid_field("an end after the begin is needed", join_path(path, "end"));
  }
  if (ramp) {
    RUDDER_TRY(schedule.from, read_required(*object, "from", path));
    RUDDER_TRY(schedule.to, read_required(*object, "to", path));
  }
  return schedule;
}

class GateParser {
 public:
  GateParser(std::span<const tap::Point> points, std::span<const PartList> parts,
             const ParseContext& context)
      : points_(points), parts_(parts), context_(context) {}

  Result<void> read(const json::value& value, const std::string& path) {
    static constexpr std::array<std::string_view, 5> kKeys = {"probe", "prompt_score", "feature",
                                                              "control", "schedule"};
    const json::object* object = value.if_object();
    if (object == nullptr || object->empty()) {
      return invalid_field(
          fmt::format("an object with one of {} is needed", fmt::join(kKeys, ", ")), path);
    }
    RUDDER_TRY_VOID(check_keys(*object, kKeys, "a gate", path));
    const json::value* probe = member(*object, "probe");
    const json::value* score = member(*object, "prompt_score");
    const json::value* feature = member(*object, "feature");
    const json::value* control = member(*object, "control");
    if (std::ranges::count(std::array{probe, score, feature, control}, nullptr) < 3) {
      return invalid_field("a probe, a prompt's score, a feature or a control, not several", path);
    }
    if (const json::value* schedule = member(*object, "schedule")) {
      RUDDER_TRY(parsed_.schedule, read_schedule(*schedule, join_path(path, "schedule")));
    }
    if (probe != nullptr) return read_probe(*probe, join_path(path, "probe"));
    if (score != nullptr) return read_score(*score, join_path(path, "prompt_score"));
    if (feature != nullptr) return read_feature_gate(*feature, join_path(path, "feature"));
    if (control != nullptr) return read_control(*control, path);
    return {};
  }

  Result<void> read_probe(const json::value& value, const std::string& path) {
    static constexpr std::array<std::string_view, 3> kKeys = {"vector", "threshold", "sharpness"};
    RUDDER_TRY(const json::object* const object, read_threshold(value, kKeys, path));
    const json::value* const vector = member(*object, "vector");
    const std::string where = join_path(path, "vector");
    if (vector == nullptr) return invalid_field("a vector is needed", where);
    RUDDER_TRY(parsed_.probe, read_vectors(*vector, points_, false, context_, where, parts_));
    parsed_.gate.kind = Gate::Kind::kProbe;
    return {};
  }

  Result<void> read_score(const json::value& value, const std::string& path) {
    static constexpr std::array<std::string_view, 6> kKeys = {"vector", "threshold", "sharpness",
                                                              "site",   "layer",     "stream"};
    const json::object* object = value.if_object();
    if (object == nullptr) return invalid_field("an object is needed", path);
    RUDDER_TRY(const tap::SiteRef ref, read_site(*object, path));
    tap::Point& point = parsed_.gate.point;
    point = {ref.layer, ref.site};
    if (const json::value* layer = member(*object, "layer")) {
      if (ref.layer >= 0) {
        return invalid_field("the site names its layer already", join_path(path, "layer"));
      }
      RUDDER_TRY(point.layer,
                 read_layer(*layer, context_.model.geometry, join_path(path, "layer")));
    } else if (ref.layer < 0) {
      return invalid_field("a layer is needed", join_path(path, "layer"));
    }
    RUDDER_TRY_VOID(check_point(context_.model, point, join_path(path, "layer")));
    RUDDER_TRY_VOID(read_threshold(value, kKeys, path));
    RUDDER_TRY(parsed_.gate.vector, read_row_at(*object, point, context_, path));
    parsed_.gate.kind = Gate::Kind::kPromptScore;
    return {};
  }

  // The object of a probe or a score, without its vector.
  Result<const json::object*> read_threshold(const json::value& value,
                                             std::span<const std::string_view> keys,
                                             const std::string& path) {
    const json::object* object = value.if_object();
    if (object == nullptr) return invalid_field("an object is needed", path);
    RUDDER_TRY_VOID(check_keys(*object, keys, "a gate", path));
    RUDDER_TRY(parsed_.gate.threshold, read_required(*object, "threshold", path, kMaxThreshold));
    if (member(*object, "sharpness") != nullptr) {
      RUDDER_TRY(const double sharpness, read_required(*object, "sharpness", path));
      parsed_.gate.sharpness = sharpness;
    }
    return object;
  }

  // f > above, as a probe: f grows with y = h . encoder row, so it is y above some threshold.
  Result<void> read_feature_gate(const json::value& value, const std::string& path) {
    static constexpr std::array<std::string_view, 4> kKeys = {"dictionary", "layer", "feature",
                                                              "above"};
    const json::object* object = value.if_object();
    if (object == nullptr) return invalid_field("an object is needed", path);
    RUDDER_TRY_VOID(check_keys(*object, kKeys, "a gate", path));
    RUDDER_TRY(const auto dictionary, read_dictionary(*object, context_, path));
    RUDDER_TRY(const int32_t feature, read_feature(*object, "feature", *dictionary, path));
    RUDDER_TRY(const double above, read_optional(*object, "above", 0, path));
    if (above < 0) {
      return invalid_field("no feature is below 0: a number of at least 0 is needed",
                           join_path(path, "above"));
    }
    const std::string where = join_path(path, "dictionary");
    if (dictionary->activation == features::Activation::kTopK ||
        dictionary->norm != tap::FeatureNorm::kNone) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("a gate on a feature of a {} dictionary {} is not supported",
                              features::activation_name(dictionary->activation),
                              dictionary->norm == tap::FeatureNorm::kNone
                                  ? "(all features would have to be encoded)"
                                  : "that normalises its input"),
                  where);
    }
    for (const tap::Point point : points_) {
      if (point == dictionary->read) continue;
      return invalid_field(
          fmt::format("the dictionary reads {} of layer {}, the op is at {} of layer {}: a gate "
                      "reads the row that its op changes",
                      tap::site_name(dictionary->read.site), dictionary->read.layer,
                      tap::site_name(point.site), point.layer),
          where);
    }
    const features::FeatureForm form = dictionary->form(feature);
    parsed_.gate.kind = Gate::Kind::kProbe;
    parsed_.gate.threshold = std::max(form.gate, (above - form.bias) / form.scale);
    parsed_.probe.named.assign(points_.size(), dictionary->encoder_row(feature));
    return {};
  }

  // `gate_path` is that of the gate. A ramp and the bounds would have the same places in an op.
  Result<void> read_control(const json::value& value, const std::string& gate_path) {
    static constexpr std::array<std::string_view, 6> kKeys = {"probe", "feature", "target",
                                                              "gain",  "min",     "max"};
    const std::string path = join_path(gate_path, "control");
    const json::object* object = value.if_object();
    if (object == nullptr) return invalid_field("an object is needed", path);
    RUDDER_TRY_VOID(check_keys(*object, kKeys, "a control", path));
    if (parsed_.schedule.kind == tap::ScheduleKind::kRamp) {
      return invalid_field("a control takes no ramp", join_path(gate_path, "schedule"));
    }
    RUDDER_TRY(const capture::Watch read, read_watch(*object, context_, path));
    Gate& gate = parsed_.gate;
    Control& control = gate.control;
    RUDDER_TRY(control.target, read_required(*object, "target", path, kMaxThreshold));
    RUDDER_TRY(control.gain, read_required(*object, "gain", path));
    RUDDER_TRY(control.min, read_required(*object, "min", path));
    RUDDER_TRY(control.max, read_required(*object, "max", path));
    if (control.min > control.max) {
      return invalid_field("a number of at least min is needed", join_path(path, "max"));
    }
    gate.kind = Gate::Kind::kControl;
    gate.point = read.point.point;
    gate.vector = read.vector;
    if (read.dictionary == nullptr) return {};
    if (read.dictionary->norm != tap::FeatureNorm::kNone) {
      return fail(
          ErrorCode::kUnsupported,
          "a control by a feature of a dictionary that normalises its input is not supported",
          join_path(path, "feature.dictionary"));
    }
    const features::FeatureForm form = read.dictionary->form(read.feature);
    gate.vector = read.dictionary->encoder_row(read.feature);
    control.of_feature = true;
    control.scale = form.scale;
    control.bias = form.bias;
    control.gate = form.gate;
    return {};
  }

  ParsedGate take() { return std::move(parsed_); }

 private:
  const std::span<const tap::Point> points_;
  const std::span<const PartList> parts_;
  const ParseContext& context_;
  ParsedGate parsed_;
};

}  // namespace

Result<ParsedGate> parse_gate(const json::value& value, std::span<const tap::Point> points,
                              const ParseContext& context, const std::string& path,
                              std::span<const PartList> parts) {
  GateParser parser(points, parts, context);
  RUDDER_TRY_VOID(parser.read(value, path));
  return parser.take();
}

}  // namespace rudder::steer
