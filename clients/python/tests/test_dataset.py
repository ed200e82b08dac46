import json
import sys

import numpy as np
import pytest
import safetensors.numpy

from rudder_client import CaptureError, FileFormatError, capture_dataset, read_dataset
from rudder_client.packing import pack

PROMPTS = [[10, 11, 12], [20], [30, 31], [40, 41]]
NAMES = ["blocks.5.hook_resid_post", "mlp_act.1"]


def rows_of(ids):
    return np.array([[token, token + 0.5] for token in ids], dtype=np.float32)


@pytest.fixture
def tiny(scripted):
    """A model of which a token's rows are its id."""
    def answer(method, path, body):
        ids = body["prompt"]
        rows = {"resid_post": {**pack(rows_of(ids)), "layer_indices": [5] * len(ids)},
                "mlp_act": {**pack(-rows_of(ids)), "layer_indices": [1] * len(ids)}}
        status = "error" if 99 in ids else "ok"
        result = {"status": status, "error": None, "payload": {"positions": list(range(len(ids))), "rows": rows}}
        choice = {"text": "", "finish_reason": "length", "token_ids": [], "prompt_token_ids": ids}
        return 200, {"id": "c", "choices": [choice], "capture_results": {"response": result}}, {}

    scripted.answer = answer
    return scripted.client()


@pytest.mark.parametrize("file_format", ["safetensors", "parquet"])
def test_rows_come_back_with_their_tokens(tiny, tmp_path, file_format):
    done = []
    manifest = capture_dataset(tiny, PROMPTS, tmp_path / "set", NAMES, file_format=file_format, rows_per_shard=3,
                               progress=done.append)
    assert done == [1, 2, 3, 4] and manifest["num_prompts"] == 4
    assert json.loads((tmp_path / "set" / "dataset.json").read_text()) == manifest
    shards = list(read_dataset(tmp_path / "set"))
    assert [len(shard) for shard in shards] == [3, 3, 2]  # whole prompts
    assert np.concatenate([s.token_id for s in shards]).tolist() == sum(PROMPTS, [])
    assert np.concatenate([s.prompt for s in shards]).tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
    assert np.concatenate([s.position for s in shards]).tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    for shard in shards:
        assert set(shard.activations) == {"blocks.5.hook_resid_post", "blocks.1.mlp.hook_post"}
        assert np.array_equal(shard.activations["blocks.5.hook_resid_post"], rows_of(shard.token_id))
        assert np.array_equal(shard.activations["blocks.1.mlp.hook_post"], -rows_of(shard.token_id))


def test_other_readers_read_the_shards(tiny, tmp_path):
    import pyarrow.parquet

    capture_dataset(tiny, PROMPTS, tmp_path / "a", NAMES, progress=False)
    capture_dataset(tiny, PROMPTS, tmp_path / "b", NAMES, file_format="parquet", progress=False)
    tensors = safetensors.numpy.load_file(tmp_path / "a" / "shard-00000.safetensors")
    rows = pyarrow.parquet.read_table(tmp_path / "b" / "shard-00000.parquet").to_pylist()
    assert [row["token_id"] for row in rows] == tensors["token_id"].tolist() == sum(PROMPTS, [])
    assert [row["blocks.5.hook_resid_post"] for row in rows] == tensors["blocks.5.hook_resid_post"].tolist()


def test_a_run_that_fails_is_no_data_set(tiny, tmp_path):
    with pytest.raises(CaptureError) as failed:
        capture_dataset(tiny, [[1], [2], [99]], tmp_path / "set", NAMES, rows_per_shard=1, progress=False)
    assert failed.value.__notes__ == ["item 2 of the batch"]
    with pytest.raises(FileFormatError, match="did not end"):
        list(read_dataset(tmp_path / "set"))
    with pytest.raises(FileExistsError):
        capture_dataset(tiny, [[1]], tmp_path / "set", NAMES, progress=False)


def test_data_sets_that_were_changed_are_refused(tiny, tmp_path):
    capture_dataset(tiny, PROMPTS, tmp_path, NAMES, progress=False)
    path = tmp_path / "dataset.json"
    manifest = json.loads(path.read_text())
    for changes in ({"format": "other"}, {"shards": [{**manifest["shards"][0], "rows": 9}]}):
        path.write_text(json.dumps({**manifest, **changes}))
        with pytest.raises(FileFormatError):
            list(read_dataset(tmp_path))


def test_an_unknown_format_is_refused_before_anything_runs(tiny, scripted, tmp_path):
    with pytest.raises(ValueError, match="csv"):
        capture_dataset(tiny, PROMPTS, tmp_path / "set", NAMES, file_format="csv")
    assert not scripted.requests and not (tmp_path / "set").exists()


def test_parquet_without_its_package_is_refused_before_anything_runs(tiny, scripted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError):
        capture_dataset(tiny, PROMPTS, tmp_path / "set", NAMES, file_format="parquet")
    assert not scripted.requests and not (tmp_path / "set").exists()
