"""What steers an answer as a whole, through the real server: pairs, stops by a score, the echo of steered tokens."""

import concurrent.futures
import json

import httpx2
import openai
import pytest

from conftest import DEMO, serving
from test_steering import CHAT, LAYERS, PROMPT, add, vector

FLAGS = ("--enable-steering", "--capture-memory-mb", "8", "--dictionary", f"demo={DEMO / 'dictionaries' / 'sae'}")
# Each changes how steps are made of the same requests.
WAYS = [(), ("--multi-step", "4"), ("--no-async-scheduling", "--max-num-batched-tokens", "16"),
        ("--speculative-method", "ngram", "--no-speculative-adaptive"),
        ("--kv-cache-memory-bytes", "1500000", "--max-model-len", "160")]  # so little that sequences are preempted


@pytest.fixture(scope="module")
def steered():
    with serving(*FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(steered):
    return steered.client()


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


def complete(client, name, extra=None, prompt=PROMPT, **more):
    options = {"max_tokens": 24, "temperature": 1, "seed": 1, **more}
    return client.completions.create(model=name, prompt=prompt, extra_body={
        "return_token_ids": True, "ignore_eos": True, **(extra or {})}, **options)


def refused(client, name, field, **extra):
    with pytest.raises(openai.APIStatusError) as caught:
        complete(client, name, extra)
    assert caught.value.status_code == 400 and caught.value.body["param"] == field, caught.value.body
    return caught.value.body["message"]


def test_pair_is_the_plain_and_the_steered_answer(client, name):
    steering = add(vector(1))
    plain, alone = complete(client, name), complete(client, name, steering)
    pair = complete(client, name, {**steering, "steering_pair": True})
    assert [choice.index for choice in pair.choices] == [0, 1]
    assert pair.choices[0].token_ids == plain.choices[0].token_ids
    assert pair.choices[1].token_ids == alone.choices[0].token_ids != plain.choices[0].token_ids
    assert pair.usage.completion_tokens == 48
    assert pair.usage.prompt_tokens == 2 * plain.usage.prompt_tokens  # the prompt runs twice
    # Without a seed of its own, both halves draw the same numbers: without effect they are equal.
    same = complete(client, name, {**add(vector(1), scale=0), "steering_pair": True}, seed=None)
    assert same.choices[0].token_ids == same.choices[1].token_ids


def test_pair_shares_the_prompt_where_it_is_not_steered(client, name):
    prompt = "A pair of questions that nobody has asked before today. " * 6
    steering = add(vector(1), select={"phase": "decode"})
    pair = complete(client, name, {**steering, "steering_pair": True}, prompt=prompt)
    # The first half computes the prompt; the second finds all but its last block.
    assert pair.usage.prompt_tokens_details.cached_tokens >= pair.usage.prompt_tokens // 2 - 16
    assert pair.choices[0].token_ids != pair.choices[1].token_ids


def test_pair_of_a_chat_streamed_and_whole(client, name):
    body = {"model": name, "messages": CHAT, "temperature": 0, "max_tokens": 16}
    extra = {**add(vector(1, 4000.0)), "steering_pair": True}
    whole = client.chat.completions.create(**body, extra_body=extra)
    texts = {0: "", 1: ""}
    ends = []
    for chunk in client.chat.completions.create(**body, stream=True, extra_body=extra):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    assert sorted(ends) == [0, 1]
    assert [texts[0], texts[1]] == [choice.message.content for choice in whole.choices]
    assert texts[0] == client.chat.completions.create(**body).choices[0].message.content != texts[1]


def test_pairs_of_several_prompts(client, name):
    steering = add(vector(1))
    prompts = ["One day", "The sea is"]
    pairs = complete(client, name, {**steering, "steering_pair": True}, prompt=prompts)
    assert [choice.index for choice in pairs.choices] == [0, 1, 2, 3]
    for i, prompt in enumerate(prompts):
        assert pairs.choices[2 * i].token_ids == complete(client, name, prompt=prompt).choices[0].token_ids
        assert pairs.choices[2 * i + 1].token_ids == complete(client, name, steering, prompt=prompt).choices[0].token_ids


def test_pair_captures_both(client, name):
    extra = {**add(vector(1)), "steering_pair": True, "capture": {"response": {
        "sites": {"resid_post": [3]}, "positions": "last_prompt", "values": ["norms"], "point": "post"}}}
    pair = complete(client, name, extra)
    norms = [choice.capture_results["response"]["payload"]["norms"]["resid_post.3"][0] for choice in pair.choices]
    assert norms[0] != norms[1]


def test_pairs_that_are_refused(steered, client, name):
    refused(client, name, "steering_pair", steering_pair=True)
    refused(client, name, "steering_pair", steering_pair=1, **add(vector(1)))
    refused(client, name, "steering_pair", steering_pair=True, n=2, **add(vector(1)))
    body = {"steering_pair": True, **add(vector(1))}
    for path, more in [("/v1/responses", {"input": "Hi"}), ("/v1/messages", {"messages": CHAT, "max_tokens": 2}),
                       ("/v1/embeddings", {"input": "Hi"})]:
        answer = httpx2.post(steered.url + path, json={"model": name, **body, **more})
        assert answer.status_code == 400 and "steering_pair" in answer.text, (path, answer.text)


# The scores of an answer's tokens, by the probe of a capture.
def scores_of(client, name, probe, layer, **more):
    answer = complete(client, name, {**more, "capture": {"response": {
        "sites": {"resid_post": [layer]}, "positions": "all_generated", "values": ["probes"], "probes": {"p": probe}}}})
    payload = answer.capture_results["response"]["payload"]
    points = payload["probes"]["p"]
    return answer, points[f"resid_post.{layer}"]


def first_run(scores, above, count):
    """The tokens up to the first that ends a run of `count` scores above `above`; None: there is none."""
    run = 0
    for i, score in enumerate(scores):
        run = run + 1 if score > above else 0
        if run == count:
            return i + 1
    return None


def stop(probe, layer, above, count):
    return {"stop_when": {"probe": {"vector": probe, "site": "resid_post", "layer": layer}, "above": above, "for": count}}


def bounds(scores):
    """Bounds that some scores of an answer are above, for runs of 1, 2 and 3."""
    found = []
    for count in (1, 2, 3):
        ordered = sorted(scores, reverse=True)
        for above in [(one + next_one) / 2 for one, next_one in zip(ordered, ordered[1:])]:  # none is a score
            length = first_run(scores, above, count)
            if length is not None and length > 3:
                found.append((above, count, length))
                break
    assert found
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(way) or "plain")
def test_stop_by_a_probe_is_exact(way):
    probe = vector(3, 1.0)
    with serving(*FLAGS, *way) as running:
        client = running.client()
        name = client.models.list().data[0].id
        for steering in ({}, add(vector(1), layer=1)):
            whole, scores = scores_of(client, name, probe, 4, **steering)
            ids = whole.choices[0].token_ids
            cases = bounds(scores)
            extras = [{**steering, **stop(probe, 4, above, count)} for above, count, _ in cases]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:  # beside one another
                answers = list(pool.map(lambda extra: complete(client, name, extra), extras * 3))
            for answer, (_, _, length) in zip(answers, cases * 3):
                choice = answer.choices[0]
                assert choice.token_ids == ids[:length]
                assert choice.finish_reason == "stop" and choice.stop_reason == "stop_when.probe"
                assert answer.usage.completion_tokens == length and not hasattr(answer, "capture_results")


def test_stop_that_is_never_met(client, name):
    answer = complete(client, name, stop(vector(3, 1.0), 4, 1e9, 1))
    assert answer.choices[0].finish_reason == "length" and answer.choices[0].stop_reason is None
    assert answer.choices[0].token_ids == complete(client, name).choices[0].token_ids


def test_stop_in_a_stream_hands_out_nothing_behind_it(client, name):
    probe = vector(3, 1.0)
    whole, scores = scores_of(client, name, probe, 4)
    above, count, length = bounds(scores)[0]
    ids, reasons = [], []
    for chunk in client.completions.create(model=name, prompt=PROMPT, temperature=1, seed=1, max_tokens=24, stream=True, extra_body={
            "return_token_ids": True, "ignore_eos": True, **stop(probe, 4, above, count)}):
        for choice in chunk.choices:
            ids += choice.token_ids
            reasons += [choice.stop_reason] if choice.finish_reason else []
    assert ids == whole.choices[0].token_ids[:length] and reasons == ["stop_when.probe"]


def test_stop_keeps_min_tokens_and_goes_with_captures(client, name):
    probe = vector(3, 1.0)
    whole, scores = scores_of(client, name, probe, 4)
    early = complete(client, name, {"min_tokens": 10, **stop(probe, 4, -1e9, 1)})
    assert early.choices[0].token_ids == whole.choices[0].token_ids[:10]
    above, count, length = bounds(scores)[0]
    both, seen = scores_of(client, name, probe, 4, **stop(probe, 4, above, count))
    assert both.choices[0].token_ids == whole.choices[0].token_ids[:length] and seen == scores[:length]


def test_stop_by_a_feature(steered, client, name):
    answer = complete(client, name, {"capture": {"response": {
        "sites": {"resid_post": [5]}, "positions": "all_generated", "dtype": "float32"}}})
    rows = answer.capture_results["response"]["payload"]["rows"]["resid_post"]
    encoded = httpx2.post(steered.url + "/v1/steering/features/encode", json={
        "dictionary": "demo", "rows": {k: rows[k] for k in ("dtype", "shape", "data")}, "top": 4}).json()["rows"]
    ids = answer.choices[0].token_ids
    feature = encoded[6]["features"][0]
    values = [dict(zip(row["features"], row["values"])).get(feature, 0.0) for row in encoded]
    length = next(i for i, value in enumerate(values) if value > 0) + 1
    stopped = complete(client, name, {"stop_when": {"feature": {"dictionary": "demo", "feature": feature}, "above": values[length - 1] * 0.99}})
    assert stopped.choices[0].stop_reason == "stop_when.feature"
    assert len(stopped.choices[0].token_ids) <= length
    assert stopped.choices[0].token_ids == ids[:len(stopped.choices[0].token_ids)]


def test_stop_of_a_chat_and_a_response(steered, client, name):
    extra = stop(vector(3, 1.0), 4, -1e9, 5)
    chat = client.chat.completions.create(model=name, messages=CHAT, max_tokens=24, temperature=0, extra_body=extra)
    assert chat.choices[0].stop_reason == "stop_when.probe" and chat.usage.completion_tokens == 5
    response = httpx2.post(steered.url + "/v1/responses", json={"model": name, "input": CHAT[0]["content"], "max_output_tokens": 24, **extra}).json()
    assert response["status"] == "completed" and response["usage"]["output_tokens"] == 5


def test_stops_that_are_refused(client, name):
    probe = {"vector": vector(3), "site": "resid_post", "layer": 4}
    for field, given in [
            ("stop_when", 5), ("stop_when", {"above": 1}), ("stop_when.above", {"probe": probe}),
            ("stop_when", {"probe": probe, "feature": {"dictionary": "demo", "feature": 1}, "above": 1}),
            ("stop_when.for", {"probe": probe, "above": 1, "for": 0}), ("stop_when.probe.layer", {"probe": {**probe, "layer": LAYERS}, "above": 1}),
            ("stop_when.probe.vector", {"probe": {**probe, "vector": [1, 2]}, "above": 1}),
            ("stop_when.probe.layer", {"probe": {**probe, "layer": None}, "above": 1}),
            ("stop_when.feature.feature", {"feature": {"dictionary": "demo", "feature": 9999}, "above": 1}),
            ("stop_when.probe.depth", {"probe": {**probe, "depth": 1}, "above": 1}), ("stop_when.extra", {"probe": probe, "above": 1, "extra": 1})]:
        refused(client, name, field, stop_when=given)
    with pytest.raises(openai.NotFoundError):
        complete(client, name, {"stop_when": {"feature": {"dictionary": "none", "feature": 1}, "above": 1}})


def test_a_server_without_capture_refuses_stops():
    with serving("--enable-steering") as running:
        client = running.client()
        name = client.models.list().data[0].id
        assert "--capture-memory-mb" in refused(client, name, "stop_when", **stop(vector(3), 4, 1, 1))


def test_echo_of_steered_tokens(client, name):
    prompt_tokens = complete(client, name).usage.prompt_tokens

    def echoed(select, **more):
        return complete(client, name, {**add(vector(1), select=select), "return_steered_tokens": True, **more}).choices[-1].steered_tokens

    end = prompt_tokens + 24 - 1  # the last token of the answer never ran
    assert echoed({"phase": "all"}) == [[0, end]]
    assert echoed({"phase": "decode"}) == [[prompt_tokens, end]]
    assert echoed({"prompt": [2, 5], "generation": [3, 7]}) == [[2, 5], [prompt_tokens + 3, prompt_tokens + 7]]
    assert echoed({"phase": "all"}, steering_pair=True) == [[0, end]]
    plain = complete(client, name, {"return_steered_tokens": True})
    assert plain.choices[0].steered_tokens == []
    assert not hasattr(complete(client, name, add(vector(1))).choices[0], "steered_tokens")
    chunks = [choice for chunk in client.chat.completions.create(
        model=name, messages=CHAT, max_tokens=4, stream=True, extra_body={**add(vector(1)), "ignore_eos": True, "return_steered_tokens": True})
        for choice in chunk.choices]
    told = [choice.steered_tokens for choice in chunks if hasattr(choice, "steered_tokens")]
    assert len(told) == 1 and chunks[-1].finish_reason and told[0][0][0] == 0
    assert json.dumps(told[0])
