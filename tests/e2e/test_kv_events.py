"""KV events over ZeroMQ, as a router sees them: what is told is what the cache has, and only what any request can hit."""

import random
import time

import httpx2
import pytest
import zmq

from conftest import PATIENCE_S, free_ports, run_rudder, serving, wait_for
from kv_events import Mirror, config, replay, subscribed

TOPIC = "kv@pod@rudder-demo"
WORDS = "the boat is red and goes over a lake with two cats who sing about rain".split()


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def tokens_of(server, prompt):
    return httpx2.post(server.url + "/v1/completions/render", json={"prompt": prompt}).json()[0]["token_ids"]


def complete(server, prompt, **fields):
    answer = httpx2.post(server.url + "/v1/completions", json={"prompt": prompt, "max_tokens": 1, **fields}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached_blocks(server):
    states = {name: value for name, value in server.metrics().items() if name.startswith("rudder:kv_blocks{")}
    return sum(value for name, value in states.items() if 'state="cached"' in name)


@pytest.fixture(scope="module")
def ports():
    return free_ports(2)


@pytest.fixture(scope="module")
def server(ports):
    """One whose cache is small, so that requests evict what others left."""
    with serving(*config(*ports, topic=TOPIC), "--enable-steering", "--kv-cache-memory-bytes", "4M") as running:
        yield running


def expect_what_is_told_is_cached(server, ports, num_requests):
    rng = random.Random(5)
    with subscribed(server, ports[0], topic="kv@") as subscriber:
        httpx2.post(server.url + "/reset_prefix_cache")
        subscriber.receive_until(lambda mirror: mirror.clears > 0)
        heads = [text(rng, rng.randint(5, 120)) for _ in range(8)]
        for _ in range(num_requests):
            complete(server, f"{rng.choice(heads)} {text(rng, rng.randint(1, 60))}", max_tokens=rng.randint(1, 6))
            subscriber.receive_ready()
        topic, batch = subscriber.receive_all()
        assert (topic, batch.data_parallel_rank) == (TOPIC, 0) and abs(batch.ts - time.time()) < 60
        assert subscriber.mirror.removed > 100, "little was evicted: the cache is too large for this test"
        assert len(subscriber.mirror.blocks) == cached_blocks(server) > 0
        first, last = subscriber.sequences[0], subscriber.sequences[-1]
        assert subscriber.sequences == list(range(first, last + 1)), "a gap"
    # The same from the beginning, for who was not there.
    mirror = Mirror()
    for topic, _, batch in replay(ports[1]):
        assert topic == TOPIC
        mirror.apply(batch)
    assert mirror.clears >= 2 and mirror.blocks == subscriber.mirror.blocks
    assert server.metric("rudder:kv_event_batches_dropped_total") == 0


def test_what_is_stored_and_not_removed_is_cached(server, ports):
    expect_what_is_told_is_cached(server, ports, 120)


@pytest.mark.slow
def test_ten_thousand_random_requests():
    ports = free_ports(2)
    with serving(*config(*ports, topic=TOPIC), "--kv-cache-memory-bytes", "4M") as server:
        expect_what_is_told_is_cached(server, ports, 10_000)


def test_a_block_that_is_told_is_hit(server, ports):
    rng = random.Random(6)
    prompt = text(rng, 90)
    tokens = tokens_of(server, prompt)
    with subscribed(server, ports[0]) as subscriber:
        complete(server, prompt)
        told = len(tokens) // 16 * 16
        subscriber.receive_until(lambda mirror: mirror.prefix(tokens) == told)
        again = complete(server, prompt)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(tokens) - 1) // 16 * 16


def test_what_not_every_request_can_hit_is_not_told(server, ports):
    rng = random.Random(7)
    steering = {"steering": {"op": "add", "site": "resid_post", "layers": [2], "vector": [0.1] * 256}}
    withheld = "rudder:kv_event_blocks_total"
    with subscribed(server, ports[0]) as subscriber:
        for fields in ({"cache_salt": "mine"}, steering):
            prompt = text(rng, 90)
            before = [value for name, value in server.metrics().items() if name.startswith(withheld) and "withheld" in name]
            complete(server, prompt, **fields)
            cached = complete(server, prompt, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0, "who has the salt or the steering hits"
            after = [value for name, value in server.metrics().items() if name.startswith(withheld) and "withheld" in name]
            assert after[0] >= before[0] + cached // 16
            plain = text(rng, 90)  # its events come after those that the other request would have had
            complete(server, plain)
            tokens = tokens_of(server, plain)
            subscriber.receive_until(lambda mirror: mirror.prefix(tokens) > 0)
            assert subscriber.mirror.prefix(tokens_of(server, prompt)) == 0


def test_a_subscriber_that_never_reads_holds_nobody_up(server, ports):
    context = zmq.Context()
    stuck = context.socket(zmq.SUB)
    stuck.setsockopt(zmq.RCVHWM, 1)
    stuck.setsockopt(zmq.SUBSCRIBE, b"")
    stuck.connect(f"tcp://127.0.0.1:{ports[0]}")
    # Counted now, it is not taken for the subscriber below.
    wait_for(lambda: server.metric("rudder:kv_event_subscribers") > 0, "the stuck subscriber is counted")
    asks = context.socket(zmq.DEALER)  # nor does it read what it asked to be sent again
    asks.setsockopt(zmq.RCVHWM, 1)
    asks.connect(f"tcp://127.0.0.1:{ports[1]}")
    for _ in range(100):
        asks.send_multipart([b"", (0).to_bytes(8, "big")])
    try:
        with subscribed(server, ports[0]) as subscriber:
            rng = random.Random(8)
            for _ in range(20):
                prompt = text(rng, 60)
                complete(server, prompt)
                tokens = tokens_of(server, prompt)
                subscriber.receive_until(lambda mirror: mirror.prefix(tokens) > 0)
            assert replay(ports[1]), "others get their replay"
        assert server.metric("rudder:kv_event_batches_dropped_total") == 0
    finally:
        context.destroy(linger=0)
    wait_for(lambda: server.metric("rudder:kv_event_subscribers") == 0, "it is gone, and not counted")


def test_hashes_are_those_of_the_secret():
    prompt = text(random.Random(9), 60)

    def hashes(*flags):
        event_port, replay_port = free_ports(2)
        with serving(*config(event_port, replay_port), *flags) as server:
            complete(server, prompt)
            deadline = time.monotonic() + PATIENCE_S
            while True:
                mirror = Mirror()
                for _, _, batch in replay(replay_port):
                    mirror.apply(batch)
                if mirror.blocks:
                    assert server.metric("rudder:kv_event_replays_total") > 0
                    settings = httpx2.get(server.url + "/server_info").json()["settings"]
                    assert settings["prefix-key-secret"] in ("", "(set)")
                    return mirror.blocks
                assert time.monotonic() < deadline
                time.sleep(0.05)

    first = hashes("--prefix-key-secret", "one")
    assert hashes("--prefix-key-secret", "one") == first
    assert not set(hashes()) & set(first)


@pytest.mark.parametrize("value, where", [
    ("[]", "kv-events-config"), ("{", "kv-events-config"),
    ('{"endpoint": "tcp://*:1"}', "enable_kv_cache_events"),
    ('{"enable_kv_cache_events": true, "endpoint": "udp://x:1"}', "endpoint"),
    ('{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:99999"}', "endpoint"),
    ('{"enable_kv_cache_events": true, "hwm": -1}', "hwm"),
    ('{"enable_kv_cache_events": true, "colour": 1}', "colour"),
])
def test_a_bad_configuration_is_refused_by_its_key(value, where):
    done = run_rudder("serve", "--port", "0", "--kv-events-config", value, timeout=60)
    assert done.returncode != 0 and where in done.stderr, done.stderr


def test_events_need_a_prefix_cache():
    done = run_rudder("serve", "--port", "0", "--no-enable-prefix-caching", *config(*free_ports(2)), timeout=60)
    assert done.returncode != 0 and "--enable-prefix-caching" in done.stderr, done.stderr


def test_loads_and_server_info_are_what_routers_read(server):
    loads = httpx2.get(server.url + "/v1/loads").json()
    [load] = loads["loads"]
    assert loads["dp_rank_count"] == 1 and load["num_running_reqs"] == 0 and load["num_waiting_reqs"] == 0
    assert load["max_total_num_tokens"] == 16 * sum(v for k, v in server.metrics().items() if k.startswith("rudder:kv_blocks{"))
    assert load["max_running_requests"] > 0 and 0 <= load["cache_hit_rate"] <= 1
    assert httpx2.get(server.url + "/get_server_info").json()["version"] == loads["version"]


def test_a_prompt_that_was_rendered_is_not_tokenised_again(server):
    chat = {"messages": [{"role": "user", "content": text(random.Random(10), 200)}], "max_tokens": 1}

    def hits(path, body):
        before = server.metric("rudder:token_cache_hits_total")
        answer = httpx2.post(server.url + path, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return server.metric("rudder:token_cache_hits_total") - before, answer.json()

    first, rendered = hits("/v1/chat/completions/render", chat)
    again, once_more = hits("/v1/chat/completions/render", chat)
    assert (first, again) == (0, 1) and rendered["token_ids"] == once_more["token_ids"]
    # A router adds fields of its own before it sends the request on.
    generated, answer = hits("/v1/chat/completions", {**chat, "skip_special_tokens": True, "ignore_eos": False})
    assert generated == 1 and answer["usage"]["prompt_tokens"] == len(rendered["token_ids"])
