"""Outputs that are kept to some tokens, alone and beside others that are not."""

import concurrent.futures
import json

import httpx2
import openai
import pytest

PROMPT = "Once upon a time there was"
STORY = dict(prompt=PROMPT, max_tokens=40, temperature=0.8, seed=11)


def complete(server, model, **fields):
    extra = {name: fields.pop(name) for name in list(fields) if name in ("allowed_token_ids", "bad_words", "min_tokens",
                                                                         "ignore_eos", "return_token_ids")}
    return server.client().completions.create(model=model, **{**STORY, **fields},
                                              extra_body={"return_token_ids": True, **extra}).choices


def token_ids(server, text):
    answer = httpx2.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}, timeout=30)
    return answer.json()["tokens"]


def test_only_allowed_tokens_come(server, model):
    allowed = token_ids(server, " a big red dog ran and sat.")
    for choice in complete(server, model, allowed_token_ids=allowed, n=3):
        assert set(choice.model_extra["token_ids"]) <= set(allowed)
        assert choice.finish_reason == "length"  # no end of sequence is among them
        assert len(choice.model_extra["token_ids"]) == 40


def test_bad_words_do_not_come(server, model):
    plain = complete(server, model, temperature=0)[0].text
    words = [word for word in ("was", "the", "a", "to", "named") if f" {word} " in plain]
    assert words
    text = complete(server, model, temperature=0, bad_words=words)[0].text
    for word in words:
        assert f" {word} " not in text
    # The answer goes on as ever where no bad word is in it.
    assert complete(server, model, temperature=0, bad_words=["Liechtenstein"])[0].text == plain


def test_constrained_and_free_share_steps(server, model):
    allowed = token_ids(server, " a big red dog ran and sat.")
    kinds = [{}, {"allowed_token_ids": allowed}, {"bad_words": ["the"]}, {"temperature": 0}]
    alone = [complete(server, model, **kind)[0].text for kind in kinds]
    before = server.metric("rudder:constrained_sequences_total")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda i: complete(server, model, **kinds[i % 4])[0].text, range(32)))
    for i, text in enumerate(together):
        assert text == alone[i % 4]
    assert server.metric("rudder:constrained_sequences_total") > before


def test_stop_ids_alone_end_before_min_tokens(server, model):
    end = token_ids(server, "<|im_end|>")
    assert len(end) == 1
    choice = complete(server, model, allowed_token_ids=end, min_tokens=5)[0]
    assert choice.finish_reason == "stop"
    assert choice.text == ""


def test_streams_are_the_whole(server, model):
    allowed = token_ids(server, " a big red dog ran and sat.")
    whole = complete(server, model, allowed_token_ids=allowed)[0].text
    chunks = server.client().completions.create(model=model, **STORY, stream=True,
                                                extra_body={"allowed_token_ids": allowed})
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole


@pytest.mark.parametrize("fields, param", [
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [1 << 30]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": ["x"]}, "allowed_token_ids[0]"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": "x"}, "bad_words"),
])
def test_wrong_lists_are_refused_by_name(server, model, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        complete(server, model, **fields)
    assert json.loads(refused.value.response.text)["error"]["param"] == param


def test_lists_that_exclude_each_other_are_the_clients_error(server, model):
    only = token_ids(server, " the")
    assert len(only) == 1
    with pytest.raises(openai.BadRequestError):
        complete(server, model, allowed_token_ids=only, bad_words=["the"])
