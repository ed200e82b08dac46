#include "rudder/steer/schema.h"

namespace rudder::steer {
namespace {

constexpr std::string_view kSchema = R"json({
"properties": {
  "steering": {
    "description": "Steering of this request: one element or a list of them.",
    "oneOf": [
      {"$ref": "#/components/schemas/SteeringElement"},
      {"type": "array", "items": {"$ref": "#/components/schemas/SteeringElement"}}
    ]
  },
  "steering_name": {
    "description": "A registered steering module, by name or with a scale.",
    "oneOf": [{"type": "string"}, {"$ref": "#/components/schemas/SteeringModuleRef"}]
  },
  "steering_vectors_packed": {
    "description": "Another name of steering_vectors.", "$ref": "#/components/schemas/SteeringTier"
  },
  "prefill_steering_vectors_packed": {
    "description": "Another name of prefill_steering_vectors.", "$ref": "#/components/schemas/SteeringTier"
  },
  "decode_steering_vectors_packed": {
    "description": "Another name of decode_steering_vectors.", "$ref": "#/components/schemas/SteeringTier"
  },
  "steering_vectors": {
    "description": "Vectors added at every token: {site: {layer: vector}} or {site: packed}.",
    "$ref": "#/components/schemas/SteeringTier"
  },
  "prefill_steering_vectors": {
    "description": "Vectors added at the tokens of the prompt, besides steering_vectors.",
    "$ref": "#/components/schemas/SteeringTier"
  },
  "sae_clamp_specs": {
    "description": "Clamps of a dictionary's features, as elements of steering with the op feature.",
    "type": "array",
    "items": {
      "type": "object", "required": ["module_name", "clamps"], "additionalProperties": false,
      "properties": {
        "module_name": {"type": "string", "description": "A registered dictionary."},
        "phase": {"type": "string", "enum": ["both", "prefill", "decode"], "default": "both"},
        "clamps": {"type": "object", "description": "{site: {layer: [entry]}}",
          "additionalProperties": {"type": "object", "additionalProperties": {
            "type": "array", "minItems": 1, "items": {
              "type": "object", "required": ["feature_idx", "kind", "value"],
              "additionalProperties": false,
              "properties": {
                "feature_idx": {"type": "integer", "minimum": 0},
                "kind": {"type": "string", "enum": ["absolute", "additive"]},
                "value": {"type": "number"},
                "only_if_active": {"type": "boolean", "default": false}}}}}}}
    }
  },
  "sae_full_reconstruction_specs": {
    "description": "Rows replaced by what a dictionary makes of them, with its features clamped or none of them.",
    "type": "array",
    "items": {
      "type": "object", "required": ["module_name"], "additionalProperties": false,
      "properties": {
        "module_name": {"type": "string", "description": "A registered dictionary."},
        "phase": {"type": "string", "enum": ["both", "prefill", "decode"], "default": "both"},
        "clamps": {"type": "object", "description": "{site: {layer: [entry]}}, entries as of sae_clamp_specs; none: every layer that the dictionary has.",
          "additionalProperties": {"type": "object", "additionalProperties": {
            "type": "array", "items": {"type": "object"}}}}}
    }
  },
  "decode_steering_vectors": {
    "description": "Vectors added at generated tokens, besides steering_vectors.",
    "$ref": "#/components/schemas/SteeringTier"
  }
},
"schemas": {
  "StopWhen": {
    "description": "Ends the answer with the token that completes `for` generated tokens in a row whose scores are above `above`.",
    "type": ["object", "null"], "required": ["above"], "additionalProperties": false,
    "properties": {
      "probe": {"$ref": "#/components/schemas/WatchedProbe"},
      "feature": {"$ref": "#/components/schemas/WatchedFeature"},
      "above": {"type": "number"},
      "for": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": 1}
    }
  },
  "WatchedProbe": {
    "description": "h . vector of each generated token's row h.",
    "type": "object", "required": ["vector", "site"], "additionalProperties": false,
    "properties": {"vector": {"$ref": "#/components/schemas/SteeringVector"},
                   "site": {"type": "string"}, "layer": {"type": "integer"},
                   "stream": {"type": "integer", "minimum": 0, "description": "Of the residual."}}
  },
  "WatchedFeature": {
    "description": "The value of a dictionary's feature at each generated token.",
    "type": "object", "required": ["dictionary", "feature"], "additionalProperties": false,
    "properties": {"dictionary": {"type": "string"}, "layer": {"type": "integer"},
                   "feature": {"type": "integer", "minimum": 0}}
  },
  "SteeringElement": {
    "oneOf": [
      {"$ref": "#/components/schemas/SteeringModuleRef"},
      {"$ref": "#/components/schemas/SteeringOp"},
      {"$ref": "#/components/schemas/SteeringExperts"},
      {"$ref": "#/components/schemas/SteeringFeature"}
    ]
  },
  "SteeringModuleRef": {
    "type": "object",
    "required": ["name"],
    "additionalProperties": false,
    "properties": {
      "name": {"type": "string"},
      "scale": {"type": "number", "default": 1,
                "description": "Multiplies the scales of the module's adds."}
    }
  },
  "SteeringOp": {
    "type": "object",
    "required": ["op", "site"],
    "oneOf": [{"required": ["vector"]}, {"required": ["source"]}],
    "additionalProperties": false,
    "properties": {
      "op": {"type": "string",
             "enum": ["patch", "ablate", "mean_ablate", "orthogonal", "swap", "rotate", "add",
                      "add_norm", "add_renorm", "clamp", "cap", "set"]},
      "site": {"type": "string", "description": "resid_pre, attn_in, attn_z, attn_out, resid_mid, mlp_in, router_logits (of a mixture of experts), mlp_act, mlp_out, resid_post or final_norm; also <site>.L, blocks.L.hook_<site>, blocks.L.attn.hook_z (attn_z), blocks.L.mlp.hook_in (mlp_in) and blocks.L.mlp.hook_post (mlp_act), which name the layer."},
      "layers": {"description": "A layer, a list, \"all\", \"4,8-12,-1\", or ranges with both ends in; -1 is the last layer.",
                 "oneOf": [{"type": "integer"},
                           {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}},
                           {"type": "string"},
                           {"type": "object", "additionalProperties": false, "minProperties": 1,
                            "properties": {
                              "layers": {"type": "array", "items": {"type": "integer"}},
                              "ranges": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}}}]},
      "heads": {"description": "At attn_z alone: the op works on the row of these heads side by side. A head, a list, \"all\", \"0,2-3,-1\", or ranges with both ends in; -1 is the layer's last head.",
                 "oneOf": [{"type": "integer"},
                           {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}},
                           {"type": "string"},
                           {"type": "object", "additionalProperties": false, "minProperties": 1,
                            "properties": {
                              "heads": {"type": "array", "items": {"type": "integer"}},
                              "ranges": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}}}]},
      "stream": {"$ref": "#/components/schemas/SteeringStream"},
      "vector": {"$ref": "#/components/schemas/SteeringVector"},
      "source": {"description": "Of a patch, in place of vector.",
                 "oneOf": [{"type": "string", "enum": ["zeros"]},
                           {"type": "object", "required": ["module"], "additionalProperties": false,
                            "properties": {"module": {"type": "string"}}},
                           {"type": "object", "required": ["request", "positions"], "additionalProperties": false,
                            "description": "Rows that a finished request kept (consumer kept); each position is put in at one of dest.",
                            "properties": {
                              "request": {"type": "string"}, "choice": {"type": "integer", "default": 0},
                              "positions": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "integer"}}}},
                           {"$ref": "#/components/schemas/SteeringVector"}]},
      "dest": {"description": "Positions of the prompt that a patch from a request goes to; by default those of the source.",
               "type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "integer"}},
      "scale": {"type": "number", "default": 1, "description": "s of the op's formula."},
      "target": {"$ref": "#/components/schemas/SteeringVector"},
      "mean": {"oneOf": [{"type": "number"}, {"$ref": "#/components/schemas/SteeringVector"}]},
      "coefficient": {"type": "number"},
      "angle": {"type": "number", "description": "Degrees."},
      "mode": {"type": "string", "enum": ["to", "by"], "default": "to"},
      "adaptive": {"type": "boolean", "default": false},
      "only_if_grew": {"type": "boolean", "default": false},
      "lo": {"type": "number"},
      "hi": {"type": "number"},
      "value": {"type": "number"},
      "select": {"$ref": "#/components/schemas/SteeringSelector"},
      "gate": {"$ref": "#/components/schemas/SteeringGate"}
    }
  },
  "SteeringExperts": {
    "type": "object",
    "required": ["op", "site"],
    "anyOf": [{"required": ["activate"]}, {"required": ["deactivate"]}],
    "additionalProperties": false,
    "description": "Which experts the routers of mixtures of experts choose before all others, and which behind them.",
    "properties": {
      "op": {"type": "string", "enum": ["experts"]},
      "site": {"type": "string", "description": "router_logits, router_logits.L or blocks.L.hook_router_logits."},
      "layers": {"description": "A layer, a list, \"all\", \"4,8-12,-1\", or ranges with both ends in; -1 is the last layer.",
                 "oneOf": [{"type": "integer"},
                           {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}},
                           {"type": "string"},
                           {"type": "object", "additionalProperties": false, "minProperties": 1,
                            "properties": {
                              "layers": {"type": "array", "items": {"type": "integer"}},
                              "ranges": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}}}]},
      "activate": {"$ref": "#/components/schemas/SteeringExpertList"},
      "deactivate": {"$ref": "#/components/schemas/SteeringExpertList"},
      "select": {"$ref": "#/components/schemas/SteeringSelector"},
      "gate": {"$ref": "#/components/schemas/SteeringGate"}
    }
  },
  "SteeringExpertList": {
    "description": "Numbers of experts, in the forms of layers but for \"all\"; -1 is the last one.",
    "oneOf": [{"type": "integer"},
              {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}},
              {"type": "string"},
              {"type": "object", "additionalProperties": false, "minProperties": 1,
               "properties": {
                 "experts": {"type": "array", "items": {"type": "integer"}},
                 "ranges": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}}}]
  },
  "SteeringFeature": {
    "type": "object",
    "required": ["op", "dictionary"],
    "anyOf": [{"required": ["feature", "kind", "value"]},
              {"required": ["mode"], "properties": {"mode": {"enum": ["full"]}}}],
    "additionalProperties": false,
    "properties": {
      "op": {"type": "string", "enum": ["feature"]},
      "dictionary": {"type": "string", "description": "A registered dictionary."},
      "layer": {"type": "integer", "description": "Where the dictionary has several layers."},
      "feature": {"type": "integer", "minimum": 0},
      "kind": {"type": "string", "enum": ["set", "add", "multiply", "min", "max"]},
      "value": {"type": "number"},
      "only_if_active": {"type": "boolean", "default": false},
      "mode": {"type": "string", "enum": ["delta", "full"], "default": "delta"},
      "select": {"$ref": "#/components/schemas/SteeringSelector"},
      "gate": {"$ref": "#/components/schemas/SteeringGate"}
    }
  },
  "SteeringVector": {
    "oneOf": [
      {"type": "array", "items": {"type": "number"}},
      {"type": "array", "items": {"type": "array", "items": {"type": "number"}},
       "description": "A vector a layer; the axes of an ablation."},
      {"type": "object", "required": ["dtype", "shape", "data"], "additionalProperties": false,
       "properties": {
         "dtype": {"type": "string", "enum": ["float32", "float16", "bfloat16"]},
         "shape": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
         "data": {"type": "string", "contentEncoding": "base64"}}},
      {"type": "string", "description": "A module's vector at the same site and layer, or its only one."},
      {"type": "object", "required": ["name"], "additionalProperties": false,
       "properties": {"name": {"type": "string"}, "site": {"type": "string"},
                      "layer": {"type": "integer"}}}
    ]
  },
  "SteeringTier": {
    "type": "object",
    "additionalProperties": {
      "oneOf": [
        {"type": "object", "description": "By layer.",
         "additionalProperties": {
           "oneOf": [
             {"$ref": "#/components/schemas/SteeringVector"},
             {"type": "object", "required": ["vector"], "additionalProperties": false,
              "properties": {"vector": {"$ref": "#/components/schemas/SteeringVector"},
                             "scale": {"type": "number", "default": 1},
                             "stream": {"$ref": "#/components/schemas/SteeringStream"}}}]}},
        {"type": "object", "required": ["dtype", "shape", "layer_indices", "data"],
         "additionalProperties": false,
         "properties": {
           "dtype": {"type": "string", "enum": ["float32", "float16", "bfloat16"]},
           "shape": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
           "layer_indices": {"type": "array", "items": {"type": "integer"}},
           "data": {"type": "string", "contentEncoding": "base64"},
           "scales": {"type": "array", "items": {"type": "number"}},
           "stream": {"$ref": "#/components/schemas/SteeringStream"},
           "residual": {"type": "object", "description": "As captured rows have it: in place of stream."}}}
      ]
    }
  },
  "SteeringStream": {
    "description": "Of resid_pre, resid_mid and resid_post: the row of this stream, from 0, or that of each. Needed by vectors of the model's width where the residual has several streams.",
    "oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "enum": ["all"]}]
  },
  "SteeringWindow": {
    "description": "[begin, end) or a list of such; null leaves a side open. In a prompt a negative number counts from its end.",
    "type": "array"
  },
  "SteeringSelector": {
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "phase": {"type": "string", "enum": ["all", "prefill", "decode"], "default": "all"},
      "prompt": {"$ref": "#/components/schemas/SteeringWindow"},
      "generation": {"$ref": "#/components/schemas/SteeringWindow"},
      "roles": {"type": "array", "items": {"type": "string",
                "enum": ["system", "user", "assistant", "reasoning"]}},
      "token_ids": {"type": "array", "minItems": 1, "maxItems": 1024,
                    "items": {"type": "integer", "minimum": 0}},
      "special": {"type": "boolean", "default": true}
    }
  },
  "SteeringGate": {
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "probe": {"type": "object", "required": ["vector", "threshold"],
                "additionalProperties": false,
                "properties": {"vector": {"$ref": "#/components/schemas/SteeringVector"},
                               "threshold": {"type": "number"},
                               "sharpness": {"type": "number"}}},
      "prompt_score": {"type": "object", "required": ["vector", "site", "threshold"],
                       "additionalProperties": false,
                       "properties": {"vector": {"$ref": "#/components/schemas/SteeringVector"},
                                      "site": {"type": "string"}, "layer": {"type": "integer"},
                                      "stream": {"type": "integer", "minimum": 0, "description": "Of the residual."},
                                      "threshold": {"type": "number"},
                                      "sharpness": {"type": "number"}}},
      "feature": {"type": "object", "required": ["dictionary", "feature"],
                  "additionalProperties": false,
                  "properties": {"dictionary": {"type": "string"}, "layer": {"type": "integer"},
                                 "feature": {"type": "integer", "minimum": 0},
                                 "above": {"type": "number", "minimum": 0, "default": 0}}},
      "control": {"type": "object", "required": ["target", "gain", "min", "max"],
                  "additionalProperties": false,
                  "properties": {
                    "probe": {"type": "object", "required": ["vector", "site"],
                              "additionalProperties": false,
                              "properties": {"vector": {"$ref": "#/components/schemas/SteeringVector"},
                                             "site": {"type": "string"},
                                             "layer": {"type": "integer"},
                                             "stream": {"type": "integer", "minimum": 0, "description": "Of the residual."}}},
                    "feature": {"type": "object", "required": ["dictionary", "feature"],
                                "additionalProperties": false,
                                "properties": {"dictionary": {"type": "string"},
                                               "layer": {"type": "integer"},
                                               "feature": {"type": "integer", "minimum": 0}}},
                    "target": {"type": "number"}, "gain": {"type": "number"},
                    "min": {"type": "number"}, "max": {"type": "number"}}},
      "schedule": {"oneOf": [
        {"type": "object", "required": ["kind", "end", "from", "to"], "additionalProperties": false,
         "properties": {"kind": {"type": "string", "enum": ["ramp"]},
                        "begin": {"type": "integer", "default": 0}, "end": {"type": "integer"},
                        "from": {"type": "number"}, "to": {"type": "number"}}},
        {"type": "object", "required": ["kind"], "additionalProperties": false,
         "properties": {"kind": {"type": "string", "enum": ["window"]},
                        "begin": {"type": "integer", "default": 0}, "end": {"type": "integer"}}}]}
    }
  }
},
"examples": {
  "patch": {"steering": {"op": "patch", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "select": {"prompt": [-1, null]}}},
  "patch_zeros": {"steering": {"op": "patch", "site": "attn_out", "layers": [3, 4], "source": "zeros"}},
  "patch_heads": {"steering": {"op": "patch", "site": "attn_z", "layers": [3, 4], "heads": [0, -1], "source": "zeros"}},
  "ablate": {"steering": {"op": "ablate", "site": "resid_pre", "layers": "all", "vector": [0.5, -1, 0.25, 2]}},
  "ablate_subspace": {"steering": {"op": "ablate", "site": "resid_pre", "layers": "all", "vector": [[0.5, -1, 0.25, 2], [1, 0, 0, 1]]}},
  "mean_ablate": {"steering": {"op": "mean_ablate", "site": "resid_post", "layers": [8, 9], "vector": [0.5, -1, 0.25, 2], "mean": 0.75}},
  "orthogonal": {"steering": {"op": "orthogonal", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "coefficient": 1.75}},
  "swap": {"steering": {"op": "swap", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "target": [1, 0, 0, 1]}},
  "rotate": {"steering": {"op": "rotate", "site": "resid_mid", "layers": "all", "vector": [0.5, -1, 0.25, 2], "target": [1, 0, 0, 1], "angle": 200, "adaptive": true}},
  "add": {"steering": {"op": "add", "site": "resid_post", "layers": [10, 11], "vector": [0.5, -1, 0.25, 2], "scale": 4}},
  "add_norm": {"steering": {"op": "add_norm", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "scale": 0.1}},
  "add_renorm": {"steering": {"op": "add_renorm", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "scale": 4}},
  "clamp": {"steering": {"op": "clamp", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "lo": -1, "hi": 1}},
  "cap": {"steering": {"op": "cap", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "hi": 3}},
  "set": {"steering": {"op": "set", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "value": 6}},
  "experts": {"steering": {"op": "experts", "site": "router_logits", "layers": "all", "activate": [1], "deactivate": [0, 2]}},
  "router_bias": {"steering": {"op": "add", "site": "router_logits", "layers": "all", "vector": [0.5, -1, 0.25, 2]}},
  "feature": {"steering": {"op": "feature", "dictionary": "sae", "feature": 3, "kind": "add", "value": 4}},
  "feature_full": {"steering": {"op": "feature", "dictionary": "sae", "feature": 3, "kind": "set", "value": 4, "mode": "full"}},
  "sae_full_reconstruction_specs": {"sae_full_reconstruction_specs": [{"module_name": "sae", "phase": "decode", "clamps": {"resid_post": {"10": [{"feature_idx": 3, "kind": "absolute", "value": 4}]}}}]},
  "feature_gate": {"steering": {"op": "add", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "gate": {"feature": {"dictionary": "sae", "feature": 3, "above": 0.5}}}},
  "sae_clamp_specs": {"sae_clamp_specs": [{"module_name": "sae", "phase": "decode", "clamps": {"resid_post": {"10": [{"feature_idx": 3, "kind": "additive", "value": 4}]}}}]},
  "probe_gate": {"steering": {"op": "add", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "gate": {"probe": {"vector": [1, 0, 0, 1], "threshold": 0.3, "sharpness": 4}}}},
  "prompt_score_gate": {"steering": {"op": "add", "site": "resid_post", "layers": 12, "vector": [0.5, -1, 0.25, 2], "gate": {"prompt_score": {"vector": [1, 0, 0, 1], "site": "resid_post", "layer": 6, "threshold": 0.3}}}},
  "control": {"steering": {"op": "add", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "gate": {"control": {"probe": {"vector": [1, 0, 0, 1], "site": "resid_post", "layer": 12}, "target": 3, "gain": 0.5, "min": 0, "max": 4}}}},
  "ramp": {"steering": {"op": "add", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "select": {"phase": "decode"}, "gate": {"schedule": {"kind": "ramp", "begin": 0, "end": 32, "from": 0, "to": 1}}}},
  "windows": {"steering": {"op": "add", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "select": {"prompt": [[0, 4], [-1, null]], "generation": [0, 16]}}},
  "roles": {"steering": {"op": "add", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "select": {"roles": ["user", "assistant"]}}},
  "token_ids": {"steering": {"op": "add", "site": "resid_post", "layers": 10, "vector": [0.5, -1, 0.25, 2], "select": {"token_ids": [7, 42], "special": false}}},
  "tiers": {"steering_vectors": {"resid_post": {"10": [0.5, -1, 0.25, 2]}}, "decode_steering_vectors": {"resid_mid": {"11": {"vector": [1, 0, 0, 1], "scale": -2}}}},
  "packed": {"steering_vectors": {"resid_post": {"dtype": "float32", "shape": [2, 4], "layer_indices": [10, 11], "data": "AAAAPwAAgL8AAIA+AAAAQAAAgD8AAAAAAAAAAAAAgD8=", "scales": [1, 0.5]}}}
}
})json";

}  // namespace

std::string_view steering_schema() {
  return kSchema;
}

}  // namespace rudder::steer
