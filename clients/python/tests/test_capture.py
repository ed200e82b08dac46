import hashlib
import json

import numpy as np
import pytest

from rudder_client import (ActivationCache, ArrayError, Capture, CaptureError, CaptureResult, FileCapture, FileFormatError,
                           KeptCapture, Lens, Patterns, Point, read_capture)
from rudder_client.capture import capture_json
from rudder_client.packing import pack
from rudder_client.safetensors_file import write_safetensors


def packed_rows(rows, layers):
    return {**pack(rows), "layer_indices": layers}


def result(payload, status="ok"):
    return CaptureResult.from_json("response", {"status": status, "error": None, "payload": payload})


def test_specifications_are_fields():
    assert Capture("resid_post").to_json() == {
        "response": {"sites": {"resid_post": "all"}, "positions": "last_prompt", "point": "pre"}}
    asked = Capture(["blocks.5.hook_resid_post", "mlp_act"], np.array([0, -1]), "post", values=["norms", "probes"],
                    probes={"a": [1.0], "b": "mood"}, measure="cosine").to_json()["response"]
    assert asked["sites"] == {"blocks.5.hook_resid_post": True, "mlp_act": "all"} and asked["positions"] == [0, -1]
    assert asked["probes"] == {"a": pack([1.0]), "b": "mood"} and asked["measure"] == "cosine"
    both = capture_json([Capture({"resid_post": [4, 5]}), FileCapture("mlp_act", tag="t", layout="shards")])
    assert both["response"]["sites"] == {"resid_post": [4, 5]} and both["filesystem"]["layout"] == "shards"
    assert capture_json({"reward": {"sites": {}}}) == {"reward": {"sites": {}}}
    with pytest.raises(ArrayError, match="capture.response"):
        capture_json([Capture("resid_post"), Capture("mlp_act")])
    with pytest.raises(ArrayError, match="sites"):
        Capture([]).to_json()
    with pytest.raises(ArrayError, match="capture.response.probes.a"):
        Capture("resid_post", probes={"a": [np.nan]}).to_json()


def test_rows_come_by_layer_and_position():
    positions, layers = [3, 4, 5], [1, 6]
    rows = np.array([[[100 * position + layer, 7] for layer in layers] for position in positions], dtype=np.float32)
    payload = {"positions": positions, "rows": {"resid_post": packed_rows(rows.reshape(6, 2), layers * 3),
                                                "mlp_act.2": packed_rows(np.ones((3, 5)), [2, 2, 2])}}
    cache = result(payload).cache
    assert list(cache) == ["blocks.1.hook_resid_post", "blocks.2.mlp.hook_post", "blocks.6.hook_resid_post"]
    assert cache["blocks.6.hook_resid_post"][:, 0].tolist() == [306, 406, 506]
    assert cache["resid_post.1"][:, 0].tolist() == [301, 401, 501] and cache["mlp_act", 2].shape == (3, 5)
    assert cache.positions.tolist() == positions and cache.layers("resid_post") == layers
    assert np.array_equal(cache["resid_post", -1], cache["resid_post", 6])
    assert cache.stack_activation("resid_post").shape == (2, 3, 2)


def test_rows_and_readings_of_a_stream():
    for spec in (Capture, FileCapture, KeptCapture):
        (fields,) = spec("resid_post", stream=np.int64(1)).to_json().values()
        assert fields["stream"] == 1 and "stream" not in next(iter(spec("resid_post").to_json().values()))
    assert Capture("resid_post", stream="all").to_json()["response"]["stream"] == "all"
    assert Lens([1, 2], stream="collapsed").to_json() == {"layers": [1, 2], "top": 5, "stream": "collapsed"}
    assert Lens(1, stream=0).to_json()["stream"] == 0 and "stream" not in Lens(1).to_json()
    rows = {**packed_rows(np.arange(6).reshape(2, 3), [1, 1]),
            "residual": {"kind": "mixed_streams", "streams": 2, "stream": 1, "layout": ["hidden"]}}
    told = {"token_ids": [[4], [5]], "logprobs": [[-1], [-2]]}
    got = result({"positions": [0, 2], "rows": {"resid_post": rows},
                  "lens": {"resid_post.1": {**told, "stream": "collapsed"}, "resid_post.2": told}})
    assert got.cache["resid_post", 1].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert got.lens["blocks.1.hook_resid_post"].stream == "collapsed" and got.lens["blocks.2.hook_resid_post"].stream is None


def test_rows_of_some_heads():
    assert Capture("attn_z", heads=np.array([2, 0])).to_json()["response"]["heads"] == [2, 0]
    assert Capture("attn_z", heads="all").to_json()["response"]["heads"] == "all"
    payload = {"positions": [0, 2], "rows": {"attn_z.1": packed_rows(np.ones((2, 6)), [1, 1]),
                                             "attn_z.2": packed_rows(np.ones((2, 8)), [2, 2])}}
    cache = CaptureResult("response", "ok", None, payload).cache
    assert cache["blocks.1.attn.hook_z"].shape == (2, 6) and cache["attn_z", 2].shape == (2, 8)


def test_attention_patterns():
    assert Capture((), "all", patterns=Patterns([2, -1], heads=np.array([3, 0]), keys=40)).to_json()["response"] == {
        "positions": "all", "patterns": {"layers": [2, -1], "heads": [3, 0], "keys": 40}}
    assert Capture("resid_post.1", patterns=Patterns("all")).to_json()["response"] == {
        "sites": {"resid_post.1": True}, "positions": "last_prompt", "point": "pre",
        "patterns": {"layers": "all", "heads": "all"}}
    first, second = np.array([[1.0], [0.5]]), np.array([[0.25, 0.75], [0.5, 0.25]])
    data = pack(np.concatenate([first.ravel(), second.ravel()]).astype(np.float32))["data"]
    told = {"heads": [3, 0], "keys": [1, 2], "dtype": "float32", "data": data}
    found = result({"positions": [0, 1], "patterns": {"2": told}}).patterns["blocks.2.attn.hook_pattern"]
    assert found.heads.tolist() == [3, 0] and [row.tolist() for row in found.rows] == [first.tolist(), second.tolist()]
    assert found.padded.tolist() == [[[1, 0], [0.25, 0.75]], [[0.5, 0], [0.5, 0.25]]]
    with pytest.raises(FileFormatError, match="bytes"):
        result({"positions": [0], "patterns": {"2": {**told, "keys": [2, 2]}}}).patterns
    with pytest.raises(CaptureError, match="patterns were not asked for"):
        result({"positions": [0]}).patterns


def test_numbers_come_by_hook_name():
    payload = {"positions": [0, 2], "norms": {"mlp_act.1": [5, 8]}, "probes": {"joy": {"resid_post.5": [0.5, 1]}},
               "means": {"resid_post": packed_rows([[1, 2], [3, 4]], [5, 6])}}
    found = result(payload)
    assert found.norms["blocks.1.mlp.hook_post"].tolist() == [5, 8]
    assert found.probes["joy"]["blocks.5.hook_resid_post"].tolist() == [0.5, 1]
    assert found.means["blocks.6.hook_resid_post"].tolist() == [3, 4]
    with pytest.raises(CaptureError, match="rows were not asked for"):
        found.cache


@pytest.mark.parametrize("status", ["partial_error", "error", "pending", "not_requested"])
def test_incomplete_results_give_no_rows(status):
    with pytest.raises(CaptureError) as refused:
        result({"positions": [0], "rows": {"resid_post": packed_rows([[1.0]], [5])}}, status).cache
    assert refused.value.status == status and refused.value.consumer == "response"


def test_packs_that_contradict_themselves_are_refused():
    for layers in ([5], [5, 5, 6, 6], [5, 6, 6, 5]):
        with pytest.raises(CaptureError, match="resid_post"):
            result({"positions": [0, 1], "rows": {"resid_post": packed_rows(np.ones((4, 2)), layers)}}).cache


def test_a_cache_says_what_it_has():
    cache = ActivationCache({Point(5, "resid_post"): np.ones((2, 3), dtype=np.float32)}, [0, 1])
    for key in ("blocks.4.hook_resid_post", "nonsense", ("resid_post", 4), ("mlp_act", -1), ("resid_post", -2)):
        assert key not in cache
        with pytest.raises(KeyError, match="blocks.5.hook_resid_post"):
            cache[key]
    assert ("resid_post", 5) in cache and len(cache) == 1 and "[2, 3]" in repr(cache)
    with pytest.raises(KeyError):
        cache.stack_activation("mlp_act")
    with pytest.raises(ValueError, match="3 positions"):
        ActivationCache({Point(5, "resid_post"): np.ones((2, 3), dtype=np.float32)}, [0, 1, 2])


def write_file(folder, layer, rows, positions, **changes):
    path = folder / f"{layer}_resid_post.bin"
    path.write_bytes(rows.astype("<f4").tobytes())
    about = {"format": "rudder.capture.rows.1", "layer": layer, "site": "resid_post", "dtype": "float32",
             "shape": list(rows.shape), "positions": positions, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    path.with_suffix(".json").write_text(json.dumps({**about, **changes}))
    return [path.name, path.with_suffix(".json").name]


def test_files_are_read_and_checked(tmp_path):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    paths = write_file(tmp_path, 5, rows, [0, 1]) + write_file(tmp_path, 10, 2 * rows, [0, 1])
    cache = read_capture(tmp_path, paths)
    assert np.array_equal(cache["resid_post", 10], 2 * rows) and cache.positions.tolist() == [0, 1]
    for changes in ({"sha256": "0" * 64}, {"shape": [3, 3]}, {"positions": [0]}, {"format": "other"}, {"dtype": "int8"},
                    {"positions": [1, 2]}):
        write_file(tmp_path, 5, rows, **{"positions": [0, 1], **changes})
        with pytest.raises(FileFormatError):
            read_capture(tmp_path, paths)
    with pytest.raises(FileFormatError, match="no rows"):
        read_capture(tmp_path, [])


def write_shard(path, tensors):
    write_safetensors(path, tensors)
    raw = path.read_bytes()
    data = raw[8 + int.from_bytes(raw[:8], "little"):]
    write_safetensors(path, tensors, {"format": "rudder.capture.shard.1", "data_sha256": hashlib.sha256(data).hexdigest()})


def block(request, layer, number, first):
    rows = np.full((2, 3), 10 * layer + number, dtype=np.float32)
    name = f"{request}/resid_post.{layer}/{number}"
    return {name: rows, f"{name}.positions": np.array([first, first + 1], dtype=np.int32)}


def test_blocks_of_shards_are_joined_in_order(tmp_path):
    write_shard(tmp_path / "b.safetensors", {**block("one", 5, 0, 0), **block("two", 5, 0, 0)})
    write_shard(tmp_path / "a.safetensors", {**block("one", 5, 1, 2), **block("one", 6, 0, 0), **block("one", 6, 1, 2)})
    shards = ["a.safetensors", "b.safetensors"]
    cache = read_capture(tmp_path, shards, "one")
    assert cache.positions.tolist() == [0, 1, 2, 3] and cache["resid_post", 5][:, 0].tolist() == [50, 50, 51, 51]
    with pytest.raises(FileFormatError, match="one, two"):
        read_capture(tmp_path, shards)
    with pytest.raises(FileFormatError, match="blocks"):
        read_capture(tmp_path, ["a.safetensors"], "one")
    with pytest.raises(FileFormatError, match="no rows of three"):
        read_capture(tmp_path, shards, "three")
    raw = bytearray((tmp_path / "b.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "b.safetensors").write_bytes(raw)
    with pytest.raises(FileFormatError, match="hash"):
        read_capture(tmp_path, shards, "one")
