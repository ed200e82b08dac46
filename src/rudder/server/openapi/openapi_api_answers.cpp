// Answers of responses, messages and embeddings.
#include "rudder/server/openapi/openapi_parts.h"

namespace rudder::server {

namespace {

constexpr std::string_view kApiAnswerSchemas = R"json({
  "PatchSweep": {
    "type": "object", "required": ["id", "object", "model", "metric", "clean", "corrupted", "tokens", "positions", "grids", "usage"],
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["patch_sweep"]}, "model": {"type": "string"},
      "metric": {"type": "string", "enum": ["logit_difference", "probability"]},
      "clean": {"type": "number"}, "corrupted": {"type": "number"},
      "tokens": {"type": "array", "items": {"type": "string"}},
      "positions": {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}}},
      "grids": {"type": "array", "items": {
        "type": "object", "required": ["site", "layers", "values"],
        "properties": {"site": {"type": "string"}, "layers": {"type": "array", "items": {"type": "integer"}},
                       "values": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}}}},
      "usage": {"$ref": "#/components/schemas/Usage"}, "svg": {"type": "string"}
    }
  },
  "EncodedFeatures": {
    "type": "object", "required": ["dictionary", "layer", "rows"],
    "properties": {
      "dictionary": {"type": "string"}, "layer": {"type": "integer"},
      "rows": {"type": "array", "items": {
        "type": "object", "required": ["features", "values"],
        "properties": {"features": {"type": "array", "items": {"type": "integer"}},
                       "values": {"type": "array", "items": {"type": "number"}}}}}
    }
  },
  "ResponseItem": {
    "type": "object", "required": ["id", "type", "status"],
    "properties": {
      "id": {"type": "string"}, "type": {"type": "string", "enum": ["message", "reasoning", "function_call", "custom_tool_call"]},
      "status": {"type": "string", "enum": ["in_progress", "completed", "incomplete"]},
      "role": {"type": "string", "enum": ["assistant"]},
      "content": {"type": "array", "items": {"$ref": "#/components/schemas/ResponsePart"}},
      "summary": {"type": "array", "maxItems": 0},
      "call_id": {"type": "string"}, "namespace": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type": "string"},
      "input": {"type": "string"}
    }
  },
  "ResponsePart": {
    "type": "object", "required": ["type", "text"],
    "properties": {
      "type": {"type": "string", "enum": ["output_text", "reasoning_text"]}, "text": {"type": "string"},
      "annotations": {"type": "array", "maxItems": 0},
      "logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}
    }
  },
  "Response": {
    "type": "object",
    "required": ["id", "object", "created_at", "status", "error", "incomplete_details", "model", "output", "parallel_tool_calls",
                 "tool_choice", "tools", "usage"],
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["response"]}, "created_at": {"type": "integer"},
      "completed_at": {"type": ["integer", "null"]},
      "status": {"type": "string", "enum": ["in_progress", "completed", "incomplete", "failed", "cancelled"]},
      "error": {"type": ["object", "null"], "required": ["code", "message"], "properties": {"code": {"type": "string"}, "message": {"type": "string"}}},
      "incomplete_details": {"type": ["object", "null"], "properties": {"reason": {"type": "string", "enum": ["max_output_tokens"]}}},
      "model": {"type": "string"}, "output": {"type": "array", "items": {"$ref": "#/components/schemas/ResponseItem"}},
      "background": {"type": "boolean"}, "instructions": {"type": ["string", "null"]}, "max_output_tokens": {"type": ["integer", "null"]},
      "max_tool_calls": {"type": ["integer", "null"]}, "metadata": {"type": "object"}, "parallel_tool_calls": {"type": "boolean"},
      "previous_response_id": {"type": ["string", "null"]}, "prompt_cache_key": {"type": ["string", "null"]}, "reasoning": {"type": "object"},
      "safety_identifier": {"type": ["string", "null"]}, "service_tier": {"type": "string"}, "store": {"type": "boolean"},
      "temperature": {"type": "number"}, "text": {"type": "object"}, "tool_choice": {"type": ["string", "object"]},
      "tools": {"type": "array", "items": {"type": "object"}}, "top_logprobs": {"type": "integer"}, "top_p": {"type": "number"},
      "truncation": {"type": "string"}, "user": {"type": ["string", "null"]},
      "usage": {"type": ["object", "null"], "required": ["input_tokens", "output_tokens", "total_tokens"], "properties": {
        "input_tokens": {"type": "integer"},
        "input_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer"}, "cache_write_tokens": {"type": "integer"}}},
        "output_tokens": {"type": "integer"},
        "output_tokens_details": {"type": "object", "properties": {"reasoning_tokens": {"type": "integer"}}}, "total_tokens": {"type": "integer"}}},
      "capture_results": {"$ref": "#/components/schemas/CaptureResults"}
    }
  },
  "ResponseEvent": {
    "type": "object", "required": ["type", "sequence_number"],
    "description": "The data of each event, whose name is its type.",
    "properties": {
      "type": {"type": "string", "enum": ["response.created", "response.in_progress", "response.completed", "response.incomplete",
        "response.failed", "response.output_item.added", "response.output_item.done", "response.content_part.added",
        "response.content_part.done", "response.output_text.delta", "response.output_text.done", "response.reasoning_text.delta",
        "response.reasoning_text.done", "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
        "rudder.capture"]},
      "sequence_number": {"type": "integer", "minimum": 0}, "response": {"$ref": "#/components/schemas/Response"},
      "item": {"$ref": "#/components/schemas/ResponseItem"}, "part": {"$ref": "#/components/schemas/ResponsePart"},
      "item_id": {"type": "string"}, "output_index": {"type": "integer"}, "content_index": {"type": "integer"},
      "delta": {"type": "string"}, "text": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type": "string"}, "input": {"type": "string"},
      "logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}, "capture": {"type": "object"}
    }
  },
  "ResponseInputItemList": {
    "type": "object", "required": ["object", "data", "first_id", "last_id", "has_more"],
    "properties": {"object": {"type": "string", "enum": ["list"]},
      "data": {"type": "array", "items": {"type": "object", "required": ["id", "type"], "additionalProperties": true}},
      "first_id": {"type": ["string", "null"]}, "last_id": {"type": ["string", "null"]}, "has_more": {"type": "boolean"}}
  },
  "ResponseTokens": {
    "type": "object", "required": ["object", "input_tokens"],
    "properties": {"object": {"type": "string", "enum": ["response.input_tokens"]}, "input_tokens": {"type": "integer", "minimum": 0}}
  },
  "ResponseCompaction": {
    "type": "object", "required": ["id", "object", "created_at", "output", "usage"],
    "properties": {"id": {"type": "string"}, "object": {"type": "string", "enum": ["response.compaction"]}, "created_at": {"type": "integer"},
      "output": {"type": "array", "items": {"type": "object", "required": ["id", "type", "encrypted_content"], "properties": {
        "id": {"type": "string"}, "type": {"type": "string", "enum": ["compaction"]}, "encrypted_content": {"type": "string"}}}},
      "usage": {"type": "object", "required": ["input_tokens", "output_tokens", "total_tokens"], "properties": {
        "input_tokens": {"type": "integer"}, "input_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer"}}},
        "output_tokens": {"type": "integer"},
        "output_tokens_details": {"type": "object", "properties": {"reasoning_tokens": {"type": "integer"}}}, "total_tokens": {"type": "integer"}}}}
  },
  "ResponseDeleted": {
    "type": "object", "required": ["id", "object", "deleted"],
    "properties": {"id": {"type": "string"}, "object": {"type": "string", "enum": ["response.deleted"]}, "deleted": {"type": "boolean"}}
  },
  "MessageBlock": {
    "type": "object", "required": ["type"],
    "properties": {
      "type": {"type": "string", "enum": ["text", "thinking", "tool_use"]}, "text": {"type": "string"},
      "thinking": {"type": "string"}, "signature": {"type": "string"},
      "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"}
    }
  },
  "MessageUsage": {
    "type": "object", "required": ["input_tokens", "output_tokens"],
    "properties": {
      "input_tokens": {"type": "integer", "description": "Without those that were found in the prefix cache."},
      "cache_creation_input_tokens": {"type": "integer"}, "cache_read_input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}
    }
  },
  "MessageStopReason": {"type": ["string", "null"], "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", null]},
  "Message": {
    "type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    "properties": {
      "id": {"type": "string"}, "type": {"type": "string", "enum": ["message"]}, "role": {"type": "string", "enum": ["assistant"]},
      "model": {"type": "string"}, "content": {"type": "array", "items": {"$ref": "#/components/schemas/MessageBlock"}},
      "stop_reason": {"$ref": "#/components/schemas/MessageStopReason"}, "stop_sequence": {"type": ["string", "null"]},
      "usage": {"$ref": "#/components/schemas/MessageUsage"}, "capture_results": {"$ref": "#/components/schemas/CaptureResults"}
    }
  },
  "MessageEvent": {
    "type": "object", "required": ["type"],
    "description": "The data of each event, whose name is its type.",
    "properties": {
      "type": {"type": "string", "enum": ["message_start", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop", "ping", "error", "rudder.capture"]},
      "message": {"$ref": "#/components/schemas/Message"}, "index": {"type": "integer"},
      "content_block": {"$ref": "#/components/schemas/MessageBlock"},
      "delta": {"type": "object", "properties": {
        "type": {"type": "string", "enum": ["text_delta", "thinking_delta", "signature_delta", "input_json_delta"]},
        "text": {"type": "string"}, "thinking": {"type": "string"}, "signature": {"type": "string"}, "partial_json": {"type": "string"},
        "stop_reason": {"$ref": "#/components/schemas/MessageStopReason"}, "stop_sequence": {"type": ["string", "null"]}}},
      "usage": {"$ref": "#/components/schemas/MessageUsage"}, "error": {"$ref": "#/components/schemas/MessageErrorDetail"},
      "request_id": {"type": "string"}, "capture": {"type": "object"}, "capture_results": {"$ref": "#/components/schemas/CaptureResults"}
    }
  },
  "MessageErrorDetail": {
    "type": "object", "required": ["type", "message"],
    "properties": {
      "type": {"type": "string", "enum": ["invalid_request_error", "authentication_error", "permission_error", "not_found_error",
        "request_too_large", "rate_limit_error", "overloaded_error", "api_error"]},
      "message": {"type": "string"}, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}
    }
  },
  "MessageError": {
    "type": "object", "required": ["type", "error"],
    "properties": {"type": {"type": "string", "enum": ["error"]}, "error": {"$ref": "#/components/schemas/MessageErrorDetail"},
                   "request_id": {"type": "string"}}
  },
  "MessageCount": {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}},
  "Reranked": {
    "type": "object", "required": ["id", "model", "results", "usage"],
    "properties": {
      "id": {"type": "string"}, "model": {"type": "string"},
      "results": {"type": "array", "description": "The best first.", "items": {"type": "object", "required": ["index", "relevance_score"], "properties": {
        "index": {"type": "integer"}, "relevance_score": {"type": "number"},
        "document": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}}}},
      "usage": {"type": "object", "required": ["prompt_tokens", "total_tokens"], "properties": {
        "prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}}}
    }
  },
  "Scored": {
    "type": "object", "required": ["id", "object", "created", "model", "data", "usage"],
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["list"]}, "created": {"type": "integer"}, "model": {"type": "string"},
      "data": {"type": "array", "items": {"type": "object", "required": ["index", "object", "score"], "properties": {
        "index": {"type": "integer"}, "object": {"type": "string", "enum": ["score"]}, "score": {"type": "number"}}}},
      "usage": {"type": "object", "required": ["prompt_tokens", "total_tokens"], "properties": {
        "prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}}}
    }
  },
  "EmbeddingList": {
    "type": "object", "required": ["object", "model", "data", "usage"],
    "properties": {
      "object": {"type": "string", "enum": ["list"]}, "id": {"type": "string"}, "model": {"type": "string"},
      "data": {"type": "array", "items": {"type": "object", "required": ["object", "index", "embedding"], "properties": {
        "object": {"type": "string", "enum": ["embedding"]}, "index": {"type": "integer"},
        "embedding": {"oneOf": [{"type": "array", "items": {"type": "number"}},
                                {"type": "string", "description": "Little-endian float32 in base64."}]}}}},
      "usage": {"type": "object", "required": ["prompt_tokens", "total_tokens"], "properties": {
        "prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}}}
    }
  }
})json";

}  // namespace

std::string_view api_answer_schemas() {
  return kApiAnswerSchemas;
}

}  // namespace rudder::server
