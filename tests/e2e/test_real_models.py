"""Two trained models beside Hugging Face transformers: SmolLM2-135M-Instruct and Gemma 3 270M, from the GGUF files of packages as
transformers converts them (tools/golden/real_models.py)."""

import base64
import functools
import json
import os
import resource
import subprocess

import httpx2
import numpy as np
import pytest

from conftest import ROOT, is_instrumented, serving

PYTHON = ROOT / ".venv-models" / "bin" / "python"
TOOL = ROOT / "tools" / "golden" / "real_models.py"
FOLDER = ROOT / "build" / "real-models"
FLAGS = ("--device", "cpu", "--kv-cache-memory-bytes", "256M", "--max-model-len", "2048", "--max-num-seqs", "8",
         "--capture-memory-mb", "16")
MOST_SECONDS = 1800  # of processor time, for all that transformers computes of a model
MOST, MEAN = 1.2e-4, 4e-5  # of a log-probability
FARTHEST = 1e-3  # of a mean divergence in bfloat16, or as far as transformers in bfloat16 is
# A model in which rounding is small: every log-probability within this of transformers, each divergence below FARTHEST without more ado.
# Of Gemma's, transformers itself is farther from its own float64 and float32 (ADR 0087).
EASY, CLOSE = "smollm2-135m-instruct", 1e-4
NEAREST = 20  # log-probabilities that are compared at each position, beside the text's own token
ANSWER = 48  # tokens
PROMPTS = ["The old lighthouse keeper opened the door and", "Water boils at a lower temperature on mountains because"]
TEXTS = [
    (ROOT / "LICENSE").read_text()[:3100],  # beyond a window of 512 tokens
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n    return total / len(values)\n\n\n"
    "assert mean([1, 2, 3]) == 2  # an average, e.g. of 3 numbers\n",
    "Der Zug nach Brügge fährt um 7:45 Uhr ab. Où est la gare ? 東京の天気は晴れです。 Ελλάδα, naïve café, 12 € – 50 %.",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about numbers, not about memory"),
    pytest.mark.skipif(not PYTHON.exists(), reason="tools/setup.sh models installs them"),
]


def run_tool(*arguments):
    # Threads that wait leave the core to others: where there are others, the time of a comparison is theirs otherwise.
    done = subprocess.run([PYTHON, TOOL, *map(str, arguments)], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS)),
                          env={**os.environ, "OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "PASSIVE"})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "gemma-3-270m"])
def folder(request):
    run_tool("convert", FOLDER, request.param)
    return FOLDER / request.param


def rows_of(pack):
    return np.frombuffer(base64.b64decode(pack["data"]), "<f4").reshape(pack["shape"][-2:])


def said_by(server, folder, precision):
    """As `compare` reads it."""

    def post(path, **body):
        answer = httpx2.post(server.url + path, json={"model": folder.name, **body}, timeout=600)
        assert answer.status_code == 200, answer.text
        return answer.json()

    texts, answers = [], []
    for number, text in enumerate(TEXTS):
        ids = post("/tokenize", prompt=text)["tokens"]
        capture = {"response": {"sites": {"final_norm": "all"}, "positions": "all_prompt", "dtype": "float32"}}
        answer = post("/v1/completions", prompt=ids, max_tokens=1, prompt_logprobs=NEAREST, capture=capture)
        rows = rows_of(answer["capture_results"]["response"]["payload"]["rows"]["final_norm"])
        assert len(rows) == len(ids)
        file = folder / f"rows.{precision}.{number}.npy"
        np.save(file, rows)
        logprobs = [{id: entry["logprob"] for id, entry in (of or {}).items()} for of in answer["choices"][0]["prompt_logprobs"]]
        texts.append({"text": text, "ids": ids, "logprobs": logprobs, "rows": str(file)})
    for prompt in PROMPTS:
        ids = post("/tokenize", prompt=prompt)["tokens"]
        choice = post("/v1/completions", prompt=ids, max_tokens=ANSWER, temperature=0, ignore_eos=True,
                      return_token_ids=True)["choices"][0]
        answers.append({"prompt": ids, "tokens": choice["token_ids"]})
    return {"texts": texts, "answers": answers}


@functools.cache
def compared(folder, precision):
    with serving("--dtype", precision, *FLAGS, model=folder) as server:
        said = said_by(server, folder, precision)
    file = folder / f"said.{precision}.json"
    file.write_text(json.dumps({precision: said}))
    found = json.loads(run_tool("compare", folder, file))[precision]
    print(folder.name, precision, found)
    return found


def test_in_float32_it_is_transformers(folder):
    found = compared(folder, "float32")
    assert found["ids"]
    assert found["kl"] <= 1e-8
    assert found["tokens"] == 1


def test_every_log_probability_in_float32(folder):
    """Against transformers in float64, which says of both sides in float32 how far they are from the model itself."""
    found = compared(folder, "float32")
    for (most, mean), (their_most, their_mean), beside in zip(found["ours"], found["theirs"], found["beside"]):
        assert mean <= MEAN
        assert most <= max(MOST, their_most)
        assert mean <= 1.25 * their_mean
        assert beside <= max(MOST, their_most + most)
        assert folder.name != EASY or max(most, beside) <= CLOSE


def test_in_bfloat16_it_is_near(folder):
    """Over the whole vocabulary at each position: to transformers in float32, and to transformers in bfloat16 no farther than what both
    are from float32. The root of a divergence adds up as a distance does. Of one text the rounding of a single token may decide
    (ADR 0087), so each has twice as much."""
    found = compared(folder, "bfloat16")
    ours, theirs = np.transpose(found["texts"])
    assert ours.mean() <= max(FARTHEST, theirs.mean())
    assert all(ours <= np.maximum(FARTHEST, 2 * theirs))
    assert folder.name != EASY or (ours.max() <= FARTHEST and found["kl"] <= FARTHEST)
    assert found["kl_same"] ** 0.5 <= found["kl"] ** 0.5 + found["kl_theirs"] ** 0.5
