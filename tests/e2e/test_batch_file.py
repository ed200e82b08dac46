"""`rudder generate --input` with OpenAI's batch lines: the answers are those of a server, in the form of a batch's output."""

import json

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from conftest import run_rudder

QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]


def line(custom_id, url, body, method="POST"):
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def answers_to(tmp_path, lines, *flags):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    done = run_rudder("generate", "--input", source, "--output", target, *flags)
    assert done.returncode == 0, done.stderr
    return [json.loads(text) for text in target.read_text().splitlines()]


def test_answers_are_those_of_a_server(tmp_path, server, model):
    chat = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    forced = {**chat, "tool_choice": "required", "tools": [{"type": "function", "function": {
        "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]}
    bodies = [("/v1/chat/completions", {**chat, "n": 2, "logprobs": True}), ("/v1/chat/completions", forced),
              ("/v1/completions", {"model": model, "prompt": ["The sea", "A boat"], "max_tokens": 5, "temperature": 0}),
              ("/v1/embeddings", {"model": model, "input": "a text"})]
    got = answers_to(tmp_path, [line(f"request-{i}", url, body) for i, (url, body) in enumerate(bodies)])
    assert [each["custom_id"] for each in got] == [f"request-{i}" for i in range(len(bodies))]
    assert len({each["id"] for each in got}) == len(got)
    kinds = [ChatCompletion, ChatCompletion, Completion, CreateEmbeddingResponse]
    for each, kind, (url, body) in zip(got, kinds, bodies):
        assert set(each) == {"id", "custom_id", "response", "error"} and each["error"] is None
        assert each["response"]["status_code"] == 200 and each["response"]["request_id"]
        kind.model_validate(each["response"]["body"])
        served = server.client().post(url.removeprefix("/v1"), cast_to=object, body=body)
        mine = each["response"]["body"]
        if "choices" in mine:
            for choices in (served["choices"], mine["choices"]):
                for choice in choices:
                    for call in choice.get("message", {}).get("tool_calls") or []:
                        del call["id"]
            assert mine["choices"] == served["choices"]


def test_errors_stand_in_their_lines(tmp_path, model):
    body = {"model": model, "messages": QUESTION, "max_tokens": 1}
    lines = [line("good", "/v1/chat/completions", body), line("bad value", "/v1/chat/completions", {**body, "temperature": -1}),
             line("no such path", "/v1/nothing", body), line("good", "/v1/chat/completions", body),
             line("a get", "/v1/models", {}, method="GET"), line("streamed", "/v1/chat/completions", {**body, "stream": True}),
             {"custom_id": "no body", "method": "POST", "url": "/v1/completions"},
             {**line("steered beside the body", "/v1/chat/completions", body), "steering": {"name": "calm"}},
             {"prompt": "another form"}, "a plain line", '["a list"]', '{"custom_id": "cut", "body"', '{"custom_id": "two"} {}',
             " " + json.dumps(line("indented", "/v1/chat/completions", body))]
    got = answers_to(tmp_path, lines)
    assert [each["response"] and each["response"]["status_code"] for each in got] == [200, 400, 404] + [None] * 10 + [200]
    assert got[1]["response"]["body"]["error"]["param"] == "temperature"
    words = ["same", "POST", "stream", "body", "steering: a field of body", "custom_id", "in.jsonl:10 is no JSON object",
             "in.jsonl:11 is no JSON object", "in.jsonl:12 is not valid JSON", "in.jsonl:13 is not valid JSON"]
    for each, word in zip(got[3:], words):
        assert each["error"]["code"] == "invalid_request" and word in each["error"]["message"], each


def test_paths_are_those_of_the_server(tmp_path, model):
    """vLLM's batches have /score and /rerank; a flag's fields go to completions by either of their paths."""
    body = {"model": model, "messages": QUESTION}
    rerank = {"query": "a", "documents": ["b"]}
    lines = [line("chat", "/chat/completions", body), line("score", "/score", {"text_1": "a", "text_2": "b"}),
             line("rerank", "/rerank", rerank), line("second", "/v2/rerank", rerank), line("none", "/nothing", {}),
             line("whole", "http://localhost/v1/chat/completions", body), line("bare", "v1/chat/completions", body)]
    got = answers_to(tmp_path, lines, "--max-tokens", "2")
    assert [each["response"] and each["response"]["status_code"] for each in got] == [200, 400, 400, 400, 404, None, None]
    assert got[0]["response"]["body"]["usage"]["completion_tokens"] == 2
    assert all("no reranker" in each["response"]["body"]["error"]["message"] for each in got[1:4])
    assert all("url" in each["error"]["message"] for each in got[5:])


@pytest.mark.parametrize("text", [b"caf\xe9 au lait", "a prompt".encode("utf-16"), b"a\x80", b"\xed\xa0\x80 half a pair"])
def test_a_text_that_is_not_utf_8_is_told_by_its_line(tmp_path, text):
    """Its row repeated the bytes: the output was no JSON."""
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_bytes(b"a prompt\n" + text + b"\n")
    done = run_rudder("generate", "--input", source, "--output", target, "--max-tokens", "1")
    assert done.returncode == 1 and "in.txt:2: is not UTF-8" in done.stderr, done.stderr


def test_lines_of_other_systems_are_lines(tmp_path, model):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps(line(name, "/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1})) for name in "ab"]
    source.write_bytes(b"\xef\xbb\xbf" + lines[0].encode() + b"\r\n\r\n \t\r\n" + lines[1].encode() + b"\r\n")
    done = run_rudder("generate", "--input", source, "--output", target)
    assert done.returncode == 0, done.stderr
    got = [json.loads(text) for text in target.read_text().splitlines()]
    assert [(each["custom_id"], each["response"]["status_code"]) for each in got] == [("a", 200), ("b", 200)]


def test_flags_are_for_fields_that_a_body_does_not_have(tmp_path, model):
    body = {"model": model, "prompt": "The sea", "temperature": 0}
    lines = [line("a", "/v1/completions", body), line("b", "/v1/completions", {**body, "max_tokens": 2})]
    got = answers_to(tmp_path, lines, "--max-tokens", "3", "--ignore-eos")
    assert [each["response"]["body"]["usage"]["completion_tokens"] for each in got] == [3, 2]


@pytest.mark.parametrize("count", [600])
def test_many_lines_wait_for_one_another(tmp_path, model, count):
    body = {"model": model, "prompt": "The sea", "max_tokens": 2, "temperature": 0}
    lines = [line(str(i), "/v1/completions", body) for i in range(count)]
    got = answers_to(tmp_path, lines, "--max-num-seqs", "8", "--max-num-queued-reqs", "16")
    assert [each["custom_id"] for each in got] == [str(i) for i in range(count)]
    assert all(each["response"]["status_code"] == 200 for each in got)
