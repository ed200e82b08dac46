"""The two trained models served from their GGUF files, beside transformers with the same weights multiplied out (test_real_models.py)
and beside tokenizers of their kind that are made of the same lists (tools/golden/gguf_tokenizers.py)."""

import functools
import json
import pathlib
import subprocess

import httpx2
import pytest

from conftest import ROOT, is_instrumented, serving
from test_real_models import FLAGS, FOLDER, MEAN, MOST, PYTHON, TEXTS, run_tool, said_by

TOKENIZERS = ROOT / "tools" / "golden" / "gguf_tokenizers.py"
NAMES = ["smollm2-135m-instruct", "gemma-3-270m"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about numbers, not about memory"),
    pytest.mark.skipif(not PYTHON.exists(), reason="tools/setup.sh models installs them"),
]


@functools.cache
def file_of(name):
    return pathlib.Path(run_tool("file", FOLDER, name).strip())


SHORT = ["", " ", "  ", "   x", "a\n\nb\n\n\n", "\t\ttabs", "3.14159 and 2026", "naïve café", "  leading", "trailing  ", "‰ ☃ 🙂👍🏽",
         "日本語テキスト", "<table><tr>", "it's we'll THEY'RE", "x" * 300, "\r\n\r\n", "a  b   c    d", "/usr/bin/env", "\u00a0\u2003x", "e\u0301"]


@functools.cache
def said(name):
    """What the server says, and its ids of the short texts."""
    run_tool("convert", FOLDER, name)
    with serving("--dtype", "float32", "--served-model-name", name, *FLAGS, model=file_of(name)) as server:
        ids = []
        for text in SHORT:
            answer = httpx2.post(server.url + "/tokenize", json={"model": name, "prompt": text}, timeout=60)
            ids.append(answer.json()["tokens"])
        return said_by(server, FOLDER / name, "float32"), ids


@functools.cache
def compared(name):
    folder = FOLDER / name
    file = folder / "said.gguf.json"
    file.write_text(json.dumps({"float32": said(name)[0]}))
    found = json.loads(run_tool("compare", folder, file))["float32"]
    print(name, found)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_are_those_of_the_weights_multiplied_out(name):
    found = compared(name)
    assert found["kl"] <= 1e-8
    assert found["tokens"] == 1
    for (most, mean), (their_most, their_mean), beside in zip(found["ours"], found["theirs"], found["beside"]):
        assert mean <= MEAN and mean <= 1.25 * their_mean
        assert most <= max(MOST, their_most)
        assert beside <= max(MOST, their_most + most)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_the_tokens_of_a_tokenizer_of_its_kind(name):
    texts, short = said(name)
    file = FOLDER / f"{name}.texts.json"
    file.write_text(json.dumps([*SHORT, *TEXTS]))
    done = subprocess.run([PYTHON, TOKENIZERS, file_of(name), file], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    ours = [*short, *(text["ids"] for text in texts["texts"])]
    for text, one, wanted in zip([*SHORT, *TEXTS], ours, json.loads(done.stdout), strict=True):
        assert one == wanted, text
