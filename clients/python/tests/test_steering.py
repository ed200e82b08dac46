import numpy as np
import pytest

from rudder_client import (ArrayError, Control, FeatureGate, FileFormatError, Named, Probe, PromptScore, Ramp, Select,
                           SteeringVectors, StepWindow, ops)
from rudder_client.packing import pack, unpack
from rudder_client.safetensors_file import write_safetensors
from rudder_client.vectors import steering_json

V = np.arange(4, dtype=np.float32)


def test_an_op_is_its_fields():
    op = ops.add("blocks.5.hook_resid_post", V, scale=2)
    assert op.to_json() == {"op": "add", "site": "blocks.5.hook_resid_post", "vector": pack(V), "scale": 2}
    op = ops.clamp("resid_pre", "mood", lo=-1, layers=np.array([3, 4]), select=Select(phase="decode"))
    assert op.to_json() == {"op": "clamp", "site": "resid_pre", "layers": [3, 4], "vector": "mood", "scale": 1, "lo": -1,
                            "select": {"phase": "decode"}}
    assert ops.rotate("resid_mid", V, V[::-1], 90, mode="by", layers="all").to_json()["mode"] == "by"
    assert ops.mean_ablate("resid_mid.1", V, V).to_json()["mean"] == pack(V)
    assert ops.mean_ablate("resid_mid.1", V, 2.5).to_json()["mean"] == 2.5
    assert "data" not in repr(op) and "add" in repr(ops.add("resid_mid.1", V))


def test_experts_are_named_by_number():
    op = ops.experts(layers="all", activate=np.array([3, 17]), deactivate=5)
    assert op.to_json() == {"op": "experts", "site": "router_logits", "layers": "all", "activate": [3, 17], "deactivate": 5}
    op = ops.experts("router_logits.4", deactivate="0-2", select=Select(phase="decode"))
    assert op.to_json() == {"op": "experts", "site": "router_logits.4", "deactivate": "0-2", "select": {"phase": "decode"}}


def test_an_op_keeps_the_vector_that_it_was_made_with():
    vector = V.copy()
    op = ops.add("resid_post.1", vector)
    vector[:] = 9
    assert np.array_equal(unpack(op.to_json()["vector"]), V)


@pytest.mark.parametrize("select,wanted", [
    (Select(), {}),
    (Select(phase="prefill", roles=("user",)), {"phase": "prefill", "roles": ["user"]}),
    (Select(prompt=slice(-1, None)), {"prompt": [[-1, None]]}),
    (Select(token_ids=np.array([3, 5]), special=False), {"token_ids": [3, 5], "special": False}),
    (Select(prompt=(0, 4)), {"prompt": [[0, 4]]}),
    (Select(prompt=[0, 4]), {"prompt": [[0, 4]]}),
    (Select(prompt=[(0, 4), slice(-8, -2)], generation=slice(16)), {"prompt": [[0, 4], [-8, -2]], "generation": [[None, 16]]}),
    (Select.positions([7, 3, 4, 4, 5]), {"prompt": [[3, 6], [7, 8]]}),
    (Select.mask([False, True, True, False, True]), {"prompt": [[1, 3], [4, 5]]}),
])
def test_selectors(select, wanted):
    assert select.to_json() == wanted


def test_masks_become_windows_of_the_same_tokens():
    rng = np.random.default_rng(3)
    for _ in range(200):
        mask = rng.random(rng.integers(1, 40)) < rng.random()
        if not mask.any():
            continue
        covered = np.zeros_like(mask)
        for begin, end in Select.mask(mask).to_json()["prompt"]:
            assert begin < end and not covered[max(begin - 1, 0):end + 1].any()  # windows do not touch
            covered[begin:end] = True
        assert np.array_equal(covered, mask)


@pytest.mark.parametrize("make", [lambda: Select.positions([]), lambda: Select.positions([-1]), lambda: Select.mask([0, 1]),
                                  lambda: Select.mask([[True]]), lambda: Select(prompt=slice(0, 9, 2)).to_json(),
                                  lambda: Select(prompt=[(0, 1, 2)]).to_json()])
def test_wrong_selectors_are_refused(make):
    with pytest.raises(ArrayError, match="select.prompt"):
        make()


def test_an_op_for_some_heads():
    op = ops.add("blocks.3.attn.hook_z", V)
    assert op.on_heads([0, -1]).to_json() == {**op.to_json(), "heads": [0, -1]}
    assert op.on_heads("0,2-3").to_json()["heads"] == "0,2-3" and "heads" not in op.to_json()


def test_an_op_for_a_stream():
    op = ops.add("blocks.3.hook_resid_post", V)
    assert op.on_stream(np.int64(1)).to_json() == {**op.to_json(), "stream": 1}
    assert op.on_stream("all").to_json()["stream"] == "all" and "stream" not in op.to_json()


def test_gates():
    probe = {"vector": pack(V), "threshold": 0.5, "sharpness": 4}
    op = ops.add("resid_post.1", V, gate=[Probe(V, 0.5, 4), Ramp(end=32)])
    assert op.to_json()["gate"] == {"probe": probe, "schedule": {"kind": "ramp", "begin": 0, "end": 32, "from": 0, "to": 1}}
    op = ops.add("resid_post.1", V, gate=FeatureGate("sae", np.int64(3), above=2, layer=1))
    assert op.to_json()["gate"] == {"feature": {"dictionary": "sae", "feature": 3, "above": 2, "layer": 1}}
    op = ops.add("resid_post.1", V, gate=PromptScore("mood", "blocks.0.hook_resid_post", 1))
    assert op.to_json()["gate"] == {"prompt_score": {"vector": "mood", "site": "blocks.0.hook_resid_post", "threshold": 1}}
    op = ops.add("resid_post.1", V, gate=[Control(3, 0.5, -1, 2, vector=V, point="resid_post.2"), StepWindow(2)])
    law = {"target": 3, "gain": 0.5, "min": -1, "max": 2}
    assert op.to_json()["gate"]["control"] == {"probe": {"vector": pack(V), "site": "resid_post.2"}, **law}
    op = ops.add("resid_post.1", V, gate=Control(3, 0.5, -1, 2, dictionary="moods", feature=7, layer=2))
    assert op.to_json()["gate"] == {"control": {"feature": {"dictionary": "moods", "feature": 7, "layer": 2}, **law}}
    with pytest.raises(ArrayError, match="gate.control"):
        ops.add("resid_post.1", V, gate=Control(3, 0.5, -1, 2, vector=V))
    assert ops.add("resid_post.1", V, gate=StepWindow(2, 9)).to_json()["gate"] == {
        "schedule": {"kind": "window", "begin": 2, "end": 9}}
    with pytest.raises(ArrayError, match="gate.schedule"):
        ops.add("resid_post.1", V, gate=(Ramp(3), StepWindow()))


def test_vectors_are_a_mapping_and_a_file(tmp_path):
    vectors = SteeringVectors({"blocks.6.hook_resid_post": V, "resid_post.5": 2 * V, "mlp_act.1": np.ones(6)})
    assert list(vectors) == ["blocks.1.mlp.hook_post", "blocks.5.hook_resid_post", "blocks.6.hook_resid_post"]
    assert np.array_equal(vectors["resid_post.6"], V) and "resid_post.7" not in vectors and "nonsense" not in vectors
    vectors.save(tmp_path / "mood.safetensors")
    loaded = SteeringVectors.load(tmp_path / "mood.safetensors")
    assert {name: rows.tolist() for name, rows in loaded.items()} == {n: r.tolist() for n, r in vectors.items()}
    mlp, resid = [op.to_json() for op in loaded.ops(scale=3)]
    assert mlp["site"] == "mlp_act" and mlp["layers"] == [1] and resid["layers"] == [5, 6] and resid["scale"] == 3
    assert np.array_equal(unpack(resid["vector"]), [2 * V, V])


def test_what_is_no_vector_of_a_point_is_refused(tmp_path):
    with pytest.raises(ArrayError, match="twice"):
        SteeringVectors({"resid_post.5": V, "blocks.5.hook_resid_post": V})
    with pytest.raises(ArrayError, match="shape"):
        SteeringVectors({"resid_post.5": [V]})
    for tensors in ({"weights": V}, {"resid_post.5": np.ones((2, 2))}):
        write_safetensors(tmp_path / "x.safetensors", tensors)
        with pytest.raises(FileFormatError):
            SteeringVectors.load(tmp_path / "x.safetensors")


def test_everything_that_steers_can_stand_in_one_list():
    op = ops.add("resid_post.1", V)
    elements = steering_json(["calm", Named("mood", 0.5), op, SteeringVectors({"resid_post.2": V}), {"name": "raw"}])
    assert elements[:3] == [{"name": "calm"}, {"name": "mood", "scale": 0.5}, op.to_json()]
    assert elements[3]["layers"] == [2] and elements[4] == {"name": "raw"}
    assert steering_json("calm") == [{"name": "calm"}] and steering_json(SteeringVectors({"resid_post.2": V}))[0]["op"] == "add"
    with pytest.raises(ArrayError, match=r"steering\[1\]"):
        steering_json([op, 3])
