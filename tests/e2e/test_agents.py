"""Sessions of coding agents: what they send, turn by turn, is taken, answered in their form and cached."""

import json

import httpx2
import pytest

from agent_forms import (CLAUDE_HEADERS, CLAUDE_PAST, CLAUDE_TOOLS, CODEX_PAST, FETCH, claude_turn, codex_turn)


def events(answer):
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def ask(server, path, body, **headers):
    return httpx2.post(server.url + path, json=body, headers=headers, timeout=60)


def claude_answer(server, body):
    """(blocks, usage) as the client puts them together."""
    blocks, usage = [], {}
    for event in events(ask(server, "/v1/messages?beta=true", body, **CLAUDE_HEADERS)):
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                blocks[-1]["partial"] += delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                blocks[-1][name] += delta[name]
        elif event["type"] in ("message_start", "message_delta"):
            usage |= (event.get("message") or event)["usage"]
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial or "{}")
    return blocks, usage


def test_claude_code(server):
    history, cached = [], []
    for turn in range(3):
        body = claude_turn(turn, history)
        if turn < 2:  # the model is none that calls by itself
            body |= {"tool_choice": {"type": "tool", "name": "Look"}, "max_tokens": 200}
            body["tools"] = [{**CLAUDE_TOOLS[0], "input_schema": {"type": "object", "properties": {"path": {"enum": ["a", "b"]}},
                                                                  "required": ["path"], "additionalProperties": False}}, *CLAUDE_TOOLS[1:]]
        blocks, usage = claude_answer(server, body)
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        cached.append(usage["cache_read_input_tokens"] / prompt)
        history.append({"role": "assistant", "content": blocks})
        calls = [block for block in blocks if block["type"] == "tool_use"]
        assert bool(calls) == (turn < 2)
        history.append({"role": "user", "content": [
            {"tool_use_id": call["id"], "type": "tool_result", "content": "hi", "is_error": False} for call in calls] or "And?"})
    assert min(cached[1:]) >= 0.8, cached


def test_claude_code_brings_a_history_along(server):
    answer = ask(server, "/v1/messages?beta=true", claude_turn(1, CLAUDE_PAST, [*CLAUDE_TOOLS, FETCH]), **CLAUDE_HEADERS)
    assert answer.status_code == 200, answer.text
    told = answer.headers["x-rudder-ignored-fields"].split(", ")
    assert "messages[3].content[0].content[0]" in told and "messages[2].content[2]" in told and "context_management" in told
    counted = ask(server, "/v1/messages/count_tokens?beta=true",
                  {key: value for key, value in claude_turn(1, CLAUDE_PAST).items() if key not in ("max_tokens", "stream")}, **CLAUDE_HEADERS)
    assert counted.status_code == 200 and counted.json()["input_tokens"] > 0, counted.text


def test_codex(server):
    history, cached = [], []
    chosen = [{"type": "function", "namespace": "several_v1", "name": "open"}, {"type": "custom", "name": "patch"}, "auto"]
    for turn, choice in enumerate(chosen):
        body = codex_turn(turn, history) | {"tool_choice": choice, "max_output_tokens": 60}
        told = events(ask(server, "/v1/responses", body, accept="text/event-stream"))
        assert told[-1]["type"] in ("response.completed", "response.incomplete")
        usage = told[-1]["response"]["usage"]
        cached.append(usage["input_tokens_details"]["cached_tokens"] / usage["input_tokens"])
        items = [event["item"] for event in told if event["type"] == "response.output_item.done"]
        history += items
        if turn == 0:
            assert (items[-1]["namespace"], items[-1]["name"]) == ("several_v1", "open")
            history.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "hi"})
        elif turn == 1:
            assert (items[-1]["type"], items[-1]["name"]) == ("custom_tool_call", "patch")
            history.append({"type": "custom_tool_call_output", "call_id": items[-1]["call_id"], "output": "hi"})
    assert min(cached[1:]) >= 0.8, cached


def test_codex_brings_a_history_along(server):
    answer = ask(server, "/v1/responses", codex_turn(1, CODEX_PAST))
    assert answer.status_code == 200, answer.text
    told = answer.headers["x-rudder-ignored-fields"].split(", ")
    assert {"tools[4]", "tools[3].format", "input[7].output[1]", "input[10]", "input[13]", "input[14]"} <= set(told), told


@pytest.mark.parametrize("path, body, param", [
    ("/v1/responses", codex_turn(0) | {"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ("/v1/responses", codex_turn(0, [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]), "input[3].content[0].type"),
    ("/v1/messages", claude_turn(0) | {"tools": [*CLAUDE_TOOLS, {"type": "web_search_20250305", "name": "web_search"}],
                                       "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
    ("/v1/messages", claude_turn(0) | {"output_format": {"type": "json_schema"}}, "output_format"),
])
def test_what_is_asked_is_done_or_refused(server, path, body, param):
    answer = ask(server, path, body | {"stream": False})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
