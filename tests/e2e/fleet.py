"""Several servers for the tests of what stands in front of them: each at a fixed address, with what it says of its cache."""

import contextlib

import httpx2

from conftest import HTTP, Server, free_ports
from kv_events import Subscriber, config

REPEATS = 0.95  # of prompts that go to who has them; by chance it would be half


class Worker:
    """A server that can be stopped and started at one address, and what it says."""

    def __init__(self, **events):
        self.port, self.event_port, self.replay_port = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.events = events
        self.heard = Subscriber(self.event_port)
        self.start()

    def start(self):
        self.server = Server(*config(self.event_port, self.replay_port, **self.events), port=self.port)

    def stop(self):
        assert self.server.stop() == 0

    def heard_number(self):
        """Number of the last batch that it published."""
        while self.heard.socket.poll(20):
            self.heard.receive()
        return self.heard.sequences[-1]

    def answered(self):
        """Completions answered; those that are rendered only are not among them."""
        values = self.server.metrics()
        return sum(value for name, value in values.items()
                   if name.startswith("rudder:http_requests_total") and 'handler="/v1/completions"' in name)

    def give(self, prompts):
        """From now on it has the prompts."""
        for prompt in prompts:
            complete(self.url, prompt)


def expect_at_holders(url, workers, holders):
    """Asks there for each prompt once more: [(prompt, its worker)]. "right of all"."""
    right = 0
    for prompt, holder in holders:
        before = [worker.answered() for worker in workers]
        cached = complete(url, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        went = [worker.answered() - count for worker, count in zip(workers, before)]
        assert sorted(went) == [0, 1], went
        right += workers[went.index(1)] is holder and cached > 0
    assert right >= REPEATS * len(holders), f"{right} of {len(holders)} went to who has the prompt"
    return f"{right} of {len(holders)}"


def answers(url):
    with contextlib.suppress(httpx2.HTTPError):
        return HTTP.get(url).status_code == 200
    return False


def draw_prompts(rng, count):
    return [" ".join(f"{rng.randint(0, 999)} boats" for _ in range(40)) for _ in range(count)]


def complete(url, prompt):
    answer = HTTP.post(url + "/v1/completions", json={"model": "rudder-demo", "prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    return answer.json()
