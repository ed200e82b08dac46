"""Engines in processes of their own (--engine-process): answers are those of one process, and the end of an engine process
ends nothing but the streams that were in progress."""

import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import threading
import time

import httpx2
import pytest

from conftest import DEMO, HTTP, PACED, PATIENCE_S, Server, run_rudder, serving, wait_for

APART = ("--engine-process", "--threads", "2")
TAPS = ("--enable-steering", "--capture-memory-mb", "16", "--seed", "11")


def engines_of(server):
    """Process ids of its engines."""
    children = []
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += [int(child) for child in (task / "children").read_text().split()]
    return sorted(children)


def post(server, path="/v1/completions", timeout=PATIENCE_S, **body):
    return HTTP.post(server.url + path, json=body, timeout=timeout)


def events(server, started=None, **body):
    """What a stream had: its pieces, and its error, if any."""
    pieces, error = [], None
    with httpx2.stream("POST", server.url + "/v1/completions", timeout=PATIENCE_S,
                       json={"stream": True, "ignore_eos": True, **body}) as answer:
        if answer.status_code != 200:
            return pieces, json.loads(answer.read())["error"]
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            said = json.loads(line[6:])
            if "error" in said:
                error = said["error"]
                continue
            if not said["choices"]:  # what was captured, or the usage
                continue
            pieces.append(said["choices"][0]["text"])
            if started is not None:
                started.set()
    return pieces, error


def health(server):
    return HTTP.get(server.url + "/health", timeout=5)


QUESTIONS = {
    "greedy": {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0},
    "drawn": {"prompt": "A boat", "max_tokens": 16, "n": 3, "temperature": 1.0, "seed": 5},
    "seeds in order of arrival": {"prompt": "A boat", "max_tokens": 16, "temperature": 1.0},
    "log-probabilities": {"prompt": "The sun", "max_tokens": 8, "logprobs": 4, "echo": True},
    "ids": {"prompt": "The sun", "max_tokens": 8, "return_token_ids": True, "temperature": 0},
    "grammar": {"prompt": "Say:", "max_tokens": 40, "temperature": 0, "structured_outputs": {"choice": ["a fox", "a dog"]}},
    "schema": {"prompt": "JSON:", "max_tokens": 48, "temperature": 0,
               "structured_outputs": {"json": {"type": "object", "properties": {"n": {"type": "integer"}},
                                               "required": ["n"], "additionalProperties": False}}},
    "words": {"prompt": "A boat", "max_tokens": 16, "temperature": 0, "bad_words": [" the"], "logit_bias": {"5": -4}},
    "stop": {"prompt": "Once upon a time", "max_tokens": 64, "temperature": 0, "stop": [" the"], "include_stop_str_in_output": True},
    "captured": {"prompt": "A boat", "max_tokens": 4, "temperature": 0,
                 "capture": {"response": {"sites": {"resid_post": [0, 2]}, "positions": "all"}}},
    "wrong grammar": {"prompt": "A", "max_tokens": 4, "structured_outputs": {"regex": "("}},
    "wrong capture": {"prompt": "A", "max_tokens": 4, "capture": {"response": {"sites": {"resid_post": [999]}}}},
    "too long": {"prompt": "A", "max_tokens": 10**6},
}


def comparable(answer):
    said = answer.json()
    for name in ("id", "created"):
        said.pop(name, None)
    return json.loads(json.dumps(said).replace(answer.headers.get("x-request-id", "-"), "ID"))


def vector(scale):
    width = json.loads((DEMO / "config.json").read_text())["hidden_size"]
    return [scale * ((i * 7919) % 13 - 6) for i in range(width)]


def test_answers_are_those_of_one_process():
    """Every kind of thing that passes: parameters, grammars, steering, captures, log-probabilities; and what is refused."""
    questions = dict(QUESTIONS)
    questions["steered"] = {"prompt": "A boat", "max_tokens": 12, "temperature": 0,
                            "steering_vectors": {"resid_post": {"1": vector(0.3)}}}
    with serving(*TAPS) as one, serving(*APART, *TAPS) as apart:
        for name, body in questions.items():
            expected, got = post(one, **body), post(apart, **body)
            assert name.startswith("wrong") or name == "too long" or got.status_code == 200, (name, got.text)
            assert (got.status_code, comparable(got)) == (expected.status_code, comparable(expected)), name
            if expected.status_code == 200 and body.get("n", 1) == 1 and "logprobs" not in body and "seed" not in body:
                pieces, error = events(apart, **{**body, "ignore_eos": False})
                assert error is None, name
        chat = {"messages": [{"role": "user", "content": "What is 27 + 58?"}], "temperature": 0, "max_tokens": 24}
        assert comparable(post(one, "/v1/chat/completions", **chat)) == comparable(post(apart, "/v1/chat/completions", **chat))
        embedded = [post(each, "/v1/embeddings", input=["a fox", "a dog"]).json()["data"] for each in (one, apart)]
        assert embedded[0] == embedded[1]


def test_drafts_pass():
    flags = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}),
             "--no-speculative-adaptive")
    body = {"prompt": "The fox saw the dog. The fox saw the dog. The fox saw the dog. The", "max_tokens": 120, "temperature": 0,
            "ignore_eos": True}
    with serving() as plain, serving(*APART, *flags) as apart:
        assert comparable(post(plain, **body))["choices"] == comparable(post(apart, **body))["choices"]
        assert apart.metric("rudder:spec_decode_num_draft_tokens_total") > 0


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_the_end_of_an_engine_ends_its_streams_alone(death):
    """One stream in progress; behind it a stream that has said nothing, and an answer that is sent whole."""
    with serving(*APART, *PACED, "--max-num-seqs", "2") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        started = threading.Event()
        running = pool.submit(events, server, started, prompt="Once", max_tokens=600)
        whole = pool.submit(post, server, prompt="A boat", max_tokens=40, temperature=0, ignore_eos=True)
        assert started.wait(PATIENCE_S)
        queued = [pool.submit(events, server, None, prompt=f"The {word}", max_tokens=3) for word in ("sun", "fox", "sea")]
        wait_for(lambda: server.metric("rudder:num_requests_waiting") >= 2, "requests wait")
        (before,) = engines_of(server)
        os.kill(before, death)
        begin = time.monotonic()
        wait_for(lambda: health(server).status_code == 503, "health says so", 5)
        assert time.monotonic() - begin < 1
        assert "engine process" in health(server).text or health(server).status_code == 200
        assert HTTP.get(server.url + "/livez", timeout=1).status_code == 200
        pieces, error = running.result(PATIENCE_S)
        assert pieces, "it had begun"
        assert error["code"] == "unavailable", error
        assert f"signal {int(death)}" in error["message"], error
        assert whole.result(PATIENCE_S).status_code == 200, "nothing of it had been sent"
        for each in queued:
            pieces, error = each.result(PATIENCE_S)
            assert error is None
            assert len(pieces) == 3
        wait_for(lambda: health(server).status_code == 200, "it is there again")
        assert engines_of(server) != [before]
        assert server.metric("rudder:engine_process_crashes_total") == 1
        expected = post(server, prompt="A boat", max_tokens=40, temperature=0, ignore_eos=True).json()["choices"]
        assert expected == whole.result().json()["choices"]


def test_a_silent_engine_fails_health():
    """One that is stopped: the front says so within --stuck-step-us, and answers."""
    with serving(*APART, "--stuck-step-us", "1500000") as server:
        (engine,) = engines_of(server)
        os.kill(engine, signal.SIGSTOP)
        try:
            wait_for(lambda: health(server).status_code == 503, "health fails", 10)
            assert "has said nothing" in health(server).text
            begin = time.monotonic()
            assert HTTP.get(server.url + "/metrics", timeout=5).status_code == 200
            assert time.monotonic() - begin < 1
        finally:
            os.kill(engine, signal.SIGCONT)
        wait_for(lambda: health(server).status_code == 200, "health is good again")
        assert server.metric("rudder:engine_process_crashes_total") == 0


def test_modules_and_clients_that_go_outlive_an_engine(tmp_path):
    """What was pinned is pinned in the next process; a client that left while there was none is not served."""
    module = tmp_path / "mood.json"
    module.write_text(json.dumps({"steering_vectors": {"resid_post": {"1": vector(0.4)}}}))
    body = {"prompt": "A boat", "max_tokens": 12, "temperature": 0, "steering_name": "mood"}
    with serving(*APART, *TAPS, "--steering-module", f"mood={module}") as server:
        expected = post(server, **body)
        assert expected.status_code == 200, expected.text
        os.kill(engines_of(server)[0], signal.SIGKILL)
        with contextlib.suppress(httpx2.TimeoutException):
            HTTP.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 8}, timeout=0.01)
        assert post(server, **body).json()["choices"] == expected.json()["choices"]
        wait_for(lambda: server.metric("rudder:num_requests_running") == 0, "nobody is served")


def test_of_two_replicas_the_other_goes_on():
    with serving(*APART, *PACED, "--data-parallel-size", "2") as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        engines = engines_of(server)
        assert len(engines) == 2
        wait_for(lambda: health(server).json().get("status") == "ready", "both are there")
        starts = [threading.Event() for _ in range(2)]
        running = [pool.submit(events, server, start, prompt="Once", max_tokens=120) for start in starts]
        assert all(start.wait(PATIENCE_S) for start in starts)
        os.kill(engines[0], signal.SIGKILL)
        ends = [each.result(PATIENCE_S) for each in running]
        assert sorted(error is None for _, error in ends) == [False, True], ends
        assert post(server, prompt="A boat", max_tokens=4).status_code == 200
        wait_for(lambda: health(server).json().get("status") == "ready", "both are there")
        assert server.metric("rudder:engine_process_crashes_total") == 1


def test_the_front_takes_its_engines_along():
    server = Server(*APART)
    (engine,) = engines_of(server)
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not pathlib.Path(f"/proc/{engine}").exists() or
             " Z " in pathlib.Path(f"/proc/{engine}/stat").read_text(), "the engine has ended")


@pytest.mark.parametrize("flags, named", [
    (("--enable-sleep-mode",), "enable-sleep-mode"),
    (("--weights-root", "/tmp"), "weights-root"),
    (("--enable-steering", "--dictionary", "d=/tmp/d"), "dictionary"),
    (("--kv-events-config", '{"enable_kv_cache_events": true}'), "kv-events-config"),
    (("--capture-memory-mb", "8", "--capture-consumer", "kept"), "capture-consumer"),
])
def test_what_does_not_go_together_is_refused_by_name(flags, named):
    ended = run_rudder("serve", "--port", 0, *APART, *flags)
    assert ended.returncode == 1
    assert named in ended.stderr and "--engine-process" in ended.stderr, ended.stderr


def test_a_model_that_does_not_load_is_told_as_by_one_process(tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((DEMO / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    said = [run_rudder("serve", tmp_path, "--port", 0, *flags) for flags in ((), APART)]
    assert [each.returncode for each in said] == [1, 1]
    assert said[0].stderr.splitlines()[-1] == said[1].stderr.splitlines()[-1]


def kill_under_load(server, kills, seconds_between):
    """Kills the engine at random moments while eight clients ask; what the clients had, by how it ended."""
    random.seed(17)
    stop = threading.Event()
    counts = {"whole": 0, "streamed": 0, "cut": 0, "lost": []}
    lock = threading.Lock()
    slowest = [0.0]

    def ask(number):
        for turn in itertools.count():
            if stop.is_set():
                return
            is_stream = (number + turn) % 2 == 0
            body = {"prompt": f"Tale {number} {turn}:", "max_tokens": 1 + (turn * 7) % 40, "temperature": 0, "ignore_eos": True}
            if is_stream:
                pieces, error = events(server, **body)
                kind = "streamed" if error is None and len(pieces) == body["max_tokens"] else "cut" if pieces and error else None
                wrong = (body, pieces, error)
            else:
                answer = post(server, **body)
                is_whole = answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == body["max_tokens"]
                kind, wrong = ("whole" if is_whole else None), (body, answer.status_code, answer.text[:300])
            with lock:
                if kind is None:
                    counts["lost"].append(wrong)
                else:
                    counts[kind] += 1

    def probe():
        while not stop.is_set():
            begin = time.monotonic()
            health(server)
            slowest[0] = max(slowest[0], time.monotonic() - begin)
            time.sleep(0.05)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)] + [threading.Thread(target=probe)]
    for thread in threads:
        thread.start()
    done = 0
    while done < kills:
        # Most engines are let begin: one that ends before it has done anything is started later each time.
        if random.random() < 0.8:
            wait_for(lambda: health(server).status_code == 200, "it is there")
        time.sleep(random.uniform(*seconds_between))
        for engine in engines_of(server):
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGKILL)
                done += 1
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    return counts, slowest[0]


def room_of(server):
    """Descriptors and resident bytes of the front."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    return len(os.listdir(f"/proc/{server.process.pid}/fd")), resident


def check_kills(kills, seconds_between):
    with serving(*APART, "--min-step-ms", "5") as server:
        kill_under_load(server, 5, (0.3, 0.6))
        wait_for(lambda: health(server).status_code == 200, "it is there")
        time.sleep(1)
        descriptors, memory = room_of(server)
        threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
        crashes = server.metric("rudder:engine_process_crashes_total")
        counts, slowest = kill_under_load(server, kills, seconds_between)
        wait_for(lambda: health(server).status_code == 200, "it is there")
        wait_for(lambda: room_of(server)[0] <= descriptors, "no descriptor is left")
        assert len(os.listdir(f"/proc/{server.process.pid}/task")) == threads
        assert room_of(server)[1] - memory < 24 << 20
        assert server.metric("rudder:engine_process_crashes_total") - crashes == kills
        assert counts["lost"] == []
        assert counts["whole"] > kills / 4 and counts["streamed"] > kills / 4
        assert slowest < 1, f"/health took {slowest:.2f} s"
        print(f"{kills} kills: {counts}, slowest /health {slowest * 1e3:.0f} ms, memory "
              f"{(room_of(server)[1] - memory) / 2**20:+.1f} MiB, descriptors {room_of(server)[0] - descriptors:+d}")


def test_ten_kills_under_load():
    check_kills(10, (0.2, 1.0))


@pytest.mark.slow
def test_two_hundred_kills_under_load():
    check_kills(200, (0.05, 1.2))
