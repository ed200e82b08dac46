"""`--data-parallel-size`: several engines behind one server. Metrics say where requests went."""

import concurrent.futures
import contextlib
import os
import random
import socket

import httpx2
import pytest

from conftest import free_ports, run_rudder, serving, wait_for
from kv_events import Subscriber, config

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="engines on a CPU need a core each")

WORDS = "the boat is red and goes over a lake with two cats who sing about rain".split()
STEERED = {"steering": {"op": "add", "site": "resid_post", "layers": [3], "vector": [20.0] * 256}}


def by_engine(server, name, more=""):
    """Of each engine, in order."""
    found = {}
    for sample, value in server.metrics().items():
        if sample.split("{")[0] == name and more in sample:
            found[int(sample.split('engine="')[1].split('"')[0])] = value
    return [found[i] for i in sorted(found)]


def complete(server, prompt, **fields):
    answer = httpx2.post(server.url + "/v1/completions", timeout=120,
                         json={"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def text(rng, words=90):
    return " ".join(rng.choice(WORDS) for _ in range(words))


@pytest.fixture(scope="module")
def ports():
    """The first of two free neighbours for events, and of two for replays."""
    found = []
    while len(found) < 2:
        first = free_ports(1)[0]
        with contextlib.suppress(OSError), socket.socket() as neighbour:
            neighbour.bind(("127.0.0.1", first + 1))
            if all(abs(first - other) > 1 for other in found):
                found.append(first)
    return found


@pytest.fixture(scope="module")
def server(ports):
    with serving("--data-parallel-size", "2", "--enable-steering", "--capture-memory-mb", "4", "--dtype", "float32",
                 *config(*ports)) as running:
        yield running


def test_repeats_go_to_the_engine_that_has_their_prefix(server):
    rng = random.Random(1)
    heads = [text(rng) for _ in range(8)]
    for head in heads:
        complete(server, head)
    first = by_engine(server, "rudder:prompt_tokens_total")
    assert len(first) == 2 and min(first) > 0.3 * sum(first), "new prompts go to both"
    hits = by_engine(server, "rudder:prefix_cache_hits_total")
    held = to_holder = 0
    for _ in range(4):
        for head in rng.sample(heads, len(heads)):
            usage = complete(server, f"{head} {text(rng, 4)}")["usage"]
            held += 1
            to_holder += usage["prompt_tokens_details"]["cached_tokens"] >= 0.7 * usage["prompt_tokens"]
    assert to_holder >= 0.95 * held
    assert all(now > before for now, before in zip(by_engine(server, "rudder:prefix_cache_hits_total"), hits))


def test_at_once_both_engines_work_and_answer_as_one_does(server):
    rng = random.Random(2)
    prompts = [text(rng, 12) for _ in range(24)]
    fields = [{"seed": i, "temperature": 1.0, "n": 1 + i % 2, **(STEERED if i % 3 == 0 else {})} for i in range(24)]
    steps = by_engine(server, "rudder:engine_steps_total")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        both = list(pool.map(lambda i: complete(server, prompts[i], **fields[i]), range(24)))
    assert all(now > before for now, before in zip(by_engine(server, "rudder:engine_steps_total"), steps))
    with serving("--enable-steering", "--dtype", "float32") as alone:
        for i in range(24):
            one = complete(alone, prompts[i], **fields[i])
            assert [c["text"] for c in both[i]["choices"]] == [c["text"] for c in one["choices"]], i


def test_a_module_is_registered_on_each_engine(server):
    module = {"name": "warm", "steering_vectors": {"resid_post": {"3": [20.0] * 256}}}
    httpx2.post(server.url + "/v1/steering/modules", json=module).raise_for_status()
    complete(server, "Once", steering_name="warm")
    wait_for(lambda: by_engine(server, "rudder:steering_pinned_programs") == [1, 1], "every engine has the program")
    rng = random.Random(3)
    capture = {"response": {"sites": {"resid_post": [1]}, "positions": "last_prompt"}}
    for _ in range(4):
        complete(server, text(rng), steering_name="warm", capture=capture)
    assert server.metric("rudder:capture_tokens_total") >= 4
    httpx2.delete(server.url + "/v1/steering/modules/warm").raise_for_status()
    wait_for(lambda: by_engine(server, "rudder:steering_pinned_programs") == [0, 0], "no engine has it")


def test_loads_and_events_are_those_of_each_rank(server, ports):
    loads = httpx2.get(server.url + "/v1/loads").json()
    assert loads["dp_rank_count"] == 2 and [load["dp_rank"] for load in loads["loads"]] == [0, 1]
    assert loads["aggregate"]["total_reqs"] == 0
    subscribers = [Subscriber(ports[0] + rank) for rank in (0, 1)]
    try:
        for rank, subscriber in enumerate(subscribers):
            _, batch = subscriber.receive()
            assert batch.data_parallel_rank == rank
    finally:
        for subscriber in subscribers:
            subscriber.close()
    assert len(by_engine(server, "rudder:kv_event_batches_total")) == 2
    assert httpx2.get(server.url + "/readyz").json() == {"status": "ready"}
    assert by_engine(server, "rudder:engine_up") == [1, 1]


def test_numbers_that_the_machine_does_not_have_are_refused():
    budget = run_rudder("serve", "--dry-run", "--data-parallel-size", "2")
    assert budget.returncode == 0 and budget.stdout.startswith("of each of 2 engines"), budget.stderr
    for number, code in (("64", 1), ("0", 2), ("two", 2)):
        refused = run_rudder("serve", "--data-parallel-size", number, "--dry-run", "--device", "cpu")
        assert refused.returncode == code and "data-parallel-size" in refused.stderr, refused.stderr
