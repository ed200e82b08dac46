"""Outputs held to a form: JSON Schema, expressions, choices and grammars, whole and streamed."""

import concurrent.futures
import json
import re

import jsonschema
import openai
import pytest

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


@pytest.mark.parametrize("body, param", [
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"not": {}}}})},
     "response_format.json_schema.schema.properties.a.not"),
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
