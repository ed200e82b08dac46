"""The package of clients/python against the real server, and the notebook that shows it."""

import json
import sys

import httpx2
import jsonschema
import numpy as np
import openai
import pytest

from conftest import ROOT, serving

sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from rudder_client import (Capture, CaptureError, ConflictError, Control, FieldError, FileCapture, IgnoredFieldsError,  # noqa: E402
                           KeyRefusedError, NotFoundError, Probe, PromptScore, Ramp, Rudder, Select, StepWindow,
                           SteeringVectors, capture_dataset, ops, read_capture, read_dataset)
from rudder_client.vectors import steering_json  # noqa: E402

HIDDEN, LAYERS, MLP = 256, 8, 768
PROMPT = "A small boat sails over the sea."
CHAT = [{"role": "user", "content": "Tell me a story about a boat."}]
NOTEBOOKS = ROOT / "examples"


def vector(seed, norm=400.0):
    values = np.random.default_rng(seed).normal(size=HIDDEN)
    return (norm * values / np.linalg.norm(values)).astype(np.float32)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("captures")


@pytest.fixture(scope="module")
def running(root):
    with serving("--enable-steering", "--dictionary", f"demo={ROOT / 'models/demo/dictionaries/sae'}",
                 "--capture-memory-mb", "16", "--capture-consumer",
                 f"filesystem:root={root},shard_age_ms=100") as server:
        yield server


@pytest.fixture(scope="module")
def client(running):
    return Rudder(running.url, max_retries=0)


def told(client, **arguments):
    return client.generate(PROMPT, max_tokens=12, ignore_eos=True, **arguments).token_ids.tolist()


def test_a_cache_has_the_activations_by_hook_name(client):
    answer, cache = client.run_with_cache(PROMPT, ["resid_pre", "blocks.2.hook_attn_out", "blocks.2.hook_mlp_out", "resid_post",
                                                   "blocks.3.mlp.hook_post", "final_norm"])
    ids = client.to_tokens(PROMPT)
    assert answer.prompt_token_ids.tolist() == ids.tolist() and cache.positions.tolist() == list(range(len(ids)))
    assert "".join(client.to_str_tokens(PROMPT)) == client.to_string(ids) == PROMPT
    assert cache["blocks.3.mlp.hook_post"].shape == (len(ids), MLP) and "final_norm.7" in cache
    stacked = cache.stack_activation("resid_post")
    assert stacked.shape == (LAYERS, len(ids), HIDDEN)
    assert np.array_equal(stacked[:-1], cache.stack_activation("resid_pre")[1:])
    branches = cache["blocks.2.hook_resid_pre"] + cache["blocks.2.hook_attn_out"] + cache["blocks.2.hook_mlp_out"]
    np.testing.assert_allclose(branches, stacked[2], atol=1e-2 * np.abs(stacked[2]).max())


def test_positions_count_through_prompt_and_answer(client):
    answer, cache = client.run_with_cache(CHAT, "resid_post.5", positions="all", max_tokens=5)
    tokens = np.concatenate([answer.prompt_token_ids, answer.token_ids])
    assert len(answer.token_ids) == 5 and len(cache.positions) == len(tokens) - 1  # the last one is not read
    assert answer.tokens_at(cache.positions).tolist() == tokens[:-1].tolist()
    # The same tokens as ids give the same rows: what was captured is what stood there.
    _, again = client.run_with_cache(tokens[:-1], "resid_post.5")
    np.testing.assert_allclose(again["resid_post.5"], cache["resid_post.5"], rtol=1e-4, atol=1e-2)


def test_numbers_are_those_of_the_rows(client):
    probe = vector(1)
    names = ["resid_post.4", "resid_post.5"]
    asked = Capture(names, [0, -1], values=["rows", "means", "norms", "probes"], probes={"one": probe}, measure="cosine")
    found = client.generate(PROMPT, capture=asked, max_tokens=1).capture()
    for name, rows in found.cache.items():
        np.testing.assert_allclose(found.norms[name], np.linalg.norm(rows, axis=1), rtol=1e-4)
        np.testing.assert_allclose(found.means[name], rows.mean(axis=0), rtol=1e-3, atol=1e-3)
        cosine = rows @ probe / np.linalg.norm(rows, axis=1) / np.linalg.norm(probe)
        np.testing.assert_allclose(found.probes["one"][name], cosine, atol=1e-4)


def test_adding_a_vector_adds_it(client):
    op = ops.add("blocks.4.hook_resid_post", vector(2), scale=0.5, select=Select.positions([2, 3]))
    _, plain = client.run_with_cache(PROMPT, "resid_post.4")
    _, steered = client.run_with_cache(PROMPT, "resid_post.4", point="post", steering=op)
    added = steered["resid_post.4"] - plain["resid_post.4"]
    np.testing.assert_allclose(added[2:4], np.tile(vector(2) / 2, (2, 1)), atol=0.3)
    assert not added[:2].any() and not added[4:].any()


def test_a_patched_row_is_that_of_the_other_run(client):
    _, other = client.run_with_cache("The queen of the hill is old.", "resid_post.5")
    op = ops.patch("resid_post.5", other["resid_post.5"][-1], select=Select(prompt=slice(-1, None)))
    _, patched = client.run_with_cache(PROMPT, "resid_post.5", point="post", steering=op)
    np.testing.assert_allclose(patched["resid_post.5"][-1], other["resid_post.5"][-1], rtol=1e-2, atol=1)


V, T = vector(3), vector(4)
# One use of each op, with all selectors and gates; the gates are open.
EVERY_OP = {
    "add": ops.add("resid_post", np.stack([V, T]), layers=[3, 4], gate=Probe(T, -1e6)),
    "add_norm": ops.add_norm("resid_mid.3", V, scale=0.5, select=Select(phase="decode")),
    "add_renorm": ops.add_renorm("resid_post.3", V, only_if_grew=True, gate=[Probe(T, -1e6, 4), StepWindow(0, 8)]),
    "ablate": ops.ablate("resid_pre", np.stack([V, T]), layers="all"),
    "mean_ablate": ops.mean_ablate("attn_out", V, T, layers="4-6,-1"),
    "orthogonal": ops.orthogonal("mlp_out", V, 1.75, layers=-1),
    "swap": ops.swap("resid_post.3", V, T),
    "rotate": ops.rotate("resid_post", V, T, 120, layers=range(2, 6), adaptive=True),
    "rotate_by": ops.rotate("resid_post.3", V, T, 90, mode="by"),
    "patch": ops.patch("attn_in.2", V, select=Select(prompt=[(0, 2), slice(-2, None)], generation=(0, 4))),
    "clamp": ops.clamp("resid_post.3", V, lo=200, hi=300, gate=Ramp(8)),
    "cap": ops.cap("final_norm", V, -1),
    "set": ops.set("resid_post.3", V, 500, gate=PromptScore(T, "resid_post.1", -1e6)),
    "control": ops.add("resid_post.3", V, gate=[Control(1e6, 1, 0.5, 2, vector=T, point="resid_post.5"), StepWindow(0, 8)]),
    "vectors": SteeringVectors({"resid_post.2": V, "blocks.3.hook_resid_post": T, "resid_mid.3": V}),
}


@pytest.mark.parametrize("name", EVERY_OP)
def test_every_op_is_taken_and_acts(client, name, schema):
    jsonschema.validate(steering_json(EVERY_OP[name]), schema)
    run = {"capture": Capture("final_norm", "all", "post"), "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    plain, steered = client.generate(PROMPT, **run), client.generate(PROMPT, steering=EVERY_OP[name], **run)
    assert np.abs(steered.cache["final_norm.7"] - plain.cache["final_norm.7"]).max() > 1e-3


@pytest.fixture(scope="module")
def schema(running):
    document = httpx2.get(running.url + "/openapi.json").json()
    return {"type": "array", "items": {"$ref": "#/components/schemas/SteeringElement"}, "components": document["components"]}


def test_modules_come_and_go(client):
    vectors = SteeringVectors({"resid_post.3": V, "resid_post.5": T})
    made = client.modules.register("mood", vectors)
    assert [str(op.point) for op in made.ops] == ["resid_post.3", "resid_post.5"]
    assert made.ops[0].norm == pytest.approx(np.linalg.norm(V), rel=1e-5)
    assert "mood" in [module.name for module in client.modules.list()]
    assert told(client, temperature=1, seed=1, steering="mood") == told(client, temperature=1, seed=1, steering=vectors)
    with pytest.raises(ConflictError):
        client.modules.register("mood", vectors)
    client.modules.register("mood", ops.add("resid_post.3", T), replace=True)
    client.modules.delete("mood")
    with pytest.raises(NotFoundError):
        told(client, steering="mood")
    with pytest.raises(NotFoundError):
        client.modules.delete("mood")


def test_a_saved_file_is_a_module_and_changes_need_the_key(client, tmp_path):
    vectors = SteeringVectors({"resid_post.3": V, "resid_post.5": T})
    vectors.save(tmp_path / "mood.safetensors")
    with serving("--enable-steering", "--steering-module", f"mood={tmp_path / 'mood.safetensors'}",
                 "--steering-api-key", "admin") as other:
        user, admin = Rudder(other.url), Rudder(other.url, steering_api_key="admin")
        steered = told(user, temperature=1, seed=1, steering="mood")
        with pytest.raises(KeyRefusedError):
            user.modules.delete("mood")
        admin.modules.delete("mood")
        assert not user.modules.list()
    assert steered == told(client, temperature=1, seed=1, steering=vectors)


@pytest.mark.parametrize("arguments,path", [
    ({"steering": [ops.add("resid_post.3", V), ops.add("resid_post.3", V[:-1])]}, "steering[1].vector"),
    ({"steering": ops.add("resid_post.8", V)}, "steering[0].site"),
    ({"steering": ops.add("resid_post", V, layers=[3, 8])}, "steering[0].layers[1]"),
    ({"steering": ops.add("blocks.5.hook_mlp_in", V)}, "steering[0].site"),
    ({"steering": ops.rotate("resid_post.3", V, T, 90, mode="by", scale=2)}, "steering[0].scale"),
    ({"steering": ops.add("resid_post.3", V, select=Select(roles=["user"]))}, "steering"),
    ({"capture": Capture("resid_post.8")}, "capture.response.sites.resid_post.8"),
    ({"capture": Capture("resid_post", probes={"p": [1.0]})}, "capture.response.probes.p"),
    ({"capture": FileCapture("resid_post", tag="../x")}, "capture.filesystem.tag"),
    ({"temperature": "warm"}, "temperature"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
])
def test_a_wrong_field_is_named_by_its_path(client, arguments, path):
    with pytest.raises(FieldError) as refused:
        client.generate(PROMPT, **arguments)
    assert refused.value.path == path and isinstance(refused.value, openai.BadRequestError)


def test_nothing_is_passed_over(client):
    with pytest.raises(IgnoredFieldsError) as ignored:
        client.generate(PROMPT, max_tokens=1, temprature=0)
    assert ignored.value.fields == ["temprature"]
    with pytest.raises(CaptureError):
        client.generate(PROMPT, max_tokens=1).cache


def test_files_hold_the_rows_of_the_answer(client, root):
    names = ["resid_post.4", "resid_post.5", "mlp_act.1"]
    for layout in ("files", "shards"):
        both = [Capture(names, "all"), FileCapture(names, tag="boats", layout=layout)]
        answer = client.generate(PROMPT, capture=both, max_tokens=6, ignore_eos=True)
        read = read_capture(root, answer.capture("filesystem").paths, answer.id)
        assert list(read) == list(answer.cache) and read.positions.tolist() == answer.cache.positions.tolist()
        for name, rows in answer.cache.items():
            assert np.array_equal(read[name], rows), name


@pytest.mark.parametrize("file_format", ["safetensors", "parquet"])
def test_a_data_set_has_the_tokens_of_its_rows(client, tmp_path, file_format):
    prompts = [PROMPT, CHAT, "The farmer has a goat."] * 4
    capture_dataset(client, prompts, tmp_path / "set", ["resid_post.5", "mlp_act.1"], file_format=file_format,
                    rows_per_shard=40, progress=False)
    shards = list(read_dataset(tmp_path / "set"))
    assert len(shards) > 1
    for number in (0, 4):
        _, cache = client.run_with_cache(prompts[number], "resid_post.5")
        [shard] = [shard for shard in shards if number in shard.prompt]
        mine = shard.prompt == number
        assert shard.token_id[mine].tolist() == client.to_tokens(prompts[number]).tolist()
        np.testing.assert_allclose(shard.activations["blocks.5.hook_resid_post"][mine], cache["resid_post.5"], atol=1e-2)


def test_batches_embeddings_and_forms_pass_through(client):
    prompts = [f"Story {i} is about a boat." for i in range(12)]
    texts = [answer.text for answer in client.batch(prompts, max_tokens=6, temperature=0)]
    assert texts == [client.generate(prompt, max_tokens=6, temperature=0).text for prompt in prompts]
    rows = client.embed(prompts)
    assert rows.shape == (12, HIDDEN) and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3)
    assert not np.allclose(client.embed(prompts, steering=ops.add("resid_post.3", V)), rows)
    number = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": number}}
    assert isinstance(json.loads(client.generate(CHAT, response_format=form, max_tokens=60).text)["age"], int)
    assert client.generate(PROMPT, structured_outputs={"choice": ["yes", "no"]}).text in ("yes", "no")


def test_the_first_example_of_the_manual_runs(running):
    readme = (ROOT / "clients" / "python" / "README.md").read_text()
    example = readme.split("```python\n")[1].split("```")[0].replace("http://127.0.0.1:8000", running.url)
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["direction"].shape == (HIDDEN,)


@pytest.fixture
def run_notebook(running, tmp_path, monkeypatch):
    """Runs a notebook's cells in an empty folder; gives the names that they leave."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUDDER_URL", running.url)
    monkeypatch.setenv("MPLBACKEND", "Agg")

    def run(name):
        cells = [cell for cell in json.loads((NOTEBOOKS / name).read_text())["cells"] if cell["cell_type"] == "code"]
        names = {"__name__": "notebook"}
        for number, cell in enumerate(cells):
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
        return names

    return run


def test_the_notebook_of_features_finds_the_moods(run_notebook):
    names = run_notebook("sae_features.ipynb")
    # Those that `rudder features rank` finds on other topics (docs/features.md).
    assert (names["HAPPY"], names["SAD"]) == (636, 123)
    assert names["happy"][:, names["HAPPY"]].min() > names["sad"][:, names["HAPPY"]].max()
    assert names["values"].shape[1] == 2
    assert names["same"].mean() > 0.9


def test_the_notebook_finds_the_mood(run_notebook, tmp_path):
    names = run_notebook("mood_direction.ipynb")
    assert names["accuracy"][5] == 1.0
    happy, sad = (names["moods"] > 0).mean(axis=1), (names["moods"] < 0).mean(axis=1)
    assert happy[-1] >= 0.9 and sad[0] >= 0.9
    assert (tmp_path / "mood.safetensors").exists()
