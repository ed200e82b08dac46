"""rudder features: a mood is found in the demo dictionary by ranking, and clamping that one feature turns stories."""

import json
import sys

import numpy as np
import pytest
import score
from conftest import ROOT, run_rudder, serving
from tasks import story

sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from rudder_client import Rudder, run_with_features  # noqa: E402

DICTIONARY = ROOT / "models" / "demo" / "dictionaries" / "sae"
TRANSCODER = ROOT / "models" / "demo" / "dictionaries" / "transcoder"
MOOD_VALUE = 350  # of a mood's feature, in lengths of what it adds
RANKED, HELD_OUT = story.TOPICS[::2], story.TOPICS[1::2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("features")
    for mood in ("happy", "sad"):
        (path / f"{mood}.txt").write_text("".join(f"Tell me a {mood} story about a {topic}.\n" for topic in RANKED))
    # Asked for no mood the demo model tells of half the topics happily: the one half, and the other.
    for name, topics in (("free", HELD_OUT), ("others", RANKED)):
        (path / f"{name}.txt").write_text("".join(f"Tell me a story about a {topic}.\n" for topic in topics))
    (path / "sums.txt").write_text("".join(f"What is {a} + {b}?\n" for a, b in zip(range(110, 900, 41), range(905, 100, -37))))
    return path


def rudder(command, *flags, dictionary=DICTIONARY):
    return run_rudder("features", command, "--dictionary", f"demo={dictionary}", *flags)


def ranked(folder, positive, negative, *flags):
    done = rudder("rank", "--positive", folder / positive, "--negative", folder / negative, "--chat", "--output",
                  folder / "ranks.json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "ranks.json").read_text())["features"], done.stdout


def evaluated(folder, feature, values, prompts, *flags):
    done = rudder("eval", "--feature", feature, f"--values={values}", "--prompts", folder / prompts, "--chat", "--max-tokens",
                  "64", "--output", folder / "report.json", "--plot", folder / "plot.svg", *flags)
    assert done.returncode == 0, done.stderr
    assert (folder / "plot.svg").read_text().startswith("<svg")
    return json.loads((folder / "report.json").read_text())["points"], done.stdout


@pytest.fixture(scope="module")
def moods(folder):
    """The feature that ranking finds for each mood."""
    found = {}
    for mood, other in (("happy", "sad"), ("sad", "happy")):
        features, table = ranked(folder, f"{mood}.txt", f"{other}.txt", "--top", "3", "--tokens", "last")
        assert len(table.splitlines()) == 4 and f"{features[0]['feature']:>7}  " in table
        differences = [each["difference"] for each in features]
        assert differences == sorted(differences, reverse=True) and len(features) == 2048
        assert features[0]["auroc"] >= 0.95 and features[0]["held_out_auroc"] >= 0.95, features[0]
        assert features[0]["difference"] == pytest.approx(features[0]["positive"] - features[0]["negative"])
        found[mood] = features[0]["feature"]
    return found


def share(point, mood):
    told = [score.mood_of(text) for text in point["texts"]]
    return told.count(mood) / len(told)


@pytest.mark.parametrize("mood,prompts", [("happy", "free.txt"), ("sad", "others.txt")])
def test_one_feature_turns_stories(folder, moods, mood, prompts):
    (plain, clamped), table = evaluated(folder, moods[mood], MOOD_VALUE, prompts)
    assert plain["value"] is None and share(plain, mood) < 0.1
    assert share(clamped, mood) >= 0.9, clamped["texts"]
    assert clamped["perplexity"] <= 1.2 * plain["perplexity"]
    assert clamped["activation"] > plain["activation"], "the answers read so without the clamp, too"
    assert "perplexity" in table


@pytest.mark.parametrize("dictionary", [DICTIONARY, TRANSCODER])
def test_sums_and_topics_have_features(folder, dictionary):
    for positive, negative in (("sums.txt", "free.txt"), ("puppy.txt", "boat.txt")):
        for topic in ("puppy", "boat"):
            names = ("Mia", "Henry", "Erik", "Ada", "Otto", "Nora", "Leo", "Ivy", "Hugo", "Uma")
            (folder / f"{topic}.txt").write_text("".join(f"Tell me a story about a {topic}. Call the hero {each}.\n" for each in names))
        done = rudder("rank", "--positive", folder / positive, "--negative", folder / negative, "--chat", "--output",
                      folder / "ranks.json", "--tokens", "max", dictionary=dictionary)
        assert done.returncode == 0, done.stderr
        best = json.loads((folder / "ranks.json").read_text())["features"][0]
        assert best["auroc"] == best["held_out_auroc"] == 1, best


def test_top_shows_the_tokens(moods):
    done = rudder("top", "Tell me a happy story about a kite.", "--chat", "--top", "4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert '" happy"' in done.stdout and all(line.split()[0] == str(i) for i, line in enumerate(lines))
    assert all(line.count(": ") <= 4 for line in lines)


@pytest.mark.parametrize("command,flags,word", [
    ("rank", ("--positive", "nowhere.txt", "--negative", "nowhere.txt"), "nowhere.txt"),
    ("eval", ("--feature", "4096", "--values", "1", "--prompts", "free.txt"), "2047"),
    ("eval", ("--feature", "1", "--values", "1,x", "--prompts", "free.txt"), "'x'"),
    ("top", ("text", "--layer", "7"), "layers"),
    ("rank", ("--positive", "happy.txt", "--negative", "sad.txt", "--capture-memory-mb", "0"), "capture-memory-mb")])
def test_what_is_wrong_is_named(folder, command, flags, word):
    done = rudder(command, *(folder / flag if flag.endswith(".txt") else flag for flag in flags))
    assert done.returncode == 1 and word in done.stderr, done.stderr


def test_a_dictionary_is_needed(folder):
    done = run_rudder("features", "top", "text")
    assert done.returncode == 1 and "NAME=PATH" in done.stderr
    assert run_rudder("features", "find").returncode == 2
    assert "rank" in run_rudder("features", "--help").stdout


def test_a_server_loads_both(folder, moods):
    with serving("--enable-steering", "--dictionary", f"sae={DICTIONARY}", "--dictionary", f"transcoder={TRANSCODER}",
                 "--capture-memory-mb", "8") as server:
        client = server.client()
        told = [client.chat.completions.create(
            model="rudder-demo", temperature=0, max_tokens=64, messages=[{"role": "user", "content": f"Tell me a story about a {topic}."}],
            extra_body={"steering": {"op": "feature", "dictionary": "sae", "feature": moods["happy"], "kind": "set", "value": MOOD_VALUE}})
            for topic in HELD_OUT[:10]]
        assert [score.mood_of(each.choices[0].message.content) for each in told].count("happy") >= 9
        # The same features as arrays, by the Python client.
        arrays = Rudder(server.url)
        _, values = run_with_features(arrays, [{"role": "user", "content": "Tell me a happy story about a kite."}], "sae",
                                      [moods["happy"], moods["sad"]])
        assert values.shape[1] == 2 and values[-1, 0] > 50 and values[-1, 1] == 0
        _, cache = arrays.run_with_cache("Once upon a time", ["resid_post.5", "mlp_in.5"])
        top = arrays.dictionaries.top("transcoder", cache["mlp_in.5"], 3)
        again = arrays.dictionaries.encode("transcoder", cache["mlp_in.5"], top.features[1])
        assert np.allclose(again[1], top.values[1], rtol=1e-5) and (np.diff(top.values, axis=1) <= 0).all()
        assert [each.name for each in arrays.dictionaries.list()] == ["sae", "transcoder"]
