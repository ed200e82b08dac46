// The tiers of the article: {site: {layer: entry}} and {site: packed}, all of them adds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <vector>

#include "rudder/steer/layers.h"
#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

class TierParser {
 public:
  TierParser(Phase phase, const ParseContext& context, std::vector<OpSpec>& ops)
      : context_(context), ops_(ops) {
    select_.phase = phase;
    seen_.resize(static_cast<size_t>(context.model.geometry.num_points()));
  }

  Result<void> add_site(const tap::SiteRef& ref, const json::value& value,
                        const std::string& path) {
    const json::object* object = value.if_object();
    if (ref.layer >= 0) {
      const tap::Point point = {ref.layer, ref.site};
      RUDDER_TRY_VOID(check_point(context_.model, point, path));
      return add_entry(point, value, path);
    }
    if (object == nullptr) {
      return invalid_field("an object is needed: vectors by layer, or packed ones", path);
    }
    if (object->contains("data") || object->contains("dtype")) {
      return add_packed(ref.site, *object, path);
    }
    for (const auto& [key, entry] : *object) {
      const std::string_view text(key.data(), key.size());
      const std::string where = join_path(path, text);
      RUDDER_TRY(const int32_t layer, read_layer(text, context_.model.geometry, where));
      RUDDER_TRY_VOID(check_point(context_.model, {layer, ref.site}, where));
      RUDDER_TRY_VOID(add_entry({layer, ref.site}, entry, where));
    }
    return {};
  }

 private:
  // [f, …], a packed vector, or {"vector": either, "scale"?, "stream"?}.
  Result<void> add_entry(tap::Point point, const json::value& entry, const std::string& path) {
    static constexpr std::array<std::string_view, 3> kKeys = {"vector", "scale", "stream"};
    const json::object* object = entry.if_object();
    if (object == nullptr || !object->contains("vector")) {
      return add_vector(point, entry, 1, {}, path);
    }
    RUDDER_TRY_VOID(check_keys(*object, kKeys, "a vector of a layer", path));
    double scale = 1;
    if (const json::value* value = member(*object, "scale")) {
      RUDDER_TRY(scale, read_number(*value, join_path(path, "scale")));
    }
    RUDDER_TRY(const std::optional<StreamChoice> choice, stream_of(*object, point, path));
    return add_vector(point, object->at("vector"), scale, choice, join_path(path, "vector"));
  }

  Result<std::optional<StreamChoice>> stream_of(const json::object& object, tap::Point point,
                                                const std::string& path) const {
    return read_stream_of(object, std::span(&point, 1), context_.model.geometry, path);
  }

  Result<void> add_vector(tap::Point point, const json::value& value, double scale,
                          const std::optional<StreamChoice>& choice, const std::string& path) {
    std::vector<PartList> parts;
    if (choice) parts = {choice->part_lists(context_.model.geometry).front()};
    RUDDER_TRY(const VectorsAtPoints vectors,
               read_vectors(value, std::span(&point, 1), false, context_, path, parts));
    return add(point, vectors.at(0), scale, choice, path);
  }

  Result<void> add_packed(tap::Site site, const json::object& packed, const std::string& path) {
    static constexpr std::array<std::string_view, 7> kKeys = {
        "dtype", "shape", "layer_indices", "data", "scales", "stream", "residual"};
    RUDDER_TRY_VOID(check_keys(packed, kKeys, "packed vectors", path));
    RUDDER_TRY(const Rows rows, read_packed(packed, path));
    const std::string layers_path = join_path(path, "layer_indices");
    RUDDER_TRY(const json::array* layers, list_of(packed, "layer_indices", rows, layers_path));
    if (layers == nullptr) return invalid_field("a list of layers is needed", layers_path);
    const std::string scales_path = join_path(path, "scales");
    RUDDER_TRY(const json::array* scales, list_of(packed, "scales", rows, scales_path));
    for (int64_t i = 0; i < rows.count; ++i) {
      const auto index = static_cast<size_t>(i);
      const auto where = [&](const std::string& list) { return fmt::format("{}[{}]", list, i); };
      RUDDER_TRY(const int32_t layer,
                 read_layer((*layers)[index], context_.model.geometry, where(layers_path)));
      const tap::Point point = {layer, site};
      RUDDER_TRY_VOID(check_point(context_.model, point, where(layers_path)));
      RUDDER_TRY(const std::optional<StreamChoice> choice, packed_stream(packed, point, path));
      const bool is_of_stream = choice && rows.width == context_.model.geometry.hidden;
      if (!is_of_stream) {
        RUDDER_TRY_VOID(check_width(context_.model, point, rows.width, join_path(path, "shape")));
      }
      double scale = 1;
      if (scales != nullptr) {
        RUDDER_TRY(scale, read_number((*scales)[index], where(scales_path)));
      }
      RUDDER_TRY_VOID(add(point, rows.row(i), scale, choice, where(layers_path)));
    }
    return {};
  }

  // As a client says it, or as captured rows do ("residual").
  Result<std::optional<StreamChoice>> packed_stream(const json::object& packed, tap::Point point,
                                                    const std::string& path) const {
    const json::value* const told = member(packed, "residual");
    if (told == nullptr || member(packed, "stream") != nullptr) {
      return stream_of(packed, point, path);
    }
    const std::string where = join_path(path, "residual");
    if (!told->is_object()) return invalid_field("an object is needed", where);
    return stream_of(told->get_object(), point, where);
  }

  // The list under `key`, as long as there are rows; null when there is none.
  Result<const json::array*> list_of(const json::object& packed, std::string_view key,
                                     const Rows& rows, const std::string& where) {
    const json::value* value = member(packed, key);
    if (value == nullptr) return nullptr;
    const json::array* list = value->if_array();
    if (list == nullptr) return invalid_field("a list is needed", where);
    if (static_cast<int64_t>(list->size()) != rows.count) {
      return invalid_field(fmt::format("{} entries for {} vectors", list->size(), rows.count),
                           where);
    }
    return list;
  }

  Result<void> add(tap::Point point, const Row& row, double scale,
                   const std::optional<StreamChoice>& choice, const std::string& where) {
    if (seen_[static_cast<size_t>(point.index())]) {
      return invalid_field(fmt::format("{} of layer {} has a vector already",
                                       tap::site_name(point.site), point.layer),
                           where);
    }
    seen_[static_cast<size_t>(point.index())] = true;
    std::vector<PartList> parts = {PartList()};
    if (choice) parts = choice->part_lists(context_.model.geometry);
    const tap::RowParts whole = context_.model.geometry.parts(point);
    for (const PartList& part : parts) {
      OpSpec& spec = ops_.emplace_back();
      spec.op = OpName::kAdd;
      spec.point = point;
      spec.vector = part_rows_.spread(row, row.width == whole.width(), part, whole);
      spec.scale = scale;
      spec.select = select_;
    }
    return {};
  }

  const ParseContext& context_;
  std::vector<OpSpec>& ops_;
  Selector select_;
  std::vector<bool> seen_;  // by point
  PartRows part_rows_;
};

}  // namespace

Result<void> parse_tier(const json::value& value, Phase phase, const ParseContext& context,
                        const std::string& path, std::vector<OpSpec>& ops) {
  const json::object* sites = value.if_object();
  if (sites == nullptr) return invalid_field("an object is needed: vectors by site", path);
  TierParser parser(phase, context, ops);
  for (const auto& [key, entries] : *sites) {
    const std::string_view name(key.data(), key.size());
    const std::string where = join_path(path, name);
    Result<tap::SiteRef> ref = tap::parse_op_site(name);
    if (!ref) return invalid_field(ref.error().message, where);
    RUDDER_TRY_VOID(parser.add_site(*ref, entries, where));
  }
  return {};
}

}  // namespace rudder::steer
