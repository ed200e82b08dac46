"""Controllers (`gate.control`), through the real server: what they do to the next token, however steps are made."""

import base64
import concurrent.futures

import numpy as np
import openai
import pytest

from conftest import DEMO, serving
from test_control import WAYS, complete, refused
from test_steering import CHAT, HIDDEN, LAYERS, PROMPT, add, vector

FLAGS = ("--enable-steering", "--capture-memory-mb", "8", "--dictionary", f"demo={DEMO / 'dictionaries' / 'sae'}")
READ, STEERED = 4, 1  # layers: what is steered lies in front of what is read
PROBE = vector(3, 1.0)
TEXT = PROMPT + " It carries a cat, two apples and a letter to the other side."


def control(target, gain, low, high, read=READ, steered=STEERED, **more):
    return {"steering": {"op": "add", "site": "resid_post", "layers": steered, "vector": vector(1), "gate": {"control": {
        "probe": {"vector": PROBE, "site": "resid_post", "layer": read}, "target": target, "gain": gain, "min": low, "max": high}}, **more}}


def rows_of(client, name, body, layer, point="pre"):
    """The rows of a layer, [positions, width]."""
    capture = {"response": {"sites": {"resid_post": [layer]}, "positions": "all", "dtype": "float32", "point": point}}
    answer = complete(client, name, {**body, "capture": capture}, max_tokens=12)
    rows = answer.capture_results["response"]["payload"]["rows"]["resid_post"]
    return np.frombuffer(base64.b64decode(rows["data"]), np.float32).reshape(-1, HIDDEN)


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


@pytest.mark.parametrize("steered_layer", [STEERED, LAYERS - 2], ids=["in_front", "behind"])
def test_a_token_is_steered_by_the_reading_of_the_one_before(client, name, steered_layer):
    body = control(0.5, 0.25, -1.5, 2, steered=steered_layer)
    read = rows_of(client, name, body, READ)
    before = rows_of(client, name, body, steered_layer)
    after = rows_of(client, name, body, steered_layer, point="post")
    prompt = complete(client, name).usage.prompt_tokens
    direction = np.asarray(vector(1), np.float64)
    gates = (after - before).astype(np.float64) @ direction / (direction @ direction)
    scores = read.astype(np.float64) @ np.asarray(PROBE, np.float64)
    expected = np.clip(0.25 * (0.5 - scores[prompt - 1:-1]), -1.5, 2)
    assert np.abs(gates[:prompt]).max() == 0
    np.testing.assert_allclose(gates[prompt:], expected, rtol=1e-4, atol=1e-4)
    assert len(set(np.round(gates[prompt:], 3))) > 1


@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(way) or "plain")
def test_answers_do_not_depend_on_how_steps_are_made(way, client, name):
    extras = [control(0.5, 0.25, -1.5, 2), control(20, 0.01, 0, 3, read=STEERED, steered=READ), control(-3, 1, -2, 0, read=LAYERS - 1)]
    expected = [complete(client, name, extra, prompt=TEXT, max_tokens=48).choices[0].token_ids for extra in extras]
    assert len({tuple(ids) for ids in expected}) == len(extras)
    with serving(*FLAGS, *way) as running:
        other = running.client()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:  # beside one another
            answers = list(pool.map(lambda extra: complete(other, name, extra, prompt=TEXT, max_tokens=48), extras * 4))
        if "--kv-cache-memory-bytes" in way:
            assert running.metric("rudder:num_preemptions_total") > 0
    assert [answer.choices[0].token_ids for answer in answers] == expected * 4


def test_the_prompt_is_shared_and_not_steered(client, name):
    prompt = "A controller that nobody has asked for before today holds the answer. " * 6
    complete(client, name, prompt=prompt)
    answer = complete(client, name, {**control(0.5, 0.25, -1.5, 2), "return_steered_tokens": True}, prompt=prompt)
    usage = answer.usage
    assert usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens - 16
    end = usage.prompt_tokens + usage.completion_tokens - 1
    assert answer.choices[0].steered_tokens == [[usage.prompt_tokens - 1, end]]  # the prompt's last token is read


def test_bounds_of_one_value_are_a_plain_add(client, name):
    plain = {"steering": {"op": "add", "site": "resid_post", "layers": STEERED, "vector": vector(1), "scale": 1.5, "select": {"phase": "decode"}}}
    held = complete(client, name, control(0, 0, 1.5, 1.5)).choices[0].token_ids
    assert held == complete(client, name, plain).choices[0].token_ids
    assert complete(client, name, control(0, 0, 0, 0)).choices[0].token_ids == complete(client, name).choices[0].token_ids


def test_a_controller_by_a_feature_and_of_a_chat(client, name):
    by_feature = {"op": "add", "site": "resid_post", "layers": 5, "vector": vector(1), "gate": {"control": {
        "feature": {"dictionary": "demo", "feature": 636}, "target": 100, "gain": 0.02, "min": 0, "max": 2}}}
    chats = [client.chat.completions.create(model=name, messages=CHAT, max_tokens=24, temperature=0, extra_body=extra)
             for extra in ({}, {"steering": by_feature}, {"steering": by_feature})]
    texts = [chat.choices[0].message.content for chat in chats]
    assert texts[0] != texts[1] == texts[2]


def test_a_server_that_records_refuses_controls(tmp_path, name):
    with serving(*FLAGS, "--record", str(tmp_path)) as running:
        assert "records" in refused(running.client(), name, "steering", **control(0, 1, 0, 1))
        complete(running.client(), name, add(vector(1)))


def test_controls_that_are_refused(client, name):
    probe = {"vector": PROBE, "site": "resid_post", "layer": READ}
    law = {"target": 1, "gain": 1, "min": 0, "max": 1}
    path = "steering.gate.control"
    for field, given in [
            (path, 5), (path, law), (path + ".gain", {"probe": probe, **law, "gain": None}), (path + ".max", {"probe": probe, **law, "max": -1}),
            (path, {"probe": probe, "feature": {"dictionary": "demo", "feature": 1}, **law}), (path + ".extra", {"probe": probe, **law, "extra": 1}),
            (path + ".probe.layer", {"probe": {**probe, "layer": LAYERS}, **law}), (path + ".probe.vector", {"probe": {**probe, "vector": [1]}, **law}),
            (path + ".feature.feature", {"feature": {"dictionary": "demo", "feature": 9999}, **law})]:
        refused(client, name, field, steering={"op": "add", "site": "resid_post", "layers": 1, "vector": vector(1), "gate": {"control": given}})
    assert "none is selected" in refused(client, name, "steering", **control(0, 1, 0, 1, select={"phase": "prefill"}))
    with pytest.raises(openai.NotFoundError):
        complete(client, name, {"steering": {"op": "add", "site": "resid_post", "layers": 1, "vector": vector(1), "gate": {"control": {
            "feature": {"dictionary": "none", "feature": 1}, **law}}}})
