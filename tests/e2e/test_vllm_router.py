"""Two servers behind vllm-router, which routes by KV events: where requests go, also after a worker or the router restarts."""

import contextlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from conftest import HTTP, free_ports, is_instrumented, wait_for
from fleet import Worker, answers, complete, draw_prompts, expect_at_holders

# As the package's own command does it, without the Python web stack that it imports.
ROUTER = """
import sys, vllm_router_rs as rs
urls, sources, replays, port = sys.argv[1].split(), sys.argv[2].split(), sys.argv[3].split(), int(sys.argv[4])
rs.Router(worker_urls=urls, policy=rs.PolicyType.KvAware, host="127.0.0.1", port=port, log_level="debug",
          worker_startup_timeout_secs=60, worker_startup_check_interval=1, health_check_interval_secs=1,
          health_failure_threshold=1, health_success_threshold=1, disable_circuit_breaker=True,
          kv_event_source=[f"{u}={s}" for u, s in zip(urls, sources)],
          kv_event_replay_source=[f"{u}={s}" for u, s in zip(urls, replays)],
          kv_event_block_size=16, kv_event_model="rudder-demo").start()
"""


class Router:
    def __init__(self, workers, log_path):
        self.workers, self.log_path = workers, log_path
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        arguments = [" ".join(worker.url for worker in workers),
                     " ".join(f"tcp://127.0.0.1:{worker.event_port}" for worker in workers),
                     " ".join(f"tcp://127.0.0.1:{worker.replay_port}" for worker in workers), str(port)]
        with log_path.open("w") as log:
            self.process = subprocess.Popen([sys.executable, "-c", ROUTER, *arguments], stdout=log, stderr=log)

    def log(self):
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log_path.read_text(errors="replace"))  # it is coloured

    def wait_until_told(self, worker):
        """Until it has taken what the worker has said until now. Batches come in order, and the router notes the number
        of each: that of an idle second that begins now is enough."""
        begun, before, numbers = time.time(), len(self.log()), []

        def is_told():
            while worker.heard.socket.poll(20):
                _, batch = worker.heard.receive()
                if not batch.events and batch.ts > begun:
                    numbers.append(worker.heard.sequences[-1])
            noted = self.log()[before:]
            return any(f"live sequence advanced source={worker.url} rank=0 seq={n}\n" in noted for n in numbers)

        wait_for(is_told, "the router takes the worker's events")

    def is_healthy(self, worker):
        listed = HTTP.get(self.url + "/workers").json()["workers"]
        return any(each["url"] == worker.url and each["is_healthy"] for each in listed)

    def stop(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def router(workers, log_path):
    running = Router(workers, log_path)
    try:
        wait_for(lambda: answers(running.url + "/health"), "the router answers")
        for worker in workers:
            running.wait_until_told(worker)
        yield running
    except AssertionError:
        print(running.log()[-4000:])
        raise
    finally:
        running.stop()


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.skipif(is_instrumented(), reason="about where requests go, not about memory")
def test_repeats_go_to_who_has_the_prompt(count, tmp_path):
    rng = random.Random(11)
    workers = []
    try:
        workers.append(Worker())
        workers.append(Worker(buffer_steps=5))  # its numbers begin again and again, with what it has
        ours, theirs = draw_prompts(rng, count), draw_prompts(rng, count)
        holders = [(prompt, workers[0]) for prompt in ours] + [(prompt, workers[1]) for prompt in theirs]
        rng.shuffle(holders)
        workers[0].give(ours)  # before the router knows them: a new subscriber is told what is there
        with router(workers, tmp_path / "first.log") as first:
            workers[1].give(theirs)  # and of these as they come
            first.wait_until_told(workers[1])
            right = [expect_at_holders(first.url, workers, holders)]

            # What the second had is gone with it; the first has it then.
            workers[1].stop()
            wait_for(lambda: not first.is_healthy(workers[1]), "the router sees that the second is gone")
            complete(first.url, ours[0])
            workers[1].start()
            moved, new = theirs[:count // 2], draw_prompts(rng, count)
            workers[0].give(moved)
            workers[1].give(new)
            for worker in workers:
                first.wait_until_told(worker)
            wait_for(lambda: first.is_healthy(workers[1]), "the router sees that the second is there")
            holders = [(prompt, workers[0]) for prompt in ours + moved] + [(prompt, workers[1]) for prompt in new]
            rng.shuffle(holders)
            right.append(expect_at_holders(first.url, workers, holders))
        with router(workers, tmp_path / "second.log") as second:
            right.append(expect_at_holders(second.url, workers, holders))
        print(f"to the holder: {right[0]}; with a worker restarted {right[1]}, with the router restarted {right[2]}")
    finally:
        for worker in workers:
            worker.heard.close()
            worker.stop()


@pytest.mark.skipif(is_instrumented(), reason="about where requests go, not about memory")
def test_a_router_that_slept_while_a_worker_restarted(tmp_path):
    """It missed the first numbers of the new process, and the next looks like one that follows the old one's."""
    rng = random.Random(12)
    workers = []
    try:
        workers += [Worker(), Worker()]
        ours, lost, new = (draw_prompts(rng, count) for count in (6, 6, 16))
        workers[0].give(ours)
        with router(workers, tmp_path / "router.log") as running:
            workers[1].give(lost)
            running.wait_until_told(workers[1])
            running.process.send_signal(signal.SIGSTOP)
            last = workers[1].heard.sequences[-1]
            workers[1].stop()
            workers[1].start()
            workers[1].give(new)
            workers[0].give(lost)
            wait_for(lambda: workers[1].heard_number() > last, "the new process's numbers pass the old one's")
            running.process.send_signal(signal.SIGCONT)
            for worker in workers:
                running.wait_until_told(worker)
            wait_for(lambda: running.is_healthy(workers[1]), "the router sees that the second is there")
            holders = [(prompt, workers[0]) for prompt in ours + lost] + [(prompt, workers[1]) for prompt in new]
            print("to the holder:", expect_at_holders(running.url, workers, holders))
    finally:
        for worker in workers:
            worker.heard.close()
            worker.stop()
