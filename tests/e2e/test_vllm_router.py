"""Two servers behind vllm-router, which routes by KV events: where requests go, also after a worker or the router restarts."""

import contextlib
import random
import subprocess
import sys
import time

import httpx2
import pytest

from conftest import Server, free_ports, is_instrumented
from kv_events import config

PROMPTS = 20  # of each worker
REPEATS = 0.95  # of them that go to who has the prompt; by chance it would be half

# As the package's own command does it, without the Python web stack that it imports.
ROUTER = """
import sys, vllm_router_rs as rs
urls, sources, replays, port = sys.argv[1].split(), sys.argv[2].split(), sys.argv[3].split(), int(sys.argv[4])
rs.Router(worker_urls=urls, policy=rs.PolicyType.KvAware, host="127.0.0.1", port=port, log_level="info",
          worker_startup_timeout_secs=60, worker_startup_check_interval=1, health_check_interval_secs=1,
          health_failure_threshold=1, health_success_threshold=1, disable_circuit_breaker=True,
          kv_event_source=[f"{u}={s}" for u, s in zip(urls, sources)],
          kv_event_replay_source=[f"{u}={s}" for u, s in zip(urls, replays)],
          kv_event_block_size=16, kv_event_model="rudder-demo").start()
"""


class Worker:
    """A server that can be stopped and started at one address."""

    def __init__(self):
        self.port, self.event_port, self.replay_port = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.server = Server(*config(self.event_port, self.replay_port), port=self.port)

    def stop(self):
        assert self.server.stop() == 0

    def answered(self):
        """Completions answered; those that are rendered only are not among them."""
        values = self.server.metrics()
        return sum(value for name, value in values.items()
                   if name.startswith("rudder:http_requests_total") and 'handler="/v1/completions"' in name)


@contextlib.contextmanager
def router(workers, log):
    [port] = free_ports(1)
    arguments = [" ".join(worker.url for worker in workers),
                 " ".join(f"tcp://127.0.0.1:{worker.event_port}" for worker in workers),
                 " ".join(f"tcp://127.0.0.1:{worker.replay_port}" for worker in workers), str(port)]
    replays = [worker.server.metric("rudder:kv_event_replays_total") for worker in workers]
    process = subprocess.Popen([sys.executable, "-c", ROUTER, *arguments], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(url + "/health"), "the router answers")
        # It asks for what it has missed when the first batch comes, an idle second's at the latest.
        wait_for(lambda: all(w.server.metric("rudder:kv_event_subscribers") > 0 for w in workers), "it subscribes")
        wait_for(lambda: all(worker.server.metric("rudder:kv_event_replays_total") > before
                             for worker, before in zip(workers, replays)), "it asks for a replay")
        yield url
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: all(w.server.metric("rudder:kv_event_subscribers") == 0 for w in workers), "it is gone")


def answers(url):
    with contextlib.suppress(httpx2.HTTPError):
        return httpx2.get(url, timeout=5).status_code == 200
    return False


def wait_for(condition, what, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def draw_prompts(rng):
    return [" ".join(f"{rng.randint(0, 999)} boats" for _ in range(40)) for _ in range(PROMPTS)]


def complete(url, prompt):
    answer = httpx2.post(url + "/v1/completions", json={"model": "rudder-demo", "prompt": prompt, "max_tokens": 1}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def give(worker, prompts):
    """From now on this worker has the prompts."""
    for prompt in prompts:
        complete(worker.url, prompt)


def expect_at_holders(url, workers, holders):
    """Asks the router for each prompt once more: [(prompt, its worker)]."""
    right = 0
    for prompt, holder in holders:
        before = [worker.answered() for worker in workers]
        cached = complete(url, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        went = [worker.answered() - count for worker, count in zip(workers, before)]
        assert sorted(went) == [0, 1], went
        right += workers[went.index(1)] is holder and cached > 0
    assert right >= REPEATS * len(holders), f"{right} of {len(holders)} went to who has the prompt"
    return right


@pytest.mark.slow
@pytest.mark.skipif(is_instrumented(), reason="about where requests go, not about memory")
def test_repeats_go_to_who_has_the_prompt(tmp_path):
    rng = random.Random(11)
    workers = []
    with (tmp_path / "router.log").open("w+") as log:
        try:
            workers.extend([Worker(), Worker()])
            ours, theirs = draw_prompts(rng), draw_prompts(rng)
            holders = [(prompt, workers[0]) for prompt in ours] + [(prompt, workers[1]) for prompt in theirs]
            rng.shuffle(holders)
            give(workers[0], ours)  # before the router knows them: it learns of them by a replay
            with router(workers, log) as url:
                give(workers[1], theirs)  # and of these as they come
                time.sleep(0.5)
                right = [expect_at_holders(url, workers, holders)]

                # What the second had is gone with it; the first has it then.
                workers[1].stop()
                wait_for(lambda: complete_or_none(url, ours[0]), "the router goes on without the second")
                workers[1].start()
                wait_for(lambda: workers[1].server.metric("rudder:kv_event_subscribers") > 0, "it subscribes again")
                moved, new = theirs[:PROMPTS // 2], draw_prompts(rng)
                give(workers[0], moved)
                give(workers[1], new)
                time.sleep(2.5)  # a health check, and an idle second that tells of the restart
                holders = ([(prompt, workers[0]) for prompt in ours + moved] + [(prompt, workers[1]) for prompt in new])
                rng.shuffle(holders)
                right.append(expect_at_holders(url, workers, holders))
            with router(workers, log) as url:
                time.sleep(0.5)
                right.append(expect_at_holders(url, workers, holders))
            print(f"to the holder: {right[0]} of {2 * PROMPTS}; with a worker restarted {right[1]}, with the router restarted "
                  f"{right[2]} of {len(holders)}")
        except AssertionError:
            log.seek(0)
            print(log.read()[-4000:])
            raise
        finally:
            for worker in workers:
                worker.stop()


def complete_or_none(url, prompt):
    with contextlib.suppress(AssertionError, httpx2.HTTPError):
        return complete(url, prompt)
    return None
