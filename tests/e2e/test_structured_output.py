"""Outputs held to a form: JSON Schema, expressions, choices and grammars, whole and streamed."""

import concurrent.futures
import json
import re

import httpx2
import jsonschema
import openai
import pytest
from conftest import serving

SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
     "required": ["name", "age"], "additionalProperties": False},
    {"type": "object", "properties": {"colour": {"enum": ["red", "green", "blue"]}, "ok": {"type": "boolean"}}, "required": ["colour", "ok"]},
    {"type": "array", "items": {"type": "number", "minimum": -1.5, "maximum": 10}, "minItems": 2, "maxItems": 4},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}, "id": {"type": "string", "pattern": "^[a-z]{2}[0-9]{3}$"}},
     "required": ["when", "id"]},
    {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"kind": {"const": "x"}}, "required": ["kind"]}]},
]


def ask(server, model, i=0, content="Tell me something.", **fields):
    fields = {"max_tokens": 400, "temperature": 1, "seed": i, **fields}
    return server.client().chat.completions.create(model=model, messages=[{"role": "user", "content": content}], **fields)


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def test_answers_satisfy_their_schema(server, model):
    def one(i):
        schema = SCHEMAS[i % len(SCHEMAS)]
        return schema, ask(server, model, i, f"Question {i}?", response_format=schema_format(schema)).choices[0]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for schema, choice in pool.map(one, range(50)):
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content), schema)


def test_strings_of_a_list_differ(server, model):
    schema = {"type": "array", "items": {"type": "string", "pattern": "^[ab]+$"}, "uniqueItems": True, "minItems": 6}
    for i in range(6):
        answer = ask(server, model, i, max_tokens=60, response_format=schema_format(schema)).choices[0].message.content
        strings = re.findall(r'"([ab]+)"', answer)
        assert strings and len(strings) == len(set(strings)), answer


def test_choices_and_streams(server, model):
    for choice in ask(server, model, n=4, response_format=schema_format(SCHEMAS[0])).choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMAS[0])
    stream = ask(server, model, stream=True, response_format=schema_format(SCHEMAS[1]))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    jsonschema.validate(json.loads(text), SCHEMAS[1])


@pytest.mark.parametrize("form, test", [
    ({"regex": "[a-c]{3}-\\d{2,4}"}, lambda text: re.fullmatch(r"[a-c]{3}-[0-9]{2,4}", text)),
    ({"choice": ["yes", "no", "may be"]}, lambda text: text in ("yes", "no", "may be")),
    ({"grammar": 'root ::= "(" item ("," item)* ")"\nitem ::= [0-9] | root'}, lambda text: re.fullmatch(r"[(),0-9]+", text)),
    ({"json": SCHEMAS[2], "disable_any_whitespace": True}, lambda text: "\n" not in text and json.loads(text)),
])
def test_other_forms(server, model, form, test):
    for seed in range(4):
        choice = ask(server, model, seed, extra_body={"structured_outputs": form}).choices[0]
        if choice.finish_reason == "stop":
            assert test(choice.message.content), choice.message.content
        else:
            assert "grammar" in form  # which may nest without end


def test_tags_bind_in_free_text(server, model):
    """vLLM's older form of a structural tag, which says what a trigger goes on as, and the newer one."""
    older = {"structures": [{"begin": " <n>", "schema": {"type": "integer", "minimum": 3, "maximum": 9}, "end": "</n>"}], "triggers": [" "]}
    tag = {"type": "tag", "begin": " <n>", "content": {"type": "json_schema", "json_schema": older["structures"][0]["schema"]}, "end": "</n>"}
    newer = {"format": {"type": "triggered_tags", "triggers": [" "], "tags": [tag]}}
    # A trigger comes soon, whatever the model would say.
    trigger = httpx2.post(server.url + "/tokenize", json={"prompt": " <n>", "add_special_tokens": False}).json()["tokens"][0]
    answers = {}
    for name, body in (("older", older), ("newer", newer)):
        for seed in range(6):
            body = {"type": "structural_tag", **body}
            form = {"response_format": body} if seed % 2 else {"structured_outputs": {"structural_tag": body}}
            text = ask(server, model, seed, max_tokens=80, logit_bias={trigger: 100}, extra_body=form).choices[0].message.content or ""
            whole = re.sub(r" <n>[3-9]</n>", "", text)
            assert re.fullmatch(r"[^ ]*( (<(n(>([3-9](<(/n?)?)?)?)?)?)?)?", whole), text  # the last one may be cut off
            answers[name, seed] = text
    assert all(" <n>" in text and "</n>" in text for text in answers.values()), answers
    assert all(answers["older", seed] == answers["newer", seed] for seed in range(6))


@pytest.mark.parametrize("body, param", [
    ({"structured_outputs": {"structural_tag": {"structures": [{"begin": "[", "schema": {}, "end": "]"}], "triggers": ["<"]}}},
     "structured_outputs.structural_tag.structures[0].begin"),
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"minContains": 1}}})},
     "response_format.json_schema.schema.properties.a.minContains"),
    ({"response_format": schema_format({"$ref": "#"})}, "response_format.json_schema.schema"),
    ({"structured_outputs": {"regex": "(a{1,1000}){1,1000}"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": "root ::= root"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
])
def test_bad_forms_are_refused_by_name(server, model, body, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, model, extra_body=body)
    assert refused.value.body["param"] == param


def test_forms_are_counted(server, model):
    def counts():
        values = server.metrics()
        return [next(v for k, v in values.items() if k.startswith(f"rudder:grammar_{name}")) for name in
                ("cache_queries_total", "cache_hits_total", "compile_seconds_total")]
    before = counts()
    for _ in range(2):
        ask(server, model, extra_body={"structured_outputs": {"regex": "counted-[0-9]{2}"}})
    after = counts()
    assert [after[0] - before[0], after[1] - before[1]] == [2, 1]
    assert after[2] > before[2]


def test_long_bounds_hold(server, model):
    """Lengths that prose reaches, and escapes and characters of several bytes on the way."""
    schema = {"type": "string", "minLength": 150, "maxLength": 160}
    for seed in range(3):
        choice = ask(server, model, seed, max_tokens=1200, response_format=schema_format(schema)).choices[0]
        assert choice.finish_reason == "stop"
        assert 150 <= len(json.loads(choice.message.content)) <= 160


def test_prompts_in_chunks_change_nothing(server, model):
    content = "Say more about this list: " + ", ".join(f"item {i} of many" for i in range(60))
    with serving("--max-num-batched-tokens", "48") as chunked:
        for i, schema in enumerate(SCHEMAS[:4]):
            for temperature in (0, 1):
                fields = {"temperature": temperature, "response_format": schema_format(schema), "logprobs": True}
                whole, parts = (ask(s, model, i, content, **fields) for s in (server, chunked))
                assert parts.choices[0].message.content == whole.choices[0].message.content
                assert [t.token for t in parts.choices[0].logprobs.content] == [t.token for t in whole.choices[0].logprobs.content]
                assert parts.choices[0].finish_reason == whole.choices[0].finish_reason


@pytest.mark.parametrize("stop, text", [("beta", '{"text": "alpha '), ('", ', '{"text": "alpha beta gamma'), ("delta", None)])
def test_stop_strings_end_forms(server, model, stop, text):
    """A stop string ends the output inside a string of JSON too; one that does not come changes nothing."""
    schema = {"type": "object", "properties": {"text": {"const": "alpha beta gamma"}, "more": {"const": 1}}, "required": ["text", "more"]}
    form = {"structured_outputs": {"json": schema, "disable_any_whitespace": True}}
    for chunked in (False, True):
        if chunked:
            stream = ask(server, model, stream=True, stop=[stop], extra_body=form)
            chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
            content, reason = "".join(c.delta.content or "" for c in chunks), chunks[-1].finish_reason
        else:
            choice = ask(server, model, stop=[stop], extra_body=form).choices[0]
            content, reason = choice.message.content, choice.finish_reason
        assert content == (text or '{"text": "alpha beta gamma", "more": 1}')
        assert reason == "stop"
