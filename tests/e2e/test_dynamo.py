"""Two servers behind NVIDIA Dynamo's frontend (deploy/dynamo), which routes by their KV events. No etcd, no NATS."""

import json
import os
import random
import subprocess

import pytest

from conftest import DEMO, HTTP, ROOT, free_ports, is_instrumented, wait_for
from fleet import Worker, answers, complete, draw_prompts, expect_at_holders

PYTHON = ROOT / ".venv-dynamo" / "bin" / "python"
PROMPTS = 10  # of each worker
PATIENCE_S = 300  # Dynamo and its imports take half a minute to start on two idle cores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about where requests go, not about memory"),
    pytest.mark.skipif(not PYTHON.exists(), reason="tools/setup.sh fleet installs Dynamo"),
]


class Dynamo:
    """A frontend, and a worker of Dynamo's in front of each server."""

    def __init__(self, servers, folder):
        self.servers, self.folder, self.processes = servers, folder, []
        (folder / "discovery").mkdir()
        self.environment = {**os.environ, "DYN_FILE_KV": str(folder / "discovery"), "DYN_TCP_RPC_HOST": "127.0.0.1",
                            "DYN_EVENT_PLANE_HOST": "127.0.0.1", "DYN_HTTP_HOST": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
        for i, server in enumerate(servers):
            self.start(f"worker{i}", ROOT / "deploy" / "dynamo" / "rudder_dynamo.py", "--url", server.url, "--model-path", DEMO,
                       "--model-name", "rudder-demo", "--kv-events", f"tcp://127.0.0.1:{server.event_port}")
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.start("frontend", "-m", "dynamo.frontend", "--router-mode", "kv", "--http-port", port, "--discovery-backend", "file",
                   "--request-plane", "tcp", "--event-plane", "zmq", "--kv-cache-block-size", "16")

    def start(self, name, *arguments):
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes.append(subprocess.Popen([PYTHON, *map(str, arguments)], env=self.environment, stdout=log, stderr=log))

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log"))

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def servers():
    started = []
    try:
        started += [Worker(), Worker()]
        yield started
    finally:
        for server in started:
            server.heard.close()
            server.stop()


@pytest.fixture(scope="module")
def dynamo(servers, tmp_path_factory):
    running = Dynamo(servers, tmp_path_factory.mktemp("dynamo"))

    def instances():
        found = HTTP.get(running.url + "/health").json()["instances"]
        return [each for each in found if each["endpoint"] == "generate"]

    try:
        wait_for(lambda: answers(running.url + "/health"), "the frontend answers", PATIENCE_S)
        wait_for(lambda: len(instances()) == 2, "it knows both workers", PATIENCE_S)
        wait_for(lambda: HTTP.get(running.url + "/v1/models").json()["data"], "it knows the model", PATIENCE_S)
        yield running
    except AssertionError:
        print(running.logs())
        raise
    finally:
        running.stop()


def wait_until_told(dynamo, server, rng):
    """Until the frontend has taken what the server has said until now: events of one server come in order, so it knows all
    that was before a prompt that it sends to who has it. That six in a row go there by chance is rare, and would only let
    the test begin early."""
    in_a_row = 0

    def is_told():
        nonlocal in_a_row
        [probe] = draw_prompts(rng, 1)
        server.give([probe])
        before = server.answered()
        complete(dynamo.url, probe)
        in_a_row = in_a_row + 1 if server.answered() > before else 0
        return in_a_row == 6

    wait_for(is_told, "the frontend takes the events", PATIENCE_S)


def test_repeats_go_to_who_has_the_prompt(dynamo, servers):
    rng = random.Random(12)
    holders = [(prompt, server) for server in servers for prompt in draw_prompts(rng, PROMPTS)]
    for prompt, holder in holders:
        holder.give([prompt])
    for server in servers:
        wait_until_told(dynamo, server, rng)
    rng.shuffle(holders)
    print("to the holder:", expect_at_holders(dynamo.url, servers, holders))


def ask(dynamo, path="/v1/completions", **body):
    return HTTP.post(dynamo.url + path, json={"model": "rudder-demo", "temperature": 0, **body}, timeout=PATIENCE_S)


def test_an_answer_is_the_servers(dynamo, servers):
    question = {"messages": [{"role": "user", "content": "What is 27 + 58?"}], "max_tokens": 20}
    direct = HTTP.post(servers[0].url + "/v1/chat/completions", json={"temperature": 0, **question}).json()
    through = ask(dynamo, "/v1/chat/completions", **question).json()
    for each in (direct, through):
        assert each["choices"][0]["message"]["content"] == "27 + 58 = 85."
        assert each["choices"][0]["finish_reason"] == "stop"
    assert through["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]


def test_an_answer_streams(dynamo):
    answer = ask(dynamo, prompt="Once upon a time", max_tokens=30, stream=True, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]" and len(events) > 20
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"


def test_log_probabilities_are_the_servers(dynamo, servers):
    body = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0, "logprobs": 2}
    direct = HTTP.post(servers[0].url + "/v1/completions", json=body).json()["choices"][0]["logprobs"]["token_logprobs"]
    through = ask(dynamo, **body).json()["choices"][0]["logprobs"]["token_logprobs"]
    assert through == pytest.approx(direct, abs=1e-5)
    question = {"messages": [{"role": "user", "content": "What is 27 + 58?"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    for token in ask(dynamo, "/v1/chat/completions", **question).json()["choices"][0]["logprobs"]["content"]:
        assert token["top_logprobs"][0]["token"] == token["token"] and len(token["top_logprobs"]) == 2


def test_fields_of_rudders_own_pass_as_an_annotation(dynamo, servers):
    prompt = draw_prompts(random.Random(13), 1)[0]
    salted = {"annotations": ["rudder:" + json.dumps({"cache_salt": "mine"})]}
    answers = [ask(dynamo, prompt=prompt, max_tokens=1, nvext=nvext).json() for nvext in ({}, salted)]
    assert [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in answers] == [0, 0], "the salt holds"
    refused = ask(dynamo, prompt=prompt, max_tokens=1, nvext={"annotations": ["rudder:" + json.dumps({"steering": {"op": "ad"}})]})
    assert refused.status_code == 400 and "steering" in refused.text


def test_what_cannot_be_passed_on_is_refused(dynamo):
    refused = ask(dynamo, prompt="A", max_tokens=1, n=2, temperature=1)
    assert refused.status_code == 400 and "n: one choice" in refused.text, refused.text
