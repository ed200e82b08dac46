"""Wrong requests, from what /openapi.json says of each endpoint and from bodies that are right.

A body is changed at one place or at two: a field is set to a boundary value of its range, to a value of another type,
to text that is not Unicode, to something very deep or long; it is left out, doubled, renamed, put into itself, repeated.
Other cases are wrong as JSON, as a path, or as a method, or right and framed as few clients do. All of it follows from a
seed.
"""

import copy
import dataclasses
import pathlib
import random
import re
import sys

from invalid.client import request_bytes
from invalid.raw import Raw, dump, nested
from invalid.seeds import ADMIN

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools" / "grammar_diff"))

from random_schemas import Schemas  # noqa: E402

# Fields under which a request may rightly run for long: such an answer is not waited for.
LONG = {"n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "ignore_eos", "prompt",
        "stop", "stop_token_ids", "tools", "response_format", "structured_outputs", "steering", "input"}

FORM = ("response_format", "json_schema", "schema")
TOOLS = ("tools", 0, "function", "parameters")
# Where schemas stand, by endpoint.
FORM_PLACES = {
    "/v1/completions": [FORM, ("structured_outputs", "json"), ("json_schema",)],
    "/v1/chat/completions": [FORM, TOOLS, ("response_format", "schema")],
    "/v1/responses": [("text", "format", "schema"), ("tools", 0, "parameters")],
    "/v1/messages": [("tools", 0, "input_schema"), ("output_config", "format", "schema")],
}


@dataclasses.dataclass
class Case:
    kind: str
    method: str
    path: str
    body: bytes | None
    roots: tuple = ()  # top-level fields that were changed
    fields: tuple = ()  # of the header, beside the usual ones
    framed: bytes | None = None  # the whole request, where it is framed otherwise

    def data(self):
        return self.framed or request_bytes(self.method, self.path, self.body, self.fields)

    def describe(self):
        body = "" if self.body is None else self.body[:300].decode("utf-8", "backslashreplace")
        framed = (self.framed or b"").split(b"\r\n\r\n")[0]
        return f"{self.kind}: {self.method} {self.path[:200]} {dict(self.fields) or framed or ''} {body}"


HOSTILE = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1.0000001, 2**31 - 1, 2**31, -2**31 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    -2**63 - 1, 10**40, Raw(b"1e308"), Raw(b"1e400"), Raw(b"-1e400"), Raw(b"1e-400"), Raw(b"0e999"), Raw(b"NaN"),
    Raw(b"Infinity"), Raw(b"-0"), Raw(b"0x10"), Raw(b"01"), Raw(b"1" + b"0" * 400), Raw(b"0." + b"0" * 400 + b"1"),
    Raw(b"2.0"), Raw(b"2e0"), Raw(b"20E-1"), Raw(b"-0.0"), Raw(b"4e-324"), Raw(b"1e0000000000000000000001"), Raw(b"1e99999999999999999999"),
    Raw(b"1e-99999999999999999999"), Raw(b"1." + b"9" * 400), Raw(b"0" + b"0" * 400 + b"e400"), Raw(b"1" + b"0" * 400 + b"e-400"),
    "", " ", "a", "0", "null", "true", "auto", "none", "\u0000", "\u202e\u0000\ufffe", "🂡" * 9, "a" * 5000, "{{", "<|im_end|>",
    "../../etc/passwd", "%s%n", Raw(rb'"\ud800"'), Raw(rb'"\udc00\ud800"'), Raw(b'"\xff\xfe"'), Raw(b'"\xc0\x80"'),
    Raw(b'"\xed\xa0\x80"'), Raw(b'"a\nb"'), Raw(b"'a'"), Raw(rb'["a","\udfff"]'), Raw(rb'"\ud83d\ude00\ud83d"'), Raw(rb'{"\ud800":1}'),
    Raw(rb'{"a\u0000b":{"\udc00":0}}'), Raw(b'{"\xff":1}'), Raw(rb'"\/\b\f\u007f\u2028"'), Raw(rb'"\u00"'), Raw(rb'"\x41"'),
    [], [[]], [None], [0], [-1], [1.5], [True], [""], ["a"], ["a", 0], [{}], [2**31], [2**63], list(range(300)), ["a"] * 300,
    {}, {"": None}, {"a": 1}, {"type": "x"}, {"type": None}, {"type": []}, {"0": 1e9}, {"-1": 0}, {"name": ""},
    Raw(b'{"a":1,"a":2}'), nested(40), nested(80), nested(20_000), nested(60, b'{"a":', b"}").replace(b":}", b":1}"),
]
HOSTILE = [Raw(value) if type(value) is bytes else value for value in HOSTILE]
BIG = [Raw(b"[" + b",".join([b"0"] * 50_000) + b"]"), Raw(b'"' + b"a " * 100_000 + b'"'), Raw(b'[' + b'"a",' * 20_000 + b'"a"]'),
       Raw(b"{" + b",".join(b'"%d":0' % i for i in range(20_000)) + b"}")]

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
        empty = [] if isinstance(following, int) else {}
        step = index_in(node, step)
        if isinstance(node, list) and not node:
            node.append(empty)
        below = node[step] if isinstance(node, list) else node.setdefault(step, empty)
        if not isinstance(below, type(empty)):
            below = node[step] = empty
        node = below
    step = index_in(node, path[-1])
    if isinstance(node, list):
        node[step:step + 1] = [value]
    else:
        node[step] = value
    return body


def index_in(node, step):
    """The step of a path as an index where the node is a list: of its first element where it has no such."""
    if not isinstance(node, list):
        return step
    return step if isinstance(step, int) and step < len(node) else 0


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


def has(node, path):
    try:
        at(node, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


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
        self.schemas = Schemas(self.random)
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
        fitting = [seed for seed in self.seeds[endpoint] if has(seed, place)] or [
            seed for seed in self.seeds[endpoint] if place[0] in seed]
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

    def mix(self, endpoint):
        """Right fields of several bodies in one: each pair of fields that are right alone."""
        body, *others = self.random.choices(self.seeds[endpoint], k=self.random.randint(2, 4))
        for other in others:
            body = body | {name: other[name] for name in other if self.random.random() < 0.7}
        return Case("mix", "POST", endpoint, dump(body), tuple(body))

    def form(self, endpoint):
        """A random schema, right or wrong, where an output's form or a tool's arguments stand."""
        spots = FORM_PLACES.get(endpoint)
        if spots is None:
            return self.mix(endpoint)
        schema, _ = self.schemas.draw()
        inner = [*places(schema)]
        if inner and self.random.random() < 0.5:
            schema = with_value(schema, self.random.choice(inner), self.random.choice(HOSTILE))
        place = self.random.choice(spots)
        return Case("form", "POST", endpoint, dump(with_value(self.seed_with(endpoint, place), place, schema)), (place[0],))

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

    def cut(self, endpoint):
        """A right body in which one text ends early: in the middle of a grammar, an expression, a vector."""
        body = self.random.choice(self.seeds[endpoint])
        texts = [place for place in places(body) if isinstance(at(body, place), str) and at(body, place)]
        if not texts:
            return self.mix(endpoint)
        place = self.random.choice(texts)
        text = at(body, place)
        return Case("cut", "POST", endpoint, dump(with_value(body, place, text[:self.random.randrange(len(text))])), (place[0],))

    def double(self, endpoint):
        """A right body in which an object has one of its keys twice."""
        body = self.random.choice(self.seeds[endpoint])
        spots = [place for place in places(body) if isinstance(at(body, place[:-1]), dict)]
        if not spots:
            return self.mix(endpoint)
        place = self.random.choice(spots)
        parent = at(body, place[:-1])
        other = self.random.choice([self.random.choice(HOSTILE), parent[place[-1]]])
        twice = [*parent.items(), (place[-1], other)]
        self.random.shuffle(twice)
        text = Raw(b"{" + b",".join(dump(key) + b":" + dump(value) for key, value in twice) + b"}")
        body = with_value(body, place[:-1], text) if place[:-1] else text
        return Case("double", "POST", endpoint, dump(body), (place[0],))

    def nest(self, endpoint):
        """A right body in which a value stands in itself, or in lists, so and so deep."""
        body = self.random.choice(self.seeds[endpoint])
        spots = [*places(body)]
        if not spots:
            return self.mix(endpoint)
        place = self.random.choice(spots)
        value = dump(at(body, place))
        depth = self.random.choice([1, 2, 3, 20, 60, 63, 64, 65, 200])
        inside = at(body, place[:-1]) if isinstance(place[-1], str) and self.random.random() < 0.6 else None
        for _ in range(depth):
            if inside is None:
                value = b"[" + value + b"]"
            else:
                value = b"{" + b",".join(dump(key) + b":" + (value if key == place[-1] else dump(below))
                                         for key, below in inside.items()) + b"}"
            if len(value) > 1 << 20:
                break
        return Case("nest", "POST", endpoint, dump(with_value(body, place, Raw(value))), (place[0],))

    def many(self, endpoint):
        """A right body in which a list has its items many times over."""
        body = self.random.choice(self.seeds[endpoint])
        lists = [place for place in places(body) if isinstance(at(body, place), list) and at(body, place)]
        if not lists:
            return self.mix(endpoint)
        place = self.random.choice(lists)
        items = [dump(item) for item in at(body, place)]
        count = min(self.random.choice([2, 10, 100, 1000, 20_000]), max(2, (1 << 20) // sum(map(len, items))))
        return Case("many", "POST", endpoint, dump(with_value(body, place, Raw(b"[" + b",".join(items * count) + b"]"))), (place[0],))

    def frame(self, endpoint):
        """A right body in a request that is framed as few clients frame theirs."""
        body = dump(self.random.choice(self.seeds[endpoint]))
        size = self.random.choice([1, 7, 100, len(body)])
        extension = self.random.choice([b"", b";a=b;c", b';q="; x"', b" ;a", b";" + b"x" * 200, b";" + b"x" * 300])
        chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part)
                          for part in (body[i:i + size] for i in range(0, len(body), size)))
        trailer = self.random.choice([b"", b"X: y\r\n", b"Host: other\r\n", b"Content-Length: 3\r\n", b"a" * 5000 + b": b\r\n"])
        length = ("Content-Length", str(len(body)))
        chunked = [("Content-Length", None), ("Transfer-Encoding", self.random.choice(["chunked", "Chunked", "chunked ", "chunked,"]))]
        invited = ("Expect", self.random.choice(["100-continue", "100-Continue", "100-continue, x"]))
        old = request_bytes("POST", endpoint, body, [("Connection", self.random.choice([None, "keep-alive", "Keep-Alive, x", "close", ","]))])
        framed = self.random.choice([
            old.replace(b" HTTP/1.1", b" HTTP/1.0", 1), old,
            request_bytes("POST", endpoint, chunks + b"0" + extension + b"\r\n" + trailer + b"\r\n", chunked),
            request_bytes("POST", endpoint, body, [length, invited]), request_bytes("POST", endpoint, b"", [("Content-Length", None), invited]),
            request_bytes("POST", endpoint, b"", [invited]), request_bytes("POST", endpoint, None, [("Content-Type", "application/json")]),
            request_bytes("POST", "http://localhost" + endpoint, body), b"\r\n" + old,
            request_bytes("POST", endpoint, body, [(name.upper(), "x") for name in ("te", "via", "forwarded", "max-forwards")]),
            request_bytes("POST", endpoint, body, [("CONTENT-TYPE", "application/json; charset=utf-8"), ("Content-Type", None)])])
        return Case("frame", "POST", endpoint, body, framed=framed)

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
        kinds = {self.pair: 20, self.mix: 8, self.form: 4, self.syntax: 8, self.cut: 6, self.double: 4, self.nest: 3, self.many: 3,
                 self.frame: 3, self.header: 3, self.big: 1, self.path: 3}
        makers = self.random.choices([*kinds], [*kinds.values()], k=count - len(plans))
        for maker in makers:
            if maker == self.path:
                plans.append(lambda: self.path(admin))
            else:
                plans.append(lambda maker=maker: maker(self.random.choice(endpoints)))
        self.random.shuffle(plans)
        return len(singles), (plan() for plan in plans)
