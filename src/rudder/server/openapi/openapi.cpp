#include "rudder/server/openapi/openapi.h"

#include <algorithm>
#include <boost/json.hpp>

#include "rudder/base/check.h"
#include "rudder/base/json.h"
#include "rudder/server/anthropic/messages_error.h"
#include "rudder/server/http/route_table.h"
#include "rudder/server/openapi/openapi_parts.h"
#include "rudder/server/request/field_ranges.h"
#include "rudder/steer/schema.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

json::value parsed_schema(std::string_view text) {
  const auto value = parse_json(text, "schema");
  RUDDER_CHECK(value.has_value(), "a schema of our own: {}", value.error().message);
  return *value;
}

bool has_type(const json::object& schema, std::string_view type) {
  const json::value* types = schema.if_contains("type");
  if (types == nullptr) return false;
  if (types->is_string()) return types->get_string() == type;
  return types->is_array() && std::ranges::any_of(types->get_array(), [&](const json::value& name) {
           return name.is_string() && name.get_string() == type;
         });
}

// Where the table's path leads: a property, of an object inside, or of all of its values.
json::object& schema_at(json::object& properties, std::string_view path) {
  const size_t dot = path.find('.');
  json::value& property = properties[path.substr(0, dot)];
  if (!property.is_object()) property.emplace_object();
  if (dot == std::string_view::npos) return property.get_object();
  const std::string_view inner = path.substr(dot + 1);
  if (inner == "*") return property.get_object()["additionalProperties"].emplace_object();
  return schema_at(property.at("properties").as_object(), inner);
}

void set_size(json::object& schema, int64_t max) {
  if (has_type(schema, "string")) schema["maxLength"] = max;
  if (has_type(schema, "array")) schema["maxItems"] = max;
  if (has_type(schema, "object")) schema["maxProperties"] = max;
}

// Sets types and bounds of the fields in the table of ranges.
void add_ranges(json::object& schemas, const engine::RequestLimits& limits) {
  const auto own = [&](std::string_view name) -> json::object& {
    return schemas[name].at("allOf").as_array().back().at("properties").as_object();
  };
  const auto properties = [&](FieldOf of) -> json::object& {
    if (of == FieldOf::kChat) return own("ChatCompletionRequest");
    if (of == FieldOf::kCompletions) return own("CompletionRequest");
    return schemas["Generation"].at("properties").as_object();
  };
  for (const IntegerField& field : integer_fields()) {
    json::object& schema = schema_at(properties(field.of), field.path);
    schema["type"] = {"integer", "null"};
    schema["minimum"] = field.min;
    schema["maximum"] = max_of(field, limits);
    schema["description"] = field.text;
  }
  for (const RealField& field : real_fields()) {
    json::object& schema = schema_at(properties(field.of), field.path);
    schema["type"] = "number";
    if (!field.path.ends_with('*')) schema["type"] = {"number", "null"};
    schema[field.open_min ? "exclusiveMinimum" : "minimum"] = field.min;
    schema["maximum"] = field.max;
    schema["description"] = field.text;
  }
  for (const SizedField& field : sized_fields()) {
    const std::string_view name = field.path.substr(0, field.path.find('['));
    json::object& schema = schema_at(properties(field.of), name);
    json::value* forms = schema.if_contains("oneOf");
    const bool of_items = name != field.path;
    if (forms == nullptr) {
      set_size(of_items ? schema.at("items").as_object() : schema, field.max);
      continue;
    }
    for (json::value& form : forms->as_array()) {
      if (has_type(form.as_object(), of_items ? "string" : "array")) {
        set_size(form.as_object(), field.max);
      }
    }
  }
}

// What a field is refused for although its form is right.
struct Refusal {
  std::string_view schema;
  std::string_view field;
  std::string_view text;
};
constexpr Refusal kRefusals[] = {
    {"Generation", "max_tokens", "0, but for a completion with echo; beyond the context"},
    {"Generation", "max_completion_tokens", "beyond the context"},
    {"Generation", "min_tokens", "above max_tokens"},
    {"Generation", "truncate_prompt_tokens", "0, and beyond the context"},
    {"Generation", "prompt_logprobs", "above 0 with stream"},
    {"ChatCompletionRequest", "top_logprobs", "unless logprobs is true"},
    {"Taps", "steering_pair", "without steering, and where n is not 1"},
};

void add_refusals(json::object& schemas) {
  for (const Refusal& refusal : kRefusals) {
    json::object& schema = schemas[refusal.schema].as_object();
    json::object& owner =
        schema.contains("allOf") ? schema["allOf"].as_array().back().as_object() : schema;
    owner.at("properties").as_object()[refusal.field].as_object()["x-refused"] = refusal.text;
  }
}

json::object schema_of(std::string_view name) {
  if (name.empty()) return {};
  return {{"$ref", "#/components/schemas/" + std::string(name)}};
}

json::object content_as(std::string_view type, std::string_view schema) {
  return {{json::string_view(type), {{"schema", schema_of(schema)}}}};
}

// Bodies that show what steering can do.
json::object shown_bodies(std::string_view schema, const json::object& examples) {
  json::object shown;
  for (const auto& [name, body] : examples) {
    json::object whole = body.as_object();
    if (schema == "CompletionRequest") {
      whole["prompt"] = "The sea was";
    } else {
      whole["messages"] =
          json::array{json::object{{"role", "user"}, {"content", "Name a colour."}}};
    }
    shown[name] = json::object{{"value", std::move(whole)}};
  }
  return shown;
}

json::object answers_of(const Operation* known, const Route& route) {
  const bool is_message = route.path.starts_with(kMessagesPath);
  json::object whole = {{"description", "the answer"}};
  if (known != nullptr) {
    json::object content = known->answer.empty() ? content_as("text/*", "")
                                                 : content_as("application/json", known->answer);
    if (!known->event.empty()) {
      content["text/event-stream"] = {{"schema", schema_of(known->event)}};
    }
    whole["content"] = std::move(content);
  }
  return {{"200", std::move(whole)},
          {"default",
           {{"description", "an error"},
            {"content", content_as("application/json", is_message ? "MessageError" : "Error")}}}};
}

// The name of the scheme by which a route is opened; empty: it is open.
std::string_view scheme_of(const Route& route, const OpenapiKeys& keys) {
  if (route.access == Access::kPublic) return {};
  if (route.access == Access::kAdmin && keys.steering) return "steeringKey";
  return keys.api ? "apiKey" : std::string_view();
}

json::object security_schemes(const OpenapiKeys& keys) {
  const json::object bearer = {{"type", "http"}, {"scheme", "bearer"}};
  json::object schemes;
  if (keys.api) schemes["apiKey"] = bearer;
  if (keys.steering) schemes["steeringKey"] = bearer;
  return schemes;
}

json::object operation(const Route& route, const OpenapiKeys& keys, const json::object& examples) {
  const Operation* known = find_operation(route.method, route.path);
  json::object made;
  if (known != nullptr) made["summary"] = json::string_view(known->summary);
  made["responses"] = answers_of(known, route);
  if (const std::string_view scheme = scheme_of(route, keys); !scheme.empty()) {
    made["security"] = json::array{json::object{{json::string_view(scheme), json::array()}}};
  }
  if (route.path.find("{id}") != std::string_view::npos) {
    made["parameters"] = json::array{json::object{
        {"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}};
  }
  if (known == nullptr || known->request.empty()) return made;
  json::object content = content_as("application/json", known->request);
  if (route.path == "/v1/chat/completions" || route.path == "/v1/completions") {
    content["application/json"].as_object()["examples"] = shown_bodies(known->request, examples);
  }
  made["requestBody"] = {{"required", true}, {"content", std::move(content)}};
  return made;
}

}  // namespace

std::string openapi_document(std::string_view version, const engine::RequestLimits& limits,
                             const OpenapiKeys& keys) {
  const json::value steering = parsed_schema(steer::steering_schema());
  json::object schemas;
  for (const std::string_view part :
       {generation_schemas(), request_schemas(), chat_answer_schemas(), api_answer_schemas(),
        service_schemas()}) {
    const json::value area = parsed_schema(part);
    for (const auto& [name, schema] : area.as_object()) schemas[name] = schema;
  }
  add_ranges(schemas, limits);
  for (const auto& [name, schema] : steering.at("schemas").as_object()) schemas[name] = schema;
  json::object fields = steering.at("properties").as_object();
  json::object global = fields;
  for (const char* tier : {"vectors", "prefill_vectors", "decode_vectors"}) {
    global[tier] = {{"$ref", "#/components/schemas/SteeringTier"}};
  }
  global["replace"] = {{"type", "boolean"}, {"default", false}};
  schemas["GlobalSteering"] = {{"type", "object"}, {"properties", std::move(global)}};
  fields["capture"] = {{"$ref", "#/components/schemas/Capture"}};
  fields["capture_wait"] = {{"type", "boolean"}, {"default", true}};
  fields["steering_pair"] = {{"type", "boolean"}, {"default", false}};
  fields["stop_when"] = {{"$ref", "#/components/schemas/StopWhen"}};
  schemas["Taps"] = {{"type", "object"}, {"properties", std::move(fields)}};
  schemas["TokenId"] = {{"type", "integer"}, {"minimum", 0}, {"maximum", limits.vocab_size - 1}};
  add_refusals(schemas);

  json::object paths;
  for (const Route& route : routes()) {
    std::string method(route.method);
    for (char& ch : method) ch = static_cast<char>(ch | 0x20);  // to lower case
    json::value& path = paths[json::string_view(route.path)];
    if (!path.is_object()) path.emplace_object();
    path.as_object()[method] = operation(route, keys, steering.at("examples").as_object());
  }
  return json::serialize(json::object{
      {"openapi", "3.1.0"},
      {"info", {{"title", "Rudder"}, {"version", json::string_view(version)}}},
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", std::move(schemas)}, {"securitySchemes", security_schemes(keys)}}}});
}

}  // namespace rudder::server
