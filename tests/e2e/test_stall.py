"""A step that does not end: /health fails within --stuck-step-us, the log says what the step was and where each thread is,
and /health comes back when the step ends."""

import json
import pathlib
import re
import threading
import time

import httpx2

from conftest import PATIENCE_S, Server
from standstill import standing_still_thread

STUCK = ("--stuck-step-us", "400000")
FLAGS = ("--threads", "2", "--http-threads", "2", "--tokenize-threads", "2", *STUCK)


def health_becomes(server, status, patience_s=PATIENCE_S):
    """Seconds until /health says so."""
    begin = time.monotonic()
    while time.monotonic() < begin + patience_s:
        if httpx2.get(server.url + "/health", timeout=10).status_code == status:
            return time.monotonic() - begin
        time.sleep(0.02)
    raise AssertionError(f"/health is not {status} after {patience_s} s")


def log_of(server, pattern):
    """What the log has, as soon as it has a line of this pattern."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        server.log.seek(0)
        text = server.log.read()
        if re.search(pattern, text):
            return text
        time.sleep(0.1)
    raise AssertionError(f"the log has no {pattern}: {text[-4000:]}")


def ask(server, prompt, tokens):
    return httpx2.post(server.url + "/v1/completions", timeout=PATIENCE_S,
                       json={"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})


def test_a_long_step_fails_health_until_it_ends_and_is_told():
    """Each step takes a second, which is longer than it may."""
    server = Server(*FLAGS, "--min-step-ms", "1000")
    try:
        health_becomes(server, 200)
        asking = threading.Thread(target=ask, args=(server, "A boat", 4))
        asking.start()
        health_becomes(server, 503)
        assert httpx2.get(server.url + "/livez").status_code == 200, "it may only take long"
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
        health_becomes(server, 200)
        text = log_of(server, r"thread rudder-engine \(\d+")
        assert re.search(r"makes no progress: waiting for step \d+ of \d+ tokens of 1 sequences", text), text[-4000:]
        engine = re.search(r"thread rudder-engine \(\d+, [^)]*\): (.*)", text)[1]
        assert "PacedExecutor::collect" in engine, "where it stands: " + engine
        log_of(server, r"engine 0 of 1 goes on, \d+ ms")
    finally:
        server.stop()


def test_a_thread_of_the_device_that_stands_still():
    server = Server(*FLAGS)
    try:
        assert ask(server, "A boat", 4).status_code == 200
        tasks = {path.name: (path / "comm").read_text().strip() for path in
                 pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()}
        worker = next(int(thread) for thread, name in tasks.items() if name.startswith("rudder-rank-"))
        with standing_still_thread(worker):
            asking = threading.Thread(target=ask, args=(server, "Another boat", 4))
            asking.start()
            took = health_becomes(server, 503)
            assert took < PATIENCE_S
            text = log_of(server, rf"thread rudder-rank-0 \({worker}, stopped\): it does not answer")
            assert re.search(r"thread rudder-engine \(\d+, [^)]*\): .*DeviceExecutor::", text), text[-6000:]
        asking.join(PATIENCE_S)
        assert not asking.is_alive(), "the request ends when the thread goes on"
        health_becomes(server, 200)
        assert json.loads(httpx2.get(server.url + "/health").text)["status"] == "ready"
    finally:
        server.stop()
