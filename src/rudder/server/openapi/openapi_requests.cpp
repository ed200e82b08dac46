// Bodies of the requests that are neither chat nor completions requests.
#include "rudder/server/openapi/openapi_parts.h"

namespace rudder::server {
namespace {

constexpr std::string_view kSchemas = R"json({
  "ResponseRequest": {
    "type": "object", "required": ["input"],
    "description": "Fields of chat requests that this API does not name otherwise (top_k, seed, cache_salt, steering, capture) are taken as well.",
    "properties": {
      "model": {"type": ["string", "null"]},
      "input": {"oneOf": [{"type": "string"},
                          {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/ResponseInputItem"}}]},
      "instructions": {"type": ["string", "null"]},
      "previous_response_id": {"type": ["string", "null"]},
      "store": {"type": ["boolean", "null"], "default": true},
      "background": {"type": ["boolean", "null"], "default": false},
      "stream": {"type": ["boolean", "null"], "default": false},
      "stream_options": {"type": ["object", "null"], "properties": {"include_obfuscation": {"type": ["boolean", "null"]}}},
      "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
      "max_tool_calls": {"type": ["integer", "null"], "minimum": 1, "description": "Of built-in tools, of which there are none."},
      "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
      "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
      "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
      "truncation": {"type": ["string", "null"], "enum": ["auto", "disabled", null], "default": "disabled"},
      "text": {"type": ["object", "null"], "properties": {"format": {"type": ["object", "null"], "required": ["type"], "properties": {
        "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]}, "name": {"type": "string"},
        "schema": {"type": "object"}, "strict": {"type": ["boolean", "null"]}}}}},
      "reasoning": {"type": ["object", "null"], "properties": {"effort": {"type": ["string", "null"]}}},
      "tools": {"type": ["array", "null"], "items": {"type": "object", "required": ["type", "name"], "properties": {
        "type": {"type": "string", "enum": ["function"]}, "name": {"type": "string"},
        "description": {"type": ["string", "null"]}, "parameters": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"]}}}},
      "tool_choice": {"oneOf": [{"type": "string", "enum": ["auto", "none", "required"]}, {"type": "null"},
        {"type": "object", "required": ["type", "name"], "properties": {"type": {"type": "string", "enum": ["function"]}, "name": {"type": "string"}}},
        {"type": "object", "required": ["type", "mode", "tools"], "properties": {"type": {"type": "string", "enum": ["allowed_tools"]},
          "mode": {"type": "string", "enum": ["auto", "required"]}, "tools": {"type": "array", "minItems": 1, "items": {"type": "object"}}}}]},
      "parallel_tool_calls": {"type": ["boolean", "null"]},
      "include": {"type": ["array", "null"], "items": {"type": "string", "enum": ["message.output_text.logprobs", "reasoning.encrypted_content",
        "file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
        "computer_call_output.output.image_url", "code_interpreter_call.outputs"]}},
      "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
      "user": {"type": ["string", "null"]}
    }
  },
  "ResponseInputItem": {
    "type": "object",
    "properties": {
      "type": {"type": "string", "enum": ["message", "reasoning", "function_call", "function_call_output"], "default": "message"},
      "role": {"type": "string", "enum": ["user", "assistant", "system", "developer"]},
      "content": {"oneOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "object"}}]},
      "call_id": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type": "string"},
      "output": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
    }
  },
  "MessageCountRequest": {
    "type": "object", "required": ["messages"],
    "properties": {
      "model": {"type": ["string", "null"]},
      "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"type": "string", "enum": ["user", "assistant"]},
        "content": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/components/schemas/MessageInputBlock"}}]}}}},
      "system": {"oneOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "object", "required": ["type", "text"]}}]},
      "tools": {"type": ["array", "null"], "items": {"type": "object", "required": ["name", "input_schema"], "properties": {
        "name": {"type": "string"}, "description": {"type": ["string", "null"]}, "input_schema": {"type": "object"}}}},
      "tool_choice": {"type": ["object", "null"], "required": ["type"], "properties": {
        "type": {"type": "string", "enum": ["auto", "any", "tool", "none"]}, "name": {"type": "string"},
        "disable_parallel_tool_use": {"type": ["boolean", "null"]}}},
      "thinking": {"type": ["object", "null"], "required": ["type"], "properties": {
        "type": {"type": "string", "enum": ["enabled", "disabled", "adaptive"]}, "budget_tokens": {"type": ["integer", "null"], "minimum": 1}}},
      "output_config": {"type": ["object", "null"], "properties": {"effort": {"type": ["string", "null"]},
        "format": {"type": ["object", "null"], "required": ["type", "schema"]}}}
    }
  },
  "MessageRequest": {
    "description": "Fields of chat requests that this API does not name otherwise are taken as well.",
    "allOf": [
      {"$ref": "#/components/schemas/MessageCountRequest"},
      {"type": "object", "required": ["max_tokens"], "properties": {
        "max_tokens": {"type": "integer", "minimum": 1},
        "stop_sequences": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}},
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
        "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
        "top_k": {"type": ["integer", "null"]},
        "stream": {"type": ["boolean", "null"], "default": false},
        "metadata": {"type": ["object", "null"]}}}]
  },
  "MessageInputBlock": {
    "type": "object", "required": ["type"],
    "properties": {
      "type": {"type": "string", "enum": ["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]},
      "text": {"type": "string"}, "thinking": {"type": "string"}, "id": {"type": "string"}, "name": {"type": "string"},
      "input": {"type": "object"}, "tool_use_id": {"type": "string"},
      "content": {"oneOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "object"}}]}
    }
  },
  "EmbeddingRequest": {
    "type": "object",
    "properties": {
      "model": {"type": ["string", "null"]},
      "input": {"description": "A text, token ids, or a list of either.", "oneOf": [{"type": "string"}, {"type": "array", "minItems": 1}]},
      "messages": {"type": ["array", "null"], "items": {"type": "object"}, "description": "Instead of input: a chat."},
      "encoding_format": {"type": ["string", "null"], "enum": ["float", "base64", null], "default": "float"},
      "dimensions": {"type": ["integer", "null"], "minimum": 1},
      "normalize": {"type": ["boolean", "null"], "default": true},
      "use_activation": {"type": ["boolean", "null"], "default": true, "description": "normalize, by another name."},
      "pooling": {"type": ["string", "null"], "enum": ["last", "mean", null]},
      "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": -1},
      "truncation_side": {"type": ["string", "null"], "enum": ["left", "right", null], "default": "left"},
      "embed_dtype": {"type": ["string", "null"], "enum": ["float32", null]},
      "endianness": {"type": ["string", "null"], "enum": ["native", "little", null]},
      "add_special_tokens": {"type": ["boolean", "null"], "default": true},
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "request_id": {"type": ["string", "null"]},
      "priority": {"type": ["integer", "null"]},
      "user": {"type": ["string", "null"]}
    }
  },
  "TokenizeRequest": {
    "type": "object",
    "properties": {
      "model": {"type": ["string", "null"]},
      "prompt": {"oneOf": [{"type": "string"}, {"type": "array"}]},
      "messages": {"type": "array", "items": {"type": "object"}},
      "add_special_tokens": {"type": ["boolean", "null"]},
      "return_token_strs": {"type": ["boolean", "null"], "default": false}
    }
  },
  "DetokenizeRequest": {
    "type": "object", "required": ["tokens"],
    "properties": {"model": {"type": ["string", "null"]}, "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}
  }
})json";

}  // namespace

std::string_view request_schemas() {
  return kSchemas;
}

}  // namespace rudder::server
