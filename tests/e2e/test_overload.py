"""Ten times the load that the server can take, on the real server: what it serves stays what it serves at its best, what
it admits does not wait for long, and the rest is told so at once.

The model has one thread, so that on two cores the client and the server's own threads for HTTP have the other. The peak
and the overload are measured in turn, in pairs. A pair in which other processes took much of the machine says nothing
and is measured again; the bounds are the same for every pair that counts. Where none counts the test is skipped, and prints
what it saw: the server's processor time for a token shows what the refused cost on a busy machine, too.
"""

import json
import math
import os
import random
import resource
import statistics
import subprocess
import threading
import time

import httpx2
import pytest

from conftest import BINARY, is_instrumented, serving

SLOTS = 8  # sequences that run at once
BUSY = SLOTS + 2  # requests that are open at once at the peak: two wait, for less than they may
TOKENS = 96  # of an answer
QUEUE_S = 1.0  # that a request may wait before it runs
OVERLOAD = 10
GOODPUT = 0.95  # of the peak's
FOREIGN = 0.05  # of the machine's time, of other processes: more, and a pair does not count
PAIRS = 13  # short ones: the speed of a shared machine changes from minute to minute
SECONDS = 5  # of a load
MAX_PAIRS_PER_PAIR = 4  # that are measured for each that must count
RAMP_S = 1.5  # of a load, left out: batches fill, the server learns how fast it serves

pytestmark = pytest.mark.skipif(is_instrumented(), reason="sanitizers cost a time of their own")


def busy_seconds():
    """Of all cores together, since the machine started; what the hypervisor takes counts as busy."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, soft, steal, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds(server):
    children = resource.getrusage(resource.RUSAGE_CHILDREN)  # clients that have ended; the server has not
    return time.process_time() + children.ru_utime + children.ru_stime + server.processor_seconds()


class Load:
    """One run of `rudder bench serve`, read between the ramp and the last arrival."""

    def __init__(self, server, folder, seconds, requests, **shape):
        result = folder / "load.json"
        flags = [text for name, value in shape.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        busy, own, begin = busy_seconds(), own_seconds(server), time.monotonic()
        server_begin = server.processor_seconds()
        subprocess.run([BINARY, "bench", "serve", "--base-url", server.url, "--num-prompts", str(requests),
                        "--random-input-len", "32", "--random-output-len", str(TOKENS), "--seed", str(time.monotonic_ns() % 2**31),
                        "--save-result", result, *flags],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10 * seconds + 60)  # fails where one is refused
        wall = time.monotonic() - begin
        foreign = (busy_seconds() - busy) - (own_seconds(server) - own)
        self.foreign = max(0.0, foreign) / (wall * os.cpu_count())
        told = json.loads(result.read_text())
        self.tokens_per_cpu_s = told["total_output_tokens"] / (server.processor_seconds() - server_begin)
        self.refused = sum(error.startswith("HTTP 503") for error in told["errors"])
        self.broken = [error for error in told["errors"] if error and not error.startswith("HTTP 503")]
        served = [i for i, error in enumerate(told["errors"]) if not error]
        self.ttfts = [told["ttfts"][i] for i in served if told["start_times"][i] >= RAMP_S]
        self.short = [told["output_lens"][i] for i in served if told["output_lens"][i] != TOKENS]
        end = max(told["start_times"])
        tokens = 0
        for i in served:
            at = told["start_times"][i] + told["ttfts"][i]
            tokens += RAMP_S <= at < end
            for gap in told["itls"][i]:
                at += gap
                tokens += RAMP_S <= at < end
        self.tokens_per_s = tokens / (end - RAMP_S)

    def p99(self):
        return sorted(self.ttfts)[len(self.ttfts) * 99 // 100] if self.ttfts else math.inf


class Asker(threading.Thread):
    """A client that does what it is told: refused, it comes back when Retry-After is over, and no sooner."""

    def __init__(self, url, ended):
        super().__init__()
        self.url, self.ended = url, ended
        self.statuses, self.waits = [], []

    def run(self):
        while not self.ended.is_set():
            answer = httpx2.post(self.url + "/v1/completions", json={"prompt": "A boat", "max_tokens": 1}, timeout=60)
            self.statuses.append(answer.status_code)
            if answer.status_code == 503:
                self.waits.append(answer.headers.get("retry-after", "none"))
                self.ended.wait(float(self.waits[-1]))
            else:
                self.ended.wait(0.5)


def overload(server, folder, seconds, rate):
    """(the load at `rate` arrivals a second, the client that asks beside it)."""
    ended = threading.Event()
    asker = Asker(server.url, ended)
    asker.start()
    try:
        load = Load(server, folder, seconds, math.ceil(seconds * rate), request_rate=rate)
    finally:
        ended.set()
        asker.join()
    return load, asker


def measure_pairs(server, folder, pairs, seconds):
    """Checks each overload, and gives (share of the peak's goodput that is left) of each pair that counts."""
    # How fast it serves, roughly, and what an answer takes where nothing else runs.
    rough = Load(server, folder, seconds, 20 * SLOTS, max_concurrency=BUSY)
    served_per_s = rough.tokens_per_s / TOKENS
    shares, passed_over = [], []
    for _ in range(MAX_PAIRS_PER_PAIR * pairs):
        unloaded = Load(server, folder, seconds, math.ceil(0.3 * served_per_s * seconds), request_rate=0.3 * served_per_s)
        peak = Load(server, folder, seconds, math.ceil(served_per_s * seconds), max_concurrency=BUSY)
        over, asker = overload(server, folder, seconds, OVERLOAD * peak.tokens_per_s / TOKENS)
        for load in (unloaded, peak, over):
            assert not load.broken and not load.short, (load.broken[:3], load.short[:3])
        foreign = max(unloaded.foreign, peak.foreign, over.foreign)
        print(f"peak {peak.tokens_per_s:.0f} tok/s; at {OVERLOAD} times it {over.tokens_per_s:.0f}, {len(over.ttfts)} served, "
              f"{over.refused} refused, p99 to the first token {over.p99() * 1e3:.0f} ms (unloaded {unloaded.p99() * 1e3:.0f}); "
              f"{peak.tokens_per_cpu_s:.0f} and {over.tokens_per_cpu_s:.0f} tokens a second of the server's CPU time; others took {foreign:.1%}")
        if foreign > FOREIGN:
            passed_over.append(foreign)
            continue
        assert unloaded.refused == peak.refused == 0
        assert over.refused > 5 * len(over.ttfts), "most of it has no room"
        assert 503 in asker.statuses and all(wait.isdigit() and 1 <= int(wait) <= 3 for wait in asker.waits), asker.waits
        assert over.p99() <= 3 * unloaded.p99() + QUEUE_S
        shares.append(over.tokens_per_s / peak.tokens_per_s)
        if len(shares) == pairs:
            return shares
    pytest.skip(f"the machine does too much else: {', '.join(f'{share:.0%}' for share in passed_over)} of it")


@pytest.mark.slow  # the daily run has a compiler beside it
def test_at_ten_times_the_load_goodput_stays(tmp_path):
    with serving("--device", "cpu", "--threads", "1", "--max-num-seqs", str(SLOTS), "--max-queue-seconds", str(QUEUE_S),
                 "--max-num-queued-reqs", "1000", "--no-enable-prefix-caching", "--disable-access-log", "--log-level", "error") as server:
        shares = measure_pairs(server, tmp_path, PAIRS, SECONDS)
        assert statistics.median(shares) >= GOODPUT, shares
        assert server.metric("rudder:num_requests_waiting") == 0


def test_a_small_prompt_does_not_wait_for_long_ones():
    """A tenant's long prompts fill the cache and wait in line for it: its small request begins beside them."""
    random_ids = random.Random(1)

    def wait_of(server, length, tokens):
        ids = [random_ids.randrange(100, 2500) for _ in range(length)]
        body = {"prompt": ids, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        begin = time.monotonic()
        with httpx2.stream("POST", server.url + "/v1/completions", json=body, timeout=300) as answer:
            assert answer.status_code == 200
            return next(time.monotonic() - begin for line in answer.iter_lines() if line.startswith("data: {"))

    def keep_asking(server, ended, waits):
        while not ended.is_set():
            waits.append(wait_of(server, 1900, 48))

    with serving("--device", "cpu", "--kv-cache-memory-bytes", str(32 << 20), "--max-num-batched-tokens", "256",
                 "--max-queue-seconds", "0", "--disable-access-log", "--log-level", "error") as server:
        ended, long_waits = threading.Event(), []
        clients = [threading.Thread(target=keep_asking, args=(server, ended, long_waits)) for _ in range(16)]
        for client in clients:
            client.start()
        try:
            while len(long_waits) < 16:
                time.sleep(0.1)
            small_waits = [wait_of(server, 24, 8) for _ in range(5)]
        finally:
            ended.set()
            for client in clients:
                client.join()
        steady = statistics.median(long_waits[16:])
        print(f"to the first token: small {statistics.median(small_waits):.2f} s, at most {max(small_waits):.2f}; long {steady:.2f} s")
        assert statistics.median(small_waits) < steady / 5
        assert server.metric("rudder:num_preemptions_total") == 0
