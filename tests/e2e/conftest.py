"""Fixtures of the end-to-end tests: the real binary, served on a free port, and real clients."""

import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

import httpx2
import openai
import pytest

# A shell starts what runs in its background without Ctrl-C: the programs under test are to have it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("RUDDER_BINARY", ROOT / "build" / "release" / "apps" / "rudder"))
DEMO = ROOT / "models" / "demo"
START_TIMEOUT_S = 120
PATIENCE_S = 120  # of a machine that does much else; nothing here takes more than some seconds by itself
# Flags of a server as slow as one of a large model: what a test does while an answer of MAX_TOKENS comes, it does long
# before the answer's end, however fast the machine is, and whatever else it does.
PACED = ("--min-step-ms", "30")
MAX_TOKENS = 1900  # 57 s
# For requests that are many. Each new client reads the system's certificates, 30 ms of a core. No connection is kept:
# servers come and go.
HTTP = httpx2.Client(timeout=60, limits=httpx2.Limits(max_keepalive_connections=0))

sys.path.insert(0, str(ROOT / "tools" / "demo_model"))


@functools.cache
def is_instrumented():
    """Whether the binary has the address or the thread sanitizer, which keep freed memory for a while."""
    binary = BINARY.read_bytes()
    return b"__asan_init" in binary or b"__tsan_init" in binary


def growth_bound():
    """Bytes by which the memory of a server may grow while it is attacked."""
    return (1 << 30) if is_instrumented() else (128 << 20)


def thread_seconds(process, which, but=()):
    """Of the threads of a process that run, without those of a name in `but`, in all: 0: the time that they ran; 1: that they
    waited for a core."""
    total = 0
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that ends
            if (task / "comm").read_text().strip() not in but:
                total += int((task / "schedstat").read_text().split()[which])
    return total * 1e-9


class Stopwatch:
    """Seconds since it was made, without those that the machine gave to others: what a server's patience is measured by.
    `but`: names of the server's threads that whoever measures does not wait for."""

    def __init__(self, server_pid, but=()):
        self._of = (server_pid, 1, but)
        self._begin, self._in_line = time.monotonic(), self._seconds_in_line()

    def _seconds_in_line(self):
        return thread_seconds(*self._of) + thread_seconds("self", 1)

    def seconds(self):
        return time.monotonic() - self._begin - (self._seconds_in_line() - self._in_line)


class Server:
    """`rudder serve` with these flags; `url` once it answers."""

    def __init__(self, *flags, model=None, port=0):
        command = [str(BINARY), "serve", *([str(model)] if model else []), "--port", str(port), *flags]
        self.log = tempfile.TemporaryFile(mode="w+")  # a pipe that nobody reads would fill and block the server
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.url = self._wait_for_url()

    def _wait_for_url(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            if not line:
                break
            match = re.search(r"on (http://[\d.]+:\d+)", line)
            if match:
                return match[1]
        self.process.kill()
        self.log.seek(0)
        raise RuntimeError(f"the server did not start: {self.log.read()[-4000:]}")

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), max_retries=0,
                             **options)

    def async_client(self, **options):
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120,
                                  http_client=httpx2.AsyncClient(limits=limits, timeout=120), **options)

    def metrics(self):
        """{name with labels: value} of /metrics."""
        values = {}
        for line in HTTP.get(self.url + "/metrics", timeout=10).text.splitlines():
            if line and line[0] != "#":
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def metric(self, name):
        """Sum of a metric's values over its labels."""
        found = [v for k, v in self.metrics().items() if k.split("{")[0] == name]
        assert found, f"/metrics has no {name}"
        return sum(found)

    def settings(self):
        """Every setting of a server without keys, as /server_info tells it."""
        return HTTP.get(self.url + "/server_info", timeout=10).json()["settings"]

    def processor_seconds(self):
        """Seconds of processor time that it has taken: what a request costs on a machine that does much else, too."""
        return thread_seconds(self.process.pid, 0)

    def stop(self, timeout=60):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode


def free_ports(count):
    """Ports of loopback that nobody listens at just now, for servers that others must know beforehand."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(condition, what, patience_s=PATIENCE_S):
    """Metrics follow an answer, and a client that went is noticed, a moment later."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def long_request(server, prompt="Once", **fields):
    """A request of MAX_TOKENS tokens that runs or waits until the block ends; its client goes then. Of a PACED server."""
    body = json.dumps({"prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, **fields}).encode()
    address = urllib.parse.urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        yield client


@contextlib.contextmanager
def serving(*flags, model=None, port=0):
    server = Server(*flags, model=model, port=port)
    try:
        yield server
    finally:
        assert server.stop() == 0


@pytest.fixture(scope="session")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def paced():
    with serving(*PACED) as running:
        yield running


@pytest.fixture(scope="session")
def model(server):
    return server.client().models.list().data[0].id


def run_rudder(*arguments, stdin=None, timeout=300, env=None):
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, input=stdin,
                          timeout=timeout, env=env)
