"""The lens: what the output head says of rows of earlier layers, against numpy over the checkpoint's own tensors."""

import json

import numpy as np
import openai
import pytest

from conftest import ROOT, serving
from test_capture import complete, rows_of
from test_steering import LAYERS, add, vector

TOP = 5


@pytest.fixture(scope="module")
def capturing():
    with serving("--enable-steering", "--capture-memory-mb", "8") as running:
        yield running


@pytest.fixture(scope="module")
def client(capturing):
    return capturing.client()


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="module")
def head():
    """(final norm [hidden], output head [vocab, hidden]) of the demo model."""
    raw = (ROOT / "models" / "demo" / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])

    def tensor(name):
        begin, end = header[name]["data_offsets"]
        bits = np.frombuffer(raw[8 + length + begin:8 + length + end], dtype=np.uint16)
        return (bits.astype(np.uint32) << 16).view(np.float32).reshape(header[name]["shape"]).astype(np.float64)

    return tensor("model.norm.weight"), tensor("model.embed_tokens.weight")


def lens(layers, positions="all", **more):
    return {"capture": {"response": {"lens": {"layers": layers, "top": TOP}, "positions": positions, **more}}}


def values_of(answer):
    result = answer.capture_results["response"]
    assert result["status"] == "ok", result
    return result["payload"]


def test_layers_are_read_as_the_head_would(client, name, head):
    weight, embedding = head
    layers = [1, 4, LAYERS - 1]
    payload = values_of(complete(client, name, lens(layers, sites={"resid_post": layers}, dtype="float32")))
    rows = np.array(rows_of(payload["rows"]["resid_post"])).reshape(len(payload["positions"]), len(layers), -1)
    for i, layer in enumerate(layers):
        x = rows[:, i]
        normed = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weight
        logits = normed @ embedding.T
        logprobs = logits - np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)) \
            - logits.max(axis=1, keepdims=True)
        told = payload["lens"][f"resid_post.{layer}"]
        assert len(told["token_ids"]) == len(rows)
        for position, (ids, values) in enumerate(zip(told["token_ids"], told["logprobs"])):
            assert len(ids) == len(set(ids)) == TOP and values == sorted(values, reverse=True)
            expected = logprobs[position]
            spread = 0.02 * np.abs(logits[position]).max()  # products round their operands to bfloat16
            assert np.abs(expected[ids] - values).max() < spread
            assert expected[ids[-1]] > np.sort(expected)[-TOP] - 2 * spread


def test_the_last_layer_says_what_the_model_says(client, name):
    answer = complete(client, name, lens(-1), logprobs=TOP, max_tokens=4)
    payload = values_of(answer)
    told = payload["lens"][f"resid_post.{LAYERS - 1}"]
    first = answer.usage.prompt_tokens - 1
    for i, best in enumerate(answer.choices[0].logprobs.token_logprobs):
        assert told["logprobs"][first + i][0] == pytest.approx(best, abs=2e-2)


def test_steering_shows_in_the_lens(client, name):
    steered = {**lens([3], "last_prompt", point="post"), **add(vector(7, 300.0), 3)}
    plain = values_of(complete(client, name, lens([3], "last_prompt", point="post")))
    assert values_of(complete(client, name, steered))["lens"] != plain["lens"]


def test_streamed_with_the_tokens(client, name):
    whole = values_of(complete(client, name, lens([2, 5])))
    events, last = {}, None
    for chunk in complete(client, name, lens([2, 5]), stream=True):
        event = getattr(chunk, "capture", None)
        if event:
            events[event["position"]] = event["values"]["lens"]
        last = getattr(chunk, "capture_results", None) or last
    assert last["response"]["payload"]["events"] == len(whole["positions"])
    for i, position in enumerate(whole["positions"]):
        for point, told in events[position].items():
            assert told["token_ids"] == whole["lens"][point]["token_ids"][i]


@pytest.mark.parametrize("field,path", [
    ({"layers": [LAYERS]}, "lens.layers[0]"), ({}, "lens.layers"), ({"layers": 1, "top": 0}, "lens.top"),
    ({"layers": 1, "top": 99}, "lens.top"), ({"layers": 1, "more": 1}, "lens.more"), (3, "lens")])
def test_a_wrong_lens_is_named(client, name, field, path):
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, name, {"capture": {"response": {"lens": field}}})
    assert refused.value.body["param"] == f"capture.response.{path}"


def test_without_lens_or_sites(client, name):
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, name, {"capture": {"response": {"positions": "all"}}})
    assert refused.value.body["param"] == "capture.response.sites"
