"""/openapi.json is true: live answers of every endpoint, chunks of streams too, have its schemas and no field more."""

import copy
import json

import httpx2
import jsonschema
import pytest

from conftest import serving

CHAT = {"messages": [{"role": "user", "content": "What is 27 + 58?"}], "max_tokens": 12}
TEXT = {"prompt": "Once upon a time", "max_tokens": 12}
MESSAGE = {"messages": [{"role": "user", "content": "What is 27 + 58?"}], "max_tokens": 12}
CAPTURE = {"capture": {"response": {"sites": {"resid_post": [1]}, "values": ["norms"]}}}

# Beside what each path needs, what makes its answers have more fields.
GENERATING = {
    "/v1/chat/completions": [CHAT, {**CHAT, "n": 2}, {**CHAT, "logprobs": True, "top_logprobs": 2},
                             {**CHAT, "return_token_ids": True, "return_prompt_text": True}, {**CHAT, **CAPTURE},
                             {**CHAT, **CAPTURE, "n": 2}],
    "/v1/completions": [TEXT, {**TEXT, "prompt": ["a", "b"], "n": 2}, {**TEXT, "logprobs": 2, "echo": False},
                        {**TEXT, "echo": True, "return_token_ids": True}, {**TEXT, "stop": ["a"]}, {**TEXT, **CAPTURE}, {**TEXT, "return_steered_tokens": True}],
    "/v1/responses": [{"input": "hi", "max_output_tokens": 5}, {"input": "hi", "top_logprobs": 2, "instructions": "be brief",
                      "metadata": {"a": "b"}, "max_output_tokens": 5}, {"input": "hi", "max_output_tokens": 5, **CAPTURE}],
    "/v1/messages": [MESSAGE, {**MESSAGE, "system": "Be brief.", "stop_sequences": ["5"]}, {**MESSAGE, **CAPTURE}],
}
OTHERS = [
    ("POST", "/v1/messages/count_tokens", {"messages": CHAT["messages"]}),
    ("POST", "/v1/responses/input_tokens", {"input": "hi"}), ("POST", "/v1/responses/compact", {"input": "hi", "max_output_tokens": 9}),
    ("POST", "/v1/embeddings", {"input": ["a", "b"]}), ("POST", "/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("POST", "/v1/chat/completions/render", CHAT), ("POST", "/v1/completions/render", {**TEXT, "seed": 3}),
    ("POST", "/tokenize", {"prompt": "a", "return_token_strs": True}), ("POST", "/tokenize", {"messages": CHAT["messages"]}),
    ("POST", "/detokenize", {"tokens": [1, 2]}),
    ("GET", "/v1/models", None), ("GET", "/health", None), ("GET", "/livez", None), ("GET", "/readyz", None),
    ("GET", "/ping", None), ("POST", "/ping", None), ("GET", "/version", None), ("GET", "/openapi.json", None),
    ("GET", "/server_info", None), ("GET", "/load", None), ("GET", "/v1/loads", None), ("POST", "/reset_prefix_cache", None),
    ("GET", "/v1/steering", None), ("GET", "/v1/steering/modules", None),
    ("POST", "/v1/steering/patch_sweep", {"clean": [5, 6], "corrupted": [5, 7], "answer": {"right": 9}, "sites": {"resid_post": [1]}, "svg": True}),
    ("GET", "/v1/steering/dictionaries", None), ("POST", "/v1/steering/clear", {}),
]


@pytest.fixture(scope="module")
def tapped():
    """A server that steers and captures: all of its endpoints have something to say."""
    with serving("--enable-steering", "--capture-memory-mb", "8") as running:
        yield running


@pytest.fixture(scope="module")
def document(tapped):
    return httpx2.get(tapped.url + "/openapi.json").json()


def closed(schema):
    """The schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def check(document, name, value):
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": closed(document["components"]["schemas"])}}
    jsonschema.Draft202012Validator(schema).validate(value)


def operation(document, method, path):
    return document["paths"][path][method.lower()]


def answer_schema(document, method, path, kind="application/json", status="200"):
    reference = operation(document, method, path)["responses"][status]["content"][kind]["schema"]["$ref"]
    return reference.rsplit("/", 1)[1]


def test_document_is_consistent(document):
    jsonschema.Draft202012Validator.check_schema({"$defs": document["components"]["schemas"]})
    schemas = document["components"]["schemas"]

    def references(node):
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    used = {reference.rsplit("/", 1)[1] for reference in references(document)}
    assert used <= set(schemas), used - set(schemas)
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            assert described.get("summary"), f"{method} {path} is not described"


@pytest.mark.parametrize("path", GENERATING)
def test_answers_and_streams(tapped, document, path):
    for body in GENERATING[path]:
        jsonschema.Draft202012Validator({**document, "$ref": operation(document, "POST", path)["requestBody"]["content"][
            "application/json"]["schema"]["$ref"]}).validate(body)
        answer = httpx2.post(tapped.url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        check(document, answer_schema(document, "POST", path), answer.json())
        streamed = {**copy.deepcopy(body), "stream": True}
        if path.endswith("completions"):
            streamed["stream_options"] = {"include_usage": True, "continuous_usage_stats": "n" in body}
        stream = httpx2.post(tapped.url + path, json=streamed, timeout=60)
        assert stream.status_code == 200, stream.text
        chunks = [line[6:] for line in stream.text.splitlines() if line.startswith("data: ")]
        if path.endswith("completions"):
            assert chunks.pop() == "[DONE]"
        assert len(chunks) > 1
        for chunk in chunks:
            check(document, answer_schema(document, "POST", path, "text/event-stream"), json.loads(chunk))


@pytest.mark.parametrize("method, path, body", OTHERS)
def test_other_answers(tapped, document, method, path, body):
    answer = httpx2.request(method, tapped.url + path, **({} if body is None else {"json": body}), timeout=60)
    assert answer.status_code == 200, answer.text
    check(document, answer_schema(document, method, path), answer.json())


def test_paths_with_an_id(tapped, document):
    model = httpx2.get(tapped.url + "/v1/models").json()["data"][0]["id"]
    check(document, "Model", httpx2.get(f"{tapped.url}/v1/models/{model}").json())
    made = httpx2.post(tapped.url + "/v1/responses", json={"input": "hi", "max_output_tokens": 3}).json()
    path = f"{tapped.url}/v1/responses/{made['id']}"
    check(document, "Response", httpx2.get(path).json())
    check(document, "ResponseInputItemList", httpx2.get(path + "/input_items").json())
    chunks = [line[6:] for line in httpx2.get(path + "?stream=true").text.splitlines() if line.startswith("data: ")]
    for chunk in chunks:
        check(document, "ResponseEvent", json.loads(chunk))
    check(document, "ResponseDeleted", httpx2.delete(path).json())
    check(document, "Error", httpx2.get(path).json())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
                                  "/tokenize", "/detokenize", "/v1/messages/count_tokens"])
def test_errors(tapped, document, path):
    for body in ({}, {"model": "none"}, {"model": 7}):
        answer = httpx2.post(tapped.url + path, json=body)
        assert answer.status_code in (400, 404)
        check(document, answer_schema(document, "POST", path, status="default"), answer.json())


@pytest.mark.parametrize("method, path", [
    ("POST", "/lora-adapters"), ("POST", "/v1/audio/transcriptions"), ("POST", "/v1/images/generations"),
    ("POST", "/classify"), ("POST", "/pooling"), ("POST", "/collective_rpc"),
    ("POST", "/abort_request"), ("POST", "/v1/messages/batches")])
def test_what_is_not_supported_is_said(tapped, document, method, path):
    answer = httpx2.request(method, tapped.url + path, json={})
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert "not supported" in error["message"]


def test_load_and_cache(tapped):
    assert httpx2.get(tapped.url + "/load").json() == {"server_load": 0}
    body = {"prompt": "the same long beginning " * 8, "max_tokens": 1}

    def cached():
        return httpx2.post(tapped.url + "/v1/completions", json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    cached()
    assert cached() > 0
    assert httpx2.post(tapped.url + "/reset_prefix_cache").status_code == 200
    assert cached() == 0


def test_rendered_ids_are_the_prompt(tapped):
    rendered = httpx2.post(tapped.url + "/v1/chat/completions/render", json=CHAT).json()
    answer = httpx2.post(tapped.url + "/v1/chat/completions", json={**CHAT, "return_token_ids": True}).json()
    assert rendered["token_ids"] == answer["prompt_token_ids"]
    assert rendered["sampling_params"]["max_tokens"] == 12
