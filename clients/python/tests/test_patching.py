import numpy as np
import pytest

from rudder_client import ArrayError, KeptCapture, ops

ANSWER = {"id": "s", "object": "patch_sweep", "model": "tiny", "metric": "logit_difference", "clean": 3.0, "corrupted": -1.0,
          "tokens": ["a", "b"], "positions": [[0, 1], [1, 2]], "usage": {},
          "grids": [{"site": "resid_post", "layers": [1, 4], "values": [[-1, 3], [1, 0]]}]}


def test_a_sweep_is_its_fields_and_its_arrays(scripted):
    scripted.answer = lambda method, path, body: (200, ANSWER, {})
    client = scripted.client()
    sweep = client.patch_sweep("one", [3, np.int64(4)], right=" x", wrong=7, sites={"resid_post": [1, np.int64(4)], "attn_out": "all"},
                               positions=[0, (1, None)], svg=True, cache_salt="s")
    _, path, body, _ = scripted.requests[0]
    assert path == "/v1/steering/patch_sweep"
    assert body == {"model": "tiny", "clean": "one", "corrupted": [3, 4], "answer": {"right": " x", "wrong": 7}, "svg": True,
                    "sites": {"resid_post": [1, 4], "attn_out": "all"}, "positions": [0, [1, None]], "cache_salt": "s"}
    assert sweep.layers == {"resid_post": (1, 4)} and sweep.values["resid_post"].shape == (2, 2)
    assert np.array_equal(sweep.restored("resid_post"), np.array([[0, 1], [0.5, 0.25]], dtype=np.float32))

    chat = [{"role": "user", "content": "hi"}]
    client.patch_sweep(chat, chat, right=5, sites={"resid_post": 1})
    assert scripted.requests[1][2] == {"model": "tiny", "clean": {"messages": chat}, "corrupted": {"messages": chat},
                                       "answer": {"right": 5}, "sites": {"resid_post": 1}}


def test_nothing_to_restore(scripted):
    scripted.answer = lambda method, path, body: (200, {**ANSWER, "corrupted": 3.0}, {})
    with pytest.raises(ArrayError, match="nothing to restore"):
        scripted.client().patch_sweep("a", "b", right=1, sites={"resid_post": "all"}).restored("resid_post")


def test_rows_of_another_request():
    assert KeptCapture("resid_post.5").to_json()["kept"]["positions"] == "all_prompt"
    assert ops.patch_from("resid_post", "cmpl-1", [np.int64(4), -1], [3, -1], layers=[6]).to_json() == {
        "op": "patch", "site": "resid_post", "layers": [6], "scale": 1.0, "dest": [3, -1],
        "source": {"request": "cmpl-1", "choice": 0, "positions": [4, -1]}}
    assert "dest" not in ops.patch_from("resid_post.5", "cmpl-1", [0]).to_json()
