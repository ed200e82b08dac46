"""LoRA per request: what peft and transformers answer (tools/golden/adapters.py), requests with and without adapters beside each other,
loading and unloading while requests run, and what is refused."""

import concurrent.futures
import json
import pathlib
import shutil

import httpx2
import pytest
from conftest import DEMO, PACED, long_request, run_rudder, serving, wait_for

ADAPTERS = DEMO.parent.parent / "tests" / "adapters"
GOLDEN = json.loads((ADAPTERS / "golden.json").read_text())
NAMES = {"base": None, "tone": "tone", "mood": "mood"}
FLAGS = ["--enable-lora", "--max-lora-rank", "6", "--dtype", "float32", "--lora-modules", f"tone={ADAPTERS}/tone"]
BOTH = [*FLAGS, "--max-loras", "2", "--lora-modules", json.dumps({"name": "mood", "path": f"{ADAPTERS}/mood"})]


def ask(server, prompt, adapter=None, tokens=21, **more):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 4, "ignore_eos": True, "return_token_ids": True,
            **({"model": adapter} if adapter else {}), **more}
    answer = httpx2.post(server.url + "/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def load(server, name, path, **more):
    return httpx2.post(server.url + "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more}, timeout=60)


def unload(server, name):
    return httpx2.post(server.url + "/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)


@pytest.fixture(scope="module")
def adapted():
    with serving(*BOTH, "--lora-root", str(ADAPTERS)) as running:
        yield running


def expect_golden(server, **more):
    for name, adapter in NAMES.items():
        for told in GOLDEN[name]:
            tokens, logprobs = ask(server, told["prompt"], adapter, **more)
            assert tokens == told["tokens"], (name, told["prompt"])
            assert logprobs == pytest.approx([step[0][1] for step in told["top"]], abs=1e-4), name


def test_answers_are_those_of_peft(adapted):
    expect_golden(adapted)
    expect_golden(adapted)  # behind cached prefixes


def test_dora_answers_are_those_of_peft(adapted):
    assert load(adapted, "voice", ADAPTERS / "voice").status_code == 200
    for told in GOLDEN["voice"]:
        tokens, logprobs = ask(adapted, told["prompt"], "voice")
        assert tokens == told["tokens"]
        assert logprobs == pytest.approx([step[0][1] for step in told["top"]], abs=1e-4)
    assert unload(adapted, "voice").status_code == 200


def test_requests_without_an_adapter_have_the_bits_of_a_server_without(adapted):
    prompts = [told["prompt"] for told in GOLDEN["base"]]
    with serving("--dtype", "float32") as plain:
        expected = [ask(plain, prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        asked = [(prompt, adapter) for prompt in prompts for adapter in (None, "tone", None, "mood", "tone")]
        answers = list(pool.map(lambda one: ask(adapted, *one, cache_salt=str(one)), asked))
    for (prompt, adapter), answer in zip(asked, answers):
        name = adapter or "base"
        if adapter is None:
            assert answer == expected[prompts.index(prompt)]
        assert answer[0] == next(told["tokens"] for told in GOLDEN[name] if told["prompt"] == prompt)


@pytest.mark.parametrize("flags", [
    ["--max-num-batched-tokens", "16", "--max-num-seqs", "3"],  # prompts in chunks, requests wait for slots
    ["--kv-cache-memory-bytes", "1100K", "--max-model-len", "64"],  # some are preempted
    ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1})],
    ["--tensor-parallel-size", "2"],
    ["--pipeline-parallel-size", "2"],
    ["--engine-process"],
    ["--enable-steering", "--capture-memory-mb", "4"]])
def test_however_they_run(flags):
    with serving(*BOTH, *flags) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        cases = [(name, told) for name in NAMES for told in GOLDEN[name]] * 2
        answers = pool.map(lambda case: ask(server, case[1]["prompt"], NAMES[case[0]])[0], cases)
        for (name, told), tokens in zip(cases, answers):
            assert tokens == told["tokens"], name


def test_models_and_metrics(adapted):
    base, tone, mood = httpx2.get(adapted.url + "/v1/models").json()["data"]
    assert base["parent"] is None
    assert tone["id"] == "tone" and tone["parent"] == base["id"] and tone["root"] == f"{ADAPTERS}/tone"
    assert httpx2.get(adapted.url + "/v1/models/mood").json() == mood
    assert any("lora_requests_info" in name and 'max_lora="2"' in name for name in adapted.metrics())


def test_loads_and_unloads_as_vllm_does(adapted):
    taken = load(adapted, "tone", ADAPTERS / "mood")
    assert taken.status_code == 400 and "has already been loaded" in taken.json()["error"]["message"]
    assert taken.json()["error"]["type"] == "InvalidUserInput"
    added = load(adapted, "other", ADAPTERS / "mood")
    assert (added.status_code, added.text) == (200, "Success: LoRA adapter 'other' added successfully.")
    told = GOLDEN["mood"][0]
    assert ask(adapted, told["prompt"], "other")[0] == told["tokens"]
    removed = unload(adapted, "other")
    assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'other' removed successfully.")
    missing = httpx2.post(adapted.url + "/v1/completions", json={"model": "other", "prompt": "x"})
    assert missing.status_code == 404
    unknown = unload(adapted, "other")
    assert unknown.status_code == 404 and unknown.json()["error"]["type"] == "NotFoundError"
    assert load(adapted, "", "x").status_code == 400
    nowhere = load(adapted, "x", ADAPTERS / "nowhere")
    assert nowhere.status_code == 404 and nowhere.json()["error"]["message"].startswith("No adapter found for")
    assert load(adapted, "x", "/etc").status_code == 400
    assert load(adapted, httpx2.get(adapted.url + "/v1/models").json()["data"][0]["id"], ADAPTERS / "mood").status_code == 400


def test_a_file_at_fault_is_named(tmp_path):
    folder = pathlib.Path(shutil.copytree(ADAPTERS / "tone", tmp_path / "bent"))
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "modules_to_save": ["lm_head"]}))
    with serving(*FLAGS, "--lora-root", str(tmp_path)) as server:
        refused = load(server, "bent", folder)
        assert refused.status_code == 400 and "adapter_config.json: modules_to_save" in refused.json()["error"]["message"]
        (folder / "adapter_config.json").write_text(json.dumps({**config, "r": 3}))
        shape = load(server, "bent", folder)
        assert shape.status_code == 400 and "lora_A.weight" in shape.json()["error"]["message"]


def test_a_reload_mixes_nothing_and_runs_beside_the_old_version(tmp_path):
    """A name gets other content while a request of the old version runs and its prefix is cached."""
    folder = pathlib.Path(shutil.copytree(ADAPTERS / "tone", tmp_path / "voice"))
    prompt = GOLDEN["tone"][0]["prompt"] * 5  # several blocks
    with serving(*FLAGS, "--lora-modules", f"mood={ADAPTERS}/mood", "--max-loras", "1", "--lora-root", str(tmp_path), *PACED) as server:
        assert load(server, "voice", folder).status_code == 200
        old = ask(server, prompt, "voice", 12)
        expected = ask(server, prompt, "mood", 12)
        with long_request(server, prompt, model="voice"):
            wait_for(lambda: any('running_lora_adapters="voice"' in name for name in server.metrics()), "it runs")
            shutil.copytree(ADAPTERS / "mood", folder, dirs_exist_ok=True)
            assert load(server, "voice", folder).status_code == 400
            assert load(server, "voice", folder, load_inplace=True).status_code == 200
            assert ask(server, prompt, "voice", 12) == expected
        assert old != expected
        # The first content again, under another name: what it computed is still its own.
        assert ask(server, prompt, "tone", 12) == old


def test_requests_wait_for_a_row(tmp_path):
    """Three adapters by content need three rows; there are two."""
    third = pathlib.Path(shutil.copytree(ADAPTERS / "tone", tmp_path / "third"))
    config = json.loads((third / "adapter_config.json").read_text())
    (third / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 0.25}))
    modules = ["--lora-modules", f"mood={ADAPTERS}/mood", "--lora-modules", f"third={third}"]
    with serving(*FLAGS, "--max-loras", "1", *modules, *PACED) as server, concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [name for name in ("tone", "mood", "third") for _ in range(4)]
        answers = list(pool.map(lambda name: ask(server, GOLDEN["tone"][2]["prompt"], name), asked))
    assert [tokens for tokens, _ in answers[:8]] == [GOLDEN[name][2]["tokens"] for name in asked[:8]]
    assert all(answer == answers[8] for answer in answers[8:])
    assert answers[8][1] not in (answers[0][1], answers[4][1])


@pytest.mark.parametrize("flags, told", [
    (["--lora-modules", f"tone={ADAPTERS}/tone"], "it needs --enable-lora"),
    (["--enable-lora", "--max-lora-rank", "2", "--lora-modules", f"tone={ADAPTERS}/tone"], "greater than max_lora_rank 2"),
    (["--enable-lora", "--lora-modules", "tone"], "neither NAME=PATH"),
    (["--enable-lora", "--record", "/tmp/nowhere"], "recordings have no adapters")])
def test_what_does_not_start(flags, told):
    ended = run_rudder("serve", "--port", "0", *flags)
    assert ended.returncode != 0 and told in ended.stderr, ended.stderr
