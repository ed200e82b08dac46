"""Rudder on Ray Serve (deploy/ray): where requests go, what passes through, and what happens when replicas go and come."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

import httpx2
import pytest
import yaml

from conftest import BINARY, HTTP, ROOT, free_ports, is_instrumented, serving, wait_for

RAY = ROOT / ".venv-ray" / "bin"
PATIENCE_S = 400  # Ray takes half a minute to start on two idle cores
STEERED = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "return_token_ids": True,
           "steering": {"op": "add", "site": "resid_post", "layers": [3], "vector": [1.5] * 256}}
LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}
MARK = "--served-model-name=rudder-on-ray"  # by which the servers of this test are found

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about where requests go, not about memory"),
    pytest.mark.skipif(not RAY.exists(), reason="tools/setup.sh fleet installs Ray"),
]


class Cluster:
    """A local Ray with the application of deploy/ray/serve.yaml, other numbers and another port."""

    def __init__(self, folder):
        self.folder = folder
        port, *self.ports = free_ports(4)
        self.url = f"http://127.0.0.1:{port}"
        self.config = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
        self.config["http_options"]["port"] = port
        [application] = self.config["applications"]
        application["args"] = {"binary": str(BINARY), "flags": f"--enable-steering {MARK}"}
        [self.deployment] = application["deployments"]
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0",
                            "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{self.ports[0]}",
                            "PATH": f"{RAY}:{os.environ['PATH']}"}

    def replicas(self, count):
        """A fixed number of them."""
        self.deployment.pop("autoscaling_config", None)
        self.deployment["num_replicas"] = count

    def autoscale(self, **options):
        self.deployment.pop("num_replicas", None)
        self.deployment["autoscaling_config"] = options

    def ray(self, *command, timeout=PATIENCE_S):
        done = subprocess.run([RAY / command[0], *map(str, command[1:])], env=self.environment, cwd=ROOT, capture_output=True,
                              text=True, timeout=timeout)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def start(self):
        dashboard, agent, client = self.ports
        self.ray("ray", "start", "--head", "--num-cpus=4", "--port=0", "--node-ip-address=127.0.0.1",
                 f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}",
                 f"--temp-dir={self.folder}", "--disable-usage-stats", "--object-store-memory=100000000")
        self.deploy()

    def deploy(self):
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(self.config))
        self.ray("serve", "deploy", path)

    def ask(self, body=STEERED, **headers):
        with contextlib.suppress(httpx2.HTTPError):
            return HTTP.post(self.url + "/v1/completions", json=body, headers=headers)
        return None

    def who_answers(self, requests=1):
        """The replicas that answer these requests, sent at once."""
        found = []

        def one():
            answer = self.ask()
            if answer is not None and answer.status_code == 200:
                found.append(answer.headers["x-rudder-replica"])

        threads = [threading.Thread(target=one) for _ in range(requests)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return set(found)

    def processes(self):
        """Ids of this cluster's own: `ray stop` would end every Ray of the machine."""
        found = set()
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if str(self.folder).encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                        found.add(int(entry.name))
        return found

    def servers(self):
        """{process id} of the rudder processes of this test."""
        found = set()
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if MARK.encode() in (entry / "cmdline").read_bytes() and (entry / "cmdline").read_bytes().startswith(
                            str(BINARY).encode()):
                        found.add(int(entry.name))
        return found

    def stop(self):
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.ray("serve", "shutdown", "-y")
        wait_for(lambda: not self.servers(), "the servers end with their replicas", PATIENCE_S)
        for process in self.processes():
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        wait_for(lambda: not self.processes(), "Ray ends", PATIENCE_S)


@pytest.fixture(scope="module")
def cluster():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ray"))  # its sockets' paths must be short
    running = Cluster(folder)
    running.replicas(2)
    try:
        running.start()
        wait_for(lambda: len(running.who_answers(8)) == 2, "two replicas answer", PATIENCE_S)
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Stream(threading.Thread):
    """A long answer that is read to its end."""

    def __init__(self, url):
        super().__init__()
        self.url, self.begun, self.replica, self.text = url, threading.Event(), None, ""
        self.start()

    def run(self):
        with contextlib.suppress(httpx2.HTTPError), HTTP.stream("POST", self.url + "/v1/completions", json=LONG, timeout=None) as answer:
            self.replica = answer.headers.get("x-rudder-replica")
            for piece in answer.iter_text():
                self.text += piece
                self.begun.set()
        self.begun.set()

    def is_whole(self):
        return self.text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in self.text


def test_fields_of_steering_and_errors_pass_unchanged(cluster):
    with serving("--enable-steering", MARK) as alone:
        plain = {name: value for name, value in STEERED.items() if name != "steering"}
        for body in (STEERED, plain, {**STEERED, "steering": {"op": "ad"}}, {**plain, "max_tokens": -1}):
            direct = HTTP.post(alone.url + "/v1/completions", json=body)
            through = cluster.ask(body, **{"x-request-id": "one"})
            assert through.status_code == direct.status_code
            assert through.json().get("choices") == direct.json().get("choices")
            assert through.json().get("error") == direct.json().get("error")
            assert through.headers["x-request-id"] == "one" and through.headers["content-type"] == direct.headers["content-type"]
        tokens = [cluster.ask(body).json()["choices"][0]["token_ids"] for body in (STEERED, plain)]
        assert tokens[0] != tokens[1], "the steering shows"


def test_an_answer_streams_and_a_client_that_leaves_ends_it(cluster):
    with HTTP.stream("POST", cluster.url + "/v1/completions", json=LONG, timeout=None) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        first = next(answer.iter_text())
        assert first.startswith("data: ") and "[DONE]" not in first
    running = "rudder:num_requests_running"

    def all_idle():
        """Both have nothing to do, as each says itself."""
        idle = {}
        for _ in range(8):
            answer = HTTP.get(cluster.url + "/metrics")
            value = [line for line in answer.text.splitlines() if line.startswith(running)][0].rsplit(" ", 1)[1]
            idle[answer.headers["x-rudder-replica"]] = float(value) == 0
        return len(idle) == 2 and all(idle.values())

    wait_for(all_idle, "what nobody reads is ended", PATIENCE_S)


def test_a_replica_whose_server_is_killed_is_replaced(cluster):
    before, servers = cluster.who_answers(8), cluster.servers()
    assert len(servers) == 2
    os.kill(min(servers), signal.SIGKILL)
    wait_for(lambda: len(cluster.servers() - servers) == 1, "another server is started", PATIENCE_S)
    wait_for(lambda: len(cluster.who_answers(8) - before) == 1, "another replica answers", PATIENCE_S)
    assert all(cluster.who_answers(1) for _ in range(8)), "nothing is sent to who is gone"


def test_replicas_come_with_requests_and_go_without_losing_one(cluster):
    cluster.autoscale(min_replicas=1, max_replicas=2, target_ongoing_requests=1, upscale_delay_s=0, downscale_delay_s=1)
    cluster.deploy()
    wait_for(lambda: len(cluster.servers()) == 1, "nobody asks: one replica is enough", PATIENCE_S)
    streams = []
    while len({stream.replica for stream in streams}) < 2:  # until the second has one, too
        streams = [stream for stream in streams if stream.is_alive()]
        streams += [Stream(cluster.url) for _ in range(4 - len(streams))]
        for stream in streams:
            assert stream.begun.wait(PATIENCE_S)
    assert len(cluster.servers()) == 2
    cluster.replicas(1)  # one of them is to go while it writes
    cluster.deploy()
    wait_for(lambda: len(cluster.servers()) == 1, "one replica goes", PATIENCE_S)
    for stream in streams:
        stream.join(PATIENCE_S)
        assert stream.is_whole(), json.dumps(stream.text[-500:])
