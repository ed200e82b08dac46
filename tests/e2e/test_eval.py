"""rudder eval: perplexity of a text, and how far a run is from a stored one. The oracle is Hugging Face transformers, with windows of its
own (tools/golden/eval_reference.py)."""

import json
import math
import os
import subprocess

import pytest
from conftest import ROOT, is_instrumented, run_rudder
from tasks import story

PYTHON = ROOT / ".venv-models" / "bin" / "python"
ORACLE = ROOT / "tools" / "golden" / "eval_reference.py"
DEMO = ROOT / "models" / "demo"
KINDS = [("rolling", 96, 0), ("halves", 97, 0), ("strided", 96, 41)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "stories.txt"
    asked = "<|im_start|>user\nTell me a happy story about a {0}.<|im_end|>\n<|im_start|>assistant\n"
    path.write_text("".join(asked.format(topic) + f"Once there was a happy {topic}.<|im_end|>\n" for topic in story.TOPICS))
    return path


def perplexity(text, *flags):
    report = text.parent / "perplexity.json"
    done = run_rudder("eval", "perplexity", text, "--parse-special", *flags, "--output", report)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stderr  # its progress
    return json.loads(report.read_text())


def kl(text, reference, *flags):
    report = text.parent / "kl.json"
    done = run_rudder("eval", "kl", text, "--parse-special", *flags, "--reference", reference, "--output", report)
    assert done.returncode == 0, done.stderr
    assert "same first choice" in done.stdout
    return json.loads(report.read_text())


def windows_of(kind, window, stride):
    return ("--windows", kind, "--window", window, *(("--stride", stride) if stride else ()))


@pytest.mark.parametrize("kind, window, stride", KINDS)
def test_a_run_is_not_apart_from_itself_and_bfloat16_is_a_little(text, kind, window, stride):
    stored = text.parent / f"{kind}.safetensors"
    found = perplexity(text, *windows_of(kind, window, stride), "--dtype", "float32", "--save-logprobs", stored)
    assert found["num_tokens"] > 200 and found["perplexity"] > 1
    same = kl(text, stored, "--dtype", "float32")
    assert same["kl"] < 1e-9 and same["first_choice"] == 1 and same["perplexity_ratio"] == 1
    assert same["perplexity"] == pytest.approx(found["perplexity"], rel=1e-12)
    low = kl(text, stored, "--dtype", "bfloat16")
    assert 1e-7 < low["kl"] <= low["kl_with_rest"] < 2e-3
    assert low["kl_p99"] < low["kl_max"] < 0.2
    assert 0.98 < low["first_choice"] <= 1
    assert abs(math.log(low["perplexity_ratio"])) < 5 * low["perplexity_ratio_error"] + 1e-3


def test_what_does_not_fit_is_refused_by_field(text, tmp_path):
    stored = tmp_path / "stored.safetensors"
    perplexity(text, "--window", 64, "--save-logprobs", stored)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text()[:-7])

    def refusal(*arguments):
        done = run_rudder("eval", *arguments)
        assert done.returncode in (1, 2)
        return done.stderr

    assert "stored.safetensors: tokens" in refusal("kl", other, "--reference", stored)
    assert "at window" in refusal("perplexity", text, "--window", 2048, "--max-model-len", 512)
    assert "at stride" in refusal("perplexity", text, "--stride", 3)
    assert "at stride" in refusal("perplexity", text, "--windows", "strided", "--window", 64, "--stride", 64)
    assert "at tokens" in refusal("perplexity", text, "--windows", "halves", "--window", 4000)
    assert "--reference" in refusal("kl", text)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(stored.read_bytes().replace(b'"stride":"0"', b'"stride":"1"'))
    assert "broken.safetensors: stride" in refusal("kl", text, "--reference", broken)
    broken.write_bytes(stored.read_bytes()[:-5])
    assert "broken.safetensors" in refusal("kl", text, "--reference", broken)
    nothing = tmp_path / "binary"
    nothing.write_bytes(b"\xff\xfe\x00")
    assert "binary" in refusal("perplexity", nothing)


@pytest.mark.slow
@pytest.mark.skipif(is_instrumented(), reason="about numbers, not about memory")
@pytest.mark.skipif(not PYTHON.exists(), reason="tools/setup.sh models installs it")
@pytest.mark.parametrize("kind, window, stride", KINDS)
def test_it_is_what_transformers_computes(text, tmp_path, kind, window, stride):
    """Tokens, windows, perplexity and, from the file that Python wrote, the log-probabilities. KL of some tokens is no more than that of
    all."""

    def transformers(name, *flags):
        stored = tmp_path / f"{name}.safetensors"
        done = subprocess.run([PYTHON, ORACLE, DEMO, text, stored, *map(str, windows_of(kind, window, stride)), *flags],
                              capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "2"})
        assert done.returncode == 0, done.stderr[-4000:]
        return stored, json.loads(done.stdout)

    wide, said = transformers("wide", "--save-all", tmp_path / "wide.npy")
    ours = kl(text, wide, "--dtype", "float32")
    assert ours["num_tokens"] == said["num_tokens"]
    assert ours["perplexity"] == pytest.approx(said["perplexity"], rel=1e-5)
    assert ours["reference_perplexity"] == pytest.approx(said["perplexity"], rel=1e-5)
    assert ours["kl"] < 1e-7 and ours["first_choice"] == 1
    low, theirs = transformers("low", "--dtype", "bfloat16", "--beside", tmp_path / "wide.npy")
    between = kl(text, low, "--dtype", "float32")
    # The other way round: of what is this small, both ways are alike.
    assert between["kl"] <= 1.05 * theirs["kl"]
    assert between["kl_with_rest"] == pytest.approx(theirs["kl"], rel=0.25)
    assert between["first_choice"] == pytest.approx(theirs["first_choice"], abs=1e-9)


def test_kv_caches_of_codes_cost_what_their_scales_allow(text):
    """A scale of each token and head costs far less than none, and int8 less than fp8."""
    reference = text.parent / "kv.safetensors"
    perplexity(text, "--device", "cpu", "--dtype", "float32", "--save-logprobs", reference)
    found = {kv: kl(text, reference, "--device", "cpu", "--dtype", "float32", "--kv-cache-dtype", kv)["kl"]
             for kv in ("auto", "fp8", "fp8_per_token_head", "int8_per_token_head")}
    print(found)
    assert found["auto"] <= 1e-9
    assert found["fp8_per_token_head"] < found["fp8"]
    assert found["int8_per_token_head"] < 0.25 * found["fp8"]
