"""Vectors of a trained model, SmolLM2-135M-Instruct (tools/golden/real_models.py): scale 1 of a module, of one layer and of nine,
leaves fluent text in which the trait shows."""

import concurrent.futures
import json
import math
import re

import httpx2
import pytest

from conftest import run_rudder, serving
from test_real_models import FOLDER, PYTHON, is_instrumented, run_tool

MODEL = "smollm2-135m-instruct"
FLAGS = ("--device", "cpu", "--kv-cache-memory-bytes", "128M", "--max-model-len", "512")
SUBJECTS = """the weather today|a walk in the park|my new job|the train journey|dinner with friends|an old photograph|the garden in
spring|a letter from home|the city at night|learning to cook|a visit to the museum|the neighbour's dog|a rainy afternoon|the first
day of school|a long winter|the local market|a trip to the sea|my grandmother's house|a football match|the morning coffee|a birthday
party|the library|a broken bicycle|moving to a new flat|the village festival|a film I watched|the river behind the house|a phone
call|the end of the year|music on the radio""".replace("\n", " ").split("|")
OTHERS = ["a small town by the lake", "my brother's workshop", "a bus ride", "the bakery on the corner", "the mountain path"]
MOODS = {"cheer": "overjoyed, delighted and full of cheer", "gloom": "miserable, gloomy and full of sorrow"}
CHEER = set("joy joyful happy happiness delight delighted wonderful laughter laugh smile smiles smiling cheerful bright warm love "
            "lovely excited thrilled glad beautiful celebrate celebration fun amazing vibrant proud".split())
GLOOM = set("sad sadness sorrow gloomy gloom misery miserable grief tears lonely loneliness despair dark darkness pain lost bleak "
            "empty cold icy weary regret heavy mourning broken decay rot ghosts shadows skeletal doom".split())
TOKENS = 56
# Measured with a whole vector of layer 15: 1.3 times the perplexity of plain answers, 0.014 of the four-word runs twice.
MOST_PERPLEXITY, MOST_REPEATED = 2, 0.1
LEAST_APART = {"one": 2, "nine": 4}  # words of mood; of layer 15 they were 3 and 0, "a little brighter and darker" (docs/vectors.md)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about numbers, not about memory"),
    pytest.mark.skipif(not PYTHON.exists(), reason="tools/setup.sh models installs them"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """With the modules `one` and `nine`."""
    run_tool("convert", FOLDER, MODEL)
    folder = tmp_path_factory.mktemp("vectors")
    for mood, words in MOODS.items():
        (folder / f"{mood}.txt").write_text("".join(f"Write about {s} as someone who is {words}.\n" for s in SUBJECTS))
    for name, layers in (("one", "15"), ("nine", "12-20")):
        done = run_rudder("vectors", "train", FOLDER / MODEL, "--positive", folder / "cheer.txt", "--negative",
                          folder / "gloom.txt", "--chat", "--layers", layers, "--name", name, "--output", folder, *FLAGS, timeout=1800)
        assert done.returncode == 0, done.stderr
        print(name, json.loads((folder / f"{name}.json").read_text())["unit"])
    with serving("--enable-steering", *(f"--steering-module={name}={folder / name}.safetensors" for name in ("one", "nine")),
                 "--served-model-name", MODEL, *FLAGS, model=FOLDER / MODEL) as running:
        yield running


def answers(server, steering):
    """Greedy ones: their texts, and the perplexity that the model without steering finds in them."""

    def one(subject):
        def post(path, **body):
            answer = httpx2.post(server.url + path, json={"model": MODEL, **body}, timeout=600)
            assert answer.status_code == 200, answer.text
            return answer.json()

        prompt = f"<|im_start|>user\nWrite about {subject}.<|im_end|>\n<|im_start|>assistant\n"
        ids = post("/tokenize", prompt=prompt)["tokens"]
        choice = post("/v1/completions", prompt=ids, max_tokens=TOKENS, temperature=0, return_token_ids=True, **steering)["choices"][0]
        tokens = choice["token_ids"]
        read = post("/v1/completions", prompt=ids + tokens, max_tokens=1, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
        return choice["text"], [read[len(ids) + i][str(token)]["logprob"] for i, token in enumerate(tokens)]

    with concurrent.futures.ThreadPoolExecutor(len(OTHERS)) as pool:
        found = list(pool.map(one, OTHERS))
    logprobs = [value for _, values in found for value in values]
    return [text for text, _ in found], math.exp(-sum(logprobs) / len(logprobs))


def repeated(texts):
    """Share of the runs of four words that were there before."""
    runs = [[tuple(words[i:i + 4]) for i in range(len(words) - 3)] for words in (text.split() for text in texts)]
    return 1 - sum(len(set(of)) for of in runs) / sum(len(of) for of in runs)


def mood(texts):
    words = [word.lower() for text in texts for word in re.findall(r"[A-Za-z]+", text)]
    return sum((word in CHEER) - (word in GLOOM) for word in words)


@pytest.mark.parametrize("name", ["one", "nine"])
def test_scale_one_is_fluent_and_shows_the_trait(server, name):
    _, plain = answers(server, {})
    moods = {}
    for scale in (1, -1):
        texts, perplexity = answers(server, {"steering": [{"name": name, "scale": scale}]})
        moods[scale] = mood(texts)
        print(name, scale, f"perplexity {perplexity:.2f} (plain {plain:.2f}), repeated {repeated(texts):.3f}", moods[scale], texts)
        assert perplexity <= MOST_PERPLEXITY * plain
        assert repeated(texts) <= MOST_REPEATED
    assert moods[1] >= moods[-1] + LEAST_APART[name]
