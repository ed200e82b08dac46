"""/openapi.json and the server refuse the same bodies.

Of every JSON route: a body with a field that the document allows is not refused for its form, and a body in which one
keyword of the document does not hold is refused with that field's path. What a field is refused for in spite of its form
the document says by `x-refused`, or the answer by its code: a feature that is off, a name that is not there.
"""

import contextlib
import copy
import json
import re

import httpx2
import jsonschema
import pytest
from conftest import ROOT, serving
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"prompt": "A boat"}
# A right body of each schema. Routes that generate have one beside them that reads the same body and makes no token.
BASES = {
    "/v1/chat/completions/render": CHAT, "/v1/completions/render": TEXT, "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages/count_tokens": {**CHAT, "max_tokens": 2}, "/v1/embeddings": {"input": "a"}, "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]}, "/v1/steering/features/encode": {"dictionary": "none", "rows": [[0.5] * 256]},
    "/v1/steering/patch_sweep": {"clean": [5, 6], "corrupted": [5, 7], "answer": {"right": 9}, "sites": {"resid_post": [1]}},
    "/v1/steering/modules/unregister": {"name": "none"}, "/v1/steering/dictionaries": {"name": "d", "path": "none"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
}
# What is right for it is on the server's disk (test_adapters.py).
OF_FILES = {"/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "none"}, "/v1/weights/update": {"path": "none"}}
RANKING = {"/v1/rerank": {"query": "a", "documents": ["b"]}, "/v1/score": {"text_1": "a", "text_2": "b"}}
GENERATING = {"/v1/chat/completions": {**CHAT, "max_tokens": 1}, "/v1/completions": {**TEXT, "max_tokens": 1},
              "/v1/responses": {"input": "hi", "max_output_tokens": 1}, "/v1/messages": {**CHAT, "max_tokens": 1},
              "/v1/responses/compact": {"input": "hi", "max_output_tokens": 1}}
# Steering has a document, an oracle and tests of its own; these fields are drawn there.
OTHERS = {"steering", "capture", "stop_when", "sae_clamp_specs", "sae_full_reconstruction_specs",
          "return_routed_experts", "routed_experts_prompt_start"}  # the last two: test_experts.py, of a mixture
# Refusals that are no matter of form: a feature that is off, a name that nobody has.
CODES = {"unsupported_value", "model_not_found", "not_found", "context_length_exceeded", "conflict", "overloaded"}
OTHER_TYPES = {"string": 7, "integer": "x", "number": "x", "boolean": "x", "array": 7, "object": 7, "null": None}
LARGE = 5000  # bounds beyond it are not filled


class Schemas:
    def __init__(self, document):
        self.document = document

    def whole(self, schema):
        """The schema with what it refers to and joins in it."""
        if "$ref" in schema:
            node = self.document
            for step in schema["$ref"].removeprefix("#/").split("/"):
                node = node[step]
            return self.whole(node)
        if "allOf" not in schema:
            return schema
        joined = {key: value for key, value in schema.items() if key != "allOf"} | {"type": "object", "properties": {}, "required": []}
        for part in map(self.whole, schema["allOf"]):
            joined["properties"] = joined["properties"] | part.get("properties", {})
            joined["required"] = [*joined["required"], *part.get("required", [])]
            if part.get("additionalProperties") is False:
                joined["additionalProperties"] = False
        return joined

    def body(self, path):
        return self.whole(self.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])

    def forms(self, schema):
        """Each alternative, of one type."""
        schema = self.whole(schema)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                refused = {"x-refused": schema["x-refused"]} if "x-refused" in schema else {}
                return [{**form, **refused} for each in schema[word] for form in self.forms(each)]
        types = schema.get("type")
        return [{**schema, "type": each} for each in types] if isinstance(types, list) else [schema]

    def values(self, schema):
        """A strategy of values that the schema allows."""
        return st.one_of([self.of_form(form) for form in self.forms(schema)])

    def of_form(self, form):
        kind = form.get("type")
        if "enum" in form:
            fits = {"null": type(None), "string": str, "boolean": bool}.get(kind, object)
            words = [word for word in form["enum"] if isinstance(word, fits)]
            return st.sampled_from(words) if words else st.nothing()
        if kind == "null":
            return st.none()
        if kind == "boolean":
            return st.booleans()
        if kind == "integer":
            return st.integers(form.get("minimum", -(2**31)), form.get("maximum", 2**31 - 1))
        if kind == "number":
            low = form.get("minimum", form.get("exclusiveMinimum", -1e6))
            return st.floats(low, form.get("maximum", 1e6), exclude_min="exclusiveMinimum" in form, width=32)
        if kind == "string":
            if "pattern" in form:
                return st.from_regex(form["pattern"], fullmatch=True)
            least = form.get("minLength", 0)
            return st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=least, max_size=min(form.get("maxLength", 20) // 4, 20))
        if kind == "array":
            least = form.get("minItems", 0)
            return st.lists(self.values(form.get("items", {"type": "integer", "minimum": 0, "maximum": 9})), min_size=least,
                            max_size=min(form.get("maxItems", 3), max(least, 3)))
        if kind == "object":
            return self.objects(form)
        return st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.just("a"), st.just({"a": 1}))

    def objects(self, form):
        properties = form.get("properties", {})
        required = form.get("required", [])
        if form.get("minProperties") and not properties:
            return st.nothing()  # names of sites
        inside = {name: self.values(properties.get(name, {"type": "string"})) for name in required}
        optional = {name: st.deferred(lambda schema=schema: self.values(schema)) for name, schema in properties.items() if name not in required}
        drawn = st.fixed_dictionaries(inside)
        if optional:
            one = st.sampled_from(sorted(optional)).flatmap(lambda name: optional[name].map(lambda value: {name: value}))
            drawn = st.tuples(drawn, st.one_of(st.just({}), one)).map(lambda pair: pair[1] | pair[0])
        if isinstance(form.get("additionalProperties"), dict):
            drawn = drawn.flatmap(lambda value: self.values(form["additionalProperties"]).map(lambda more: {**value, "7": more}))
        return drawn

    def violations(self, schema, path):
        """(path, value): one keyword of the schema does not hold."""
        forms = self.forms(schema)
        types = {form.get("type") for form in forms}
        if None not in types:
            for kind, other in OTHER_TYPES.items():
                named = {"integer": "number"}.get(kind, kind)
                wrong = {"null": "null"}.get(kind) and None if kind == "null" else other
                value_type = {int: "integer", str: "string", type(None): "null"}[type(wrong)]
                if kind in types and value_type not in types and (value_type, "number") not in {("integer", t) for t in types} and named:
                    yield path, wrong
            if "boolean" not in types:
                yield path, True
            if "array" not in types:
                yield path, [[]]
            if "object" not in types:
                yield path, {"a": {}}
        for form in forms:
            yield from self.of_keywords(form, path, len(forms) > 1)

    def of_keywords(self, form, path, has_others):
        kind = form.get("type")
        if kind in ("integer", "number"):
            for word, step in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0)):
                if word in form and abs(form[word]) < 2**62:
                    yield path, form[word] + step
        if kind == "string":
            if "enum" in form:
                yield path, "no-such-word"
            if form.get("minLength"):
                yield path, ""
            if form.get("maxLength", LARGE) < LARGE:
                yield path, "a" * (form["maxLength"] + 1)
            if "pattern" in form:
                yield path, "a b"
        if kind == "array":
            if form.get("minItems"):
                yield path, []
            if form.get("maxItems", LARGE) < LARGE:
                yield path, self.example(form.get("items", {})) * (form["maxItems"] + 1)
            if isinstance(form.get("items"), dict):
                for below, value in self.violations(form["items"], (0,)):
                    with contextlib.suppress(LookupError, TypeError):
                        yield (*path, *below), self.inside([self.example(form["items"])[0]], below, value)
        if kind == "object":
            if form.get("additionalProperties") is False:
                yield (*path, "no_such_field"), {**self.least(form), "no_such_field": 1}
            for name in form.get("required", []):
                if has_others and name in ("type", "mode"):
                    continue  # which of the forms is meant
                yield (*path, name), {key: value for key, value in self.least(form).items() if key != name}
            for name, schema in form.get("properties", {}).items():
                if has_others and name in ("type", "mode"):
                    continue
                for below, value in self.violations(schema, (name,)):
                    with contextlib.suppress(LookupError, TypeError):
                        yield (*path, *below), self.inside(self.least(form), below, value)

    @staticmethod
    def inside(parent, below, value):
        """`parent` with `value` for its member: that is whole already."""
        parent = copy.copy(parent)
        parent[below[0]] = value
        return parent

    def example(self, schema):
        """[a value that the schema allows]"""
        form = next((form for form in self.forms(schema) if form.get("type") != "null"), {})
        if "enum" in form:
            return [form["enum"][0]]
        kind = form.get("type")
        if kind == "object":
            return [self.least(form)]
        if kind == "array":
            return [self.example(form.get("items", {"type": "integer"})) * max(1, form.get("minItems", 0))]
        number = max(form.get("minimum", 0), 1)
        return [{"string": "user" if form.get("pattern") is None else "a", "integer": number, "number": number, "boolean": True}.get(kind, 1)]

    def least(self, form):
        properties = form.get("properties", {})
        return {name: self.example(properties.get(name, {"type": "string"}))[0] for name in form.get("required", [])}


def spelled(path):
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def related(told, path):
    """One is the other, or stands around it."""
    one, other = ([step for step in re.split(r"[.\[]", each.replace("]", ""))] for each in (told, spelled(path)))
    return all(a == b for a, b in zip(one, other))


class Asked:
    def __init__(self, server):
        self.client = httpx2.Client(base_url=server.url, timeout=60)
        self.schemas = Schemas(self.client.get("/openapi.json").json())

    def fields(self, path):
        body = self.schemas.body(path)
        return {name: schema for name, schema in body["properties"].items() if name not in OTHERS and not name.endswith(("_vectors", "_packed", "_name"))}

    def post(self, path, body):
        answer = self.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        assert answer.status_code < 500 or answer.status_code in (501, 503), (path, body, answer.text)
        error = answer.json().get("error") if answer.status_code >= 400 else None
        return answer.status_code, error

    def says_refused(self, path, param):
        """The document says of a field there that it is refused in spite of its form."""
        schema = self.schemas.body(path)
        for step in re.split(r"[.\[]", param.replace("]", "")):
            forms = self.schemas.forms(schema)
            if any("x-refused" in form for form in forms):
                return True
            for form in forms:
                below = form.get("items") if step.isdigit() else form.get("properties", {}).get(step)
                if isinstance(below, dict):
                    schema = below
                    break
            else:
                return False
        return any("x-refused" in form for form in self.schemas.forms(schema))

    def check_right(self, path, base, name, value):
        status, error = self.post(path, {**base, name: value})
        if status < 400 or error["code"] in CODES:
            return None
        if self.says_refused(path, error.get("param") or name):
            return None
        return f"{path}: right, yet refused: {name}={json.dumps(value)[:200]}: {error}"

    def is_valid(self, path, body):
        schema = self.schemas.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return jsonschema.Draft202012Validator({**schema, "components": self.schemas.document["components"]}).is_valid(body)

    def check_wrong(self, path, base, where, value):
        body = {**base, where[0]: value}
        if self.is_valid(path, body):
            return None  # as another form of the same field
        status, error = self.post(path, body)
        if status < 400:
            return f"{path}: wrong, yet taken: {spelled(where)} in {where[0]}={json.dumps(value)[:200]}"
        param = error.get("param") or ""
        if error["code"] != "unsupported_value" and not (param and related(param, where)):
            return f"{path}: wrong at {spelled(where)}, told at {param!r}: {error['message'][:200]}"
        return None


@pytest.fixture(scope="module")
def plain():
    with serving("--enable-lora", "--enable-steering", "--capture-memory-mb", "8") as server:
        yield Asked(server)


@pytest.fixture(scope="module")
def ranked():
    with serving(model=ROOT / "tests" / "rerankers" / "Qwen3-Reranker-tiny") as server:
        yield Asked(server)


@pytest.fixture
def asked(request, path):
    """The server that has the route."""
    return request.getfixturevalue("ranked" if path in RANKING else "plain")


def problems_of_right(asked, path, base, examples):
    problems = set()

    def draw_all(name, schema):
        @seed(1)
        @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(asked.schemas.values(schema))
        def draw(value):
            if problem := asked.check_right(path, base, name, value):
                problems.add(problem)
        draw()

    for name, schema in sorted(asked.fields(path).items()):
        if not asked.schemas.values(schema).is_empty:
            draw_all(name, schema)
    return problems


def problems_of_wrong(asked, path, base):
    problems = set()
    for name in asked.schemas.body(path).get("required", []):
        status, error = asked.post(path, {key: value for key, value in base.items() if key != name})
        if name in base and (status < 400 or not related(error.get("param") or "", (name,))):
            problems.add(f"{path}: without {name}: {status} {error}")
    for name, schema in asked.fields(path).items():
        for where, value in asked.schemas.violations(schema, (name,)):
            if problem := asked.check_wrong(path, base, where, value):
                problems.add(problem)
    return problems


@pytest.mark.parametrize("path", {**BASES, **RANKING})
def test_what_the_document_allows_is_not_refused_for_its_form(asked, path):
    problems = problems_of_right(asked, path, (BASES | RANKING)[path], 4)
    assert not problems, "\n".join(sorted(problems))


@pytest.mark.parametrize("path", {**BASES, **RANKING, **OF_FILES})
def test_what_the_document_forbids_is_refused_where_it_stands(asked, path):
    problems = problems_of_wrong(asked, path, (BASES | RANKING | OF_FILES)[path])
    assert not problems, "\n".join(sorted(problems))


def test_every_json_route_is_drawn(plain):
    of_steering = {"GlobalSteering", "SteeringModule"}
    for path, item in plain.schemas.document["paths"].items():
        body = item.get("post", {}).get("requestBody")
        if body is None or body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1] in of_steering:
            continue
        other = path.replace("/register", "") if path.startswith("/v1/steering/") else path
        assert other in BASES | RANKING | GENERATING | OF_FILES, path


@pytest.mark.slow
@pytest.mark.parametrize("path", {**BASES, **RANKING, **GENERATING})
def test_many_more_bodies(asked, path):
    base = (BASES | RANKING | GENERATING)[path]
    problems = problems_of_right(asked, path, base, 60) | problems_of_wrong(asked, path, base)
    assert not problems, "\n".join(sorted(problems))
