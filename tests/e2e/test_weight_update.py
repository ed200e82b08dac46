"""Sleep, wake up and new weights: what trainers ask of the server that generates for them. After an update the server
answers as one that was started with the new checkpoint, token for token and log-probability for log-probability."""

import concurrent.futures
import json
import os
import pathlib
import threading
import time

import httpx2
import pytest

from checkpoint_copies import read_tensors, shifted, write_checkpoint
from conftest import DEMO, MAX_TOKENS, PACED, Server, growth_bound

PROMPT = "Once upon a time there was a boat. " * 6
FLAGS = ("--threads", "2", "--http-threads", "2", "--tokenize-threads", "2")
ADMIN = {"Authorization": "Bearer admin"}
UPDATES = 100


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two checkpoints beside the demo model, and some that do not fit."""
    folder = tmp_path_factory.mktemp("weights")
    tensors = read_tensors(DEMO / "model.safetensors")
    write_checkpoint(folder / "same", tensors)
    write_checkpoint(folder / "first", shifted(tensors, 1))
    write_checkpoint(folder / "second", shifted(tensors, 2), files=())  # weights alone
    name = "model.layers.0.mlp.down_proj.weight"
    write_checkpoint(folder / "missing", {key: value for key, value in tensors.items() if key != name})
    write_checkpoint(folder / "unknown", {**tensors, "model.layers.99.mlp.down_proj.weight": tensors[name]})
    dtype, shape, data = tensors[name]
    write_checkpoint(folder / "wrong_shape", {**tensors, name: (dtype, shape[::-1], data)})
    config = json.loads((DEMO / "config.json").read_text())
    write_checkpoint(folder / "other_rope", tensors, config={**config, "rope_theta": 12345.0, "rope_parameters": {"rope_theta": 12345.0, "rope_type": "default"}})
    (folder / "empty").mkdir()
    write_checkpoint(folder / "cut", tensors)
    whole = (folder / "cut" / "model.safetensors").read_bytes()
    (folder / "cut" / "model.safetensors").write_bytes(whole[:-100])
    return folder


@pytest.fixture(scope="module")
def trained(root):
    server = Server(*FLAGS, "--enable-sleep-mode", "--weights-root", str(root), "--steering-api-key", "admin")
    yield server
    server.stop()


def answer_of(server, prompt=PROMPT, **fields):
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 5, "return_token_ids": True, "ignore_eos": True, **fields}
    answer = httpx2.post(server.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return {"tokens": choice["token_ids"], "logprobs": choice["logprobs"]["token_logprobs"], "top": choice["logprobs"]["top_logprobs"],
            "cached": (answer.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)}


def update(server, path, route="/v1/weights/update", headers=ADMIN, **fields):
    return httpx2.post(server.url + route, json={"path": path, **fields}, headers=headers, timeout=120)


def ask(server, route, method="POST", headers=ADMIN, **options):
    return httpx2.request(method, server.url + route, headers=headers, timeout=120, **options)


def without_cached(answer):
    return {key: value for key, value in answer.items() if key != "cached"}


def test_an_updated_server_answers_as_one_that_was_started_with_the_weights(root, trained):
    assert update(trained, "same").status_code == 200
    before = answer_of(trained)
    assert answer_of(trained)["cached"] > 0
    answer = update(trained, "first", weight_version="step-1")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["success"] and told["weight_version"] == "step-1" and "step-1" in told["identity"]
    assert told["matched"] == len(read_tensors(root / "first" / "model.safetensors"))
    after = answer_of(trained)
    assert after["cached"] == 0, "a block of the old weights was hit"
    fresh = Server(*FLAGS, model=root / "first")
    try:
        wanted = answer_of(fresh)
    finally:
        fresh.stop()
    assert without_cached(after) == without_cached(wanted)
    assert after["logprobs"] != before["logprobs"]
    assert update(trained, "same").status_code == 200
    assert without_cached(answer_of(trained)) == without_cached(before)


def test_sglangs_name_and_field_are_taken(trained):
    answer = httpx2.post(trained.url + "/update_weights_from_disk", json={"model_path": "second"}, headers=ADMIN, timeout=60)
    assert answer.status_code == 200 and answer.json()["success"]
    assert update(trained, "same").status_code == 200


@pytest.mark.parametrize("path, status, names, param", [
    ("missing", 400, ["1 are missing", "model.layers.0.mlp.down_proj.weight"], "model.layers.0.mlp.down_proj.weight"),
    ("unknown", 400, ["1 are not the model's", "model.layers.99"], "model.layers.99.mlp.down_proj.weight"),
    ("wrong_shape", 400, ["1 have another shape", "[768, 256] in place of"], "model.layers.0.mlp.down_proj.weight"),
    ("other_rope", 400, ["rope"], None), ("cut", 400, ["nothing was replaced"], None), ("empty", 404, [], None),
    ("none", 404, ["no folder"], "path"), ("../weights", 400, ["not below"], "path"), ("/etc", 400, ["not below"], "path")])
def test_what_does_not_fit_is_named_and_nothing_has_changed(trained, path, status, names, param):
    before = answer_of(trained)
    answer = update(trained, path)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    for name in names:
        assert name in error["message"], error
    if param:
        assert error["param"] == param
    assert without_cached(answer_of(trained)) == without_cached(before)


def test_only_the_admin_may(trained):
    for route in ("/sleep", "/wake_up", "/pause", "/resume", "/v1/weights/update", "/update_weights_from_disk"):
        assert ask(trained, route, headers={}, json={"path": "same"}).status_code == 401, route
        assert ask(trained, route, headers={"Authorization": "Bearer other"}, json={"path": "same"}).status_code == 401, route


def test_a_server_without_the_flags_says_which(server):
    for route in ("/sleep", "/pause", "/v1/weights/update"):
        answer = ask(server, route, headers={}, json={"path": "same"})
        assert answer.status_code == 404 and "--weights-root" in answer.json()["error"]["message"], route


@pytest.mark.parametrize("wrong, param", [({"level": 3}, "level"), ({"mode": "later"}, "mode"), ({"tags": ["disk"]}, "tags"), ({"timeout": 0}, "timeout"),
                                          ({"tags": [1]}, "tags"), ({"level": "x"}, "level")])
def test_wrong_fields_are_named(trained, wrong, param):
    answer = ask(trained, "/sleep", json=wrong)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_asleep_it_says_so_and_awake_it_answers_as_before(trained):
    before = answer_of(trained)
    answer = ask(trained, "/sleep?level=1")
    assert answer.status_code == 200 and answer.json() == {"is_sleeping": True, "is_paused": False}
    assert ask(trained, "/is_sleeping", "GET").json()["is_sleeping"]
    refused = httpx2.post(trained.url + "/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=60)
    assert refused.status_code == 503 and "asleep" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    health = httpx2.get(trained.url + "/health")
    assert health.status_code == 503 and "asleep" in health.json()["error"]["message"]
    assert httpx2.get(trained.url + "/livez").status_code == 200
    assert ask(trained, "/sleep").status_code == 503, "it sleeps already"
    assert ask(trained, "/wake_up?tags=weights").json()["is_sleeping"], "a part of it"
    assert not ask(trained, "/wake_up?tags=kv_cache").json()["is_sleeping"]
    assert httpx2.get(trained.url + "/health").json() == {"status": "ready"}
    assert without_cached(answer_of(trained)) == without_cached(before)


def test_the_deep_sleep_wants_weights(trained):
    before = answer_of(trained)
    resident = memory_of(trained)
    assert ask(trained, "/sleep?level=2").status_code == 200
    if os.environ.get("RUDDER_BINARY") is None:  # sanitizers keep freed memory
        assert memory_of(trained) < resident - (8 << 20), "14 MB of weights"
    refused = ask(trained, "/wake_up")
    assert refused.status_code == 400 and "/v1/weights/update" in refused.json()["error"]["message"]
    assert ask(trained, "/is_sleeping", "GET").json()["is_sleeping"]
    assert update(trained, "missing").status_code == 400
    assert update(trained, "same").status_code == 200
    assert ask(trained, "/is_sleeping", "GET").json()["is_sleeping"], "new weights do not wake it up"
    assert ask(trained, "/wake_up").json() == {"is_sleeping": False, "is_paused": False}
    assert without_cached(answer_of(trained)) == without_cached(before)


def test_a_pause_keeps_what_runs(trained):
    before = answer_of(trained, max_tokens=300)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(answer_of, trained, max_tokens=300)
        time.sleep(0.2)
        assert ask(trained, "/pause?mode=keep").json()["is_paused"]
        assert httpx2.get(trained.url + "/health").json() == {"status": "paused"}
        steps = trained.metric("vllm:iteration_tokens_total_count") if "vllm:iteration_tokens_total_count" in {
            name.split("{")[0] for name in trained.metrics()} else None
        time.sleep(0.3)
        if steps is not None:
            assert trained.metric("vllm:iteration_tokens_total_count") == steps
        assert not ask(trained, "/resume").json()["is_paused"]
        assert without_cached(running.result()) == without_cached(before)


class Stream(threading.Thread):
    """One answer, as a client reads it."""

    def __init__(self, server, tokens):
        super().__init__()
        self.url, self.tokens = server.url + "/v1/completions", tokens
        self.num_chunks, self.error, self.done = 0, None, False
        self.start()

    def run(self):
        body = {"prompt": "A boat", "max_tokens": self.tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        with httpx2.stream("POST", self.url, json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    self.error = self.error or chunk.get("error")
                    self.num_chunks += 1

    def wait_for_chunks(self, count):
        deadline = time.monotonic() + 60
        while self.num_chunks < count and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)


@pytest.fixture(scope="module")
def paced(root):
    server = Server(*FLAGS, *PACED, "--enable-sleep-mode", "--weights-root", str(root))
    yield server
    server.stop()


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_an_update_amid_streams(paced, mode):
    streams = [Stream(paced, 60 if mode == "wait" else MAX_TOKENS) for _ in range(3)]
    for stream in streams:
        stream.wait_for_chunks(3)
    answer = update(paced, "first", headers={}, mode=mode)
    assert answer.status_code == 200, answer.text
    if mode == "keep":
        for stream in streams:
            had = stream.num_chunks
            stream.wait_for_chunks(had + 5)
            assert stream.num_chunks >= had + 5 and stream.error is None, "it goes on with the new weights"
        assert update(paced, "same", headers={}, mode="abort").status_code == 200
    for stream in streams:
        stream.join(60)
        assert not stream.is_alive()
    if mode == "wait":
        assert all(stream.error is None and stream.done for stream in streams)
    else:
        assert all(stream.error and "weights" in stream.error["message"] for stream in streams), [s.error for s in streams]
    assert update(paced, "same", headers={}).status_code == 200


def test_who_waits_too_long_leaves_it_as_it_was(paced):
    stream = Stream(paced, MAX_TOKENS)
    stream.wait_for_chunks(2)
    answer = update(paced, "first", headers={}, timeout=0.5)
    assert answer.status_code == 503, answer.text
    had = stream.num_chunks
    stream.wait_for_chunks(had + 3)
    assert stream.num_chunks >= had + 3 and stream.error is None
    assert ask(paced, "/pause?mode=abort", headers={}).status_code == 200
    stream.join(60)
    assert stream.error
    assert ask(paced, "/resume", headers={}).status_code == 200


@pytest.mark.parametrize("how", ["mode=wait", "wait_for_inflight_requests=true", "mode=abort&wait_for_inflight_requests=True"])
def test_a_pause_that_waits_ends_nobody(paced, how):
    """In the words of vLLM's query, the older one too: it is not passed over for the default, which ends requests."""
    stream = Stream(paced, MAX_TOKENS)
    stream.wait_for_chunks(2)
    answer = ask(paced, f"/pause?{how}&timeout=0.3", headers={})
    assert answer.status_code == 503, answer.text
    had = stream.num_chunks
    stream.wait_for_chunks(had + 3)
    assert stream.num_chunks >= had + 3 and stream.error is None
    assert ask(paced, "/pause", headers={}).status_code == 200
    stream.join(60)
    assert stream.error
    assert ask(paced, "/resume", headers={}).status_code == 200


@pytest.mark.parametrize("query, param", [
    ("timeout=soon", "timeout"), ("timeout=nan", "timeout"), ("timeout=-1", "timeout"), ("timeout=1e9", "timeout"),
    ("timeout=5s", "timeout"), ("wait_for_inflight_requests=perhaps", "wait_for_inflight_requests"), ("mode=gently", "mode")])
def test_a_slip_in_the_query_ends_nobody(paced, query, param):
    for path in ("/pause", "/sleep"):
        answer = ask(paced, f"{path}?{query}", headers={})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert not ask(paced, "/is_paused", "GET", headers={}).json()["is_paused"]


def test_what_is_cached_outlives_a_pause_that_is_asked_to_keep_it(trained):
    def cached():
        return answer_of(trained, list(range(7, 71)), max_tokens=8)["cached"]

    cached()
    hit = cached()
    assert hit > 0
    for how, wanted in [("clear_cache=false", hit), ("clear_cache=False&mode=keep", hit), ("clear_cache=true", 0), ("clear_cache=0&mode=wait", hit),
                        ("", 0)]:
        assert ask(trained, f"/pause?{how}").json()["is_paused"]
        assert not ask(trained, "/resume").json()["is_paused"]
        assert cached() == wanted, how
    # Whatever else changes the model meanwhile forgets it.
    assert ask(trained, "/pause?clear_cache=false").json()["is_paused"]
    assert update(trained, "first").status_code == 200
    assert not ask(trained, "/resume").json()["is_paused"]
    assert cached() == 0
    for path in ("/sleep?clear_cache=false", "/pause?clear_cache=perhaps"):
        refused = ask(trained, path)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "clear_cache"), refused.text
    refused = update(trained, "first", flush_cache=False)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "flush_cache"), refused.text
    assert update(trained, "same").status_code == 200
    assert httpx2.get(trained.url + "/health").json() == {"status": "ready"}


def memory_of(server):
    fields = pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_updates_leak_nothing(trained):
    descriptors = pathlib.Path(f"/proc/{trained.process.pid}/fd")
    for _ in range(5):
        assert update(trained, "first").status_code == 200
    at_first, open_files, threads = memory_of(trained), len(list(descriptors.iterdir())), len(list((descriptors.parent / "task").iterdir()))
    for i in range(UPDATES):
        assert update(trained, "second" if i % 2 else "same").status_code == 200
    assert answer_of(trained)["tokens"]
    grown = memory_of(trained) - at_first
    assert grown < min(growth_bound(), 1 << 30) / 4, f"{grown >> 20} MiB"  # 100 times 14 MB would be 1.4 GB
    assert len(list(descriptors.iterdir())) <= open_files + 2
    assert len(list((descriptors.parent / "task").iterdir())) <= threads + 1
