"""rudder vectors: a mood is learnt from two sets of prompts, and steers stories that nobody asked a mood of."""

import json
import struct

import httpx2
import pytest
import score
from conftest import run_rudder, serving
from tasks import story

TRAINED, HELD_OUT = story.TOPICS[::2], story.TOPICS[1::2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors")
    for mood in ("happy", "sad"):
        lines = [f"Tell me a {mood} story about a {topic}.\n" for topic in TRAINED]
        (path / f"{mood}.txt").write_text("".join(lines))
    (path / "free.txt").write_text("".join(f"Tell me a story about a {topic}.\n" for topic in HELD_OUT))
    return path


def train(folder, name, *flags):
    done = run_rudder("vectors", "train", "--positive", folder / "happy.txt", "--negative", folder / "sad.txt", "--chat",
                      "--name", name, "--output", folder, *flags)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{name}.json").read_text())


def evaluate(folder, name, *flags):
    done = run_rudder("vectors", "eval", "--vectors", folder / f"{name}.safetensors", "--prompts", folder / "free.txt",
                      "--chat", "--max-tokens", "64", "--output", folder / "report.json", "--plot", folder / "plot.svg",
                      *flags)
    assert done.returncode == 0, done.stderr
    assert (folder / "plot.svg").read_text().startswith("<svg")
    return {point["scale"]: point for point in json.loads((folder / "report.json").read_text())["points"]}, done.stdout


def share(point, mood):
    moods = [score.mood_of(text) for text in point["texts"]]
    return moods.count(mood) / len(moods)


@pytest.mark.parametrize("method,tokens,layer,scale", [("mean-diff", "last", 5, 1), ("pca", "last", 6, 1)])
def test_a_mood_is_learnt_and_steers(folder, method, tokens, layer, scale):
    card = train(folder, method, "--method", method, "--tokens", tokens, "--gguf")
    vector = card["vectors"][layer]
    assert vector["layer"] == layer and vector["held_out_accuracy"] >= 0.9
    points, table = evaluate(folder, method, "--layers", layer, f"--scales={-scale},0,{scale}")
    assert "perplexity" in table
    plain = points[0]
    assert min(share(plain, "happy"), share(plain, "sad")) < 0.5
    for sign, mood in ((1, "happy"), (-1, "sad")):
        steered = points[sign * scale]
        assert share(steered, mood) >= 0.9, steered["texts"]
        assert steered["perplexity"] <= 1.2 * plain["perplexity"]
    assert points[-scale]["effect"] < plain["effect"] < points[scale]["effect"]


def test_a_scale_is_recommended_and_a_reading_of_the_vector_itself_is_named(folder):
    train(folder, "budget", "--layers", "4,5")
    prompts = ["--vectors", folder / "budget.safetensors", "--prompts", folder / "free.txt", "--chat", "--max-tokens", "24",
               "--layers", "5", "--output", folder / "budget.report.json"]
    recommended = {}
    for budget in ("0.05", "1"):
        done = run_rudder("vectors", "eval", *prompts, "--scales=0,4", "--kl-budget", budget)
        assert done.returncode == 0 and "recommended scale" in done.stdout, done.stderr
        assert "contains the added vector" in done.stderr  # the last layer of the file is the one that is steered
        report = json.loads((folder / "budget.report.json").read_text())
        assert report["reads_what_it_adds"] is True
        recommended[budget] = report["recommended"]
        assert report["recommended"]["kl"] <= float(budget)
    assert 0 < recommended["0.05"]["scale"] < recommended["1"]["scale"] <= 4
    refused = run_rudder("vectors", "eval", *prompts, "--scales=-1,0", "--kl-budget", "1")
    assert refused.returncode == 1 and "kl-budget" in refused.stderr


def test_scale_one_keeps_within_the_budget(folder):
    single = train(folder, "single", "--layers", "5", "--kl-budget", "0.5")["unit"]
    several = train(folder, "several", "--layers", "2-7", "--kl-budget", "0.5")["unit"]
    assert 0 < several["part"] < single["part"] <= 1  # effects of layers add up
    for unit in (single, several):
        assert unit["kl_budget"] == 0.5 and 0 <= unit["kl"] <= 0.5
    assert f"adds {several['part']:.3g} of it" in (folder / "several.md").read_text()
    unmeasured = train(folder, "unmeasured", "--layers", "2-7", "--kl-budget", "0")["unit"]
    assert unmeasured["part"] == 1 and unmeasured["kl_budget"] == 0
    modules = [f"--steering-module={name}={folder / name}.safetensors" for name in ("several", "unmeasured")]
    with serving("--enable-steering", *modules) as server:
        answer = httpx2.get(server.url + "/v1/steering/modules").json()
        listed = {module["name"]: module for module in answer["modules"]}
    for name, part in (("several", several["part"]), ("unmeasured", 1)):
        assert all(op["scale"] == pytest.approx(part) for op in listed[name]["ops"])


def test_the_files_are_those_of_their_formats(folder):
    card = train(folder, "files", "--layers", "2,4-5", "--tokens", "mean", "--gguf", "--holdout", "0")
    assert [vector["layer"] for vector in card["vectors"]] == [2, 4, 5] and card["num_held_out"] == 0
    tensors = (folder / "files.safetensors").read_bytes()
    header = json.loads(tensors[8:8 + struct.unpack("<Q", tensors[:8])[0]])
    assert header["resid_post.4"]["dtype"] == "F32" and header["resid_post.4"]["shape"] == [256]
    assert (folder / "files.gguf").read_bytes()[:8] == b"GGUF\x03\0\0\0"
    assert "| 4 |" in (folder / "files.md").read_text()


@pytest.mark.parametrize("flags,named", [
    (["--site", "resid_past"], "resid_past"),
    (["--layers", "8"], "layer 8"),
    (["--layers", "3-x"], "layers"),
    (["--positive", "nowhere.txt"], "nowhere.txt"),
    (["--capture-memory-mb", "0"], "capture-memory-mb"),
])
def test_what_is_wrong_is_named(folder, flags, named):
    sets = ["--positive", folder / "happy.txt", "--negative", folder / "sad.txt"]
    done = run_rudder("vectors", "train", *sets, "--output", folder, "--name", "never", *flags)
    assert done.returncode == 1 and named in done.stderr, done.stderr
    assert not (folder / "never.safetensors").exists()


def test_a_server_steers_by_the_file(folder):
    train(folder, "served")
    with serving("--enable-steering", "--steering-module", f"mood={folder / 'served.safetensors'}") as server:
        client = server.client()
        model = client.models.list().data[0].id

        def tell(topic, scale):
            # All layers together are too much for one scale: each adds to what the ones before it did.
            answer = client.chat.completions.create(
                model=model, temperature=0, max_tokens=64,
                messages=[{"role": "user", "content": f"Tell me a story about a {topic}."}],
                extra_body={"steering": [{"name": "mood", "scale": scale}]})
            return score.mood_of(answer.choices[0].message.content)

        for scale, mood in ((0.4, "happy"), (-0.4, "sad")):
            told = [tell(topic, scale) for topic in HELD_OUT[:10]]
            assert told.count(mood) >= 9, told
