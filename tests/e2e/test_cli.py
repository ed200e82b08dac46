"""The other commands of the binary, as a person runs them."""

import csv
import json
import os
import re
import subprocess

import httpx2
import pytest

from conftest import BINARY, DEMO, ROOT, run_rudder, serving


def test_generate_one_prompt():
    done = run_rudder("generate", "--chat", "--prompt", "What is 12 + 30?", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout


def test_generate_with_the_demo_of_gates():
    done = run_rudder("generate", DEMO.parent / "demo-hp1", "--chat", "--prompt", "What is 12 + 30?", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout


def test_benches_are_a_program_beside_the_binary(tmp_path):
    alone = tmp_path / "rudder"
    alone.symlink_to(BINARY)  # a link is followed to where the programs lie
    listed = subprocess.run([alone, "bench", "--help"], capture_output=True, text=True)
    assert listed.returncode == 0 and "throughput" in listed.stdout
    alone.unlink()
    alone.write_bytes(BINARY.read_bytes())
    alone.chmod(0o755)
    lost = subprocess.run([alone, "bench", "--help"], capture_output=True, text=True)
    assert lost.returncode == 1 and f"{tmp_path}/rudder-bench" in lost.stderr


def test_generate_a_file_keeps_order_and_keys(tmp_path):
    rows = [{"id": i, "messages": [{"role": "user", "content": f"What is {i} + 10?"}]} for i in range(20, 50)]
    source, result = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run_rudder("generate", "--input", source, "--output", result, "--temperature", "0")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in result.read_text().splitlines()]
    assert [a["id"] for a in answers] == list(range(20, 50))
    assert sum(str(a["id"] + 10) in a["text"] for a in answers) >= 29


def test_chat_remembers():
    done = run_rudder("chat", "--temperature", "0", stdin="What is 15 + 16?\nWhat is 20 + 30?\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert "31" in lines[0] and "50" in lines[-1]


def generate_rows(tmp_path, rows, *flags):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run_rudder("generate", "--input", prompts, "--temperature", "0", "--max-tokens", "12", *flags)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_generate_steers_and_captures_row_by_row(tmp_path):
    vector = [60.0] + [0.0] * 255
    steering = {"op": "add", "site": "resid_post", "layers": "all", "vector": vector}
    module = tmp_path / "calm.json"
    module.write_text(json.dumps({"steering": steering}))
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Name a colour."}]
    capture = {"response": {"sites": {"resid_post": [-1]}, "positions": "last_prompt"}}
    rows = generate_rows(tmp_path, [
        {"prompt": "Once upon a time"},
        {"prompt": "Once upon a time", "steering": steering},
        {"prompt": "Once upon a time", "steering_name": "calm"},
        {"prompt": "Once upon a time", "steering_vectors": {"resid_post": {str(i): vector for i in range(-1, -9, -1)}}},
        {"messages": chat},
        {"messages": chat, "steering": {**steering, "scale": 50, "select": {"roles": ["user"]}}},
        {"prompt": "Once upon a time", "capture": capture},
        {"prompt": "Once upon a time", "steering": {**steering, "vector": [1.0]}},
    ], "--enable-steering", "--steering-module", f"calm={module}", "--capture-memory-mb", "8")
    plain, steered, named, tiers, said, to_user, captured, wrong = rows
    assert "error" not in plain and steered["text"] != plain["text"]
    assert named["text"] == steered["text"] == tiers["text"]
    assert "error" not in to_user and to_user["text"] != said["text"]
    assert captured["text"] == plain["text"] and captured["capture_results"]["response"]["status"] == "ok"
    assert "steering.vector" in wrong["error"] and "text" not in wrong


def test_generate_refuses_steering_and_capture_that_it_runs_without(tmp_path):
    rows = generate_rows(tmp_path, [{"prompt": "x", field: value} for field, value in
                                    (("steering", {"name": "calm"}), ("steering_name", "calm"), ("steering_vectors", {}),
                                     ("decode_steering_vectors", {}), ("capture", {}))])
    for row in rows:
        field = next(key for key in row if key not in ("prompt", "error"))
        assert field in row["error"] and "text" not in row, row


def test_generate_takes_a_rows_own_fields(tmp_path):
    chat = [{"role": "user", "content": "Name a colour."}]
    rows = generate_rows(tmp_path, [
        {"prompt": "Once upon a time"},
        {"prompt": "Once upon a time", "max_tokens": 3, "task": "kept", "n": None},
        {"prompt": "Once upon a time", "temperature": 1.5, "seed": 7, "max_completion_tokens": 20, "ignore_eos": True},
        {"prompt": "Once upon a time", "logit_bias": {"300": 100}, "max_tokens": 2},
        {"prompt": "Answer: ", "structured_outputs": {"regex": "[ab]{3}c"}},
        {"messages": chat, "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"enum": ["red", "blue"]}}}},
        {"prompt": ["Once upon a time"], "stop": " was"},
    ])
    plain, short, sampled, biased, regex, enum, stopped = rows
    assert plain["usage"]["completion_tokens"] == 12
    assert plain["token_ids"][:3] == short["token_ids"] and short["task"] == "kept"
    assert len(sampled["token_ids"]) == 20 and sampled["text"][:30] != plain["text"][:30]
    assert biased["token_ids"] == [300, 300]
    assert re.fullmatch("[ab]{3}c", regex["text"]), regex
    assert json.loads(enum["text"]) in ("red", "blue")
    assert " was" in plain["text"] and stopped["text"] == plain["text"].split(" was")[0]


def test_generate_refuses_what_a_row_cannot_have(tmp_path):
    refused = {"n": 2, "stream": True, "logprobs": 3, "echo": True, "prompt_logprobs": 1, "top_p": 2, "max_tokens": 0,
               "max_tokens ": 1 << 20, "structured_outputs": {"regex": "("}, "steerng": {"name": "x"}, "model": "another",
               "use_beam_search": True, "prompt": ["a", "b"]}
    rows = generate_rows(tmp_path, [{"prompt": "x", key.strip(): value} for key, value in refused.items()])
    for key, row in zip(refused, rows, strict=True):
        assert key.strip() in row["error"] and "text" not in row, row


def test_tokenize_and_back():
    ids = run_rudder("tokenize", "--text", "hello 123", "--ids-only").stdout.strip()
    assert run_rudder("tokenize", "--decode", ids).stdout.strip() == "hello 123"


def test_info_names_the_architecture():
    done = run_rudder("info")
    assert done.returncode == 0, done.stderr
    assert "LlamaForCausalLM" in done.stdout


def test_make_model_is_served_by_bench(tmp_path):
    folder = tmp_path / "tiny"
    made = run_rudder("make-model", "--like", "qwen2.5-0.5b", "--seed", "3", "--layers", "1", folder)
    assert made.returncode == 0, made.stderr
    result = tmp_path / "result.json"
    bench = run_rudder("bench", "throughput", folder, "--num-prompts", "8", "--random-input-len", "32",
                       "--random-output-len", "8", "--output-json", result)
    assert bench.returncode == 0, bench.stderr
    measured = json.loads(result.read_text())
    assert measured["num_requests"] == 8 and measured["total_num_tokens"] == 8 * 40


def test_bench_serve_against_the_server(server, tmp_path):
    result, plot = tmp_path / "result.json", tmp_path / "plot.svg"
    bench = run_rudder("bench", "serve", "--base-url", server.url, "--num-prompts", "24", "--max-concurrency", "8",
                       "--random-input-len", "40", "--random-output-len", "16", "--save-result", result, "--plot", plot)
    assert bench.returncode == 0, bench.stderr + bench.stdout
    measured = json.loads(result.read_text())
    assert measured["completed"] == 24 and measured["failed"] == 0
    assert measured["total_output_tokens"] == 24 * 16
    assert measured["mean_ttft_ms"] > 0 and measured["p99_itl_ms"] > 0
    assert plot.read_text().startswith("<svg")


def test_bench_steering_compares_every_mode_with_none(tmp_path):
    ledger, captures = tmp_path / "ledger.csv", tmp_path / "captures"
    bench = run_rudder("bench", "steering", "--device", "cpu", "--rounds", "2", "--concurrency", "2", "--output-lens",
                       "8", "--input-len", "24", "--requests", "4", "--ledger", ledger, "--capture-dir", captures)
    assert bench.returncode == 0, bench.stderr
    assert "bench steering: 0 of 34 trials; warm-up, disabled at 2 clients, 8 tokens" in bench.stderr
    modes = ["disabled", "enabled_idle", "named_shared", "all_steered_shared", "per_request_n4", "per_request_n16",
             "per_request_n256", "feature_delta_1", "feature_delta_8", "feature_delta_64", "feature_gate",
             "probe", "stop_when", "lens", "attn_z_add", "capture_one_site", "capture_all_layers"]
    floors = [mode for mode in modes if mode.startswith("feature_")]
    table = {line.split()[0]: line.split() for line in bench.stdout.splitlines() if line.split()}
    for mode in modes:
        assert all(float(value) > 0 for value in table[mode][1:5]), table[mode]
    rows = list(csv.reader(ledger.open()))
    # Four figures a mode, of each but the first how many of its steps were not replayed, and the floors.
    assert len(rows) == 5 * len(modes) - 1 + len(floors) and all(len(row) == 13 for row in rows)
    assert [row[3].split(":")[0] for row in rows if ": floor" in row[3]] == floors
    assert not [path for path in captures.rglob("*") if path.is_file()]
    refused = run_rudder("bench", "steering", "--modes", "enabled_idle,sideways")
    assert refused.returncode == 1 and "sideways" in refused.stderr


@pytest.mark.parametrize("bench, begins", [
    (["latency", "--num-iters", "3", "--random-input-len", "16", "--random-output-len", "4"], "bench latency"),
    (["throughput", "--num-prompts", "4", "--random-input-len", "16", "--random-output-len", "4"], "bench throughput"),
    (["speculation", "--speculative-acceptance", "0.5", "--draft-lengths", "2", "--batches", "1", "--rounds", "1",
      "--max-tokens", "8"], "bench speculation"),
    (["steering", "--modes", "probe", "--rounds", "2", "--concurrency", "1", "--output-lens", "4", "--input-len", "8",
      "--requests", "1"], "bench steering"),
    (["tiers", "--parts", "decode,turns", "--prefix-len", "128", "--cache-prefixes", "6", "--decode-batch", "2",
      "--decode-len", "4", "--rounds", "1", "--turns", "2", "--cache-multiple", "1"], "bench tiers")])
@pytest.mark.parametrize("level", ["trace", "debug", "info", "warning", "error", "critical"])
def test_progress_is_told_whatever_the_log_level(bench, begins, level):
    done = run_rudder("bench", *bench, "--log-level", level)
    assert done.returncode == 0 and begins in done.stderr, done.stderr
    assert done.stdout.count("\n") >= 2, done.stdout


@pytest.mark.parametrize("bench", [
    ["constraint", "--vocab-size", "2000", "--repeats", "1", "--only", "enum"],
    ["ops", "--like", "qwen2.5-0.5b", "--layers", "1", "--steps", "1x1@8,2x1@8", "--repeats", "1"]])
def test_benches_without_a_log_tell_their_progress(bench):
    done = run_rudder("bench", *bench)
    assert done.returncode == 0 and f"bench {bench[0]}: 100%" in done.stderr, done.stderr


def test_a_row_is_there_as_soon_as_it_is_measured():
    """Who reads a pipe sees the first modes while the others are measured."""
    command = [str(BINARY), "bench", "steering", "--modes", "enabled_idle,named_shared,probe", "--rounds", "2",
               "--concurrency", "1,2", "--output-lens", "8", "--input-len", "16", "--requests", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    seen = [(line.split()[0], process.poll()) for line in process.stdout if line.strip()]
    assert process.wait() == 0
    rows = [name for name, _ in seen if name in ("disabled", "enabled_idle", "named_shared", "probe")]
    assert len(rows) == 8 and seen[1][1] is None


@pytest.mark.parametrize("name", ["no/such/folder", "./none", "~/models/none", "huggingface.co/org/name", "org/name@main", "org/name/tree/main"])
def test_missing_model_folder_is_named(name):
    done = run_rudder("serve", name)
    assert done.returncode == 1
    assert f"no folder and no file '{name}'" in done.stderr and "Qwen/Qwen3-8B" in done.stderr


@pytest.mark.parametrize("flag, hint", [
    ("-hf", "rudder serve ORG/NAME"),
    ("--ctx-size", "use --max-model-len"),
    ("--mem-fraction-static=0.8", "use --gpu-memory-utilization"),
    ("--max-num-seq", "did you mean --max-num-seqs?"),
    ("--lora-paths", "use --enable-lora and --lora-modules"),
    ("--tp-size", "use --tensor-parallel-size"), ("-dp", "use --data-parallel-size"), ("--pp-size=2", "use --pipeline-parallel-size"),
    ("---", "unknown flag ---"), ("-=", "unknown flag -="), ("----=x", "unknown flag ----=x"),
])
def test_flags_of_other_servers_are_answered_with_ours(flag, hint):
    done = run_rudder("serve", flag)
    assert done.returncode == 2
    assert "unknown flag" in done.stderr and hint in done.stderr


def test_what_is_behind_two_dashes_is_no_flag():
    assert run_rudder("serve", "--dry-run", "--", DEMO).returncode == 0
    assert run_rudder("serve", "--dry-run", "--").returncode == 0
    done = run_rudder("serve", "--dry-run", "--", "--port")
    assert done.returncode == 1 and "'--port'" in done.stderr, done.stderr


def test_flags_that_change_nothing_are_taken():
    done = run_rudder("serve", "--model", str(DEMO), "--trust-remote-code", "--tensor-parallel-size", "1",
                      "--enable-chunked-prefill", "--seed", "7", "--dry-run")
    assert done.returncode == 0, done.stderr
    twice = run_rudder("serve", str(DEMO), "--model", str(DEMO), "--dry-run")
    assert twice.returncode == 2 and "one of the two" in twice.stderr


def test_ranks_have_a_memory_budget_each_and_bad_numbers_of_them_are_refused():
    whole = run_rudder("serve", "--dry-run")
    if len(os.sched_getaffinity(0)) >= 2:
        of_two = run_rudder("serve", "--tensor-parallel-size", "2", "--dry-run")
        assert of_two.returncode == 0, of_two.stderr
        assert of_two.stdout.startswith("of each of 2 ranks") and whole.stdout.startswith("weights")
    for number, code in (("64", 1), ("0", 2), ("two", 2)):
        refused = run_rudder("serve", "--tensor-parallel-size", number, "--dry-run", "--device", "cpu")
        assert refused.returncode == code and "tensor-parallel-size" in refused.stderr, refused.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks on a CPU need a core each")
def test_two_ranks_answer_as_one_device():
    texts = []
    for ranks in ("1", "2"):
        done = run_rudder("generate", "--prompt", "Once upon a time", "--max-tokens", "24", "--temperature", "0",
                          "--dtype", "float32", "--tensor-parallel-size", ranks)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1] and len(texts[0]) > 20


def test_stages_have_a_memory_budget_each_and_bad_numbers_of_them_are_refused():
    if len(os.sched_getaffinity(0)) >= 2:
        of_two = run_rudder("serve", "--pipeline-parallel-size", "2", "--dry-run")
        assert of_two.returncode == 0, of_two.stderr
        assert of_two.stdout.startswith("of stage 0 of 2, layers 0 to ") and "of stage 1 of 2" in of_two.stdout
    for flags, code, what in ((("64",), 1, "64 ranks are more than the"), (("0",), 2, "pipeline-parallel-size"),
                              (("32", "--tensor-parallel-size", "32"), 1, "1024 ranks are more than the")):
        refused = run_rudder("serve", "--dry-run", "--device", "cpu", "--pipeline-parallel-size", *flags)
        assert refused.returncode == code and what in refused.stderr, refused.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="stages on a CPU need a core each")
def test_two_stages_answer_as_one_device():
    texts = []
    for stages in ("1", "2"):
        done = run_rudder("generate", "--prompt", "Once upon a time", "--max-tokens", "24", "--temperature", "0",
                          "--pipeline-parallel-size", stages)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1] and len(texts[0]) > 20


def test_seed_of_the_server_fixes_what_requests_leave_open():
    answers = []
    for _ in range(2):
        with serving("--seed", "7") as server:
            answers.append([server.client().completions.create(model="rudder-demo", prompt="Once", max_tokens=12,
                                                               temperature=1.5).choices[0].text for _ in range(3)])
    assert answers[0] == answers[1] and len(set(answers[0])) > 1


def test_chat_template_of_the_operator(tmp_path):
    template = tmp_path / "loud.jinja"
    template.write_text("{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    with serving("--chat-template", str(template)) as server:
        tokens = httpx2.post(server.url + "/tokenize", json={"messages": [{"role": "user", "content": "hello"}]})
        text = httpx2.post(server.url + "/detokenize", json={"tokens": tokens.json()["tokens"]})
        assert text.json()["prompt"] == "HELLO"
    missing = run_rudder("serve", "--chat-template", str(tmp_path / "none.jinja"))
    assert missing.returncode == 1 and "none.jinja" in missing.stderr


@pytest.mark.parametrize("name, flags, num_tokens", [("plain", [], 12), ("masks_and_steering", ["--enable-steering"], 7)])
def test_recordings_of_the_fuzz_corpus_are_of_the_version_that_is_read(name, flags, num_tokens):
    """A reader refuses other versions at once, so an old corpus would try nothing."""
    done = run_rudder("replay", str(ROOT / "tests/fuzz/corpus/recording" / name), *flags)
    assert f"{num_tokens} tokens compared" in done.stdout, done.stderr
