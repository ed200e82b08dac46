"""tools/demo_model/enlarge.py: the demo model's text at the cost of a larger model."""

import json
import pathlib
import subprocess
import sys

import pytest
from conftest import run_rudder

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENLARGE = ROOT / "tools" / "demo_model" / "enlarge.py"
SHAPE = ("--intermediate", "1024", "--layers", "10", "--heads", "12", "--kv-heads", "3")


def enlarge(folder, *flags):
    return subprocess.run([sys.executable, ENLARGE, folder, *flags], capture_output=True, text=True, check=False)


def messages():
    cases = (ROOT / "models" / "demo" / "eval" / "json.jsonl").read_text().splitlines()[:4]
    return [json.loads(line)["messages"] for line in cases]


MEDUSA = {"method": "medusa", "speculative_token_tree": "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"}
EAGLE = {"method": "eagle3", "num_speculative_tokens": 4}


def accepted(model, heads, folder, method):
    """What is told of the heads' guesses: shares and tokens a step."""
    prompts, told = folder / "prompts.jsonl", folder / "told.json"
    prompts.write_text("\n".join(json.dumps({"messages": one}) for one in messages()[:2]))
    config = dict(method, model=str(heads))
    done = run_rudder("bench", "speculation", str(model), "--prompts", str(prompts), "--speculative-config", json.dumps(config), "--batches", "1",
                      "--rounds", "1", "--max-tokens", "30", "--dtype", "float32", "--max-model-len", "512", "--no-speculative-adaptive",
                      "--output-json", str(told))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(told.read_text())
    assert row["same"] == 1  # a CPU's text is that of plain decoding
    return row["accepted"], row["tokens_a_step"]


def answers(model):
    prompts = "\n".join(json.dumps({"messages": one, "temperature": 0, "max_tokens": 60}) for one in messages())
    done = run_rudder("generate", str(model), "--input", "-", "--dtype", "float32", "--max-model-len", "512", stdin=prompts)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["token_ids"] for line in done.stdout.splitlines()]


def test_an_enlarged_model_gives_the_same_text_and_its_heads_the_same_guesses(tmp_path):
    folder = tmp_path / "large"
    done = enlarge(folder, "--hidden", "1024", *SHAPE, "--medusa", "--eagle")
    assert done.returncode == 0, done.stderr
    small = answers(ROOT / "models" / "demo")
    assert len(small) == 4 and all(len(tokens) > 10 for tokens in small)
    assert answers(folder) == small
    for name, method in (("medusa", MEDUSA), ("eagle", EAGLE)):
        told = accepted(ROOT / "models" / "demo", ROOT / "models" / f"demo-{name}", tmp_path, method)
        assert told[1] > 1.5
        assert accepted(folder, folder / name, tmp_path, method) == told


@pytest.mark.parametrize(("flags", "named"), [
    (("--hidden", "512"), "--hidden"),
    (("--hidden", "1024", "--layers", "4"), "--layers"),
    (("--hidden", "1024", "--heads", "9"), "--heads"),
])
def test_a_shape_that_cannot_hold_the_demo_is_refused(tmp_path, flags, named):
    done = enlarge(tmp_path / "large", *flags)
    assert done.returncode != 0 and named in done.stderr
    assert not (tmp_path / "large").exists()
