"""Request fields through the official client: OpenAI's own, and vLLM's in extra_body."""

import math

import httpx2
import openai
import pytest

from conftest import serving

QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]
TEXT = "Once upon a time there was a small boat on the river."


def scores_of(client, model, **fields):
    return client.completions.create(model=model, prompt=TEXT, echo=True, logprobs=2, temperature=0, **fields).choices


def test_scoring_a_text_as_evaluation_harnesses_do(server, model):
    client = server.client()
    (choice,) = scores_of(client, model, max_tokens=0)
    assert choice.text == TEXT
    assert "".join(choice.logprobs.tokens).strip() == TEXT
    assert choice.finish_reason == "length"
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset == sorted(choice.logprobs.text_offset)
    # max_tokens 1 is the other way that they ask: the prompt's part is the same, bit for bit.
    (one,) = scores_of(client, model, max_tokens=1)
    assert one.logprobs.token_logprobs[:-1] == choice.logprobs.token_logprobs
    assert one.text.startswith(TEXT)


def test_a_likely_text_scores_better_than_a_shuffled_one(server, model):
    client = server.client()

    def score(text):
        logprobs = client.completions.create(model=model, prompt=text, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs
        return sum(logprobs.token_logprobs[1:])

    assert score("Once upon a time there was a little boat.") > score("boat a little there time Once was upon a.") + 5


def test_prompt_logprobs_are_those_of_the_echo(server, model):
    client = server.client()
    (echoed,) = scores_of(client, model, max_tokens=1)
    answer = client.completions.create(model=model, prompt=TEXT, max_tokens=1, extra_body={"prompt_logprobs": 2, "return_token_ids": True})
    told = answer.choices[0].prompt_logprobs
    ids = answer.choices[0].prompt_token_ids
    assert told[0] is None and len(told) == len(ids)
    for token, entry, echo in zip(ids[1:], told[1:], echoed.logprobs.token_logprobs[1:]):
        own = entry[str(token)]
        assert own["logprob"] == echo
        assert 2 <= len(entry) <= 3
        assert sorted(e["rank"] for e in entry.values())[:2] == [1, 2]
        assert own["logprob"] <= max(e["logprob"] for e in entry.values())
        assert math.fsum(math.exp(e["logprob"]) for e in entry.values()) <= 1.001
    chat = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1, extra_body={"prompt_logprobs": 0})
    assert chat.prompt_logprobs[0] is None
    assert all(len(entry) == 1 for entry in chat.prompt_logprobs[1:])
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


def test_a_scored_prompt_is_not_read_from_the_cache_and_fills_it(server, model):
    client = server.client()
    prompt = "A prompt of its own for the cache. " * 8
    body = {"prompt_logprobs": 0, "cache_salt": "scored"}
    first = client.completions.create(model=model, prompt=prompt, max_tokens=1, extra_body=body)
    again = client.completions.create(model=model, prompt=prompt, max_tokens=1, extra_body=body)
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    assert again.choices[0].prompt_logprobs == first.choices[0].prompt_logprobs
    plain = client.completions.create(model=model, prompt=prompt, max_tokens=1, extra_body={"cache_salt": "scored"})
    assert plain.usage.prompt_tokens_details.cached_tokens > 0


def test_an_echo_streams_with_its_logprobs_first(server, model):
    client = server.client()
    whole = scores_of(client, model, max_tokens=6, n=2, seed=3, extra_body={"ignore_eos": True})
    for index in range(2):
        chunks = [c for chunk in scores_of_stream(client, model) for c in chunk.choices if c.index == index]
        assert chunks[0].logprobs.token_logprobs[0] is None
        assert "".join(c.text for c in chunks) == whole[index].text
        for name in ("tokens", "token_logprobs", "text_offset"):
            assert sum((getattr(c.logprobs, name) for c in chunks), []) == getattr(whole[index].logprobs, name), name


def scores_of_stream(client, model):
    return client.completions.create(model=model, prompt=TEXT, echo=True, logprobs=2, temperature=0, max_tokens=6, n=2,
                                     seed=3, stream=True, extra_body={"ignore_eos": True})


def test_truncation_keeps_the_end(server, model):
    client = server.client()
    body = {"truncate_prompt_tokens": 5, "return_token_ids": True}
    cut = client.completions.create(model=model, prompt=TEXT, max_tokens=1, extra_body=body).choices[0]
    full = client.completions.create(model=model, prompt=TEXT, max_tokens=1, extra_body={"return_token_ids": True}).choices[0]
    assert cut.prompt_token_ids == full.prompt_token_ids[-5:]
    long = client.completions.create(model=model, prompt="word " * 20000, max_tokens=3,
                                     extra_body={"truncate_prompt_tokens": -1, "ignore_eos": True})
    assert long.usage.completion_tokens == 3


def test_a_completion_that_does_not_say_has_sixteen_tokens(server, model):
    answer = server.client().completions.create(model=model, prompt=TEXT, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16
    assert answer.system_fingerprint.startswith("rudder-")


def test_an_answer_goes_back_as_it_came(server, model):
    """An answer of thoughts alone has no content, and clients send it back with all its nulls."""
    spoken = {"role": "assistant", "content": None, "reasoning": "Hm.", "refusal": None, "tool_calls": None,
              "function_call": None, "audio": None, "annotations": None}
    parts = {"role": "user", "content": [{"type": "input_text", "text": "Go"}, {"type": "text", "text": "on."}]}
    answer = server.client().chat.completions.create(model=model, messages=[*QUESTION, spoken, parts], max_tokens=2)
    assert answer.usage.completion_tokens > 0


def test_a_prompt_that_is_far_too_long_is_refused_at_once(server):
    for text in ("word " * 2_000_000, " " * 10_000_000, "x" * 10_000_000):
        before = server.processor_seconds()
        answer = httpx2.post(server.url + "/v1/completions", json={"prompt": text}, timeout=120)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert server.processor_seconds() - before < 5  # encoding them takes more


def test_ids_instead_of_texts(server, model):
    client = server.client()
    answer = client.completions.create(model=model, prompt=TEXT, max_tokens=3, logprobs=1, temperature=0,
                                       extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True}).choices[0]
    assert answer.logprobs.tokens == [f"token_id:{i}" for i in answer.token_ids]
    chat = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=3, temperature=0,
                                          extra_body={"return_prompt_text": True})
    assert "27 + 58" in chat.prompt_text


def test_a_repetition_ends_the_answer(server, model):
    client = server.client()
    body = {"ignore_eos": True, "logit_bias": {}, "repetition_detection": {"max_pattern_size": 2, "min_count": 4}}
    token = client.completions.create(model=model, prompt="the", max_tokens=1, temperature=0,
                                      extra_body={"return_token_ids": True}).choices[0].token_ids[0]
    body["logit_bias"] = {str(token): 100}
    choice = client.completions.create(model=model, prompt="the", max_tokens=50, temperature=0, extra_body=body).choices[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "repetition_detected")


def test_the_answers_id(server, model):
    client = server.client()
    body = {"request_id": "mine"}
    assert client.completions.create(model=model, prompt="a", max_tokens=1, extra_body=body).id == "cmpl-mine"
    named = client.completions.create(model=model, prompt="a", max_tokens=1, extra_body=body,
                                      extra_headers={"x-request-id": "header"})
    assert named.id == "cmpl-header"


def test_documents_and_ignored_fields(server, model):
    body = {"model": model, "messages": QUESTION, "max_tokens": 1, "documents": [{"title": "a", "text": "b"}],
            "stream": True, "stream_options": {"include_usage": True, "foo": 1}, "bar": 2}
    answer = httpx2.post(server.url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.headers["x-rudder-ignored-fields"] == "bar, stream_options.foo"


@pytest.mark.parametrize("fields,param", [
    ({"logprobs": 21}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"top_k": -2}, "top_k"),
    ({"sse_ping_interval": 1e400}, "sse_ping_interval"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"repetition_detection": {"max_pattern_size": 1}}, "repetition_detection.min_count"),
])
def test_wrong_values_are_named(server, model, fields, param):
    body = ", ".join([f'"model": "{model}", "prompt": "a"', *(f'"{k}": {to_json(v)}' for k, v in fields.items())])
    answer = httpx2.post(server.url + "/v1/completions", content="{" + body + "}", timeout=60,
                         headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def to_json(value):
    import json
    return "1e400" if value == math.inf else json.dumps(value)


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {"messages": QUESTION}), ("/v1/completions", {"prompt": TEXT}), ("/v1/responses", {"input": TEXT}),
    ("/v1/messages", {"messages": QUESTION, "max_tokens": 2})])
def test_steering_beside_the_body_is_refused(server, model, path, body):
    """What would not steer must not pass for steered; other parameters and fields are nobody's business."""
    def ask(query="", **header):
        answer = httpx2.post(server.url + path + query, json=body, headers={key.replace("_", "-"): value for key, value in header.items()},
                             timeout=60)
        return answer.status_code, (answer.json().get("error") or {}).get("param")
    assert ask("?steering=calm") == (400, "query.steering")
    assert ask("?beta=true&steer-vector=calm") == (400, "query.steer-vector")
    assert ask(x_steering="calm") == (400, "header.x-steering")
    assert ask(x_rudder_steering_scale="2") == (400, "header.x-rudder-steering-scale")
    assert ask("?beta=true&api-version=1", x_trace="steering", x_capture_id="7")[0] == 200


def test_the_client_sees_typed_errors(server, model):
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(model=model, messages=QUESTION, top_logprobs=3)
    assert caught.value.param == "top_logprobs"


def test_a_thinking_budget_ends_the_thought(model):
    with serving("--reasoning-parser", "deepseek_r1") as server:  # an answer begins as a thought, always
        client = server.client()
        for budget in (0, 3):
            answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=60,
                                                    extra_body={"thinking_token_budget": budget})
            message = answer.choices[0].message
            assert len(message.content) > 0, "the thought has ended and the answer begun"
            assert bool(getattr(message, "reasoning", None)) == (budget > 0)
