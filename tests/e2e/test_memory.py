"""Resident memory: the weights are there once, and what a burst took is given back when the server is idle."""

import concurrent.futures
import re
import socket
import subprocess
import time

import httpx2
import pytest
from conftest import BINARY, run_rudder, serving




def is_instrumented():
    """A sanitizer keeps memory that was freed, to notice its use."""
    libraries = subprocess.run(["ldd", str(BINARY)], capture_output=True, text=True).stdout
    return "libasan" in libraries or "libtsan" in libraries


pytestmark = pytest.mark.skipif(is_instrumented(), reason="sanitizers keep freed memory")


def resident_mib(server):
    with open(f"/proc/{server.process.pid}/smaps_rollup") as file:
        return int(re.search(r"^Rss:\s+(\d+) kB", file.read(), re.M)[1]) / 1024


def test_weights_are_in_memory_once(tmp_path):
    made = run_rudder("make-model", tmp_path / "model", "--like", "qwen2.5-0.5b", "--layers", "2")
    assert made.returncode == 0, made.stderr
    limits = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-model-len", "512",
              "--kv-cache-memory-bytes", "4M", "--device", "cpu")
    table = run_rudder("serve", tmp_path / "model", "--dry-run", *limits).stdout
    weights, total = (float(re.search(rf"^{part} +([\d.]+) MiB", table, re.M)[1]) for part in ("weights", "total"))
    assert weights > 300
    own = 64  # the binary, the tokenizer, stacks
    with serving(*limits, model=tmp_path / "model") as server:
        assert resident_mib(server) <= 1.15 * weights + (total - weights) + own


def work(server, rounds, body_bytes, num_connections):
    """Every kind of work that holds memory: long prompts with log-probabilities, bodies that are refused, schemas,
    embeddings, stored answers, connections. Returns the statuses that were seen."""
    statuses = {}
    with httpx2.Client(base_url=server.url, timeout=300) as client, \
            concurrent.futures.ThreadPoolExecutor(64) as pool:

        def post(what, path, **body):
            answer = client.post(path, json={"model": "rudder-demo", **body})
            statuses.setdefault(what, set()).add(answer.status_code)
            return answer

        def schema(number):
            names = [f"p{number}_{i}" for i in range(200)]
            return {"type": "object", "additionalProperties": False,
                    "properties": {name: {"type": "string", "pattern": "[a-z]{1,9}"} for name in names}}

        def all_of(function, count):
            return list(pool.map(function, range(count)))

        all_of(lambda i: post("prompt", "/v1/completions", prompt="word " * (200 + i), max_tokens=8, logprobs=5,
                              echo=True), 16 * rounds)
        all_of(lambda i: post("too long", "/v1/completions", prompt="x " * (body_bytes // 2)), 2 * rounds)
        all_of(lambda i: post("schema", "/v1/chat/completions", messages=[{"role": "user", "content": "Go."}],
                              max_tokens=4, response_format={"type": "json_schema", "json_schema": {
                                  "name": "x", "strict": True, "schema": schema(i)}}), 4 * rounds)
        all_of(lambda i: post("embeddings", "/v1/embeddings", input=["word " * 50] * 16), 4 * rounds)
        stored = all_of(lambda i: post("stored", "/v1/responses", input="word " * 300, max_output_tokens=4), 16 * rounds)
        for answer in stored:
            if answer.status_code == 200:
                client.delete("/v1/responses/" + answer.json()["id"])
    connections = [socket.create_connection(server.url.removeprefix("http://").split(":"))
                   for _ in range(num_connections)]
    for connection in connections:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for connection in connections:
        connection.recv(4096)
        connection.close()
    return statuses


def test_memory_comes_back_behind_a_burst():
    # Parts that are planned at start and what caches may keep are small; a little work fills them before the first
    # measurement.
    with serving("--kv-cache-memory-bytes", "8M", "--max-num-batched-tokens", "512", "--grammar-cache", "4M",
                 "--max-connections", "1000", "--max-connections-per-address", "1000") as server:
        work(server, rounds=1, body_bytes=200_000, num_connections=8)
        time.sleep(3)
        before = resident_mib(server)
        for _ in range(2):
            statuses = work(server, rounds=4, body_bytes=4_000_000, num_connections=500)
            for what, seen in statuses.items():
                assert (400 if what == "too long" else 200) in seen, statuses
        peak = resident_mib(server)
        deadline = time.monotonic() + 60
        while resident_mib(server) > 1.3 * before and time.monotonic() < deadline:
            time.sleep(0.5)
        after = resident_mib(server)
        print(f"resident before, behind two bursts, idle: {before:.0f}, {peak:.0f}, {after:.0f} MiB")
        assert after <= 1.3 * before, (before, peak, after)
