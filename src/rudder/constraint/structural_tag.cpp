#include "rudder/constraint/structural_tag.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string_view>
#include <utility>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/translate.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

Result<void> open_schemas(Fuel& fuel, json::value& value, JsonSpace space, const std::string& path);

Result<void> open_object(Fuel& fuel, json::object& object, JsonSpace space,
                         const std::string& path) {
  const json::value* type = object.if_contains("type");
  const json::value* schema = object.if_contains("json_schema");
  const bool other_notation = type != nullptr && *type == "qwen_xml_parameter";
  if (other_notation || (schema != nullptr && object.contains("style"))) {
    return fail(ErrorCode::kUnsupported, "schemas of other notations than JSON are not supported",
                path);
  }
  if (schema == nullptr) {
    for (auto& field : object) {
      const std::string field_path = path + "." + std::string(field.key());
      RUDDER_TRY_VOID(open_schemas(fuel, field.value(), space, field_path));
    }
    return {};
  }
  Result<std::string> grammar = to_ebnf(
      fuel, {.kind = GrammarKind::kJsonSchema, .text = to_json_text(*schema), .space = space});
  if (!grammar) {
    Error error = grammar.error();
    error.where = path + ".json_schema" + error.where;
    return tl::unexpected<Error>(std::move(error));
  }
  object = {{"type", "grammar"}, {"grammar", std::move(*grammar)}};
  return {};
}

Result<void> open_schemas(Fuel& fuel, json::value& value, JsonSpace space,
                          const std::string& path) {
  if (json::object* object = value.if_object()) return open_object(fuel, *object, space, path);
  json::array* array = value.if_array();
  if (array == nullptr) return {};
  for (size_t i = 0; i < array->size(); ++i) {
    RUDDER_TRY_VOID(open_schemas(fuel, (*array)[i], space, path + "[" + std::to_string(i) + "]"));
  }
  return {};
}

}  // namespace

bool is_of_structures(const json::value& tag) {
  return tag.is_object() && !tag.get_object().contains("format") &&
         tag.get_object().contains("structures");
}

Result<json::value> with_format(const json::value& tag) {
  const auto bad = [](const char* message, std::string where) {
    return fail(ErrorCode::kInvalidArgument, message, std::move(where));
  };
  const json::object* object = tag.if_object();
  if (object == nullptr) return bad("must be an object", "");
  if (object->contains("format")) return tag;
  if (!is_of_structures(tag)) return bad("needs a 'format'", "");
  const json::value& structures = object->at("structures");
  const json::value* triggers = object->if_contains("triggers");
  if (triggers == nullptr || !triggers->is_array()) return bad("must be a list", ".triggers");
  if (!structures.is_array()) return bad("must be a list", ".structures");
  json::array tags;
  for (size_t i = 0; i < structures.get_array().size(); ++i) {
    const std::string where = fmt::format(".structures[{}]", i);
    const json::object* one = structures.get_array()[i].if_object();
    if (one == nullptr) return bad("must be an object", where);
    for (const char* name : {"begin", "schema", "end"}) {
      if (!one->contains(name)) return bad("is missing", where + "." + name);
    }
    tags.push_back({{"type", "tag"},
                    {"begin", one->at("begin")},
                    {"content", {{"type", "json_schema"}, {"json_schema", one->at("schema")}}},
                    {"end", one->at("end")}});
  }
  return json::value(
      {{"format",
        {{"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", std::move(tags)}}}});
}

std::string path_in_structures(std::string path) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {".format.triggers", ".triggers"},
      {".format.tags", ".structures"},
      {".content.json_schema", ".schema"}};
  for (const auto& [newer, older] : kNames) {
    const size_t at = path.find(newer);
    if (at != std::string::npos) path.replace(at, newer.size(), older);
  }
  return path;
}

Result<std::string> open_structural_tag(Fuel& fuel, const GrammarSpec& spec) {
  RUDDER_TRY(json::value value,
             parse_json_exactly(spec.text, "the structural tag", {.max_depth = kMaxTagDepth}));
  const bool is_older = is_of_structures(value);
  RUDDER_TRY(value, with_format(value));
  if (Result<void> opened = open_schemas(fuel, value, spec.space, ""); !opened) {
    Error error = opened.error();
    if (is_older) error.where = path_in_structures(error.where);
    return tl::unexpected<Error>(std::move(error));
  }
  return to_json_text(value);
}

}  // namespace rudder::constraint
