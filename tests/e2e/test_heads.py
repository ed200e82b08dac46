"""attn_z and its heads through the real server: what a head adds, what steering of one head changes, and wrong requests."""

import openai
import pytest

from conftest import serving
from test_capture import complete, response, rows_of
from test_steering import HIDDEN, LAYERS

HEADS, DIM = 4, 64  # of the demo model
LAYER = 3


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


def captured(client, name, site, extra=None, layer=LAYER, **more):
    answer = complete(client, name, {**response({site: layer}, "all_prompt", **more), **(extra or {})}, max_tokens=1)
    result = answer.capture_results["response"]
    assert result["status"] == "ok", result
    return rows_of(result["payload"]["rows"][site])


def off(heads, **more):
    return {"steering": {"op": "patch", "site": "attn_z", "layers": LAYER, "heads": heads, "source": "zeros", **more}}


def distance(one, other):
    return max(abs(a - b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True))


def test_rows_of_heads_are_parts_of_the_whole_row(client, name):
    whole = captured(client, name, "attn_z")
    assert all(len(row) == HEADS * DIM for row in whole)
    some = captured(client, name, "attn_z", heads=[2, 0])
    assert some == [row[2 * DIM:3 * DIM] + row[:DIM] for row in whole]
    assert captured(client, name, "attn_z", heads=-1) == [row[3 * DIM:] for row in whole]
    plain = complete(client, name, response({f"blocks.{LAYER}.attn.hook_z": True}, "all_prompt"), max_tokens=1)
    assert rows_of(plain.capture_results["response"]["payload"]["rows"]["attn_z"]) == whole


def test_the_branch_is_the_sum_of_what_heads_add(client, name):
    branch = captured(client, name, "attn_out")
    parts = [captured(client, name, "attn_out", off([other for other in range(HEADS) if other != head])) for head in range(HEADS)]
    total = [[sum(values) for values in zip(*rows, strict=True)] for rows in zip(*parts, strict=True)]
    scale = max(abs(value) for row in branch for value in row)
    assert distance(total, branch) < 1e-4 * scale
    assert distance(captured(client, name, "attn_out", off("all")), [[0.0] * HIDDEN] * len(branch)) < 1e-6 * scale


def test_only_the_heads_of_the_op_change(client, name):
    whole = captured(client, name, "attn_z")
    add = {"steering": {"op": "add", "site": "attn_z", "layers": LAYER, "heads": [-1, 1], "vector": [1.0] * DIM + [2.0] * DIM}}
    changed = captured(client, name, "attn_z", add, point="post")
    for before, after in zip(whole, changed, strict=True):
        assert after[:DIM] == before[:DIM] and after[2 * DIM:3 * DIM] == before[2 * DIM:3 * DIM]
        assert max(abs(b - a - 2) for a, b in zip(before[DIM:2 * DIM], after[DIM:2 * DIM], strict=True)) < 1e-5
        assert max(abs(b - a - 1) for a, b in zip(before[3 * DIM:], after[3 * DIM:], strict=True)) < 1e-5


def test_a_head_of_another_request_is_put_in(client, name):
    kept = client.completions.create(model=name, prompt="A big whale swims in the sea.", max_tokens=1, extra_body={
        "request_id": "whale", **response({"attn_z": LAYER}, [-1]),
        "capture": {"kept": {"sites": {"attn_z": LAYER}, "positions": [-1]},
                    **response({"attn_z": LAYER}, [-1])["capture"]}})
    other = rows_of(kept.capture_results["response"]["payload"]["rows"]["attn_z"])[0]
    patch = {"steering": {"op": "patch", "site": "attn_z", "layers": LAYER, "heads": 2, "dest": [-1],
                          "source": {"request": "cmpl-whale", "positions": [-1]}}}
    before = captured(client, name, "attn_z")[-1]
    after = captured(client, name, "attn_z", patch, point="post")[-1]
    assert after == before[:2 * DIM] + other[2 * DIM:3 * DIM] + before[3 * DIM:]


@pytest.mark.parametrize("extra, param, words", [
    (off(4), "steering.heads", "head 4 of layer 3, which has 4 heads"),
    (off([0, 0]), "steering.heads[1]", "given twice"),
    ({"steering": {"op": "add", "site": "attn_out", "layers": 1, "heads": 0, "vector": [1.0] * DIM}}, "steering.heads", "only attn_z"),
    ({"steering": {"op": "add", "site": "attn_z", "layers": 1, "heads": 0, "vector": [1.0] * HIDDEN}}, "steering.vector",
     "1 heads of layer 1 have 64"),
    (response({"attn_out": LAYERS - 1}, heads=0), "capture.response.heads", "attn_z"),
    ({"capture": {"logging": {"sites": {"attn_z": 1}, "heads": 0}}}, "capture.logging.heads", "unknown field"),
])
def test_wrong_heads_are_named(client, name, extra, param, words):
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, name, extra)
    assert refused.value.body["param"] == param and words in refused.value.body["message"]


