"""Right bodies of each endpoint, which the wrong ones are made from.

Between them they have every field of docs/api.md and docs/steering.md, every op, gate, selection and form of vectors,
every form of output, every keyword of JSON Schema that is enforced, and every kind of message, block and item.
"""

from invalid.raw import Raw, dump

ADMIN = "/v1/steering/"  # what changes the server for everyone
WIDTH = 256  # of the demo model

VECTOR = Raw(dump([0.5] * WIDTH))
PACKED = {"dtype": "float16", "shape": [1, WIDTH], "data": "AAAA" * 170 + "AAA="}
PROMPT = {"prompt": "A boat", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


# Steering and capture.
def op(name, **fields):
    return {"op": name, "site": "resid_post", "layers": [3, 4], "vector": VECTOR, **fields}


STEERING = [
    op("add", scale=2, select={"phase": "decode", "prompt": [[0, 4], [-8, None]]},
       gate={"probe": {"vector": VECTOR, "threshold": 0.3, "sharpness": 4}}),
    {"name": "mood", "scale": 0.5}]
OPS = [
    op("patch", select={"prompt": [-1, None]}), op("patch", vector=None, source="zeros"),
    op("patch", vector=None, source={"module": "mood"}), op("ablate", layers="all", site="resid_pre"),
    op("ablate", vector=[VECTOR, Raw(dump([1, *[0] * (WIDTH - 1)]))]), op("mean_ablate", mean=0.75), op("mean_ablate", mean=VECTOR),
    op("orthogonal", coefficient=1.75), op("swap", target=Raw(dump([1, *[0] * (WIDTH - 1)]))),
    op("rotate", target=Raw(dump([1, *[0] * (WIDTH - 1)])), angle=20, mode="by"),
    op("rotate", target=Raw(dump([1, *[0] * (WIDTH - 1)])), angle=20, mode="to", scale=0.5), op("add_norm", scale=0.1),
    op("add_renorm", only_if_grew=True), op("clamp", site="attn_out", lo=-1, hi=1), op("cap", hi=3), op("set", value=6),
    op("add", vector=PACKED, layers={"layers": [4], "ranges": [[1, 2]]}), op("add", vector="mood", site="resid_post.5", layers=None),
    op("add", vector={"name": "mood", "site": "resid_post", "layer": 5}, layers="0-2,-1", site="post_attn"),
    op("add", site="blocks.1.hook_resid_mid", layers=None),
    op("patch", site="attn_z", heads={"heads": [0], "ranges": [[1, -1]]}, vector=None, source="zeros"),
    op("ablate", site="blocks.3.attn.hook_z", layers=None, heads="all"),
    op("patch", vector=None, source={"request": "cmpl-kept", "choice": 0, "positions": [0, -1]}, dest=[0, 1])]
KEPT = {"prompt": "A boat", "max_tokens": 1, "request_id": "kept", "capture": {"kept": {"sites": {"resid_post": [3, 4]}, "positions": "all_prompt"}}}
GATES = [
    op("add", gate={"prompt_score": {"vector": VECTOR, "site": "resid_post", "layer": 1, "threshold": 0.3, "sharpness": 2}}),
    op("add", gate={"schedule": {"kind": "ramp", "begin": 0, "end": 32, "from": 0, "to": 1}}),
    op("add", gate={"control": {"probe": {"vector": VECTOR, "site": "resid_post", "layer": 1}, "target": 3, "gain": 0.5, "min": 0, "max": 2}}),
    op("set", gate={"control": {"feature": {"dictionary": "sae", "feature": 2}, "target": 1, "gain": -2, "min": -1, "max": 1},
                    "schedule": {"kind": "window", "end": 4}}, value=2),
    op("add", select={"token_ids": [1, 7], "special": False}),
    op("add", gate={"schedule": {"kind": "window", "begin": 1, "end": 3}, "probe": {"vector": VECTOR, "threshold": 0.1}},
       select={"generation": [0, 16]})]
TIERS = [
    {"steering_vectors": {"resid_post": {"3": VECTOR, "4": {"vector": VECTOR, "scale": -2}}},
     "prefill_steering_vectors": {"attn_out": {"1": VECTOR}},
     "decode_steering_vectors": {"resid_post": PACKED | {"layer_indices": [1], "scales": [0.5]}}},
    {"steering_vectors_packed": {"resid_mid": PACKED | {"layer_indices": [2]}},
     "prefill_steering_vectors_packed": {"mlp_out": {"1": VECTOR}}, "decode_steering_vectors_packed": {"resid_post.4": VECTOR}},
    {"steering_name": "mood"}]
FEATURES = [
    {"steering": {"op": "feature", "dictionary": "sae", "feature": 1, "kind": "add", "value": 2, "only_if_active": False,
                  "select": {"phase": "decode"}, "gate": {"feature": {"dictionary": "sae", "feature": 2, "above": 0.5}}}},
    {"sae_clamp_specs": [{"module_name": "sae", "phase": "both", "clamps": {"resid_post": {"3": [
        {"feature_idx": 3, "kind": "additive", "value": -1, "only_if_active": False}]}}}]},
    {"steering": {"op": "feature", "dictionary": "sae", "layer": 3, "feature": 1, "kind": "set", "value": 2, "mode": "full"}},
    {"steering": {"op": "feature", "dictionary": "sae", "mode": "full", "select": {"phase": "prefill"}}},
    {"sae_full_reconstruction_specs": [{"module_name": "sae", "phase": "decode", "clamps": {"resid_post": {"3": [
        {"feature_idx": 2, "kind": "absolute", "value": 1, "only_if_active": True}]}}}]}]
STOPS = [{"probe": {"vector": VECTOR, "site": "resid_post", "layer": 3}, "above": 0.5, "for": 2},
         {"probe": {"vector": "mood", "site": "resid_post.5"}, "above": 0.5}, {"feature": {"dictionary": "sae", "feature": 1}, "above": 2}]
CAPTURES = [
    {"sites": {"resid_post": [5], "resid_mid": {"ranges": [[2, 4]]}}, "positions": [0, -1], "point": "post",
     "values": ["probes", "norms"], "probes": {"p": VECTOR}, "measure": "cosine"},
    {"sites": {"final_norm": True}, "positions": {"from": -2}, "values": ["rows"], "dtype": "float32"},
    {"sites": {"blocks.1.hook_mlp_out": True, "attn_out": "0-2,-1"}, "positions": "all_generated", "values": ["means"]},
    {"sites": {"resid_post": 5}, "positions": "last_prompt", "values": ["probes"], "probes": {"q": "mood"}, "measure": "dot"},
    {"lens": {"layers": [2, -1], "top": 3}, "positions": "last_prompt"},
    {"sites": {"attn_z": [2, -1], "resid_post": 1}, "heads": [0, -1], "positions": "all"},
    {"patterns": {"layers": [0, -1], "heads": {"heads": [0], "ranges": [[1, 2]]}, "keys": 200}, "positions": "all"},
    {"sites": {"resid_post": 1}, "patterns": {"layers": "all"}, "positions": "last_prompt", "dtype": "float32"},
    {"sites": {"resid_post": 1}, "values": ["norms"], "lens": {"layers": "all"}, "point": "post"},
    {"dictionary": "sae", "layer": 3, "top": 2, "positions": "all"}, {"dictionary": "sae", "features": [3, 0], "positions": "last_prompt"}]

# Forms of outputs.
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": [1, 2]}},
          "required": ["a"], "additionalProperties": False}
SCHEMAS = [
    SCHEMA,
    {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "integer", "minimum": -3, "maximum": 7}, "minItems": 1,
     "maxItems": 3},
    {"$defs": {"n": {"type": "object", "properties": {"v": {"const": 1}, "n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"anyOf": [{"type": "string", "pattern": "^[a-f]{2}$"}, {"type": "null"}]},
    {"oneOf": [{"type": "string", "format": "date"}, {"type": "integer", "multipleOf": 5, "exclusiveMinimum": 0, "exclusiveMaximum": 50}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}}, {"required": ["a"]}], "minProperties": 1, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}, "additionalProperties": {"type": "number"}, "maxProperties": 2},
    {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 3},
    {"properties": {"k": {"enum": [1, 2]}, "v": {"type": "null"}}, "required": ["k"], "type": "object",
     "if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["v"]}, "else": {"not": {"required": ["v"]}}},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "dependentRequired": {"a": ["b"]}},
    {"$schema": "http://json-schema.org/draft-04/schema#", "id": "x", "type": ["number", "null"], "minimum": 0, "exclusiveMinimum": True,
     "maximum": 9, "description": "d", "nullable": True},
    {"type": "array", "items": [{"type": "null"}, {"type": "string", "minLength": 1, "maxLength": 2}], "additionalItems": False},
]
TAG = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
    {"type": "const_string", "value": "x"},
    {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</a>"},
    {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]"}, {"type": "grammar", "grammar": 'root ::= "y"'}]}]}}
TRIGGERED = {"type": "structural_tag", "format": {
    "type": "triggered_tags", "triggers": ["<f"], "at_least_one": True, "stop_after_first": True,
    "tags": [{"begin": "<f>", "content": {"type": "any_text"}, "end": "</f>"}]}}
STRUCTURES = {"type": "structural_tag", "triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]}
FORMS = [
    {"structured_outputs": {"regex": "a+b"}}, {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"grammar": 'root ::= item ("," item)*\nitem ::= [0-9]{1,3}'}}, {"structured_outputs": {"structural_tag": TAG}},
    {"structured_outputs": {"structural_tag": STRUCTURES}}, {"response_format": STRUCTURES},
    {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object", "schema": SCHEMA}}, {"response_format": TRIGGERED},
    {"regex": "[a-z]{2}"}, {"ebnf": 'root ::= "a" | Regex("[bc]")'}, {"grammar": 'root ::= "a"'}, {"json_schema": SCHEMA},
    *({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": each}}} for each in SCHEMAS)]

# What completions and chat both take.
GENERATION = [
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "logit_bias": {"5": 1}, "stop": ["x", "y"],
     "seed": 1, "sse_ping_interval": 5, "include_stop_str_in_output": True, "stop_token_ids": [7]},
    {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1,
     "min_tokens": 1, "ignore_eos": True, "length_penalty": 1, "n": 2, "prompt_logprobs": 1, "return_tokens_as_token_ids": True},
    {"allowed_token_ids": [5, 6, 7], "bad_words": ["boat"], "thinking_token_budget": 5,
     "repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 2}},
    {"request_id": "r", "priority": 3, "timeout": 30, "disable_spec_decode": True, "cache_salt": "s", "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto",
     "safety_identifier": "i", "prompt_cache_key": "k", "vllm_xargs": {"a": 1}, "spaces_between_special_tokens": True},
    {"truncate_prompt_tokens": 1, "truncation_side": "right", "add_special_tokens": True, "skip_special_tokens": False, "return_token_ids": True,
     "model": "rudder-demo"},
    {"steering": STEERING, "steering_pair": True, "return_steered_tokens": True}, *({"stop_when": each} for each in STOPS), *({"steering": each} for each in OPS + GATES), *TIERS, *FEATURES,
    *({"capture": {"response": each}, "capture_wait": True} for each in CAPTURES), *FORMS]

# Tools and conversations.
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
NAMED = {"type": "function", "function": {"name": "look"}}
TURNS = [{"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "user", "content": "q"},
         {"role": "assistant", "content": None, "reasoning_content": "t", "tool_calls": [
             {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{\"a\": 1}"}}]},
         {"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "user", "content": "u"}]
PARTS = [{"role": "developer", "content": "d"}, {"role": "user", "name": "n", "content": [
    {"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "no"}]},
    {"role": "user", "content": "u"}]
CHATS = [
    {"logprobs": True, "top_logprobs": 3, "chat_template_kwargs": {"enable_thinking": True}, "documents": [{"title": "t", "text": "x"}]},
    {"messages": TURNS, "tools": [TOOL], "tool_choice": NAMED},
    {"messages": PARTS, "reasoning_effort": "low", "include_reasoning": False, "separate_reasoning": False, "return_prompt_text": True},
    {"messages": [*CHAT["messages"], {"role": "assistant", "content": "It"}], "continue_final_message": True, "add_generation_prompt": False,
     "echo": True},
    {"tools": [STRICT], "parallel_tool_calls": False, "tool_choice": "auto"}, {"tools": [TOOL, STRICT | {"function": {**STRICT["function"], "name": "b"}}],
                                                                              "tool_choice": "required", "stream": True},
    {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
    {"tools": [TOOL], "tool_choice": "none", "max_completion_tokens": 3},
    {"tools": [TOOL], "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    {"steering": op("clamp", lo=0, hi=1, select={"roles": ["user", "assistant", "reasoning", "system"]})}]

RESPONSES = [
    {"input": "Hi"},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "instructions": "i", "stream": True,
     "tools": [{"type": "function", "strict": True, **TOOL["function"]}], "text": {"format": {"type": "text"}}},
    {"input": [{"type": "message", "role": "user", "content": "q"},
               {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
               {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
               {"type": "function_call_output", "call_id": "1", "output": "r"},
               {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
               {"type": "message", "role": "user", "content": "u"}],
     "tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "low"}},
    {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}}, "temperature": 0.5,
     "top_p": 0.9, "top_k": 3, "seed": 1, "truncation": "auto", "metadata": {"a": "b"}, "store": False, "top_logprobs": 2,
     "include": ["message.output_text.logprobs"]},
    {"input": "Hi", "background": True}, {"input": "Hi", "steering": STEERING}]

SAY = {"role": "user", "content": "Hi"}
MESSAGES = [
    {"messages": [SAY]},
    {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], "stream": True,
     "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stop_sequences": ["x"],
     "tools": [{"name": "look", "input_schema": TOOL["function"]["parameters"]}], "tool_choice": {"type": "auto"}},
    {"messages": [SAY, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "1", "name": "look", "input": {"a": "b"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}], "is_error": False}]}],
     "tools": [{"name": "look", "description": "d", "input_schema": TOOL["function"]["parameters"]}],
     "tool_choice": {"type": "tool", "name": "look"}},
    {"messages": [SAY], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"},
     "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    {"messages": [SAY, {"role": "assistant", "content": "It"}]}, {"messages": [SAY], "steering": STEERING}]

SEEDS = {
    "/v1/completions": [PROMPT, PROMPT | {"prompt": [1, 2, 3], "echo": True, "logprobs": 2}, PROMPT | {"prompt": ["a", "b"], "n": 2},
                        PROMPT | {"prompt": [[1], [2, 3]], "best_of": 1},
                        PROMPT | {"prompt": "a b c", "n": 8, "best_of": 8, "echo": True, "logprobs": 3, "max_tokens": 1}, *(PROMPT | each for each in GENERATION)],
    "/v1/chat/completions": [CHAT, *(CHAT | each for each in CHATS + GENERATION)],
    "/v1/responses": [{"max_output_tokens": 16} | each for each in RESPONSES],
    "/v1/messages": [{"model": "rudder-demo", "max_tokens": 2} | each for each in MESSAGES],
    "/v1/embeddings": [{"input": "Hi"}, {"input": ["a", "b"], "encoding_format": "base64"}, {"input": [[1, 2], [3]], "user": "u"},
                       {"input": "Hello", "truncate_prompt_tokens": 1, "truncation_side": "right", "cache_salt": "s"},
                       {"input": "Hello", "steering": STEERING, "priority": 1, "add_special_tokens": False, "dimensions": WIDTH}],
    "/tokenize": [{"prompt": "a", "add_special_tokens": False, "return_token_strs": True}, {"messages": CHAT["messages"], "tools": [TOOL]}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/v1/steering/modules": [{"name": "attack", "replace": True, "steering": STEERING[:1]}, {"name": "attack", "replace": True, "steering": OPS[:4]}],
    "/v1/steering/modules/register": [{"name": "attack", "replace": True, "vectors": {"resid_post": {"3": VECTOR}}},
                                      {"name": "attack", "replace": True, "prefill_vectors": {"resid_post": {"3": VECTOR}},
                                       "decode_vectors": {"resid_mid": PACKED | {"layer_indices": [1]}}}],
    "/v1/steering/modules/unregister": [{"name": "attack"}],
    "/v1/steering/dictionaries": [{"name": "attack", "path": "sae", "site": "resid_post.3", "replace": True}],
    "/v1/steering/features/encode": [{"dictionary": "sae", "rows": [VECTOR], "top": 2}, {"dictionary": "sae", "layer": 3, "rows": PACKED},
                                     {"dictionary": "sae", "rows": [VECTOR, VECTOR], "features": [0, 3]}],
    "/v1/steering/patch_sweep": [
        {"clean": [5, 6, 7], "corrupted": [5, 8, 7], "answer": {"right": 9, "wrong": 10}, "sites": {"resid_post": [1]}, "positions": [-1, [0, 2]], "svg": True},
        {"clean": {"messages": CHAT["messages"]}, "corrupted": {"messages": [{"role": "user", "content": "Ho"}]}, "answer": {"right": 9}, "sites": {"mlp_act": "1"}, "positions": [0],
         "cache_salt": "s", "request_id": "r", "model": "rudder-demo"}],
    "/v1/steering/set": [{"steering": STEERING[:1], "replace": True}, *({"steering": each, "replace": True} for each in OPS[4:8] + GATES[1:])],
}
SEEDS["/v1/responses/compact"] = [each for each in SEEDS["/v1/responses"] if not {"stream", "background"} & set(each)]
for like, other in (("/v1/responses/compact", "/v1/responses/input_tokens"), ("/v1/chat/completions", "/v1/chat/completions/render"), ("/v1/completions", "/v1/completions/render"),
                    ("/v1/messages", "/v1/messages/count_tokens")):
    SEEDS[other] = SEEDS[like]
