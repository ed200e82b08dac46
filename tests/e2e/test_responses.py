"""/v1/responses through the official client: answers, streams, tools, schemas, what is remembered."""

import json

import openai
import pytest

QUESTION = "What is 27 + 58?"
WEATHER = {"type": "function", "name": "weather", "description": "The weather of a place.", "strict": True,
           "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["sea", "land"]}},
                          "required": ["place"], "additionalProperties": False}}


def test_answer(server, model):
    answer = server.client().responses.create(model=model, input=QUESTION, temperature=0, metadata={"job": "7"})
    assert "85" in answer.output_text
    assert answer.status == "completed" and answer.metadata == {"job": "7"}
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_is_the_chat_answer(server, model):
    client = server.client()
    answer = client.responses.create(model=model, input=[{"role": "user", "content": QUESTION}], temperature=0,
                                     instructions="Be brief.")
    chat = client.chat.completions.create(model=model, temperature=0, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}])
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens


def test_stream_helper(server, model):
    client = server.client()
    arguments = dict(model=model, input="Tell me a happy story about a boat.", temperature=0, max_output_tokens=300)
    whole = client.responses.create(**arguments)
    kinds, text = [], ""
    with client.responses.stream(**arguments) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
                assert event.snapshot == text
        final = stream.get_final_response()
    assert text == whole.output_text == final.output_text
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.completed"]
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_cut_answers_are_incomplete(server, model):
    client = server.client()
    arguments = dict(model=model, input="Tell me a happy story about a boat.", max_output_tokens=3)
    answer = client.responses.create(**arguments)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    last = list(client.responses.create(**arguments, stream=True))[-1]
    assert last.type == "response.incomplete" and last.response.status == "incomplete"


def test_logprobs(server, model):
    client = server.client()
    arguments = dict(model=model, input=QUESTION, temperature=0, top_logprobs=2,
                     include=["message.output_text.logprobs"])
    answer = client.responses.create(**arguments)
    logprobs = answer.output[0].content[0].logprobs
    assert all(len(token.top_logprobs) == 2 for token in logprobs)
    events = list(client.responses.create(**arguments, stream=True))
    told = [p.token for e in events if e.type == "response.output_text.delta" for p in e.logprobs]
    done = [p.token for e in events if e.type == "response.output_text.done" for p in e.logprobs]
    assert done == [token.token for token in logprobs]
    assert told == done[:len(told)] and "".join(told) == answer.output_text


def test_conversation_goes_on(server, model):
    client = server.client()
    first = client.responses.create(model=model, input=QUESTION, temperature=0)
    second = client.responses.create(model=model, input="And of 2 and 2?", previous_response_id=first.id,
                                     temperature=0)
    chat = client.chat.completions.create(model=model, temperature=0, messages=[
        {"role": "user", "content": QUESTION}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And of 2 and 2?"}])
    assert second.output_text == chat.choices[0].message.content
    assert second.usage.input_tokens == chat.usage.prompt_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_background(server, model, paced):
    client = server.client()
    answer = client.responses.create(model=model, input=QUESTION, temperature=0, background=True)
    assert answer.status in ("queued", "in_progress")
    while answer.status in ("queued", "in_progress"):
        answer = client.responses.retrieve(answer.id)
    assert answer.status == "completed" and "85" in answer.output_text

    slow = paced.client()
    long = slow.responses.create(model=model, input="Tell me a story.", background=True, max_output_tokens=10**4 // 8,
                                 extra_body={"ignore_eos": True})
    assert slow.responses.cancel(long.id).status == "cancelled"
    assert slow.responses.retrieve(long.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(answer.id)


def test_tools(server, model):
    client = server.client()
    arguments = dict(model=model, input="How is the weather at sea?", tools=[WEATHER], temperature=0,
                     tool_choice={"type": "function", "name": "weather"}, max_output_tokens=200)
    answer = client.responses.create(**arguments)
    call = answer.output[-1]
    assert call.type == "function_call" and call.name == "weather"
    assert json.loads(call.arguments)["place"] in ("sea", "land")
    with client.responses.stream(**arguments) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert kinds.index("response.function_call_arguments.done") < kinds.index("response.completed")
    assert final.output[-1].arguments == call.arguments

    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    same = client.responses.create(**{**arguments, "tool_choice": allowed, "parallel_tool_calls": False})
    assert (same.output[-1].name, same.output[-1].arguments) == ("weather", call.arguments)
    assert same.tool_choice.to_dict() == allowed

    after = client.responses.create(model=model, temperature=0, max_output_tokens=40, tools=[WEATHER], input=[
        {"role": "user", "content": "How is the weather at sea?"}, call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "calm"}])
    assert after.status in ("completed", "incomplete")


def test_json_schema(server, model):
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 999}},
              "required": ["sum"], "additionalProperties": False}
    answer = server.client().responses.create(model=model, input=QUESTION, temperature=0, max_output_tokens=100, text={
        "format": {"type": "json_schema", "name": "sum", "schema": schema, "strict": True}})
    assert 0 <= json.loads(answer.output_text)["sum"] <= 999


def test_what_a_response_was_asked_with(server, model):
    client = server.client()
    answer = client.responses.create(model=model, input=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                                         {"role": "user", "content": QUESTION}], temperature=0)
    items = client.responses.input_items.list(answer.id, order="asc", limit=2)
    assert [item.role for item in items] == ["user", "assistant", "user"]  # the client asks for the next page
    assert items.data[0].content[0].text == "a" and items.has_more
    counted = client.responses.input_tokens.count(model=model, input=QUESTION)
    asked = client.responses.create(model=model, input=QUESTION, temperature=0)
    assert counted.input_tokens == asked.usage.input_tokens


def test_a_response_is_streamed_again(server, model):
    client = server.client()
    answer = client.responses.create(model=model, input=QUESTION, temperature=0)
    events = list(client.responses.retrieve(answer.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
    assert events[-1].type == "response.completed" and events[-1].response.output_text == answer.output_text
    later = list(client.responses.retrieve(answer.id, stream=True, starting_after=2))
    assert later == events[3:]


def test_a_conversation_is_summed_up(server, model):
    client = server.client()
    made = client.responses.compact(model=model, input=[{"role": "user", "content": "Tell me of a boat."}])
    assert made.object == "response.compaction" and made.output[-1].type == "compaction"
    item = made.output[-1].to_dict()
    after = client.responses.create(model=model, input=[item, {"role": "user", "content": QUESTION}], temperature=0, max_output_tokens=5)
    alone = client.responses.create(model=model, input=QUESTION, temperature=0, max_output_tokens=5)
    assert after.usage.input_tokens > alone.usage.input_tokens


@pytest.mark.parametrize("fields, param", [
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": "x", "max_output_tokens": 10**9}, "max_output_tokens"),
    ({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"input": "word " * 20000}, "input"),
])
def test_bad_fields_are_refused_by_name(server, model, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().responses.create(model=model, **fields)
    assert refused.value.param == param
