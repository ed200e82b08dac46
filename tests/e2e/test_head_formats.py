"""The output head beside an fp8 body, on two trained models: what `--head-format` chooses from, by rounding as products do (in transformers,
tools/golden/head_formats.py), and where there is a GPU, what it really costs (`rudder eval`)."""

import functools
import json
import os
import shutil
import subprocess

import pytest
from conftest import ROOT, is_instrumented, run_rudder

PYTHON = ROOT / ".venv-models" / "bin" / "python"
TOOLS = ROOT / "tools" / "golden"
FOLDER = ROOT / "build" / "real-models"
TEXT = ROOT / "docs" / "steering.md"
TOKENS = 1024
LIMITS = {"smollm2-135m-instruct": 4e-2, "gemma-3-270m": 4e-2}  # nats a token, of an fp8 body with a bf16 head

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about numbers, not about memory"),
    pytest.mark.skipif(not PYTHON.exists(), reason="tools/setup.sh models installs them"),
]


def run_tool(name, *arguments):
    done = subprocess.run([PYTHON, TOOLS / f"{name}.py", *map(str, arguments)], capture_output=True, text=True, timeout=3600,
                          env={**os.environ, "OMP_NUM_THREADS": str(os.cpu_count())})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@functools.cache
def rounded(name):
    run_tool("real_models", "convert", FOLDER, name)
    found = json.loads(run_tool("head_formats", FOLDER / name, TEXT, TOKENS))
    print(name, found)
    return found


@pytest.mark.parametrize("name", LIMITS)
def test_a_bf16_or_int8_head_costs_an_fp8_body_nothing_and_an_fp8_head_does(name):
    found = rounded(name)
    body = found["fp8 bf16"]["kl"]
    assert body <= LIMITS[name]
    assert found["fp8 int8"]["kl"] <= 1.1 * body
    assert found["wide bf16"]["kl"] <= 1e-3
    assert found["fp8 fp8"]["kl"] > 1.1 * body


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a GPU")
@pytest.mark.parametrize("name", LIMITS)
def test_fp8_on_a_gpu_is_its_body_with_a_bf16_head(name, tmp_path):
    """As issued by `rudder eval`, whose KL of the likeliest tokens is at most that of all."""
    body = rounded(name)["fp8 bf16"]["kl"]
    stored, report, text = (tmp_path / file for file in ("stored.safetensors", "report.json", "text.txt"))
    text.write_text(TEXT.read_text()[:12000])
    run_tool("eval_reference", FOLDER / name, text, stored)
    apart = {}
    for head in ("auto", "fp8"):
        done = run_rudder("eval", "kl", text, FOLDER / name, "--parse-special", "--reference", stored, "--output", report, "--device", "cuda",
                          "--quantization", "fp8", "--head-format", head, "--kv-cache-memory-bytes", "512M")
        assert done.returncode == 0, done.stderr
        apart[head] = json.loads(report.read_text())["kl"]
    assert apart["auto"] <= 1.1 * body + 1e-3
    assert apart["fp8"] > apart["auto"]
