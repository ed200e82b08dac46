// Answers of requests that generate nothing.
#include "rudder/server/openapi/openapi_parts.h"

namespace rudder::server {

std::string_view service_schemas() {
  return R"json({
  "Object": {"type": "object"},
  "Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
  "RestState": {"type": "object", "required": ["is_sleeping", "is_paused"],
    "properties": {"is_sleeping": {"type": "boolean"}, "is_paused": {"type": "boolean"}}},
  "WeightsUpdated": {"type": "object", "required": ["success", "message", "matched", "weight_version", "identity"],
    "properties": {"success": {"const": true}, "message": {"type": "string"}, "matched": {"type": "integer", "minimum": 1},
                   "weight_version": {"type": "string"}, "identity": {"type": "string"}}},
  "Version": {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}},
  "Load": {"type": "object", "required": ["server_load"], "properties": {"server_load": {"type": "integer", "minimum": 0}}},
  "Loads": {
    "type": "object", "required": ["timestamp", "version", "dp_rank_count", "loads", "aggregate"],
    "properties": {
      "timestamp": {"type": "string"}, "version": {"type": "string"}, "dp_rank_count": {"type": "integer"},
      "loads": {
        "type": "array", "items": {
          "type": "object", "additionalProperties": {"type": "number", "minimum": 0},
          "required": ["dp_rank", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_total_reqs",
                       "num_used_tokens", "max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate",
                       "utilization", "max_running_requests"]
        }
      },
      "aggregate": {
        "type": "object", "additionalProperties": {"type": "number", "minimum": 0},
        "required": ["total_running_reqs", "total_waiting_reqs", "total_reqs", "avg_token_usage", "avg_throughput",
                     "avg_utilization"]
      }
    }
  },
  "ServerInfo": {
    "type": "object", "required": ["version", "model", "dtype", "max_model_len", "draining", "settings"],
    "properties": {
      "version": {"type": "string"}, "model": {"type": "string"}, "dtype": {"type": "string"}, "max_model_len": {"type": "integer"},
      "chat_template": {"type": "boolean"},
      "draining": {"type": "boolean"}, "settings": {"type": "object", "additionalProperties": {"type": "string"}}
    }
  },
  "Model": {
    "type": "object", "required": ["id", "object", "created", "owned_by"],
    "properties": {
      "id": {"type": "string"}, "object": {"type": "string", "enum": ["model"]}, "created": {"type": "integer"}, "owned_by": {"type": "string"},
      "root": {"type": "string"}, "parent": {"type": "null"}, "max_model_len": {"type": "integer"}
    }
  },
  "ModelList": {
    "type": "object", "required": ["object", "data"],
    "properties": {"object": {"type": "string", "enum": ["list"]}, "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}
  },
  "Tokenized": {
    "type": "object", "required": ["count", "max_model_len", "tokens"],
    "properties": {
      "count": {"type": "integer"}, "max_model_len": {"type": "integer"}, "tokens": {"type": "array", "items": {"type": "integer"}},
      "token_strs": {"type": ["array", "null"], "items": {"type": "string"}}
    }
  },
  "Detokenized": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
  "Rendered": {
    "type": "object", "required": ["request_id", "model", "token_ids", "sampling_params"],
    "properties": {
      "request_id": {"type": "string"}, "model": {"type": "string"}, "prompt": {"type": "string"},
      "token_ids": {"type": "array", "items": {"type": "integer"}}, "features": {"type": "null"},
      "steered_tokens": {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": ["integer", "null"]}}},
      "sampling_params": {"type": "object", "additionalProperties": true}, "stream": {"type": "boolean"}, "priority": {"type": "integer"},
      "kv_transfer_params": {"type": "null"}
    }
  },
  "RenderedList": {"type": "array", "items": {"$ref": "#/components/schemas/Rendered"}}
})json";
}

}  // namespace rudder::server
