// Answers of chat and completions requests, and errors.
#include "rudder/server/openapi/openapi_parts.h"

namespace rudder::server {

namespace {

constexpr std::string_view kChatAnswerSchemas = R"json({
  "Error": {
    "type": "object", "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
      "message": {"type": "string"}, "type": {"type": "string", "enum": ["invalid_request_error", "server_error"]},
      "param": {"type": ["string", "null"], "description": "The path of the field that is wrong."}, "code": {"type": ["string", "null"]}}}}
  },
  "Usage": {
    "type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
      "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
      "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer"},
        "cached_tokens_details": {"type": "object", "description": "Where they lay, with --kv-host-gib; they add up to cached_tokens.",
          "properties": {"device": {"type": "integer"}, "host": {"type": "integer"}, "storage": {"type": "integer"}}}}},
      "completion_tokens_details": {"type": "object", "properties": {"reasoning_tokens": {"type": "integer"},
        "accepted_prediction_tokens": {"type": "integer"}, "rejected_prediction_tokens": {"type": "integer"}}}
    }
  },
  "CaptureResults": {
    "description": "By consumer: docs/capture.md.", "type": "object",
    "additionalProperties": {"type": "object", "required": ["status", "error", "payload"]}
  },
  "TokenLogprob": {
    "type": "object", "required": ["token", "logprob", "bytes"],
    "properties": {
      "token": {"type": "string"}, "logprob": {"type": "number"},
      "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
      "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}
    }
  },
  "ChatLogprobs": {
    "type": ["object", "null"], "required": ["content"],
    "properties": {"content": {"type": ["array", "null"], "items": {"$ref": "#/components/schemas/TokenLogprob"}}, "refusal": {"type": "null"}}
  },
  "PromptLogprobs": {
    "type": ["array", "null"], "description": "Of each token of the prompt; nothing precedes the first.",
    "items": {"type": ["object", "null"], "additionalProperties": {"type": "object", "required": ["logprob"], "properties": {
      "logprob": {"type": "number"}, "rank": {"type": ["integer", "null"]}, "decoded_token": {"type": ["string", "null"]}}}}
  },
  "ToolCall": {
    "type": "object",
    "properties": {
      "index": {"type": "integer"}, "id": {"type": ["string", "null"]}, "type": {"type": ["string", "null"], "enum": ["function", null]},
      "function": {"type": "object", "properties": {"name": {"type": ["string", "null"]}, "arguments": {"type": ["string", "null"]}}}
    }
  },
  "ChatMessage": {
    "type": "object",
    "properties": {
      "role": {"type": "string", "enum": ["assistant"]}, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"},
      "reasoning": {"type": ["string", "null"]}, "reasoning_content": {"type": ["string", "null"]},
      "tool_calls": {"type": ["array", "null"], "items": {"$ref": "#/components/schemas/ToolCall"}}
    }
  },
  "FinishReason": {"type": ["string", "null"], "enum": ["stop", "length", "tool_calls", "abort", "error", null]},
  "StopReason": {"type": ["string", "integer", "null"], "description": "The stop string or stop token that ended it; stop_when.probe or stop_when.feature where stop_when did."},
  "SteeredTokens": {"type": "array", "description": "Positions of tokens that ran under steering: [begin, end).",
    "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}}},
  "RoutedExperts": {"type": "string", "contentEncoding": "base64", "description": "With the end of a choice that asked by return_routed_experts: an npy file of int16 [tokens, layers, experts of a token]; -1 in layers without experts."},
  "ChatCompletion": {
    "type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["chat.completion"]}, "created": {"type": "integer"},
      "model": {"type": "string"}, "system_fingerprint": {"type": "string"},
      "choices": {"type": "array", "items": {"type": "object", "required": ["index", "message", "finish_reason"], "properties": {
        "index": {"type": "integer"}, "message": {"$ref": "#/components/schemas/ChatMessage"},
        "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"}, "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
        "stop_reason": {"$ref": "#/components/schemas/StopReason"}, "token_ids": {"type": ["array", "null"], "items": {"type": "integer"}},
        "steered_tokens": {"$ref": "#/components/schemas/SteeredTokens"}, "routed_experts": {"$ref": "#/components/schemas/RoutedExperts"}, "capture_results": {"$ref": "#/components/schemas/CaptureResults"}}}},
      "usage": {"$ref": "#/components/schemas/Usage"}, "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
      "prompt_token_ids": {"type": ["array", "null"], "items": {"type": "integer"}}, "prompt_text": {"type": ["string", "null"]},
      "service_tier": {"type": "null"}, "kv_transfer_params": {"type": "null"},
      "capture_results": {"$ref": "#/components/schemas/CaptureResults"}
    }
  },
  "ChatCompletionChunk": {
    "type": "object", "required": ["id", "object", "created", "model", "choices"],
    "description": "The data of each event; the last event is [DONE]. An error in the stream is an Error.",
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["chat.completion.chunk"]}, "created": {"type": "integer"},
      "model": {"type": "string"}, "system_fingerprint": {"type": "string"},
      "choices": {"type": "array", "items": {"type": "object", "required": ["index", "delta", "finish_reason"], "properties": {
        "index": {"type": "integer"}, "delta": {"$ref": "#/components/schemas/ChatMessage"},
        "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"}, "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
        "stop_reason": {"$ref": "#/components/schemas/StopReason"}, "token_ids": {"type": ["array", "null"], "items": {"type": "integer"}},
        "steered_tokens": {"$ref": "#/components/schemas/SteeredTokens"}, "routed_experts": {"$ref": "#/components/schemas/RoutedExperts"}, "capture_results": {"$ref": "#/components/schemas/CaptureResults"}}}},
      "usage": {"oneOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]},
      "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
      "prompt_token_ids": {"type": ["array", "null"], "items": {"type": "integer"}}, "prompt_text": {"type": ["string", "null"]},
      "capture": {"type": "object", "description": "One captured token's values."},
      "capture_results": {"$ref": "#/components/schemas/CaptureResults"}
    }
  },
  "CompletionLogprobs": {
    "type": ["object", "null"], "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"],
    "properties": {
      "tokens": {"type": "array", "items": {"type": "string"}}, "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
      "top_logprobs": {"type": ["array", "null"], "items": {"type": ["object", "null"], "additionalProperties": {"type": "number"}}},
      "text_offset": {"type": "array", "items": {"type": "integer"}}
    }
  },
  "CompletionChoice": {
    "type": "object", "required": ["index", "text", "finish_reason"],
    "properties": {
      "index": {"type": "integer"}, "text": {"type": "string"}, "logprobs": {"$ref": "#/components/schemas/CompletionLogprobs"},
      "finish_reason": {"$ref": "#/components/schemas/FinishReason"}, "stop_reason": {"$ref": "#/components/schemas/StopReason"},
      "token_ids": {"type": ["array", "null"], "items": {"type": "integer"}}, "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
      "prompt_token_ids": {"type": ["array", "null"], "items": {"type": "integer"}}, "capture_results": {"$ref": "#/components/schemas/CaptureResults"},
      "steered_tokens": {"$ref": "#/components/schemas/SteeredTokens"}, "routed_experts": {"$ref": "#/components/schemas/RoutedExperts"}
    }
  },
  "Completion": {
    "type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["text_completion"]}, "created": {"type": "integer"},
      "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "choices": {"type": "array", "items": {"$ref": "#/components/schemas/CompletionChoice"}},
      "usage": {"$ref": "#/components/schemas/Usage"}, "service_tier": {"type": "null"},
      "kv_transfer_params": {"type": "null"}, "capture_results": {"$ref": "#/components/schemas/CaptureResults"}
    }
  },
  "CompletionChunk": {
    "type": "object", "required": ["id", "object", "created", "model", "choices"],
    "description": "The data of each event; the last event is [DONE]. An error in the stream is an Error.",
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["text_completion"]}, "created": {"type": "integer"},
      "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "choices": {"type": "array", "items": {"$ref": "#/components/schemas/CompletionChoice"}},
      "usage": {"oneOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]},
      "capture": {"type": "object", "description": "One captured token's values."},
      "capture_results": {"$ref": "#/components/schemas/CaptureResults"}
    }
  }
})json";

}  // namespace

std::string_view chat_answer_schemas() {
  return kChatAnswerSchemas;
}

}  // namespace rudder::server
