"""Tools with the official client: calls that are forced, put together from streams, refused where they are wrong."""

import json
import re
import sys

import httpx2
import openai
import pytest

from conftest import ROOT, run_rudder, serving

sys.path.insert(0, str(ROOT / "tools" / "template_diff"))

from templates import TEMPLATES  # noqa: E402

MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["place", "unit", "days"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {},
                                                                      "additionalProperties": False}}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def check_call(call):
    arguments = json.loads(call.function.arguments)
    if call.function.name == "stop":
        assert arguments == {}
        return
    assert call.function.name == "get_weather"
    assert set(arguments) == {"place", "unit", "days"}
    assert len(arguments["place"]) <= 20
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert 1 <= arguments["days"] <= 9


@pytest.mark.parametrize("seed", range(6))
def test_a_forced_call_satisfies_its_schema(server, model, seed):
    answer = server.client().chat.completions.create(model=model, messages=MESSAGES, tools=[WEATHER, STOP],
                                                     tool_choice=NAMED, temperature=1, seed=seed, max_tokens=300)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert len(choice.message.tool_calls) == 1
    assert choice.message.tool_calls[0].function.name == "get_weather"
    assert re.fullmatch(r"chatcmpl-tool-[0-9a-f]{32}", choice.message.tool_calls[0].id)
    check_call(choice.message.tool_calls[0])


def test_required_calls_one_or_more(server, model):
    answer = server.client().chat.completions.create(model=model, messages=MESSAGES, tools=[WEATHER, STOP],
                                                     tool_choice="required", temperature=1, seed=3, n=8, max_tokens=600)
    names = set()
    for choice in answer.choices:
        assert choice.message.tool_calls
        calls = choice.message.tool_calls
        for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:  # the last may be cut off
            check_call(call)
            names.add(call.function.name)
    assert len({c.id for choice in answer.choices for c in choice.message.tool_calls}) == sum(
        len(choice.message.tool_calls) for choice in answer.choices)
    one = server.client().chat.completions.create(model=model, messages=MESSAGES, tools=[WEATHER, STOP],
                                                  tool_choice="required", parallel_tool_calls=False, temperature=1,
                                                  seed=3, max_tokens=600)
    assert len(one.choices[0].message.tool_calls) == 1


def test_a_stream_assembles_to_the_whole(server, model):
    client = server.client()
    asked = dict(model=model, messages=MESSAGES, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
                 temperature=1, seed=11, max_tokens=300)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    pieces = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
    assert pieces[0].id and pieces[0].type == "function" and pieces[0].function.name == "get_weather"
    assert all(piece.id is None and piece.function.name is None for piece in pieces[1:])
    assert len(pieces) > 5, "arguments come as they are written"
    arguments = "".join(piece.function.arguments or "" for piece in pieces)
    assert arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(**asked) as stream:  # the client's own assembly
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == arguments
    assert not final.choices[0].message.content


def test_an_answer_has_the_form_or_calls(server, model):
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {
        "type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 999}}, "required": ["sum"],
        "additionalProperties": False}}}
    asked = dict(model=model, messages=MESSAGES, tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}],
                 response_format=form, temperature=1, seed=2, max_tokens=300)
    for choice in server.client().chat.completions.create(**asked, n=6).choices:
        if choice.message.tool_calls:
            check_call(choice.message.tool_calls[0])
        else:
            assert 0 <= json.loads(choice.message.content)["sum"] <= 999
    forced = server.client().chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False)
    check_call(forced.choices[0].message.tool_calls[0])


def test_a_strict_tool_leaves_text_free(server, model):
    asked = dict(model=model, messages=MESSAGES, temperature=0.7, seed=4, max_tokens=60)
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    free, held = (server.client().chat.completions.create(**asked, tools=[tool]).choices[0].message.content
                  for tool in (WEATHER, strict))
    assert held == free
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(**asked, tools=[{"type": "function", "function": {
            "name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {"minContains": 1}}}}}])
    assert refused.value.param == "tools[0].function.parameters.properties.a.minContains"


def test_allowed_tools_narrow_what_can_be_called(server, model):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "stop"}}]}}
    answer = server.client().chat.completions.create(model=model, messages=MESSAGES, tools=[WEATHER, STOP], n=4, temperature=1,
                                                     tool_choice=allowed, parallel_tool_calls=False, max_tokens=100)
    assert [choice.message.tool_calls[0].function.name for choice in answer.choices] == ["stop"] * 4


def test_calls_go_back_as_messages(server, model):
    client = server.client()
    asked = dict(model=model, tools=[WEATHER], temperature=0, max_tokens=200)
    first = client.chat.completions.create(messages=MESSAGES, tool_choice=NAMED, **asked).choices[0].message
    call = first.tool_calls[0]
    turns = [*MESSAGES, first.model_dump(),  # as it came, nulls and all
             {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    answer = client.chat.completions.create(messages=turns, tool_choice="auto", **asked)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert not answer.choices[0].message.tool_calls


@pytest.mark.parametrize("fields, param", [
    ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}}}], "tool_choice": "required"},
     "tools[0].function.parameters.properties.a"),
    ({"reasoning_effort": "a lot"}, "reasoning_effort"),
])
def test_what_is_wrong_is_named(server, model, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(model=model, messages=MESSAGES, extra_body=fields)
    assert refused.value.param.startswith(param), refused.value


def printing(result):
    """A template of Llama's kind whose results of tools are what `result` makes of `message.content`."""
    return ("{%- for message in messages -%}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>' -}}"
            "{%- if message.role == 'tool' -%}" + result + "{%- elif message.tool_calls -%}{{- message.tool_calls | tojson -}}"
            "{%- elif message.content is string -%}{{- message.content -}}"
            "{%- else -%}{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}{%- endfor -%}")


LISTS = {
    "llama31": TEMPLATES["llama31_tools"],
    "llama32": (ROOT / "tools" / "template_diff" / "families" / "llama32.jinja").read_text(),
    "in_an_object": printing("{{- {'output': message.content} | tojson -}}"),
    "part_by_part": printing("{%- if message.content is string -%}{{- message.content | tojson -}}"
                             "{%- else -%}{%- for part in message.content -%}{{- part.text | tojson -}}{%- endfor -%}{%- endif -%}"),
    "of_lists_alone": printing("{%- if message.content is iterable and message.content is not string -%}{{- message.content | tojson -}}"
                               "{%- else -%}{{- message.content | tojson -}}{%- endif -%}"),
}


@pytest.mark.parametrize("name", sorted(LISTS))
def test_results_of_several_parts_are_one_text_where_a_template_would_print_a_list(tmp_path, name):
    """Those models saw a result as one JSON string, never as a list of parts."""
    (tmp_path / "template.jinja").write_text(LISTS[name])
    parts = [{"type": "text", "text": "5 degrees"}, {"type": "text", "text": "rain"}]
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    with serving("--chat-template", str(tmp_path / "template.jinja")) as server:
        def prompt(content):
            messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": content}]
            answer = httpx2.post(server.url + "/v1/chat/completions/render", json={"messages": messages, "tools": [WEATHER]}, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer.json()["prompt"]
        assert prompt(parts) == prompt("5 degrees\nrain")
        assert '"5 degrees\\nrain"' in prompt(parts) and '"type": "text"' not in prompt(parts)
        # The other APIs have results of parts too.
        message = {"max_tokens": 4, "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}], "messages": [
            *MESSAGES, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "get_weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": parts}]}]}
        answer = httpx2.post(server.url + "/v1/messages", json=message, timeout=60)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", ["llama31_tools", "gemma2", "mistral"])
def test_several_calls_come_back_to_templates_that_know_one_or_none(tmp_path, name):
    """What the server says in one answer may stand in the next request, whatever the template makes of it."""
    (tmp_path / "template.jinja").write_text("{%- set bos_token = '' -%}" + TEMPLATES[name])
    calls = [{"id": f"call0000{i}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"days": i})}} for i in (1, 2)]
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": "call00002", "content": "rain"}, {"role": "tool", "tool_call_id": "call00001", "content": "snow"},
                {"role": "user", "content": "And then?"}]
    with serving("--chat-template", str(tmp_path / "template.jinja")) as server:
        def ask(path, body):
            answer = httpx2.post(server.url + path, json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer
        prompt = ask("/v1/chat/completions/render", {"messages": messages, "tools": [WEATHER]}).json()["prompt"]
        assert all(word in prompt for word in ("rain", "snow", "And then?"))
        if name == "llama31_tools":
            assert prompt.index("snow") < prompt.index('{"days": 2}') < prompt.index("rain"), "each call with its own result"
        answer = ask("/v1/chat/completions", {"messages": messages, "tools": [WEATHER], "max_tokens": 2})
        assert "messages[1]" in answer.headers["x-rudder-ignored-fields"]


def test_an_unknown_parser_is_refused_at_start():
    result = run_rudder("serve", "--port", "0", "--tool-call-parser", "nonesuch")
    assert result.returncode != 0
    assert "hermes" in result.stderr
