// What a generation request may hold beside steering. Numbers come from the table of ranges.
#include "rudder/server/openapi/openapi_parts.h"

namespace rudder::server {

namespace {

constexpr std::string_view kGenerationSchemas = R"json({
  "Generation": {
    "type": "object",
    "properties": {
      "model": {"type": "string"},
      "logit_bias": {"type": ["object", "null"]},
      "stop": {"oneOf": [{"type": "string", "minLength": 1}, {"type": "null"},
                         {"type": "array", "items": {"type": "string", "minLength": 1}}]},
      "stop_token_ids": {"type": ["array", "null"], "items": {"$ref": "#/components/schemas/TokenId"}},
      "allowed_token_ids": {"type": ["array", "null"], "minItems": 1,
                            "items": {"$ref": "#/components/schemas/TokenId"}},
      "bad_words": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}},
      "response_format": {"x-refused": "beside another form", "oneOf": [{"type": "null"},
        {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["text"]}}},
        {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["json_object"]}, "schema": {"type": ["object", "null"]}}},
        {"type": "object", "required": ["type", "json_schema"], "properties": {
          "type": {"type": "string", "enum": ["json_schema"]},
          "json_schema": {"type": "object", "required": ["schema"], "properties": {
            "name": {"type": ["string", "null"]}, "description": {}, "strict": {"type": ["boolean", "null"]},
            "schema": {"type": ["object", "boolean", "string"]}}}}},
        {"type": "object", "required": ["type"], "description": "With the fields of the tag.", "properties": {"type": {"type": "string", "enum": ["structural_tag"]}}}]},
      "structured_outputs": {"type": ["object", "null"], "additionalProperties": false, "x-refused": "without one form, or where no grammar can enforce it",
        "properties": {
          "json": {"type": ["object", "boolean", "string", "null"]},
          "json_object": {"type": ["boolean", "null"]},
          "regex": {"type": ["string", "null"]},
          "choice": {"type": ["array", "null"], "minItems": 1, "items": {"type": "string"}},
          "grammar": {"type": ["string", "null"]},
          "structural_tag": {"type": ["object", "string", "null"]},
          "disable_any_whitespace": {"type": ["boolean", "null"], "default": false},
          "disable_additional_properties": {"type": ["boolean", "null"], "default": true},
          "disable_fallback": {"type": ["boolean", "null"]}}},
      "include_stop_str_in_output": {"type": ["boolean", "null"], "default": false},
      "skip_special_tokens": {"type": ["boolean", "null"], "default": true},
      "spaces_between_special_tokens": {"type": ["boolean", "null"]},
      "ignore_eos": {"type": ["boolean", "null"], "default": false},
      "disable_spec_decode": {"type": ["boolean", "null"], "default": false, "description": "True: no tokens are guessed for this request. The text is the same."},
      "repetition_detection": {"type": ["object", "null"], "x-refused": "where one field contradicts another", "properties": {}},
      "stream": {"type": ["boolean", "null"], "default": false},
      "stream_options": {"type": ["object", "null"], "x-refused": "unless stream is true", "properties": {
        "include_usage": {"type": ["boolean", "null"], "default": false},
        "continuous_usage_stats": {"type": ["boolean", "null"], "default": false}}},
      "echo": {"type": ["boolean", "null"], "default": false},
      "add_special_tokens": {"type": ["boolean", "null"]},
      "truncation_side": {"type": ["string", "null"], "enum": ["left", "right", null],
                          "default": "left"},
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "request_id": {"type": ["string", "null"], "pattern": "^[!#-~]{0,128}$"},
      "return_token_ids": {"type": ["boolean", "null"], "default": false},
      "return_steered_tokens": {"type": ["boolean", "null"], "default": false},
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
    "description": "Needs sites, or the lens, a dictionary or patterns of the consumer response. Other fields are the consumer's own.",
    "properties": {
      "lens": {"type": "object", "required": ["layers"], "additionalProperties": false,
        "description": "The likeliest tokens as the output head reads resid_post of these layers.",
        "properties": {
          "layers": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, {"type": "string"}, {"type": "object"}]},
          "top": {"type": "integer", "minimum": 1, "maximum": 20, "default": 5},
          "stream": {"oneOf": [{"type": "integer", "minimum": 0}, {"const": "collapsed"}], "description": "Where the residual has several streams: of which the row is read; collapsed, the default: all of them, as the model reads its last row."}}},
      "patterns": {"type": "object", "required": ["layers"], "additionalProperties": false,
        "description": "Of response: attention patterns, of each head the weights with which the captured positions read the keys before them.",
        "properties": {
          "layers": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": ["integer", "string"]}}, {"type": "string"}, {"type": "object"}]},
          "heads": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": ["integer", "string"]}}, {"type": "string"}, {"type": "object"}], "default": "all"},
          "keys": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": 256, "description": "So many keys a row may have: no captured position lies behind them."}}},
      "dictionary": {"type": "string", "description": "Features of this dictionary, of the rows where it reads."},
      "layer": {"type": "integer", "description": "Of a dictionary that has several."},
      "top": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 8, "description": "So many of a token's largest features above 0."},
      "features": {"type": "array", "minItems": 1, "maxItems": 1024, "items": {"type": "integer", "minimum": 0}, "description": "In place of top: the values of these."},
      "heads": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": ["integer", "string"]}}, {"type": "string"}, {"type": "object"}], "description": "Of response: rows of attn_z have these heads side by side."},
      "sites": {"type": "object", "additionalProperties": {"oneOf": [
        {"type": "array", "items": {"type": "integer"}},
        {"type": "string", "enum": ["all"]},
        {"type": "object", "required": ["ranges"], "properties": {"ranges": {"type": "array"}}},
        {"type": "boolean", "enum": [true]}]}},
      "positions": {"oneOf": [
        {"type": "string", "enum": ["last_prompt", "all_prompt", "all_generated", "all"]},
        {"type": "array", "items": {"type": "integer"}}], "default": "last_prompt"},
      "point": {"type": "string", "enum": ["pre", "post"], "default": "pre"},
      "stream": {"description": "Of a residual that has several streams: rows of resid_pre, resid_mid and resid_post are those of this one. all: whole rows, the streams side by side.",
                 "oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "enum": ["all"]}], "default": "all"}
    }
  },
  "ChatCompletionRequest": {"allOf": [
    {"$ref": "#/components/schemas/Generation"}, {"$ref": "#/components/schemas/Taps"},
    {"type": "object", "required": ["messages"],
     "properties": {
       "messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/ChatInputMessage"}},
       "logprobs": {"type": ["boolean", "null"], "default": false},
       "add_generation_prompt": {"type": ["boolean", "null"], "default": true},
       "continue_final_message": {"type": ["boolean", "null"], "default": false, "x-refused": "beside add_generation_prompt, and where the last message has no content"},
       "tools": {"type": ["array", "null"], "maxItems": 1024, "x-refused": "two of one name",
                 "items": {"$ref": "#/components/schemas/Tool"}},
       "tool_choice": {"x-refused": "without tools, or a name of none of them", "oneOf": [
         {"type": "string", "enum": ["none", "auto", "required"]}, {"type": "null"},
         {"type": "object", "required": ["type", "function"], "properties": {
           "type": {"type": "string", "enum": ["function"]},
           "function": {"type": "object", "required": ["name"],
                        "properties": {"name": {"type": "string"}}}}},
         {"type": "object", "required": ["type", "allowed_tools"], "properties": {
           "type": {"type": "string", "enum": ["allowed_tools"]},
           "allowed_tools": {"type": "object", "required": ["mode", "tools"], "properties": {
             "mode": {"type": "string", "enum": ["auto", "required"]},
             "tools": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["type", "function"], "properties": {
               "type": {"type": "string", "enum": ["function"]}, "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}}}}}}}]},
       "parallel_tool_calls": {"type": ["boolean", "null"], "default": true},
       "include_reasoning": {"type": ["boolean", "null"], "default": true},
       "separate_reasoning": {"type": ["boolean", "null"], "default": true},
       "reasoning_effort": {"type": ["string", "null"], "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max",
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
     "properties": {"prompt": {"$ref": "#/components/schemas/Texts"}}}]},
  "SteeringModule": {"allOf": [
    {"$ref": "#/components/schemas/GlobalSteering"},
    {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}]},
  "SteeringModuleName": {"type": "object", "required": ["name"],
                         "properties": {"name": {"type": "string"}}},
  "LoraLoad": {"type": "object", "required": ["lora_name", "lora_path"], "additionalProperties": false,
    "properties": {
      "lora_name": {"type": "string", "maxLength": 1024},
      "lora_path": {"type": "string", "maxLength": 4096, "description": "A folder as Hugging Face peft writes it, below --lora-root."},
      "load_inplace": {"type": "boolean", "default": false, "description": "In place of the adapter that has the name."}}},
  "LoraUnload": {"type": "object", "required": ["lora_name"], "additionalProperties": false,
    "properties": {"lora_name": {"type": "string", "maxLength": 1024}}},
  "WeightsUpdate": {"type": "object", "required": ["path"],
    "properties": {
      "path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "A folder of safetensors files below --weights-root."},
      "weight_version": {"type": ["string", "null"], "maxLength": 1024, "description": "What the client calls them; a part of the keys of cached prefixes."},
      "mode": {"enum": ["wait", "abort", "keep", null], "description": "What becomes of the requests that run: they finish first, end with an error, or go on with the new weights."},
      "abort_all_requests": {"type": ["boolean", "null"], "default": false},
      "timeout": {"type": ["number", "null"], "minimum": 0.001, "maximum": 3600, "description": "Seconds that running requests may take."}}},
  "SteeringDictionary": {"type": "object", "required": ["name", "path"], "additionalProperties": false,
    "properties": {
      "name": {"type": "string"},
      "path": {"type": "string", "description": "Below the folder of --dictionary-root."},
      "site": {"type": "string", "description": "Where it reads, or where it reads and writes: resid_post.20; mlp_in.20,mlp_out.20."},
      "replace": {"type": "boolean", "default": false}}},
  "PatchSweepRequest": {"type": "object", "required": ["clean", "corrupted", "answer", "sites"], "additionalProperties": false,
    "properties": {
      "model": {"type": ["string", "null"]},
      "request_id": {"$ref": "#/components/schemas/RequestId"},
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "clean": {"$ref": "#/components/schemas/SweepPrompt"},
      "corrupted": {"$ref": "#/components/schemas/SweepPrompt"},
      "answer": {"type": "object", "required": ["right"], "additionalProperties": false, "properties": {
        "right": {"$ref": "#/components/schemas/SweepAnswer"},
        "wrong": {"oneOf": [{"type": "null"}, {"$ref": "#/components/schemas/SweepAnswer"}]}}},
      "sites": {"type": "object", "minProperties": 1, "description": "{site: layers}, layers as of an op."},
      "positions": {"x-refused": "beyond the prompts' ends", "description": "\"all\", or a list of positions and of windows [begin, end].",
                    "oneOf": [{"type": "string", "enum": ["all"]}, {"type": "null"}, {"type": "array", "minItems": 1}]},
      "svg": {"type": ["boolean", "null"], "default": false}}},
  "SweepAnswer": {"description": "A token id, or a text of one token.", "x-refused": "as a text of several tokens; and where wrong is right",
    "oneOf": [{"$ref": "#/components/schemas/TokenId"}, {"type": "string", "minLength": 1}]},
  "SweepPrompt": {"description": "A text, token ids, or a chat; the clean and the corrupted one have equally many tokens.", "x-refused": "where they have not",
    "oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}},
              {"type": "object", "required": ["messages"], "properties": {"messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/ChatInputMessage"}}}}]},
  "FeatureEncode": {"type": "object", "required": ["dictionary", "rows"], "additionalProperties": false,
    "properties": {
      "dictionary": {"type": "string"},
      "layer": {"type": "integer", "description": "Of a dictionary that has several."},
      "rows": {"x-refused": "of another width than the dictionary's, or of several", "oneOf": [{"type": "array", "minItems": 1, "items": {"type": "number"}}, {"type": "array", "minItems": 1, "items": {"type": "array", "items": {"type": "number"}}}, {"type": "object", "required": ["dtype", "shape", "data"], "properties": {
        "dtype": {"type": "string", "enum": ["float32", "float16", "bfloat16"]}, "shape": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer", "minimum": 1}}, "data": {"type": "string"}}}],
               "description": "As the consumer response captures them."},
      "top": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 8},
      "features": {"type": "array", "minItems": 1, "maxItems": 4096, "items": {"type": "integer", "minimum": 0, "maximum": 2147483646}}}}
})json";

}  // namespace

std::string_view generation_schemas() {
  return kGenerationSchemas;
}

}  // namespace rudder::server
