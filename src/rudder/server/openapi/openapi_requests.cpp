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
      "text": {"$ref": "#/components/schemas/ResponseText"},
      "reasoning": {"$ref": "#/components/schemas/ResponseReasoning"},
      "tools": {"type": ["array", "null"], "maxItems": 1024, "x-refused": "two of one name, and a name that is none with its namespace in front", "items": {"$ref": "#/components/schemas/ResponseTool"}},
      "tool_choice": {"x-refused": "without tools, or a name of none of them", "oneOf": [{"type": "string", "enum": ["auto", "none", "required"]}, {"type": "null"},
        {"type": "object", "required": ["type", "name"], "properties": {"type": {"type": "string", "enum": ["function", "custom"]}, "name": {"type": "string"},
          "namespace": {"type": ["string", "null"]}}},
        {"type": "object", "required": ["type", "mode", "tools"], "properties": {"type": {"type": "string", "enum": ["allowed_tools"]},
          "mode": {"type": "string", "enum": ["auto", "required"]}, "tools": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["type", "name"],
            "properties": {"type": {"type": "string", "enum": ["function", "custom"]}, "name": {"type": "string"}}}}}}]},
      "parallel_tool_calls": {"type": ["boolean", "null"]},
      "include": {"type": ["array", "null"], "items": {"type": "string", "enum": ["message.output_text.logprobs", "reasoning.encrypted_content",
        "file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
        "computer_call_output.output.image_url", "code_interpreter_call.outputs"]}},
      "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
      "user": {"type": ["string", "null"]}
    }
  },
  "ResponseText": {"type": ["object", "null"], "properties": {"format": {"oneOf": [{"type": "null"},
    {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["text", "json_object"]}}},
    {"type": "object", "required": ["type", "schema"], "properties": {
      "type": {"type": "string", "enum": ["json_schema"]}, "name": {"type": ["string", "null"]},
      "schema": {"type": ["object", "boolean", "string"], "x-refused": "where no grammar can enforce it"}, "strict": {"type": ["boolean", "null"]}}}]}}},
  "ResponseReasoning": {"type": ["object", "null"], "properties": {
    "effort": {"type": ["string", "null"], "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]}}},
  "ResponseTool": {
    "description": "Functions, custom tools and namespaces of both; others are left out.",
    "oneOf": [
      {"type": "object", "required": ["type", "name"], "properties": {"type": {"type": "string", "enum": ["function"]},
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,256}$"}, "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"], "x-refused": "where no grammar can enforce the parameters"}}},
      {"type": "object", "required": ["type", "name"], "properties": {"type": {"type": "string", "enum": ["custom"]},
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,256}$"}, "description": {"type": ["string", "null"]}}},
      {"type": "object", "required": ["type", "name"], "properties": {"type": {"type": "string", "enum": ["namespace"]}, "name": {"type": "string"},
        "tools": {"type": ["array", "null"], "description": "As above.", "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": ["function", "custom", "namespace"]}}}}]
  },
  "ResponseInputItem": {
    "oneOf": [
      {"type": "object", "required": ["role"], "properties": {
        "type": {"type": "string", "enum": ["message"], "default": "message"},
        "role": {"type": "string", "enum": ["user", "assistant", "system", "developer", "tool", "critic", "discriminator", "unknown"],
          "description": "Messages of the last three are left out."},
        "content": {"$ref": "#/components/schemas/ChatContent"}}},
      {"type": "object", "required": ["type", "name"], "properties": {"type": {"type": "string", "enum": ["function_call"]},
        "call_id": {}, "name": {"type": "string"}, "namespace": {}, "arguments": {"description": "JSON as a text, or an object."}}},
      {"type": "object", "required": ["type", "name"], "properties": {"type": {"type": "string", "enum": ["custom_tool_call"]},
        "call_id": {}, "name": {"type": "string"}, "namespace": {}, "input": {"type": ["string", "null"]}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["function_call_output", "custom_tool_call_output"]},
        "call_id": {}, "output": {"description": "A text, parts, or data of the tool's own."}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["configuration_update"]},
        "text": {"$ref": "#/components/schemas/ResponseText"}, "reasoning": {"$ref": "#/components/schemas/ResponseReasoning"}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["compaction_trigger"], "x-refused": "as the last item"}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "description": "Items that no model can read are left out.",
        "not": {"enum": ["message", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output", "reasoning", "configuration_update",
          "compaction_trigger"]}}}}]
  },
  "TextPart": {
    "description": "Parts of other types have a stand-in, but for the question.",
    "oneOf": [
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["text", "input_text", "output_text"]},
        "text": {"type": ["string", "null"], "x-refused": "null or absent, in the question"}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["refusal"]},
        "refusal": {"type": ["string", "null"], "x-refused": "null or absent, in the question"}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": ["text", "input_text", "output_text", "refusal"]}}}}]
  },
  "MessageCountRequest": {
    "type": "object", "required": ["messages"],
    "properties": {
      "model": {"type": ["string", "null"]},
      "messages": {"type": "array", "minItems": 1, "x-refused": "where nothing in it can be read", "items": {"type": "object", "required": ["role"], "properties": {
        "role": {"type": "string", "enum": ["user", "assistant", "system", "developer"]},
        "content": {"x-refused": "null or absent, in the question", "oneOf": [{"type": "string"}, {"type": "null"},
          {"type": "array", "items": {"oneOf": [{"type": "string"}, {"$ref": "#/components/schemas/MessageInputBlock"}]}}]}}}},
      "system": {"oneOf": [{"type": "string"}, {"type": "null"},
        {"type": "array", "items": {"oneOf": [{"type": "string"}, {"$ref": "#/components/schemas/MessageTextBlock"}]}}]},
      "tools": {"type": ["array", "null"], "maxItems": 1024, "x-refused": "two of one name", "items": {
        "description": "Those with an input_schema; others, by their type, are left out.", "oneOf": [
        {"type": "object", "required": ["name", "input_schema"], "properties": {
          "type": {"type": ["string", "null"], "enum": ["custom", null]}, "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,256}$"}, "defer_loading": {"type": ["boolean", "null"]},
          "description": {"type": ["string", "null"]}, "input_schema": {"type": "object", "x-refused": "where no grammar can enforce it"}}},
        {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": ["custom"]}}, "name": {"type": ["string", "null"]}, "defer_loading": {"type": ["boolean", "null"]}}}]}},
      "tool_choice": {"type": ["object", "null"], "required": ["type"], "x-refused": "without tools, or a name of none of them", "properties": {
        "type": {"type": "string", "enum": ["auto", "any", "tool", "none"]}, "name": {"type": ["string", "null"]},
        "disable_parallel_tool_use": {"type": ["boolean", "null"]}}},
      "thinking": {"type": ["object", "null"], "required": ["type"], "properties": {
        "type": {"type": "string", "enum": ["enabled", "disabled", "adaptive"]}, "budget_tokens": {"type": ["integer", "null"], "minimum": 1, "x-refused": "from max_tokens on"},
        "display": {"type": ["string", "null"]}}},
      "output_config": {"type": ["object", "null"], "properties": {
        "effort": {"type": ["string", "null"], "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]}, "format": {"$ref": "#/components/schemas/MessageFormat"}}},
      "output_format": {"$ref": "#/components/schemas/MessageFormat"}
    }
  },
  "MessageFormat": {"type": ["object", "null"], "required": ["type", "schema"], "description": "output_config.format, or by its older name output_format.", "properties": {
    "type": {"type": "string", "enum": ["json_schema"]}, "schema": {"type": "object", "x-refused": "where no grammar can enforce it"}}},
  "MessageRequest": {
    "description": "Fields of chat requests that this API does not name otherwise are taken as well.",
    "allOf": [
      {"$ref": "#/components/schemas/MessageCountRequest"},
      {"type": "object", "required": ["max_tokens"], "properties": {
        "max_tokens": {"type": "integer", "minimum": 1},
        "stop_sequences": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}},
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
        "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
        "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647},
        "stream": {"type": ["boolean", "null"], "default": false},
        "metadata": {"type": ["object", "null"]}}}]
  },
  "MessageInputBlock": {
    "oneOf": [
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["text"]},
        "text": {"type": ["string", "null"], "x-refused": "null or absent, in the question"}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["tool_result"]}, "tool_use_id": {},
        "content": {"description": "A text, blocks, or data of the tool's own."}}},
      {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": ["text", "tool_result"]},
        "description": "Calls and thoughts in messages of the assistant; what no model can read has a stand-in, but for the question."}}}]
  },
  "MessageTextBlock": {"oneOf": [
    {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["text"]}, "text": {"type": ["string", "null"]}}},
    {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "not": {"enum": ["text"]}}}}]},
  "EmbeddingRequest": {
    "type": "object",
    "properties": {
      "model": {"type": ["string", "null"]},
      "input": {"$ref": "#/components/schemas/Texts"},
      "messages": {"$ref": "#/components/schemas/ChatMessages"},
      "encoding_format": {"type": ["string", "null"], "enum": ["float", "base64", null], "default": "float"},
      "dimensions": {"type": ["integer", "null"], "minimum": 1},
      "normalize": {"type": ["boolean", "null"], "default": true},
      "use_activation": {"type": ["boolean", "null"], "default": true, "description": "normalize, by another name."},
      "pooling": {"type": ["string", "null"], "enum": ["last", "mean", null]},
      "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": -1, "x-refused": "0, and beyond the context"},
      "truncation_side": {"type": ["string", "null"], "enum": ["left", "right", null], "default": "left"},
      "embed_dtype": {"type": ["string", "null"], "enum": ["float32", null]},
      "endianness": {"type": ["string", "null"], "enum": ["native", "little", null]},
      "add_special_tokens": {"type": ["boolean", "null"], "default": true},
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "request_id": {"$ref": "#/components/schemas/RequestId"},
      "priority": {"type": ["integer", "null"]},
      "user": {"type": ["string", "null"]}
    }
  },
  "RerankRequest": {
    "type": "object", "required": ["query", "documents"],
    "properties": {
      "model": {"type": ["string", "null"]},
      "query": {"type": "string"},
      "documents": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/RankedText"}},
      "top_n": {"type": ["integer", "null"], "minimum": 0, "default": 0, "description": "So many of the best are told; 0: all."},
      "return_documents": {"type": ["boolean", "null"], "default": true},
      "instruction": {"type": ["string", "null"], "description": "What makes a document right; absent: as the model was trained."},
      "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": -1, "x-refused": "0, and less than the question around a pair",
        "description": "A longer document loses its end; -1: what does not fit the context."},
      "priority": {"type": ["integer", "null"]},
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "request_id": {"$ref": "#/components/schemas/RequestId"},
      "user": {"type": ["string", "null"]}
    }
  },
  "RankedText": {"oneOf": [{"type": "string"}, {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}]},
  "ScoreRequest": {
    "type": "object", "required": ["text_1", "text_2"],
    "description": "Also by other names: queries and documents, queries and items, data_1 and data_2.",
    "properties": {
      "model": {"type": ["string", "null"]},
      "text_1": {"x-refused": "as a list of another length than text_2", "oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/RankedText"}}]},
      "text_2": {"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/RankedText"}}]},
      "instruction": {"type": ["string", "null"]},
      "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": -1, "x-refused": "0, and less than the question around a pair"},
      "priority": {"type": ["integer", "null"]},
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "request_id": {"$ref": "#/components/schemas/RequestId"},
      "user": {"type": ["string", "null"]}
    }
  },
  "RequestId": {"type": ["string", "null"], "pattern": "^[!#-~]{0,128}$", "description": "Visible ASCII without quotes."},
  "Texts": {"description": "A text, token ids, or a list of either.", "oneOf": [
    {"type": "string", "minLength": 1, "x-refused": "of no token"},
    {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}},
    {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}}}]},
  "ChatMessages": {"type": ["array", "null"], "minItems": 1, "items": {"$ref": "#/components/schemas/ChatInputMessage"}},
  "ChatInputMessage": {"oneOf": [
    {"type": "object", "required": ["role"], "properties": {"role": {"type": "string", "enum": ["user", "system", "developer"]},
      "content": {"$ref": "#/components/schemas/ChatContent"}}},
    {"type": "object", "required": ["role"], "properties": {"role": {"type": "string", "enum": ["tool", "function"]},
      "content": {"description": "A text, parts, or data of the tool's own."}, "tool_call_id": {"type": ["string", "null"]}}},
    {"type": "object", "required": ["role"], "properties": {"role": {"type": "string", "enum": ["assistant"]},
      "content": {"$ref": "#/components/schemas/ChatContent"},
      "reasoning_content": {"type": ["string", "null"]},
      "tool_calls": {"type": ["array", "null"], "items": {"type": "object", "description": "Such without a name are left out.", "properties": {
        "function": {"type": ["object", "null"], "properties": {
          "name": {"type": ["string", "null"]}, "arguments": {"description": "JSON as a text, or an object."}}}}}}}}]},
  "ChatContent": {"x-refused": "null or absent, in the question", "oneOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"oneOf": [{"type": "string"}, {"$ref": "#/components/schemas/TextPart"}]}}]},
  "TokenizeRequest": {
    "type": "object",
    "properties": {
      "model": {"type": ["string", "null"]},
      "prompt": {"x-refused": "as null, without messages", "oneOf": [{"type": "null"}, {"type": "string"}, {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string"}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}},
        {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}}}]},
      "messages": {"$ref": "#/components/schemas/ChatMessages"},
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
