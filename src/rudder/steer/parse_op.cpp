// An element of `steering` with an "op" and a vector: its points, vectors and parameters.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "rudder/steer/layers.h"
#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

// Each is a selection of its own, of which a request has 64.
constexpr size_t kMaxKeptPositions = 64;
constexpr int64_t kMaxPosition = int64_t{1} << 30;

// The fields of an element besides those that every op has.
struct OpFields {
  OpName op;
  std::array<std::string_view, 4> names;  // the first `required` of them are
  size_t required;
};
// Of the ops with a vector; kExperts and kFeature have fields of their own (parse_experts.cpp,
// parse_feature.cpp).
constexpr std::array<OpFields, kNumOps - 2> kFields = {{
    {OpName::kPatch, {"source", "dest"}, 0},
    {OpName::kAblate, {}, 0},
    {OpName::kMeanAblate, {"mean"}, 1},
    {OpName::kOrthogonal, {"coefficient"}, 1},
    {OpName::kSwap, {"target"}, 1},
    {OpName::kRotate, {"target", "angle", "mode", "adaptive"}, 2},
    {OpName::kAdd, {}, 0},
    {OpName::kAddNorm, {}, 0},
    {OpName::kAddRenorm, {"only_if_grew"}, 0},
    {OpName::kClamp, {"lo", "hi"}, 0},
    {OpName::kCap, {"hi"}, 1},
    {OpName::kSet, {"value"}, 1},
}};
constexpr std::array<std::string_view, 9> kCommonFields = {
    "op", "site", "layers", "heads", "stream", "vector", "scale", "select", "gate"};

class OpParser {
 public:
  OpParser(const json::object& element, const ParseContext& context, const std::string& path)
      : element_(element), context_(context), path_(path) {}

  Result<void> parse(std::vector<OpSpec>& ops) {
    RUDDER_TRY_VOID(read_op());
    RUDDER_TRY(points_, read_op_points(element_, context_, path_));
    RUDDER_TRY_VOID(read_parts());
    RUDDER_TRY_VOID(read_parameters());
    RUDDER_TRY(spec_.scale, read_optional(element_, "scale", 1, path_));
    if (const json::value* select = member(element_, "select")) {
      RUDDER_TRY(spec_.select, parse_selector(*select, at("select")));
    }
    if (const json::value* gate = member(element_, "gate")) {
      RUDDER_TRY(gate_, parse_gate(*gate, points_, context_, at("gate"), stream_parts()));
      spec_.schedule = gate_.schedule;
    }
    spec_.where = path_;
    return place(ops);
  }

 private:
  // "heads" or "stream": no point has both.
  Result<void> read_parts() {
    const tap::Geometry& geometry = context_.model.geometry;
    if (const json::value* heads = member(element_, "heads")) {
      RUDDER_TRY(parts_, read_heads(*heads, points_, geometry, at("heads")));
    }
    RUDDER_TRY(const std::optional<StreamChoice> choice,
               read_stream_of(element_, points_, geometry, path_));
    if (!choice) return {};
    streams_ = choice->part_lists(geometry);
    parts_.assign(points_.size(), streams_.front());
    return {};
  }
  std::span<const PartList> stream_parts() const {
    return streams_.empty() ? std::span<const PartList>() : std::span<const PartList>(parts_);
  }
  std::string at(std::string_view key) const { return join_path(path_, key); }

  Result<void> read_op() {
    RUDDER_TRY(const std::string_view name, read_text(element_, "op", path_));
    const std::optional<OpName> op = find_op(name);
    if (!op) {
      std::vector<std::string_view> known;
      known.reserve(kNumOps);
      for (int32_t i = 0; i < kNumOps; ++i) known.push_back(op_name(static_cast<OpName>(i)));
      return invalid_field(fmt::format("unknown op '{}': one of {}", name, fmt::join(known, ", ")),
                           at("op"));
    }
    spec_.op = *op;
    const OpFields& fields = kFields[static_cast<size_t>(*op)];
    std::vector<std::string_view> known(kCommonFields.begin(), kCommonFields.end());
    for (const std::string_view field : fields.names) {
      if (!field.empty()) known.push_back(field);
    }
    RUDDER_TRY_VOID(check_keys(element_, known, fmt::format("the op '{}'", name), path_));
    for (size_t i = 0; i < fields.required; ++i) {
      if (member(element_, fields.names[i]) == nullptr) {
        return invalid_field(fmt::format("the op '{}' needs this field", name),
                             at(fields.names[i]));
      }
    }
    const bool has_source = member(element_, "source") != nullptr;
    if ((member(element_, "vector") != nullptr) != has_source) return {};
    return invalid_field(has_source ? "a source or a vector, not both"
                                    : fmt::format("the op '{}' needs a vector", name),
                         at("vector"));
  }

  // What a patch puts in place of a row: "zeros", {"module": name}, or vectors as in "vector".
  Result<VectorsAtPoints> read_source() {
    const std::string where = at("source");
    const json::value& source = element_.at("source");
    if (const json::string* text = source.if_string()) {
      if (*text != "zeros") {
        return invalid_field("\"zeros\", {\"module\": name} or a vector is needed", where);
      }
      VectorsAtPoints zeros;
      for (const tap::Point point : points_) {
        const int32_t width = context_.model.geometry.width(point);
        zeros.named.push_back({std::make_shared<float[]>(static_cast<size_t>(width)), 0, width});
      }
      return zeros;
    }
    const json::object* object = source.if_object();
    if (object == nullptr || !object->contains("module")) {
      return read_vectors(source, points_, false, context_, where, parts_);
    }
    static constexpr std::array<std::string_view, 1> kKeys = {"module"};
    RUDDER_TRY_VOID(check_keys(*object, kKeys, "a source", where));
    RUDDER_TRY(const std::string_view name, read_text(*object, "module", where));
    return read_vectors(json::string(name), points_, false, context_, join_path(where, "module"),
                        parts_);
  }

  Result<void> read_parameters() {
    switch (spec_.op) {
      case OpName::kMeanAblate:
        if (!element_.at("mean").is_number()) return read_second("mean");
        return read_into(spec_.parameter, "mean", kMaxThreshold);
      case OpName::kOrthogonal:
        return read_into(spec_.parameter, "coefficient");
      case OpName::kSwap:
        return read_second("target");
      case OpName::kRotate:
        RUDDER_TRY_VOID(read_into(spec_.parameter, "angle"));
        RUDDER_TRY_VOID(read_into(spec_.adaptive, "adaptive"));
        RUDDER_TRY_VOID(read_rotation_mode());
        return read_second("target");
      case OpName::kAddRenorm:
        return read_into(spec_.only_if_grew, "only_if_grew");
      case OpName::kClamp:
      case OpName::kCap:
        return read_bounds();
      case OpName::kSet:
        RUDDER_TRY_VOID(read_into(spec_.lo, "value", kMaxThreshold));
        spec_.hi = spec_.lo;
        return {};
      case OpName::kPatch:
      case OpName::kAblate:
      case OpName::kAdd:
      case OpName::kAddNorm:
      case OpName::kExperts:
      case OpName::kFeature:
        return {};
    }
    return {};
  }

  Result<void> read_into(double& number, std::string_view key,
                         double max_magnitude = kMaxMagnitude) {
    RUDDER_TRY(number, read_required(element_, key, path_, max_magnitude));
    return {};
  }
  Result<void> read_into(bool& flag, std::string_view key) {
    RUDDER_TRY(flag, read_bool(element_, key, path_));
    return {};
  }

  Result<void> read_second(std::string_view key) {
    const auto name = json::string_view(key.data(), key.size());
    RUDDER_TRY(second_, read_vectors(element_.at(name), points_, false, context_, at(key), parts_));
    has_second_ = true;
    return {};
  }

  Result<void> read_rotation_mode() {
    if (member(element_, "mode") == nullptr) return {};
    RUDDER_TRY(const std::string_view mode, read_text(element_, "mode", path_));
    if (mode != "to" && mode != "by") {
      return invalid_field("one of \"to\", \"by\" is needed", at("mode"));
    }
    spec_.offset = mode == "by";
    if (spec_.offset && spec_.adaptive) {
      return invalid_field("a rotation by an angle is not adaptive", at("adaptive"));
    }
    if (spec_.offset && member(element_, "scale") != nullptr) {
      return invalid_field("a rotation by an angle has no scale", at("scale"));
    }
    return {};
  }

  Result<void> read_bounds() {
    for (const auto& [key, bound] : {std::pair("lo", &spec_.lo), std::pair("hi", &spec_.hi)}) {
      if (const json::value* value = member(element_, key)) {
        RUDDER_TRY(*bound, read_number(*value, at(key), kMaxThreshold));
      }
    }
    if (member(element_, "lo") == nullptr && member(element_, "hi") == nullptr) {
      return invalid_field("a clamp needs \"lo\", \"hi\" or both", at("lo"));
    }
    if (spec_.lo > spec_.hi) return invalid_field("lo is greater than hi", at("lo"));
    return {};
  }

  // One op for each point and, where the op is for several streams, for each of them.
  Result<void> place(std::vector<OpSpec>& ops) {
    const json::value* source = member(element_, "source");
    const json::object* object = source == nullptr ? nullptr : source->if_object();
    if (object != nullptr && object->contains("request")) return place_kept(*object, ops);
    if (member(element_, "dest") != nullptr) {
      return invalid_field("goes with a source that is a request", at("dest"));
    }
    const bool axes = spec_.op == OpName::kAblate;
    VectorsAtPoints vectors;
    if (member(element_, "source") != nullptr) {
      RUDDER_TRY(vectors, read_source());
    } else {
      RUDDER_TRY(vectors, read_vectors(element_.at("vector"), points_, axes, context_, at("vector"),
                                       parts_));
    }
    if (axes) {
      if (vectors.rows.count > static_cast<int64_t>(kMaxAxes)) {
        return invalid_field(fmt::format("{} axes: at most {}", vectors.rows.count, kMaxAxes),
                             at("vector"));
      }
    }
    for (size_t i = 0; i < points_.size(); ++i) {
      for_each_stream(i, [&] {
        OpSpec& spec = ops.emplace_back(spec_);
        spec.point = points_[i];
        spec.vector = of_parts(vectors.at(i), !vectors.named.empty(), i);
        for (int64_t axis = 1; axes && axis < vectors.rows.count; ++axis) {
          spec.more_axes.push_back(of_parts(vectors.rows.row(axis), false, i));
        }
        if (has_second_) spec.second = of_parts(second_.at(i), !second_.named.empty(), i);
        finish(spec, i);
      });
    }
    return {};
  }

  tap::RowParts whole_row(size_t point) const {
    return context_.model.geometry.parts(points_[point]);
  }
  // Calls `make` once, or for each stream with its part of the point's row.
  template <typename Make>
  void for_each_stream(size_t point, const Make& make) {
    if (streams_.empty()) return make();
    for (const PartList& stream : streams_) {
      parts_[point] = stream;
      make();
    }
  }
  // The row as the device has it, where the op is for some parts.
  Row of_parts(const Row& row, bool is_named, size_t point) {
    if (parts_.empty()) return row;
    const bool is_whole = streams_.empty() ? is_named : row.width == whole_row(point).width();
    return part_rows_.spread(row, is_whole, parts_[point], whole_row(point));
  }
  void finish(OpSpec& spec, size_t point) {
    if (!parts_.empty()) spec.chosen = part_rows_.mask(parts_[point], whole_row(point));
    spec.gate = gate_.at(point);
    const Row& probe = spec.gate.vector;
    const bool is_of_stream = spec.gate.kind == Gate::Kind::kProbe && !streams_.empty() &&
                              probe.width != whole_row(point).width();
    if (!is_of_stream) return;
    spec.gate.vector = part_rows_.spread(probe, false, parts_[point], whole_row(point));
  }

  // Rows that another request has kept: each position's own row, put in at a position of its own.
  Result<void> place_kept(const json::object& source, std::vector<OpSpec>& ops) {
    const std::string where = at("source");
    RUDDER_TRY(const std::shared_ptr<const capture::KeptRun> run, find_kept(source, where));
    if (member(element_, "select") != nullptr) {
      return invalid_field("dest says which tokens are patched", at("select"));
    }
    const json::value* from = member(source, "positions");
    const std::string from_path = join_path(where, "positions");
    if (from == nullptr) return invalid_field("a list of positions is needed", from_path);
    RUDDER_TRY(const std::vector<int32_t> positions, read_positions(*from, from_path));
    std::vector<int32_t> dest = positions;
    if (const json::value* to = member(element_, "dest")) {
      RUDDER_TRY(dest, read_positions(*to, at("dest")));
    }
    if (dest.size() != positions.size()) {
      return invalid_field(
          fmt::format("{} positions for {} of the source", dest.size(), positions.size()),
          at("dest"));
    }
    for (size_t i = 0; i < positions.size(); ++i) {
      const int32_t position = positions[i] < 0 ? run->prompt_len + positions[i] : positions[i];
      for (size_t point = 0; point < points_.size(); ++point) {
        const std::optional<Row> row = run->row(points_[point], position);
        if (!row) {
          return invalid_field(
              run->has(points_[point])
                  ? fmt::format("the request did not keep position {}", position)
                  : fmt::format("the request did not keep {} of layer {}",
                                tap::site_name(points_[point].site), points_[point].layer),
              fmt::format("{}[{}]", from_path, i));
        }
        RUDDER_TRY_VOID(check_kept(row->width, point, fmt::format("{}[{}]", from_path, i)));
        for_each_stream(point, [&] {
          OpSpec& spec = ops.emplace_back(spec_);
          spec.point = points_[point];
          spec.vector = of_parts(*row, true, point);
          finish(spec, point);
          spec.select.prompt = {{dest[i], dest[i] == -1 ? tap::kNoEnd : dest[i] + 1}};
        });
      }
    }
    return {};
  }

  // A request may have kept a stream of the row.
  Result<void> check_kept(int32_t width, size_t point, const std::string& where) const {
    const bool is_of_stream = !streams_.empty() && width == whole_row(point).dim;
    if (is_of_stream) return {};
    return check_width(context_.model, points_[point], width, where);
  }

  Result<std::shared_ptr<const capture::KeptRun>> find_kept(const json::object& source,
                                                            const std::string& where) {
    static constexpr std::array<std::string_view, 3> kKeys = {"request", "choice", "positions"};
    RUDDER_TRY_VOID(check_keys(source, kKeys, "a source", where));
    const std::string id_path = join_path(where, "request");
    RUDDER_TRY(const std::string_view id, read_text(source, "request", where));
    int32_t choice = 0;
    if (const json::value* number = member(source, "choice")) {
      RUDDER_TRY(choice, read_int(*number, join_path(where, "choice")));
    }
    if (context_.kept.rows == nullptr) {
      return fail(ErrorCode::kUnsupported,
                  "patches from requests need a server with --capture-consumer kept, and are of "
                  "requests alone",
                  id_path);
    }
    auto run = context_.kept.rows->find(context_.kept.tenant, id, choice);
    if (run != nullptr) return run;
    return fail(ErrorCode::kNotFound,
                fmt::format("choice {} of a request '{}' has kept no rows here, or they are gone",
                            choice, id),
                id_path);
  }

  static Result<std::vector<int32_t>> read_positions(const json::value& value,
                                                     const std::string& path) {
    const json::array* list = value.if_array();
    if (list == nullptr || list->empty() || list->size() > kMaxKeptPositions) {
      return invalid_field(fmt::format("a list of 1 to {} positions is needed", kMaxKeptPositions),
                           path);
    }
    std::vector<int32_t> positions;
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string where = fmt::format("{}[{}]", path, i);
      RUDDER_TRY(positions.emplace_back(), read_int((*list)[i], where));
      if (std::abs(int64_t{positions.back()}) > kMaxPosition) {
        return invalid_field("no prompt is so long", where);
      }
    }
    return positions;
  }

  const json::object& element_;
  const ParseContext& context_;
  const std::string& path_;
  OpSpec spec_;
  std::vector<tap::Point> points_;
  std::vector<PartList> parts_;    // by point; none: the op is for whole rows
  std::vector<PartList> streams_;  // whose parts those are in turn; none: of no streams
  PartRows part_rows_;
  VectorsAtPoints second_;
  ParsedGate gate_;
  bool has_second_ = false;
};

}  // namespace

Result<void> parse_op_element(const json::object& element, const ParseContext& context,
                              const std::string& path, std::vector<OpSpec>& ops) {
  const json::string* name = element.at("op").if_string();
  if (name != nullptr && *name == "feature") {
    return parse_feature_element(element, context, path, ops);
  }
  if (name != nullptr && *name == "experts") {
    return parse_experts_element(element, context, path, ops);
  }
  return OpParser(element, context, path).parse(ops);
}

}  // namespace rudder::steer
