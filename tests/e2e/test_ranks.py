"""`--tensor-parallel-size`: two ranks answer what one device answers, with what each of them has only a part of."""

import os

import httpx2
import pytest

from conftest import DEMO, serving
from test_capture import rows_of
from test_patterns import rows_of as weights_of
from test_speculation import DRAFT, HEAD, MEDUSA, draft_config
from test_steering import HIDDEN

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks on a CPU need a core each")

FLAGS = ("--dtype", "float32", "--enable-steering", "--capture-memory-mb", "8", "--dictionary", f"sae={DEMO / 'dictionaries' / 'sae'}",
         "--no-speculative-adaptive")
DRAFTS = draft_config(DRAFT)
NEAR = 1e-3  # of rows and log-probabilities whose sums are taken in parts
RAMP = [((i * 37) % 101 - 50) / 50 for i in range(HIDDEN)]
SITES = {"attn_z": [0, 3], "mlp_act": [1, 4], "resid_post": 5}
BOTH = {"capture": {"response": {"sites": SITES, "lens": {"layers": [1, 4], "top": 3}, "positions": "all", "dtype": "float32"}}}
CLAMP = {"op": "feature", "dictionary": "sae", "feature": 123, "kind": "set", "value": 80}
ASKS = {
    "plain": {"logprobs": 3},
    "captured": BOTH,
    "patterns": {"capture": {"response": {"patterns": {"layers": "all", "keys": 32}, "positions": "all"}}},
    "one head off": {"steering": {"op": "patch", "site": "attn_z", "layers": 3, "heads": 1, "source": "zeros"}, **BOTH},
    "neurons off": {"steering": {"op": "patch", "site": "mlp_act", "layers": [1, 2], "source": "zeros"}, **BOTH},
    "a vector": {"steering": {"op": "add", "site": "resid_post", "layers": 2, "vector": RAMP, "scale": 20}, "logprobs": 1},
    "a feature": {"steering": CLAMP, "logprobs": 1},
    "a whole dictionary": {"steering": {**CLAMP, "mode": "full"}, "logprobs": 1},
}


def answers(server):
    def ask(extra):
        body = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, **extra}
        answer = httpx2.post(server.url + "/v1/completions", timeout=120, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return {name: ask(extra) for name, extra in ASKS.items()}


@pytest.fixture(scope="module")
def alone():
    with serving(*FLAGS, *DRAFTS) as server:
        return answers(server)


@pytest.fixture(scope="module")
def ranks():
    with serving(*FLAGS, *DRAFTS, "--tensor-parallel-size", "2") as server:
        found = answers(server)
        assert server.metric("rudder:spec_decode_num_draft_tokens_total") >= 1
        return found


def payload_of(answer):
    result = answer["capture_results"]["response"]
    assert result["status"] == "ok", result
    return result["payload"]


@pytest.mark.parametrize("name", ASKS)
def test_texts_are_those_of_one_device(alone, ranks, name):
    one, two = alone[name]["choices"][0], ranks[name]["choices"][0]
    assert one["text"] == two["text"]
    if "logprobs" in ASKS[name]:
        assert two["logprobs"]["tokens"] == one["logprobs"]["tokens"]
        assert two["logprobs"]["token_logprobs"] == pytest.approx(one["logprobs"]["token_logprobs"], abs=NEAR)


@pytest.mark.parametrize("method, folder, flag", [
    ("eagle3", HEAD, "--tensor-parallel-size"),
    ("medusa", MEDUSA, "--tensor-parallel-size"),
    ("eagle3", HEAD, "--pipeline-parallel-size"),
])
def test_heads_on_ranks_and_stages_guess_and_change_no_text(alone, method, folder, flag):
    with serving(*FLAGS, *draft_config(folder, method), flag, "2") as server:
        found = answers(server)
        assert server.metric("rudder:spec_decode_num_accepted_tokens_total") >= 5
    for name in ASKS:
        assert found[name]["choices"][0]["text"] == alone[name]["choices"][0]["text"]


# Each rank has half of the heads.
def test_patterns_are_those_of_one_device(alone, ranks):
    one, two = payload_of(alone["patterns"])["patterns"], payload_of(ranks["patterns"])["patterns"]
    assert one.keys() == two.keys()
    for layer, told in one.items():
        expected, got = weights_of(told), weights_of(two[layer])
        assert two[layer]["heads"] == told["heads"] and len(told["heads"]) == 4
        for weights, others in zip(sum(expected, []), sum(got, []), strict=True):
            assert sum(others) == pytest.approx(1, abs=1e-5)
            assert others == pytest.approx(weights, abs=NEAR)


@pytest.mark.parametrize("name", [name for name, extra in ASKS.items() if BOTH.items() <= extra.items()])
def test_rows_and_lens_are_those_of_one_device(alone, ranks, name):
    one, two = payload_of(alone[name]), payload_of(ranks[name])
    assert one["positions"] == two["positions"]
    for site in SITES:
        rows = zip(rows_of(one["rows"][site]), rows_of(two["rows"][site]), strict=True)
        for expected, got in rows:
            assert got == pytest.approx(expected, abs=NEAR * max(1, *map(abs, expected)))
    assert one["lens"].keys() == two["lens"].keys()
    for point, told in one["lens"].items():
        assert two["lens"][point]["token_ids"] == told["token_ids"]


def test_what_is_steered_differs(ranks):
    plain = ranks["plain"]["choices"][0]["text"]
    assert all(ranks[name]["choices"][0]["text"] != plain for name in ("neurons off", "a feature", "a vector"))
