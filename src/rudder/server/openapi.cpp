#include "rudder/server/openapi.h"

#include <boost/json.hpp>

#include "rudder/base/check.h"
#include "rudder/base/json.h"
#include "rudder/server/route_table.h"
#include "rudder/steer/schema.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

// What a generation request may hold beside steering: the fields that most clients send. Others of
// the OpenAI protocol and of vLLM are taken as well.
constexpr std::string_view kSchemas = R"json({
  "Generation": {
    "type": "object",
    "properties": {
      "model": {"type": "string"},
      "max_tokens": {"type": "integer", "minimum": 1},
      "min_tokens": {"type": "integer", "minimum": 0},
      "n": {"type": "integer", "minimum": 1, "default": 1},
      "temperature": {"type": "number", "minimum": 0},
      "top_p": {"type": "number"},
      "top_k": {"type": "integer"},
      "min_p": {"type": "number"},
      "repetition_penalty": {"type": "number"},
      "presence_penalty": {"type": "number"},
      "frequency_penalty": {"type": "number"},
      "seed": {"type": "integer"},
      "stop": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
      "stop_token_ids": {"type": "array", "items": {"type": "integer"}},
      "ignore_eos": {"type": "boolean", "default": false},
      "stream": {"type": "boolean", "default": false},
      "priority": {"type": "integer", "default": 0},
      "cache_salt": {"type": "string"},
      "return_token_ids": {"type": "boolean", "default": false}
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
     "properties": {"messages": {"type": "array", "items": {"type": "object"}}}}]},
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

std::string openapi_document(std::string_view version) {
  const json::value steering = parsed(steer::steering_schema());
  json::object schemas = parsed(kSchemas).as_object();
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
