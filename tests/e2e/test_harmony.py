"""Answers in harmony over all three APIs: the demo model behind a template of that dialect, made to write its messages by grammars."""

import json
import random

import anthropic
import httpx2
import pytest

from conftest import ROOT, serving
from test_tools import MESSAGES, NAMED, STOP, WEATHER, check_call

TEMPLATE = ROOT / "tools" / "template_diff" / "families" / "harmony.jinja"
MARKS = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
FUNCTION = WEATHER["function"]
UNTHINKING = {"separate_reasoning": False}  # a grammar has no thoughts then


@pytest.fixture(scope="module")
def harmony():
    with serving("--chat-template", str(TEMPLATE)) as server:
        yield server


def name_of(server):
    return server.client().models.list().data[0].id


@pytest.mark.parametrize("seed", range(3))
def test_a_forced_call_is_a_message_to_a_function(harmony, seed):
    create = harmony.client().chat.completions.create
    ask = dict(model=name_of(harmony), messages=MESSAGES, tools=[WEATHER, STOP], tool_choice=NAMED, temperature=1,
               seed=seed, max_tokens=600, extra_body=UNTHINKING)
    choice = create(**ask).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    check_call(choice.message.tool_calls[0])
    arguments = "".join(call.function.arguments or "" for chunk in create(**ask, stream=True) for one in chunk.choices
                        for call in one.delta.tool_calls or [])
    assert arguments == choice.message.tool_calls[0].function.arguments


def test_a_form_is_that_of_the_last_message(harmony):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
              "additionalProperties": False}
    answer = harmony.client().chat.completions.create(
        model=name_of(harmony), messages=MESSAGES, max_tokens=400, seed=1, temperature=1,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        extra_body=UNTHINKING)
    assert 1 <= json.loads(answer.choices[0].message.content)["n"] <= 9


def test_responses_and_messages_have_calls_too(harmony):
    tool = {"type": "function", **FUNCTION}
    answer = harmony.client().responses.create(model=name_of(harmony), input="Weather?", tools=[tool], tool_choice="required",
                                               max_output_tokens=600, extra_body={"seed": 2, **UNTHINKING})
    calls = [item for item in answer.output if item.type == "function_call"]
    assert len(calls) == 1 and set(json.loads(calls[0].arguments)) == {"place", "unit", "days"}
    messages = anthropic.Anthropic(base_url=harmony.url, api_key="x").messages
    answer = messages.create(model=name_of(harmony), max_tokens=600, messages=MESSAGES, tool_choice={"type": "any"},
                             tools=[{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
                             extra_body={"seed": 2, **UNTHINKING})
    assert answer.stop_reason == "tool_use"
    assert set(answer.content[-1].input) == {"place", "unit", "days"}


# Thoughts and words beside a call are both shown, though the template takes one of them.
def test_a_history_with_thoughts_words_and_calls(harmony):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"place": "Oslo"}'}}
    other = {"id": "c2", "type": "function", "function": {"name": "stop", "arguments": "{}"}}
    history = [*MESSAGES,
               {"role": "assistant", "content": "Let me look.", "reasoning": "They ask for weather.",
                "tool_calls": [call, other]},
               {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"},
               {"role": "tool", "tool_call_id": "c2", "content": "stopped"}]
    answer = httpx2.post(harmony.url + "/v1/chat/completions/render", timeout=60, json={
        "messages": history, "tools": [WEATHER, STOP], "reasoning_effort": "high"})
    assert answer.status_code == 200, answer.text
    prompt = answer.json()["prompt"]
    assert "Reasoning: high" in prompt
    assert "<|channel|>analysis<|message|>They ask for weather.\n\nLet me look.<|end|>" in prompt
    assert '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"place": "Oslo"}<|call|>' in prompt
    assert '<|start|>functions.stop to=assistant<|channel|>commentary<|message|>"stopped"<|end|>' in prompt
    assert prompt.endswith("<|start|>assistant")


# Whatever the model writes is an answer.
def test_no_text_of_the_model_is_an_error(harmony):
    rng = random.Random(3)
    for _ in range(12):
        begun = "".join(rng.choice([*MARKS, "analysis", " to=functions.stop", "final", "json", "{", " so it is "])
                        for _ in range(rng.randint(1, 7)))
        body = {"messages": MESSAGES, "tools": [WEATHER, STOP], "max_tokens": 30,
                "structured_outputs": {"choice": [begun]}, "tool_choice": "none"}
        answer = httpx2.post(harmony.url + "/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        assert not any(mark in (message["content"] or "") for mark in MARKS), (begun, message)
