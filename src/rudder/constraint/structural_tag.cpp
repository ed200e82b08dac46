#include "rudder/constraint/structural_tag.h"

#include <boost/json.hpp>
#include <string_view>

#include "rudder/base/json.h"
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

Result<std::string> open_structural_tag(Fuel& fuel, const GrammarSpec& spec) {
  RUDDER_TRY(json::value value, parse_json(spec.text, "the structural tag"));
  if (!value.is_object()) return fail(ErrorCode::kInvalidArgument, "must be an object");
  RUDDER_TRY_VOID(open_schemas(fuel, value, spec.space, ""));
  return to_json_text(value);
}

}  // namespace rudder::constraint
