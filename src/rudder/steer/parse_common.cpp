#include "rudder/steer/parse_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <map>
#include <optional>

#include "rudder/steer/layers.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

std::string_view view_of(const json::string& text) {
  return {text.data(), text.size()};
}

// What an add of a module adds: its vector under its scale.
Result<Row> added_row(const OpSpec& add, const std::string& where) {
  if (add.scale == 1) return add.vector;
  const auto values = add.vector.values();
  auto buffer = std::make_shared_for_overwrite<float[]>(values.size());
  std::ranges::transform(values, buffer.get(), [&](float value) {
    return static_cast<float>(add.scale * double{value});
  });
  if (first_bad({buffer.get(), values.size()})) {
    return invalid_field(fmt::format("the module's vector has elements above {}", kMaxMagnitude),
                         where);
  }
  return Row{std::move(buffer), 0, add.vector.width};
}

PartList part_at(std::span<const PartList> parts, size_t point) {
  return parts.empty() ? PartList() : parts[point];
}

// Whether the parts are a stream, and rows of this width are of it.
bool is_of_stream(const ParseContext& context, tap::Point point, const PartList& parts,
                  int32_t width) {
  return !parts.empty() && tap::is_residual(point.site) &&
         width == PartRows::width(parts, context.model.geometry.parts(point));
}

// The vector that a module adds at `point` in any phase; else its only add, unless `exact`.
Result<const OpSpec*> named_add(const Config& config, std::string_view name, tap::Point point,
                                bool exact, const std::string& where) {
  const OpSpec* only = nullptr;
  size_t adds = 0;
  for (const OpSpec& op : config.specs()) {
    if (op.op != OpName::kAdd) continue;
    if (op.point == point) return &op;
    only = &op;
    ++adds;
  }
  if (adds == 1 && !exact) return only;
  return invalid_field(
      fmt::format("'{}' adds no vector at {} of layer {}: name it with \"site\" and \"layer\" "
                  "where the module has several",
                  name, tap::site_name(point.site), point.layer),
      where);
}

Result<std::vector<Row>> named_rows(std::string_view name, const tap::Point* from,
                                    std::span<const tap::Point> points, const ParseContext& context,
                                    const std::string& where, std::span<const PartList> parts) {
  const auto config = context.names.find(name);
  if (config == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("no steering module is named '{}'", name), where);
  }
  std::vector<Row> rows;
  std::map<const OpSpec*, Row> made;  // layers that share a vector share its memory
  for (size_t i = 0; i < points.size(); ++i) {
    const tap::Point& point = points[i];
    RUDDER_TRY(const OpSpec* add,
               named_add(*config, name, from == nullptr ? point : *from, from != nullptr, where));
    if (!is_of_stream(context, point, part_at(parts, i), add->vector.width)) {
      RUDDER_TRY_VOID(check_width(context.model, point, add->vector.width, where));
    }
    const auto [row, is_new] = made.try_emplace(add);
    if (is_new) {
      RUDDER_TRY(row->second, added_row(*add, where));
    }
    rows.push_back(row->second);
  }
  return rows;
}

// {"name", "site"?, "layer"?}: both or neither.
Result<std::vector<Row>> named_rows(const json::object& object, std::span<const tap::Point> points,
                                    const ParseContext& context, const std::string& path,
                                    std::span<const PartList> parts) {
  static constexpr std::array<std::string_view, 3> kKeys = {"name", "site", "layer"};
  RUDDER_TRY_VOID(check_keys(object, kKeys, "a vector by name", path));
  const json::string* name = object.at("name").if_string();
  if (name == nullptr) return invalid_field("a name is needed", path + ".name");
  const json::value* site = member(object, "site");
  const json::value* layer = member(object, "layer");
  if (site == nullptr && layer == nullptr) {
    return named_rows(view_of(*name), nullptr, points, context, path + ".name", parts);
  }
  if (site == nullptr || !site->is_string()) {
    return invalid_field("the name of a site is needed", path + ".site");
  }
  if (layer == nullptr) return invalid_field("a layer is needed", path + ".layer");
  Result<tap::SiteRef> ref = tap::parse_op_site(view_of(site->get_string()));
  if (!ref) return invalid_field(ref.error().message, path + ".site");
  RUDDER_TRY(const int32_t number, read_layer(*layer, context.model.geometry, path + ".layer"));
  const tap::Point from = {number, ref->site};
  RUDDER_TRY_VOID(check_point(context.model, from, path + ".layer"));
  return named_rows(view_of(*name), &from, points, context, path + ".name", parts);
}

}  // namespace

const json::value* member(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string join_path(const std::string& path, std::string_view key) {
  if (key.empty()) key = "\"\"";  // a field whose name is empty
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

Result<std::string_view> read_text(const json::object& object, std::string_view key,
                                   const std::string& path) {
  const json::value* value = member(object, key);
  const json::string* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr) return invalid_field("a string is needed", join_path(path, key));
  return std::string_view(text->data(), text->size());
}

Result<bool> read_bool(const json::object& object, std::string_view key, const std::string& path) {
  const json::value* value = member(object, key);
  if (value == nullptr) return false;
  if (!value->is_bool()) return invalid_field("true or false is needed", join_path(path, key));
  return value->get_bool();
}

Result<double> read_required(const json::object& object, std::string_view key,
                             const std::string& path, double max_magnitude) {
  const json::value* value = member(object, key);
  if (value == nullptr) return invalid_field("a number is needed", join_path(path, key));
  return read_number(*value, join_path(path, key), max_magnitude);
}

Result<double> read_optional(const json::object& object, std::string_view key, double absent,
                             const std::string& path) {
  return member(object, key) == nullptr ? Result<double>(absent) : read_required(object, key, path);
}

Result<tap::SiteRef> read_site(const json::object& object, const std::string& path) {
  RUDDER_TRY(const std::string_view text, read_text(object, "site", path));
  Result<tap::SiteRef> ref = tap::parse_op_site(text);
  if (!ref) return invalid_field(ref.error().message, join_path(path, "site"));
  return ref;
}

Result<std::vector<tap::Point>> read_op_points(const json::object& element,
                                               const ParseContext& context,
                                               const std::string& path) {
  RUDDER_TRY(const tap::SiteRef ref, read_site(element, path));
  const std::string where = join_path(path, "layers");
  const json::value* layers = member(element, "layers");
  if (ref.layer >= 0) {
    if (layers != nullptr) return invalid_field("the site names its layer already", where);
    const tap::Point point = {ref.layer, ref.site};
    RUDDER_TRY_VOID(check_point(context.model, point, join_path(path, "site")));
    return std::vector<tap::Point>{point};
  }
  const json::value all("all");
  if (layers == nullptr && ref.site == tap::Site::kFinalNorm) layers = &all;
  if (layers == nullptr) return invalid_field("layers are needed: [i, ...] or \"all\"", where);
  RUDDER_TRY(const std::vector<int32_t> numbers,
             read_layers(*layers, ref.site, context.model.geometry, where));
  std::vector<tap::Point> points;
  points.reserve(numbers.size());
  for (const int32_t layer : numbers) points.push_back({layer, ref.site});
  return points;
}

Result<void> check_keys(const json::object& object, std::span<const std::string_view> known,
                        std::string_view what, const std::string& where) {
  for (const auto& [key, value] : object) {
    const std::string_view name(key.data(), key.size());
    if (std::ranges::find(known, name) == known.end()) {
      return invalid_field(fmt::format("{} has no such field: {}", what, fmt::join(known, ", ")),
                           join_path(where, name));
    }
  }
  return {};
}

Result<void> check_point(const Model& model, tap::Point point, const std::string& where) {
  Result<void> checked = model.geometry.check(point);
  if (!checked) return invalid_field(checked.error().message, where);
  return {};
}

Result<void> check_width(const Model& model, tap::Point point, int32_t width,
                         const std::string& where) {
  const int32_t needed = model.geometry.width(point);
  if (width == needed) return {};
  return invalid_field(fmt::format("a vector of {} elements; {} of layer {} has {}: {}", width,
                                   tap::site_name(point.site), point.layer, needed,
                                   model.geometry.fits(point.layer, width, true)),
                       where);
}

Result<VectorsAtPoints> read_vectors(const json::value& value, std::span<const tap::Point> points,
                                     bool rows_are_axes, const ParseContext& context,
                                     const std::string& path, std::span<const PartList> parts) {
  static constexpr std::array<std::string_view, 3> kPacked = {"dtype", "shape", "data"};
  VectorsAtPoints vectors;
  if (const json::string* name = value.if_string()) {
    RUDDER_TRY(vectors.named, named_rows(view_of(*name), nullptr, points, context, path, parts));
    return vectors;
  }
  if (const json::object* object = value.if_object()) {
    if (object->contains("name")) {
      RUDDER_TRY(vectors.named, named_rows(*object, points, context, path, parts));
      return vectors;
    }
    RUDDER_TRY_VOID(check_keys(*object, kPacked, "a packed vector", path));
    RUDDER_TRY(vectors.rows, read_packed(*object, path));
  } else if (const json::array* lists = value.if_array()) {
    RUDDER_TRY(vectors.rows, read_lists(*lists, path));
  } else {
    return invalid_field("a list of numbers, a packed vector or a name is needed", path);
  }
  const auto count = static_cast<size_t>(vectors.rows.count);
  vectors.by_point = !rows_are_axes && !vectors.rows.is_list && count > 1;
  if (vectors.by_point && count != points.size()) {
    return invalid_field(fmt::format("{} vectors for {} layers", count, points.size()), path);
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const PartList list = part_at(parts, i);
    const int32_t width = vectors.rows.width;
    if (is_of_stream(context, points[i], list, width)) continue;
    if (list.empty() || tap::is_residual(points[i].site)) {
      RUDDER_TRY_VOID(check_width(context.model, points[i], width, path));
      continue;
    }
    const int32_t needed = PartRows::width(list, context.model.geometry.parts(points[i]));
    if (width == needed) continue;
    return invalid_field(fmt::format("a vector of {} elements; {} heads of layer {} have {}", width,
                                     list.size(), points[i].layer, needed),
                         path);
  }
  return vectors;
}

Result<Row> read_row_at(const json::object& object, tap::Point point, const ParseContext& context,
                        const std::string& path) {
  const tap::Geometry& geometry = context.model.geometry;
  const std::string where = join_path(path, "vector");
  const json::value* const vector = member(object, "vector");
  if (vector == nullptr) return invalid_field("a vector is needed", where);
  const std::span<const tap::Point> points(&point, 1);
  RUDDER_TRY(const std::optional<StreamChoice> choice,
             read_stream_of(object, points, geometry, path));
  std::vector<PartList> parts = {PartList()};
  if (choice) parts = choice->part_lists(geometry);
  if (parts.size() > 1) {
    return invalid_field("one stream is needed: a number is read of one row",
                         join_path(path, "stream"));
  }
  RUDDER_TRY(const VectorsAtPoints vectors,
             read_vectors(*vector, points, false, context, where, parts));
  const Row row = vectors.at(0);
  const tap::RowParts whole = geometry.parts(point);
  return PartRows().spread(row, row.width == whole.width(), parts[0], whole);
}

Result<NamedRef> parse_named(const json::value& value, const ParseContext& context,
                             const std::string& path) {
  static constexpr std::array<std::string_view, 2> kKeys = {"name", "scale"};
  NamedRef ref;
  ref.where = path;
  const json::string* name = value.if_string();
  if (const json::object* object = value.if_object()) {
    RUDDER_TRY_VOID(check_keys(*object, kKeys, "a module by name", path));
    const json::value* named = member(*object, "name");
    name = named == nullptr ? nullptr : named->if_string();
    ref.where = join_path(path, "name");
    if (const json::value* scale = member(*object, "scale")) {
      RUDDER_TRY(ref.scale, read_number(*scale, join_path(path, "scale")));
    }
  }
  if (name == nullptr || name->empty()) {
    return invalid_field("the name of a steering module is needed", ref.where);
  }
  ref.name = view_of(*name);
  ref.config = context.names.find(ref.name);
  if (ref.config == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("no steering module is named '{}'", ref.name),
                ref.where);
  }
  return ref;
}

}  // namespace rudder::steer
