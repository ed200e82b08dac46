"""Wrong requests, from what /openapi.json says of each endpoint and from bodies that are right.

A body is changed at one place or at two: a field is set to a boundary value of its range, to a value of another type,
to text that is not Unicode, to something very deep or long; it is left out, doubled, renamed. Other cases are wrong as
JSON, as a path, or as a method. All of it follows from a seed.
"""

import copy
import dataclasses
import json
import random
import re

# Fields under which a request may rightly run for long: such an answer is not waited for.
LONG = {"n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "ignore_eos", "prompt",
        "stop", "stop_token_ids", "tools", "response_format", "structured_outputs", "steering", "input"}
ADMIN = "/v1/steering/"  # what changes the server for everyone


class Raw(bytes):
    """JSON text as it stands, right or wrong."""

    def __deepcopy__(self, memo):
        return self


@dataclasses.dataclass
class Case:
    kind: str
    method: str
    path: str
    body: bytes | None
    roots: tuple = ()  # top-level fields that were changed
    fields: tuple = ()  # of the header, beside the usual ones

    def describe(self):
        body = "" if self.body is None else self.body[:300].decode("utf-8", "backslashreplace")
        return f"{self.kind}: {self.method} {self.path[:200]} {dict(self.fields) or ''} {body}"


def dump(value):
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        return b"{" + b",".join(dump(k) + b":" + dump(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(dump, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def nested(depth, left=b"[", right=b"]"):
    return Raw(left * depth + right * depth)


HOSTILE = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1.0000001, 2**31 - 1, 2**31, -2**31 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    -2**63 - 1, 10**40, Raw(b"1e308"), Raw(b"1e400"), Raw(b"-1e400"), Raw(b"1e-400"), Raw(b"NaN"), Raw(b"Infinity"),
    Raw(b"-0"), Raw(b"0x10"), Raw(b"01"), Raw(b"1" + b"0" * 400), Raw(b"0." + b"0" * 400 + b"1"),
    "", " ", "a", "0", "null", "true", "auto", "none", "\u0000", "\u202e\u0000\ufffe", "🂡" * 9, "a" * 5000, "{{", "<|im_end|>",
    "../../etc/passwd", "%s%n", Raw(rb'"\ud800"'), Raw(rb'"\udc00\ud800"'), Raw(b'"\xff\xfe"'), Raw(b'"\xc0\x80"'),
    Raw(b'"\xed\xa0\x80"'), Raw(b'"a\nb"'), Raw(b"'a'"),
    [], [[]], [None], [0], [-1], [1.5], [True], [""], ["a"], ["a", 0], [{}], [2**31], [2**63], list(range(300)), ["a"] * 300,
    {}, {"": None}, {"a": 1}, {"type": "x"}, {"type": None}, {"type": []}, {"0": 1e9}, {"-1": 0}, {"name": ""},
    Raw(b'{"a":1,"a":2}'), nested(40), nested(80), nested(20_000), nested(60, b'{"a":', b"}").replace(b":}", b":1}"),
]
HOSTILE = [Raw(value) if type(value) is bytes else value for value in HOSTILE]
BIG = [Raw(b"[" + b",".join([b"0"] * 50_000) + b"]"), Raw(b'"' + b"a " * 100_000 + b'"'), Raw(b'[' + b'"a",' * 20_000 + b'"a"]'),
       Raw(b"{" + b",".join(b'"%d":0' % i for i in range(20_000)) + b"}")]

PROMPT = {"prompt": "A boat", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
VECTOR = Raw(dump([0.5] * 256))
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}}}
STEERING = [
    {"op": "add", "site": "resid_post", "layers": [3, 4], "vector": VECTOR, "scale": 2,
     "select": {"phase": "decode", "prompt": [[0, 4], [-8, None]]},
     "gate": {"probe": {"vector": VECTOR, "threshold": 0.3, "sharpness": 4}}},
    {"name": "mood", "scale": 0.5}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": [1, 2]}},
          "required": ["a"], "additionalProperties": False}
GENERATION = [
    {"stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"5": 1}, "stop": ["x", "y"], "seed": 1},
    {"steering": STEERING},
    {"steering_vectors": {"resid_post": {"3": VECTOR}}, "decode_steering_vectors": {
        "resid_post": {"dtype": "float16", "shape": [1, 256], "data": "AAAA" * 170 + "AAA=", "layer_indices": [1]}}},
    {"capture": {"response": {"sites": {"resid_post": [5], "resid_mid": {"ranges": [[2, 4]]}}, "positions": [0, -1],
                              "point": "post", "values": ["probes", "norms"], "probes": {"p": VECTOR}}}},
    {"steering": {"op": "feature", "dictionary": "sae", "feature": 1, "kind": "add", "value": 2, "only_if_active": False,
                  "select": {"phase": "decode"}, "gate": {"feature": {"dictionary": "sae", "feature": 2, "above": 0.5}}},
     "sae_clamp_specs": [{"module_name": "sae", "phase": "both", "clamps": {"resid_post": {"3": [
         {"feature_idx": 3, "kind": "additive", "value": -1, "only_if_active": False}]}}}]},
    {"structured_outputs": {"regex": "a+b"}},
    {"allowed_token_ids": [5, 6, 7], "bad_words": ["boat"], "repetition_detection": {"max_pattern_size": 3, "min_count": 2}},
]
SEEDS = {
    "/v1/completions": [PROMPT, PROMPT | {"prompt": [1, 2, 3], "echo": True, "logprobs": 2}, PROMPT | {"prompt": ["a", "b"], "n": 2},
                        *(PROMPT | each for each in GENERATION)],
    "/v1/chat/completions": [
        CHAT, CHAT | {"logprobs": True, "top_logprobs": 3, "chat_template_kwargs": {"a": 1}},
        CHAT | {"messages": [{"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "user", "content": "q"},
                             {"role": "assistant", "content": None, "tool_calls": [
                                 {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{\"a\": 1}"}}]},
                             {"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "user", "content": "u"}],
                "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        CHAT | {"tools": [{"type": "function", "function": {**TOOL["function"], "strict": True}}], "parallel_tool_calls": False},
        CHAT | {"tools": [TOOL], "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        CHAT | {"steering": {"op": "clamp", "site": "attn_out", "layers": "all", "vector": VECTOR, "lo": 0, "hi": 1,
                             "select": {"roles": ["user", "assistant"]}}},
        *(CHAT | each for each in GENERATION)],
    "/v1/responses": [{"input": "Hi", "max_output_tokens": 16}, {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "instructions": "i", "max_output_tokens": 16,
        "tools": [{"type": "function", **TOOL["function"]}], "text": {"format": {"type": "text"}}, "stream": True}],
    "/v1/messages": [{"model": "rudder-demo", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}, {
        "model": "rudder-demo", "max_tokens": 2, "system": [{"type": "text", "text": "s"}], "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stop_sequences": ["x"],
        "tools": [{"name": "look", "input_schema": TOOL["function"]["parameters"]}], "tool_choice": {"type": "auto"}}],
    "/v1/embeddings": [{"input": "Hi"}, {"input": ["a", "b"], "encoding_format": "base64"}, {"input": [[1, 2], [3]]},
                       {"input": "Hello", "truncate_prompt_tokens": 1, "truncation_side": "right", "cache_salt": "s"}],
    "/tokenize": [{"prompt": "a"}, {"messages": CHAT["messages"], "tools": [TOOL]}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/v1/steering/modules": [{"name": "attack", "replace": True, "steering": STEERING[:1]}],
    "/v1/steering/modules/register": [{"name": "attack", "replace": True, "vectors": {"resid_post": {"3": VECTOR}}}],
    "/v1/steering/modules/unregister": [{"name": "attack"}],
    "/v1/steering/dictionaries": [{"name": "attack", "path": "sae", "site": "resid_post.3", "replace": True}],
    "/v1/steering/set": [{"steering": STEERING[:1], "replace": True}],
}
for like, other in (("/v1/chat/completions", "/v1/chat/completions/render"), ("/v1/completions", "/v1/completions/render"),
                    ("/v1/messages", "/v1/messages/count_tokens")):
    SEEDS[other] = SEEDS[like]


class Document:
    """What /openapi.json says of bodies."""

    def __init__(self, document):
        self.document = document
        self.operations = [(method.upper(), path) for path, item in document["paths"].items() for method in item
                           if method in ("get", "post", "delete")]

    def parts(self, schema):
        """The schema and all that it refers to, joins or offers."""
        if "$ref" in schema:
            node = self.document
            for step in schema["$ref"].removeprefix("#/").split("/"):
                node = node[step]
            yield from self.parts(node)
            return
        yield schema
        for word in ("allOf", "oneOf", "anyOf"):
            for part in schema.get(word, []):
                yield from self.parts(part)

    def body(self, path):
        """The schema of the body."""
        body = self.document["paths"][path]["post"].get("requestBody", {})
        return body.get("content", {}).get("application/json", {}).get("schema", {})

    def fields(self, schema, path=(), depth=0):
        """(path, its schema) of every field that is named."""
        if depth > 6 or not isinstance(schema, dict):
            return
        for part in self.parts(schema):
            for name, below in part.get("properties", {}).items():
                yield (*path, name), below
                yield from self.fields(below, (*path, name), depth + 1)
            if isinstance(part.get("items"), dict):
                yield from self.fields(part["items"], (*path, 0), depth + 1)
            if isinstance(part.get("additionalProperties"), dict):
                yield from self.fields(part["additionalProperties"], (*path, "resid_post"), depth + 1)

    def values(self, schema):
        """Values at the edges of what the schema allows."""
        for part in self.parts(schema if isinstance(schema, dict) else {}):
            step = 1 if part.get("type") == "integer" else 1e-6
            for edge in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
                if isinstance(part.get(edge), (int, float)):
                    yield from (part[edge] - step, part[edge], part[edge] + step)
            for edge in ("maxLength", "maxItems", "maxProperties"):
                for size in (part.get(edge), part.get(edge, 0) + 1):
                    if size and size < 100_000:
                        yield {"maxLength": "a" * size, "maxItems": ["a"] * size,
                               "maxProperties": {str(i): 0 for i in range(size)}}[edge]
            for word in part.get("enum", []):
                yield word
                yield f"{word}x"
            if "default" in part:
                yield part["default"]


def with_value(body, path, value):
    """The body with `value` at `path`; what is missing on the way is made."""
    body = copy.deepcopy(body)
    node = body
    for step, following in zip(path, path[1:]):
        empty = [] if following == 0 else {}
        if isinstance(node, list):
            if not node:
                node.append(empty)
            below = node[0]
        else:
            below = node.setdefault(step, empty)
        if not isinstance(below, type(empty)):
            below = empty
            if isinstance(node, list):
                node[0] = below
            else:
                node[step] = below
        node = below
    if isinstance(node, list):
        node[:1] = [value]
    else:
        node[path[-1]] = value
    return body


def places(node, path=()):
    """Paths of everything in a body."""
    items = node.items() if isinstance(node, dict) else enumerate(node[:3]) if isinstance(node, list) else ()
    for step, below in items:
        yield (*path, step)
        if not (isinstance(below, list) and len(below) > 100):
            yield from places(below, (*path, step))


def at(node, path):
    for step in path:
        node = node[step]
    return node


def changed(body, path, change):
    """The body with `change(parent, step)` done to a copy of it."""
    body = copy.deepcopy(body)
    change(at(body, path[:-1]), path[-1])
    return body


def delete(parent, step):
    del parent[step]


def rename(parent, step):
    if isinstance(parent, dict):
        parent[f"{step}_"] = parent.pop(step)


class Cases:
    """All single changes of all endpoints, and as many others as are asked for."""

    def __init__(self, document, seeds, seed=0):
        """`seeds`: right bodies of each endpoint."""
        self.random = random.Random(seed)
        self.document = Document(document)
        self.seeds = {}
        self.edits = {}  # path of the endpoint -> [(path in the body, schema or None)]
        for method, path in self.document.operations:
            if method != "POST":
                continue
            self.seeds[path] = seeds.get(path) or [{}]
            fields = dict(self.document.fields(self.document.body(path)))
            own = {place: None for each in self.seeds[path] for place in places(each)}
            # A body that has no fields is given one.
            self.edits[path] = list((own | fields).items()) or [(("a",), None)]

    def values(self, schema):
        return HOSTILE if schema is None else [*HOSTILE, *self.document.values(schema)]

    def seed_with(self, endpoint, place):
        """A right body that has the place, where there is one."""
        fitting = [seed for seed in self.seeds[endpoint] if place[0] in seed]
        return self.random.choice(fitting or self.seeds[endpoint])

    def singles(self, endpoints):
        """(how, endpoint, place, value) of each single change."""
        for endpoint in endpoints:
            for place, schema in self.edits[endpoint]:
                for value in self.values(schema):
                    yield "single", endpoint, place, value
            for seed in self.seeds[endpoint]:
                for place in places(seed):
                    yield "delete", endpoint, place, seed
                    yield "rename", endpoint, place, seed

    def single(self, how, endpoint, place, value):
        if how == "single":
            how = "null" if value is None else how  # as if it were left out
            body = with_value(self.seed_with(endpoint, place), place, value)
        else:
            body = changed(value, place, {"delete": delete, "rename": rename}[how])
        return Case(how, "POST", endpoint, dump(body), (place[0],))

    def pair(self, endpoint):
        body = self.random.choice(self.seeds[endpoint])
        roots = []
        for _ in range(2):
            place, schema = self.random.choice(self.edits[endpoint])
            body = with_value(body, place, self.random.choice(self.values(schema)))
            roots.append(place[0])
        return Case("pair", "POST", endpoint, dump(body), tuple(roots))

    def big(self, endpoint):
        place, _ = self.random.choice(self.edits[endpoint])
        body = with_value(self.seed_with(endpoint, place), place, self.random.choice(BIG))
        return Case("big", "POST", endpoint, dump(body), (place[0],))

    def syntax(self, endpoint):
        """Bytes that are wrong as JSON, or right in an unusual way."""
        body = dump(self.random.choice(self.seeds[endpoint]))
        where = self.random.randrange(len(body))
        byte = bytes([self.random.randrange(256)])
        made = self.random.choice([
            lambda: body[:where],
            lambda: body[:where] + byte + body[where + 1:],
            lambda: body[:where] + byte + body[where:],
            lambda: body + self.random.choice([b"}", b"{}", b"\0", b"//", b" \n\t", b",", b"\xff"]),
            lambda: self.random.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"/**/", b"\0", b" " * 3000]) + body,
            lambda: body.decode().encode("utf-16"),
            lambda: body[:-1] + b',"max_tokens":3' * self.random.randrange(1, 50) + b"}",
            lambda: body[:-1] + b',"\\u006dax_tokens":' + byte + b"}",
            lambda: body[:-1] + b',"max_tokens":2,}',
            lambda: self.random.choice([b"", b"null", b"[]", b"0", b'"a"', b"[" * 100_000, b'{"a":' * 50_000, b"{" * 3000]),
        ])()
        return Case("syntax", "POST", endpoint, made)

    def header(self, endpoint):
        body = dump(self.random.choice(self.seeds[endpoint]))
        field = self.random.choice([
            ("Content-Type", None), ("Content-Type", "text/plain"), ("Content-Type", "application/json;charset=\xff"),
            ("Content-Type", "application/jsonx"), ("Authorization", "Bearer \xff"), ("Authorization", "Basic " + "A" * 4000),
            ("X-Request-Id", "\xff" * 50), ("X-Request-Id", "a" * 5000), ("Accept", "\x7f"), ("Accept-Encoding", "gzip, *;q=0"),
            ("Origin", "null"), ("Cookie", "a=b; " * 1000), ("Expect", "200-ok"), ("Connection", "upgrade"), ("Upgrade", "h2c"),
            ("Content-Encoding", "gzip"), ("Range", "bytes=0-1"), ("Host", ""), ("If-None-Match", "*")])
        return Case("header", "POST", endpoint, body, fields=(field,))

    def path(self, admin):
        """A method or a path that nothing is under, or nearly something."""
        method, path = self.random.choice([each for each in self.document.operations if each[1].startswith(ADMIN) == admin])
        tail = self.random.choice(["", "a", "%00", "%ff", "%2e%2e", "..", "%", "%g0", "a" * 4000, "é", "a/b", "-1"])
        path = re.sub(r"\{\w+\}", lambda _: tail, path)
        method, path = self.random.choice([
            (method, path), (self.random.choice(["PUT", "PATCH", "TRACE", "get", "FOO", "OPTIONS", "HEAD", "DELETE"]), path),
            (method, path + "/"), (method, "/" + path), (method, path + "?a=%00&" + "b" * 2000), (method, path.upper()),
            (method, path + "%00"), (method, path.replace("/v1", "/v1/../v1")), (method, path + ";x"), (method, "/" + tail),
            (method, "http://other.example" + path), (method, "*")])
        return Case("path", method, path, b"{}" if method in ("POST", "PUT", "PATCH", "DELETE") else None)

    def take(self, count, admin):
        """(how many single changes there are, `count` cases as an iterator): of endpoints that change the server for
        everyone, or of all others. All single changes come before any comes twice."""
        endpoints = [path for path in self.edits if path.startswith(ADMIN) == admin]
        singles = list(self.singles(endpoints))
        self.random.shuffle(singles)
        plans = [lambda each=each: self.single(*each) for each in singles[:count * 6 // 10]]
        makers = self.random.choices([self.pair, self.syntax, self.header, self.big, self.path], [20, 8, 3, 1, 3],
                                     k=count - len(plans))
        for maker in makers:
            if maker == self.path:
                plans.append(lambda: self.path(admin))
            else:
                plans.append(lambda maker=maker: maker(self.random.choice(endpoints)))
        self.random.shuffle(plans)
        return len(singles), (plan() for plan in plans)
