"""Attention patterns through the real server: what their rows are, that serving does not change them, and wrong requests."""

import base64
import struct

import openai
import pytest

from conftest import serving
from test_capture import PROMPT, complete
from test_steering import HIDDEN, LAYERS

HEADS = 4  # of the demo model


@pytest.fixture(scope="module")
def running():
    with serving("--enable-steering", "--capture-memory-mb", "8", "--capture-consumer", "kept:bytes=1M",
                 "--capture-consumer", "logging") as server:
        yield server


@pytest.fixture(scope="module")
def client(running):
    return running.client()


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


def patterns(layers, positions="all_prompt", **more):
    return {"capture": {"response": {"patterns": {"layers": layers, **more}, "positions": positions}}}


def rows_of(told):
    """[position][head][key] of a layer."""
    assert told["dtype"] == "float32"
    values = struct.iter_unpack("<f", base64.b64decode(told["data"]))
    rows = [[[next(values)[0] for _ in range(keys)] for _ in told["heads"]] for keys in told["keys"]]
    assert next(values, None) is None
    return rows


def captured(client, name, extra, **more):
    answer = complete(client, name, extra, **{"max_tokens": 1, **more})
    result = answer.capture_results["response"]
    assert result["status"] == "ok", result
    return {layer: rows_of(told) for layer, told in result["payload"]["patterns"].items()}, answer


def test_rows_are_weights_that_sum_to_one(client, name):
    found, answer = captured(client, name, patterns("all", "all", keys=64), max_tokens=6)
    read = answer.usage.prompt_tokens + answer.usage.completion_tokens - 1
    assert sorted(found, key=int) == [str(layer) for layer in range(LAYERS)]
    for rows in found.values():
        assert [len(row[0]) for row in rows] == list(range(1, read + 1))
        for position in rows:
            assert len(position) == HEADS
            for weights in position:
                assert min(weights) >= 0 and abs(sum(weights) - 1) < 1e-5
    # The demo model's heads do not all read alike.
    assert len({round(weights[-1], 3) for weights in found["3"][-1]}) > 1


def test_chosen_heads_in_the_order_of_the_request(client, name):
    whole, _ = captured(client, name, patterns([1]))
    some, answer = captured(client, name, patterns([1], heads=[-1, 0]))
    assert answer.capture_results["response"]["payload"]["patterns"]["1"]["heads"] == [HEADS - 1, 0]
    assert some["1"] == [[row[HEADS - 1], row[0]] for row in whole["1"]]


def test_the_cache_and_the_batch_change_no_bit(client, name):
    first, _ = captured(client, name, patterns([0, -1], "last_prompt"))
    again, answer = captured(client, name, patterns([0, -1], "last_prompt"))  # its blocks are cached by now
    whole, _ = captured(client, name, patterns([0, -1], "all_prompt"))        # computes all of them
    assert first == again == {layer: rows[-1:] for layer, rows in whole.items()}
    assert answer.usage.prompt_tokens == len(whole["0"])


def test_they_stream_token_by_token(client, name):
    whole, _ = captured(client, name, patterns([2], "all"), max_tokens=4)
    stream = client.completions.create(model=name, prompt=PROMPT, temperature=0, max_tokens=4, stream=True,
                                       extra_body={"ignore_eos": True, **patterns([2], "all")})
    told = [chunk.capture["values"] for chunk in stream if not chunk.choices and getattr(chunk, "capture", None)]
    assert [values["position"] for values in told] == list(range(len(whole["2"])))
    for values in told:
        entry = values["patterns"]["2"]
        assert entry["keys"] == values["position"] + 1
        assert rows_of({**entry, "keys": [entry["keys"]]}) == [whole["2"][values["position"]]]


def test_steering_shows(client, name):
    push = {"steering": {"op": "add", "site": "resid_pre", "layers": 2, "vector": [0.5] * HIDDEN}}
    before, _ = captured(client, name, patterns([1, 2]))
    after, _ = captured(client, name, {**patterns([1, 2]), **push})
    assert after["1"] == before["1"] and after["2"] != before["2"]


@pytest.mark.parametrize("capture, param, words", [
    ({"response": {"patterns": {"layers": LAYERS}}}, "capture.response.patterns.layers", f"{LAYERS}"),
    ({"response": {"patterns": {"layers": 1, "heads": [0, HEADS]}}}, "capture.response.patterns.heads[1]", f"head {HEADS}"),
    ({"response": {"patterns": {"layers": 1, "keys": 3}}}, "capture.response.patterns.keys", "a captured position"),
    ({"response": {"patterns": {"layers": "all", "keys": 1 << 20}}}, "capture.response.patterns", "this server's buffer"),
    ({"response": {"sites": {"blocks.1.attn.hook_pattern": True}}}, "capture.response.sites.blocks.1.attn.hook_pattern", "`patterns`"),
    ({"kept": {"patterns": {"layers": 1}}}, "capture.kept.patterns", "response alone"),
    ({"logging": {"sites": {"attn_z": 1}, "patterns": {"layers": 1}}}, "capture.logging.patterns", "response alone"),
])
def test_wrong_patterns_are_named(client, name, capture, param, words):
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, name, {"capture": capture})
    assert refused.value.body["param"] == param and words in refused.value.body["message"]


def test_generated_tokens_count(client, name):
    count = complete(client, name, {}, max_tokens=1).usage.prompt_tokens
    captured(client, name, patterns([1], "all", keys=count + 4), max_tokens=5)
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, name, patterns([1], "all", keys=count + 4), max_tokens=6)
    assert refused.value.body["param"] == "capture.response.patterns.keys" and f"{count + 5}" in refused.value.body["message"]


def test_stages_give_the_same_bits(client, name):
    whole, _ = captured(client, name, patterns("all", "all"), max_tokens=4)
    with serving("--capture-memory-mb", "8", "--pipeline-parallel-size", "2") as server:
        staged = server.client()
        found, _ = captured(staged, staged.models.list().data[0].id, patterns("all", "all"), max_tokens=4)
    assert found == whole
