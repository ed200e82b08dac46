"""The official client against the real server: what an application does on its first day."""

import openai
import pytest

QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]


def test_chat_answers(server, model):
    answer = server.client().chat.completions.create(model=model, messages=QUESTION, temperature=0)
    assert "85" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_equals_whole(server, model):
    client = server.client()
    arguments = dict(model=model, messages=[{"role": "user", "content": "Tell me a happy story about a boat."}],
                     temperature=0.8, seed=7, max_tokens=120)
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 10
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_completions_with_logprobs_and_choices(server, model):
    answer = server.client().completions.create(model=model, prompt="Once upon a time", n=3, seed=5, max_tokens=12,
                                                temperature=1.0, logprobs=3,
                                                extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.text for c in answer.choices}) > 1
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert len(choice.logprobs.token_logprobs) == 12
        assert all(value <= 0 for value in choice.logprobs.token_logprobs)
        assert choice.finish_reason == "length"


def test_chat_logprobs(server, model):
    answer = server.client().chat.completions.create(model=model, messages=QUESTION, temperature=0, logprobs=True,
                                                     top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode().startswith(answer.choices[0].message.content[:5])
    for token in content:
        assert len(token.top_logprobs) == 4
        assert token.logprob == max(t.logprob for t in token.top_logprobs)


def test_stop_string_is_cut_exactly(server, model):
    client = server.client()
    messages = [{"role": "user", "content": "Tell me a sad story about a river."}]
    whole = client.chat.completions.create(model=model, messages=messages, temperature=0).choices[0].message.content
    stop = whole[25:31]
    cut = client.chat.completions.create(model=model, messages=messages, temperature=0, stop=[stop])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < len(whole)


def test_seed_decides(server, model):
    client = server.client()

    def ask(seed):
        return client.completions.create(model=model, prompt="The", seed=seed, temperature=1, max_tokens=30).choices[0].text

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(6)}) > 1


@pytest.mark.parametrize("field, value, param", [
    ("temperature", -1, "temperature"),
    ("top_p", 0, "top_p"),
    ("max_tokens", 0, "max_tokens"),
    ("n", 0, "n"),
    ("max_tokens", 10**9, "max_tokens"),
])
def test_bad_values_are_refused_by_name(server, model, field, value, param):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(model=model, messages=QUESTION, **{field: value})
    assert refused.value.param == param


def test_unknown_model_is_not_found(server):
    with pytest.raises(openai.NotFoundError):
        server.client().chat.completions.create(model="no-such-model", messages=QUESTION)


def test_prompt_longer_than_the_context(server, model):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().completions.create(model=model, prompt="word " * 20000)
    assert "20" in str(refused.value) and "token" in str(refused.value)


def test_tokenize_round_trip(server, model):
    import httpx2

    text = "What is 12 + 345? Grüße, 世界 🙂"
    tokens = httpx2.post(server.url + "/tokenize", json={"model": model, "prompt": text}).json()["tokens"]
    back = httpx2.post(server.url + "/detokenize", json={"model": model, "tokens": tokens}).json()["prompt"]
    assert back == text


def test_service_endpoints(server):
    import httpx2

    for path in ("/health", "/livez", "/readyz", "/version", "/server_info", "/metrics", "/v1/models"):
        assert httpx2.get(server.url + path).status_code == 200, path
    assert httpx2.get(server.url + "/nothing").status_code == 404
    assert httpx2.get(server.url + "/v1/completions").status_code == 405
