"""/v1/messages through Anthropic's client: answers, streams, tools, counted tokens, errors."""

import anthropic
import pytest

from conftest import serving

QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]
WEATHER = {"name": "weather", "description": "The weather of a place.", "input_schema": {
    "type": "object", "properties": {"place": {"type": "string", "enum": ["sea", "land"]}}, "required": ["place"],
    "additionalProperties": False}}


GREEDY = {"extra_body": {"temperature": 0}}  # the client has no such argument any more


def client_of(server, key="none"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


def test_answer(server, model):
    answer = client_of(server).messages.create(model=model, max_tokens=60, messages=QUESTION, **GREEDY)
    assert "85" in answer.content[0].text
    assert answer.role == "assistant" and answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens > 0


def test_is_the_chat_answer(server, model):
    message = client_of(server).messages.create(model=model, max_tokens=60, messages=QUESTION, **GREEDY,
                                                system=[{"type": "text", "text": "Be brief."}])
    chat = server.client().chat.completions.create(model=model, temperature=0, max_tokens=60, messages=[
        {"role": "system", "content": "Be brief."}, *QUESTION])
    assert message.content[0].text == chat.choices[0].message.content
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens


def test_stream_helper(server, model):
    arguments = dict(model=model, max_tokens=300, **GREEDY,
                     messages=[{"role": "user", "content": "Tell me a happy story about a boat."}])
    whole = client_of(server).messages.create(**arguments)
    with client_of(server).messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in client_of(server).messages.create(**arguments, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stop_sequence_and_length(server, model):
    story = [{"role": "user", "content": "Tell me a sad story about a river."}]
    client = client_of(server)
    whole = client.messages.create(model=model, max_tokens=200, messages=story, **GREEDY).content[0].text
    stop = whole[25:31]
    cut = client.messages.create(model=model, max_tokens=200, messages=story, **GREEDY, stop_sequences=[stop])
    assert cut.content[0].text == whole[:whole.index(stop)]
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop
    assert client.messages.create(model=model, max_tokens=2, messages=story).stop_reason == "max_tokens"


def test_count_tokens(server, model):
    client = client_of(server)
    counted = client.messages.count_tokens(model=model, messages=QUESTION, system="Be brief.")
    answer = client.messages.create(model=model, max_tokens=1, messages=QUESTION, system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_tools(server, model):
    client = client_of(server)
    question = [{"role": "user", "content": "How is the weather at sea?"}]
    arguments = dict(model=model, max_tokens=200, messages=question, **GREEDY, tools=[WEATHER],
                     tool_choice={"type": "tool", "name": "weather"})
    answer = client.messages.create(**arguments)
    call = answer.content[-1]
    assert answer.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "weather"
    assert call.input["place"] in ("sea", "land")
    with client.messages.stream(**arguments) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input == call.input
    after = client.messages.create(model=model, max_tokens=40, **GREEDY, tools=[WEATHER], messages=[
        *question, {"role": "assistant", "content": [call.to_dict()]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                      "content": [{"type": "text", "text": "calm"}]}]}])
    assert after.type == "message"


@pytest.mark.parametrize("fields, path", [
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": QUESTION, "max_tokens": 20000}, "max_tokens"),
    ({"messages": QUESTION, "extra_body": {"temperature": -1}}, "temperature"),
    ({"messages": [{"role": "user", "content": "word " * 20000}]}, "messages"),
])
def test_bad_fields_are_refused_by_name(server, model, fields, path):
    with pytest.raises(anthropic.BadRequestError) as refused:
        client_of(server).messages.create(**{"model": model, "max_tokens": 5, **fields})
    error = refused.value.body["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == path


def test_keys_and_unknown_models():
    with serving("--api-key", "secret") as server:
        model = server.client(api_key="secret").models.list().data[0].id
        with pytest.raises(anthropic.AuthenticationError):
            client_of(server, "wrong").messages.create(model=model, max_tokens=1, messages=QUESTION)
        assert client_of(server, "secret").messages.create(model=model, max_tokens=1, messages=QUESTION).content
        with pytest.raises(anthropic.NotFoundError):
            client_of(server, "secret").messages.create(model="none", max_tokens=1, messages=QUESTION)
