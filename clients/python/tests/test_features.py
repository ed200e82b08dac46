import numpy as np
import pytest

from rudder_client import ArrayError, Capture, Features, Lens, Select, features, run_with_features
from rudder_client.capture import CaptureResult
from rudder_client.packing import unpack
from rudder_client.vectors import steering_json

DICTIONARY = {"name": "sae", "source": "s", "format": "manifest", "layers": [
    {"read": "resid_post.3", "write": "resid_post.3", "writes": 1, "features": 9, "activation": "relu"},
    {"read": "mlp_in.4", "write": "mlp_out.4", "writes": 1, "features": 9, "activation": "relu"}]}


def test_a_clamp_is_its_fields():
    assert features.clamp("sae", np.int64(3), "set", 2).to_json() == {
        "op": "feature", "dictionary": "sae", "feature": 3, "kind": "set", "value": 2.0}
    clamp = features.clamp("sae", 1, "add", -1, layer=4, only_if_active=True, select=Select(phase="decode"))
    assert steering_json(clamp)[0] == {"op": "feature", "dictionary": "sae", "feature": 1, "kind": "add", "value": -1.0,
                                       "layer": 4, "only_if_active": True, "select": {"phase": "decode"}}


def test_rows_go_in_parts_and_come_back_in_order(scripted):
    def answer(method, path, body):
        assert (method, path) == ("POST", "/v1/steering/features/encode")
        rows = unpack(body["rows"])
        assert len(rows) <= 64 and body["dictionary"] == "sae" and body["layer"] == 3
        if "features" in body:
            return 200, {"rows": [{"features": body["features"], "values": [float(row[j]) for j in body["features"]]}
                                  for row in rows]}, {}
        return 200, {"rows": [{"features": [7], "values": [float(row[0])]} for row in rows]}, {}

    scripted.answer = answer
    rows = np.arange(150 * 4, dtype=np.float32).reshape(150, 4)
    client = scripted.client()
    assert np.array_equal(client.dictionaries.encode("sae", rows, [2, 0], layer=3), rows[:, [2, 0]])
    assert len(scripted.requests) == 3
    top = client.dictionaries.top("sae", rows, 2, layer=3)
    assert np.array_equal(top.features, np.tile([7, -1], (150, 1)))
    assert np.array_equal(top.values, np.stack([rows[:, 0], np.zeros(150)], axis=1))


def test_dictionaries_are_listed_and_changed(scripted):
    scripted.answer = lambda method, path, body: (
        200, {"dictionaries": [DICTIONARY], "count": 1} if method == "GET" else DICTIONARY, {})
    client = scripted.client(steering_api_key="admin")
    listed = client.dictionaries.list()
    assert [str(each.read) for each in listed[0].layers] == ["resid_post.3", "mlp_in.4"]
    assert str(listed[0].at(4).write) == "mlp_out.4"
    with pytest.raises(ArrayError, match="layers 3, 4"):
        listed[0].at(None)
    client.dictionaries.register("sae", "folder", site="resid_post.3", replace=True)
    client.dictionaries.delete("a b")
    assert [(path, body, key) for _, path, body, key in scripted.requests[1:]] == [
        ("/v1/steering/dictionaries", {"name": "sae", "path": "folder", "site": "resid_post.3", "replace": True}, "Bearer admin"),
        ("/v1/steering/dictionaries/a%20b", None, "Bearer admin")]
    with pytest.raises(ArrayError, match="no dictionary 'other': it has sae"):
        run_with_features(client, "a", "other", [0])


def test_a_lens_is_asked_for_and_read():
    asked = Capture((), "all", lens=Lens([1, np.int64(2)], top=2)).to_json()
    assert asked == {"response": {"positions": "all", "point": "pre", "lens": {"layers": [1, 2], "top": 2}}}
    result = CaptureResult("response", "ok", None, {"positions": [0, 1], "lens": {
        "resid_post.2": {"token_ids": [[5, 6], [7, 8]], "logprobs": [[-1, -2], [-3, -4]]}}})
    reading = result.lens["blocks.2.hook_resid_post"]
    assert reading.token_ids.tolist() == [[5, 6], [7, 8]] and reading.logprobs[1, 0] == -3


def test_features_are_asked_for_with_an_answer_and_read():
    asked = Capture((), "all", features=Features("sae", numbers=np.array([3, 1]), layer=2)).to_json()
    assert asked == {"response": {"positions": "all", "point": "pre", "dictionary": "sae", "layer": 2, "features": [3, 1]}}
    assert Features("sae").to_json() == {"dictionary": "sae", "top": 8}
    result = CaptureResult("response", "ok", None, {"positions": [0, 1], "dictionary": {
        "name": "sae", "layer": 2, "features": [[5, 6], [7]], "values": [[2, 1], [3]]}})
    assert result.features.features.tolist() == [[5, 6], [7, -1]] and result.features.values.tolist() == [[2, 1], [3, 0]]


def test_a_full_clamp_says_so():
    assert features.clamp("sae", 1, "set", 2, mode="full").to_json()["mode"] == "full"
    assert "mode" not in features.clamp("sae", 1, "set", 2).to_json()
