#include "rudder/server/openapi.h"

#include <algorithm>
#include <boost/json.hpp>

#include "rudder/base/check.h"
#include "rudder/base/json.h"
#include "rudder/server/field_ranges.h"
#include "rudder/server/route_table.h"
#include "rudder/steer/schema.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// What a generation request may hold beside steering. Numbers come from the table of ranges.
constexpr std::string_view kSchemas = R"json({
  "Generation": {
    "type": "object",
    "properties": {
      "model": {"type": "string"},
      "logit_bias": {"type": ["object", "null"]},
      "stop": {"oneOf": [{"type": "string", "minLength": 1}, {"type": "null"},
                         {"type": "array", "items": {"type": "string", "minLength": 1}}]},
      "stop_token_ids": {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0}},
      "allowed_token_ids": {"type": ["array", "null"], "minItems": 1,
                            "items": {"type": "integer", "minimum": 0}},
      "bad_words": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}},
      "include_stop_str_in_output": {"type": ["boolean", "null"], "default": false},
      "skip_special_tokens": {"type": ["boolean", "null"], "default": true},
      "spaces_between_special_tokens": {"type": ["boolean", "null"]},
      "ignore_eos": {"type": ["boolean", "null"], "default": false},
      "repetition_detection": {"type": ["object", "null"], "properties": {}},
      "stream": {"type": ["boolean", "null"], "default": false},
      "stream_options": {"type": ["object", "null"], "properties": {
        "include_usage": {"type": ["boolean", "null"], "default": false},
        "continuous_usage_stats": {"type": ["boolean", "null"], "default": false}}},
      "echo": {"type": ["boolean", "null"], "default": false},
      "add_special_tokens": {"type": ["boolean", "null"]},
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "request_id": {"type": ["string", "null"]},
      "return_token_ids": {"type": ["boolean", "null"], "default": false},
      "return_tokens_as_token_ids": {"type": ["boolean", "null"], "default": false},
      "user": {"type": ["string", "null"]},
      "service_tier": {"type": ["string", "null"]},
      "store": {"type": ["boolean", "null"]},
      "metadata": {"type": ["object", "null"]}
    }
  },
  "Capture": {
    "type": "object",
    "description": "By consumer: which rows of which tokens it gets.",
    "additionalProperties": {"$ref": "#/components/schemas/CaptureAsk"}
  },
  "CaptureAsk": {
    "type": "object",
    "required": ["sites"],
    "description": "Other fields are the consumer's own.",
    "properties": {
      "sites": {"type": "object", "additionalProperties": {"oneOf": [
        {"type": "array", "items": {"type": "integer"}},
        {"type": "string", "enum": ["all"]},
        {"type": "object", "required": ["ranges"], "properties": {"ranges": {"type": "array"}}},
        {"type": "boolean", "enum": [true]}]}},
      "positions": {"oneOf": [
        {"type": "string", "enum": ["last_prompt", "all_prompt", "all_generated", "all"]},
        {"type": "array", "items": {"type": "integer"}}], "default": "last_prompt"},
      "point": {"type": "string", "enum": ["pre", "post"], "default": "pre"}
    }
  },
  "ChatCompletionRequest": {"allOf": [
    {"$ref": "#/components/schemas/Generation"}, {"$ref": "#/components/schemas/Taps"},
    {"type": "object", "required": ["messages"],
     "properties": {
       "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
       "logprobs": {"type": ["boolean", "null"], "default": false},
       "add_generation_prompt": {"type": ["boolean", "null"], "default": true},
       "continue_final_message": {"type": ["boolean", "null"], "default": false},
       "tools": {"type": ["array", "null"], "maxItems": 1024,
                 "items": {"$ref": "#/components/schemas/Tool"}},
       "tool_choice": {"oneOf": [
         {"type": "string", "enum": ["none", "auto", "required"]}, {"type": "null"},
         {"type": "object", "required": ["type", "function"], "properties": {
           "type": {"type": "string", "enum": ["function"]},
           "function": {"type": "object", "required": ["name"],
                        "properties": {"name": {"type": "string"}}}}}]},
       "parallel_tool_calls": {"type": ["boolean", "null"], "default": true},
       "include_reasoning": {"type": ["boolean", "null"], "default": true},
       "separate_reasoning": {"type": ["boolean", "null"], "default": true},
       "reasoning_effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max",
                                     null]},
       "chat_template_kwargs": {"type": ["object", "null"]},
       "documents": {"type": ["array", "null"], "items": {"type": "object"}},
       "return_prompt_text": {"type": ["boolean", "null"], "default": false}}}]},
  "Tool": {
    "type": "object", "required": ["type", "function"],
    "properties": {
      "type": {"type": "string", "enum": ["function"]},
      "function": {
        "type": "object", "required": ["name"],
        "properties": {
          "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,256}$"},
          "description": {"type": ["string", "null"]},
          "parameters": {"type": ["object", "null"]},
          "strict": {"type": ["boolean", "null"]}}}}
  },
  "CompletionRequest": {"allOf": [
    {"$ref": "#/components/schemas/Generation"}, {"$ref": "#/components/schemas/Taps"},
    {"type": "object", "required": ["prompt"],
     "properties": {"prompt": {"oneOf": [{"type": "string"}, {"type": "array"}]}}}]},
  "SteeringModule": {"allOf": [
    {"$ref": "#/components/schemas/GlobalSteering"},
    {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}]},
  "SteeringModuleName": {"type": "object", "required": ["name"],
                         "properties": {"name": {"type": "string"}}}
})json";

json::value parsed(std::string_view text) {
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

// Sets types and bounds of what the table of ranges knows.
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

std::string_view body_schema(std::string_view path) {
  if (path == "/v1/chat/completions") return "ChatCompletionRequest";
  if (path == "/v1/completions") return "CompletionRequest";
  if (path == "/v1/steering/modules" || path == "/v1/steering/modules/register") {
    return "SteeringModule";
  }
  if (path == "/v1/steering/modules/unregister") return "SteeringModuleName";
  if (path == "/v1/steering/set") return "GlobalSteering";
  return "";
}

json::object operation(const Route& route, const json::object& examples) {
  json::object made = {{"responses",
                        {{"200", {{"description", "the answer"}}},
                         {"default", {{"description", "an error in OpenAI's form"}}}}}};
  if (route.access != Access::kPublic) {
    const char* scheme = route.access == Access::kAdmin ? "steeringKey" : "apiKey";
    made["security"] = json::array{json::object{{scheme, json::array()}}};
  }
  if (route.path.find("{id}") != std::string_view::npos) {
    made["parameters"] = json::array{json::object{
        {"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}};
  }
  if (route.method != "POST") return made;
  const std::string_view schema = body_schema(route.path);
  json::object content = {{"schema", {{"type", "object"}}}};
  if (!schema.empty()) {
    content["schema"] = {{"$ref", "#/components/schemas/" + std::string(schema)}};
  }
  if (schema == "ChatCompletionRequest" || schema == "CompletionRequest") {
    json::object& shown = content["examples"].emplace_object();
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
  }
  made["requestBody"] = {{"content", {{"application/json", std::move(content)}}}};
  return made;
}

}  // namespace

std::string openapi_document(std::string_view version, const engine::RequestLimits& limits) {
  const json::value steering = parsed(steer::steering_schema());
  json::object schemas = parsed(kSchemas).as_object();
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
  schemas["Taps"] = {{"type", "object"}, {"properties", std::move(fields)}};

  json::object paths;
  for (const Route& route : routes()) {
    std::string method(route.method);
    for (char& ch : method) ch = static_cast<char>(ch | 0x20);  // to lower case
    json::value& path = paths[json::string_view(route.path)];
    if (!path.is_object()) path.emplace_object();
    path.as_object()[method] = operation(route, steering.at("examples").as_object());
  }
  const json::object bearer = {{"type", "http"}, {"scheme", "bearer"}};
  return json::serialize(
      json::object{{"openapi", "3.1.0"},
                   {"info", {{"title", "Rudder"}, {"version", json::string_view(version)}}},
                   {"paths", std::move(paths)},
                   {"components",
                    {{"schemas", std::move(schemas)},
                     {"securitySchemes", {{"apiKey", bearer}, {"steeringKey", bearer}}}}}});
}

}  // namespace rudder::server
