#!/usr/bin/env python3
"""The invalid-request run: wrong requests at every endpoint of the real binary while a stream runs beside them.

    .venv/bin/python tests/e2e/invalid/run.py --requests 100000

Fails unless: every answer is a success or a typed error that names the field, in time; the stream's tokens are those of
the same request without the attack; the step counter never stands still; the process neither restarts nor grows; and
nothing is left behind. Resident memory at idle is at most 1.3 times what it was before. Ordinary traffic comes first, until
it makes the server grow no more: it touches the pages that were planned and fills the caches, whose bounds are small here.
What grew all the same is told by part (kept_parts). The short run is part of `make test` (test_invalid_requests.py).

RUDDER_BINARY names another binary, as one with sanitizers: what they report is a problem too.
"""

import argparse
import asyncio
import collections
import json
import multiprocessing
import pathlib
import re
import sys
import tempfile
import time

from tqdm import tqdm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from conftest import Stopwatch, growth_bound, is_instrumented, run_rudder, serving  # noqa: E402
from dictionary import write_dictionary  # noqa: E402
from invalid.cases import LONG, Cases  # noqa: E402
from invalid.client import Connection, metrics, request_bytes  # noqa: E402
from invalid.memory import SETTLE_S, kept_parts, memory_report, planned_mappings, settle_in  # noqa: E402
from invalid.raw import dump  # noqa: E402
from invalid.seeds import ADMIN, KEPT, SEEDS  # noqa: E402

CONNECTIONS = 16
SLOWER = 10 if is_instrumented() else 1  # a step of sanitized kernels takes many times as long
ANSWER_S = 10.0 * SLOWER  # an error, or a short answer, has come by then; the machine may be busy with other things
PATIENCE_S = 2.0  # for answers that may rightly be long
STALL_S = 1.0 * SLOWER
OTHERS = ("rudder-http", "rudder-tokenize", "rudder-grammar", "rudder-log")  # threads that no step waits for
STREAMS = 4  # different streams, one after the other
POLL_S = 0.1
SHOWN = 1  # cases of each complaint in the report
BETWEEN = re.compile(r"between (-?\d+) and (-?\d+)")
MISSING = ("delete", "rename", "null")  # kinds of cases in which another field may be named: one that is needed
INSIDE = re.compile(rb"0x[0-9a-f]{6,}|/root/|/home/|src/rudder|std::|boost::|bad_alloc")  # what no client is told
SANITIZER = re.compile(r"(?:ERROR|WARNING): \w+Sanitizer.*|.*runtime error.*")
EXCLUDE_EACH_OTHER = ({"tool_choice", "structured_outputs"},)
FLAGS = ("--device", "cpu", "--enable-steering", "--capture-memory-mb", "8", "--kv-cache-memory-bytes", "64M", "--disable-access-log",
         "--capture-max-response-bytes", "64M", "--log-level", "error", "--reasoning-parser", "qwen3",
         "--capture-consumer", "kept:bytes=1M",
         # What ordinary traffic can fill, so that the attack finds caches full.
         "--grammar-cache", "4M", "--response-store-bytes", "1M", "--token-cache-bytes", "512K")


def stream_bytes(seed):
    body = {"prompt": "Once upon a time a boat", "max_tokens": 1200, "ignore_eos": True, "seed": seed, "temperature": 1,
            "stream": True, "return_token_ids": True, "priority": -1}
    return request_bytes("POST", "/v1/completions", json.dumps(body).encode())


class Refused(Exception):
    """The server does not stream."""


async def stream_tokens(connection, seed, on_token=lambda: None):
    """Token ids of one stream, whole."""
    await connection.send(stream_bytes(seed))
    status, fields = await connection.head()
    if status != 200:
        raise Refused(await connection.reader.readexactly(int(fields["content-length"])))
    tokens, text = [], b""
    while part := await connection.chunk():
        text += part
        *events, text = text.split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: ") or event == b"data: [DONE]":
                continue
            for choice in json.loads(event[6:])["choices"]:
                tokens += choice["token_ids"]
                on_token()
    return tokens


class Watch:
    """Beside the attack, in a process of its own: streams, and what /metrics says."""

    def __init__(self, server, port, expected):
        self.server = server  # the process's number
        self.port = port
        self.expected = expected  # token ids by seed; None: whatever comes
        self.streams = self.wrong = 0
        self.longest_gap = self.longest_stall = 0.0
        self.resident = []

    async def run_streams(self, ended):
        connection = Connection(self.port)
        last = time.monotonic()

        def on_token():
            nonlocal last
            now = time.monotonic()
            self.longest_gap = max(self.longest_gap, now - last)
            last = now

        while not ended.is_set():
            seed = self.streams % STREAMS
            try:
                tokens = await stream_tokens(connection, seed, on_token)
            except Refused:
                if self.expected is not None:
                    raise
                continue
            self.streams += 1
            self.wrong += self.expected is not None and tokens != self.expected[seed]
        connection.close()

    async def run_metrics(self, ended):
        connection = Connection(self.port)
        steps, moved = -1.0, Stopwatch(self.server, OTHERS)
        while not ended.is_set():
            now = await metrics(connection)
            self.resident.append(now["process_resident_memory_bytes"])
            # No shorter than the true one, and longer by two polls at most.
            self.longest_stall = max(self.longest_stall, moved.seconds())
            if now["engine_steps_total"] != steps:
                steps, moved = now["engine_steps_total"], Stopwatch(self.server, OTHERS)
            await asyncio.sleep(POLL_S)
        connection.close()

    async def run(self, ended):
        await asyncio.gather(self.run_streams(ended), self.run_metrics(ended))

    @staticmethod
    def process(server, port, expected, ended, results):
        watch = Watch(server, port, expected)
        try:
            asyncio.run(watch.run(ended))
            results.put({"streams": watch.streams, "wrong": watch.wrong, "longest_gap_s": watch.longest_gap,
                         "longest_stall_s": watch.longest_stall, "resident": watch.resident})
        except BaseException as error:  # a dead watch must be heard of
            results.put({"error": repr(error)})
            raise


def error_of(answer):
    """The error's object in OpenAI's or in Anthropic's form."""
    error = answer.json()["error"]
    assert error["message"] and isinstance(error["message"], str) and error["type"], error
    return error


def no_constant(name):
    """Of `Infinity` and `NaN`, which Python reads and JSON has not."""
    raise ValueError(name)


def complaint(case, answer, seconds):
    """What is wrong with an answer, or None."""
    if seconds > ANSWER_S:
        return f"took {seconds:.1f} s"
    late = answer.status == 503 and "timeout" in case.roots  # its deadline was over before it ran
    if answer.status >= 500 and answer.status != 501 and not late:
        return f"status {answer.status}"
    if "x-request-id" not in answer.fields:
        return "no x-request-id"
    if case.method == "HEAD":
        return None
    if answer.fields.get("content-type", "").startswith("application/json"):
        try:
            json.loads(answer.body, parse_constant=no_constant)
        except ValueError as wrong:
            return f"is no JSON: {wrong}"
    if answer.status < 400:
        return None
    try:
        error = error_of(answer)
    except (ValueError, KeyError, TypeError, AssertionError) as wrong:
        return f"an untyped error: {wrong!r} {answer.body[:200]}"
    if (found := INSIDE.search(answer.body)) and found[0] not in (case.body or b"") + case.path.encode():
        return f"tells of the inside: {found[0]}"
    for least, most in BETWEEN.findall(error["message"]):
        if int(least) > int(most):
            return f"asks for a number between {least} and {most}"
    if case.kind not in ("single", "big", *MISSING) or answer.status != 400 or error.get("code") == "invalid_json":
        return None
    if "/v1/messages" in case.path:
        return None  # Anthropic's form has no place for it
    if not error.get("param"):
        return f"names no field: {error}"
    root = re.split(r"[.\[]", error["param"])[0]
    if error["message"].endswith("is required") and f'"{root}"'.encode() not in (case.body or b""):
        return None  # it is not there: what else is wrong in the body may be told later
    # What a field is in conflict with may be named instead of it.
    # Of a prompt that is too long in all, any part.
    right = root in case.roots or case.kind in MISSING or error.get("code") == "context_length_exceeded" or any(
        each in error["message"] or {root, each} in EXCLUDE_EACH_OTHER for each in case.roots)
    return None if right else f"names another field: {error}"


class Attack:
    def __init__(self, port):
        self.port = port
        self.kinds = collections.Counter()
        self.statuses = collections.Counter()
        self.complaints = collections.Counter()
        self.examples = []
        self.shown = {}
        self.seconds = []
        self.left_alone = 0  # answers that were rightly long

    def complain(self, case, text):
        self.complaints[text.split(":")[0][:60]] += 1
        if self.shown.setdefault(text[:150], 0) < SHOWN:
            self.shown[text[:150]] += 1
            self.examples.append(f"{text[:300]} <- {case.describe()[:300]}")

    async def ask(self, connection, case):
        data = case.data()
        begin = time.monotonic()
        may_be_long = not LONG.isdisjoint(case.roots) or case.kind in ("syntax", "double")
        try:
            answer = await asyncio.wait_for(connection.ask(data, case.method), PATIENCE_S if may_be_long else 3 * ANSWER_S)
        except asyncio.TimeoutError:
            connection.close()
            if may_be_long:
                self.left_alone += 1
            else:
                self.complain(case, "no answer")
            return
        except (ConnectionError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            connection.close()
            self.complain(case, f"no answer: {error!r}")
            return
        took = time.monotonic() - begin
        self.seconds.append(took)
        self.statuses[answer.status] += 1
        if text := complaint(case, answer, took):
            self.complain(case, text)

    async def worker(self, cases):
        connection = Connection(self.port)
        for case in cases:
            self.kinds[case.kind] += 1
            await self.ask(connection, case)
        connection.close()

    async def run(self, cases):
        await asyncio.gather(*(self.worker(cases) for _ in range(CONNECTIONS)))


async def clean(port):
    """Undoes what requests that were right have done to everyone."""
    connection = Connection(port)
    await connection.ask(request_bytes("POST", ADMIN + "clear", b"{}"))
    listed = (await connection.ask(request_bytes("GET", ADMIN + "modules"), "GET")).json()["modules"]
    for module in listed:
        if module["name"] != "mood":
            await connection.ask(request_bytes("DELETE", ADMIN + "modules/" + module["name"]))
    connection.close()


async def left_behind(port):
    """What is still in use a moment after everyone has gone."""
    connection = Connection(port)
    names = ("num_requests_running", "num_requests_waiting", "http_generations_open", "http_body_bytes", "capture_requests_open",
             "steering_requests_waiting")
    for _ in range(100):
        now = await metrics(connection)
        left = {name: now[name] for name in names if now[name]}
        if now["http_connections_open"] > 1:
            left["http_connections_open"] = now["http_connections_open"]
        if not left:
            break
        await asyncio.sleep(0.1)
    connection.close()
    return left, now


async def settled(port):
    """As left_behind, once free memory has gone back, which a server that is idle for a moment sees to."""
    await asyncio.sleep(SETTLE_S)
    return await left_behind(port)


def attack_beside_streams(server, port, cases, expected, admin):
    """(the attack, what the watch saw). With `admin` cases streams may change, or be refused."""
    context = multiprocessing.get_context("fork")
    ended, results = context.Event(), context.Queue()
    watch = context.Process(target=Watch.process, args=(server.process.pid, port, None if admin else expected, ended, results))
    watch.start()
    attack = Attack(port)
    begin = time.monotonic()
    try:
        asyncio.run(attack.run(cases))
    finally:
        ended.set()
        seen = results.get(timeout=60)
        watch.join()
    seen["seconds"] = time.monotonic() - begin
    assert server.process.poll() is None, "the server has died"
    return attack, seen


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def summary(name, attack, seen):
    resident = seen.get("resident") or [0]
    return {"phase": name, "requests": sum(attack.kinds.values()), "seconds": round(seen["seconds"], 1), "statuses": dict(attack.statuses),
            "kinds": dict(attack.kinds), "not_waited_for": attack.left_alone,
            "ms_median_p99_max": [round(1e3 * quantile(attack.seconds, share), 1) for share in (0.5, 0.99, 1)],
            "streams": seen.get("streams"), "wrong_streams": seen.get("wrong"),
            "longest_stall_s": round(seen.get("longest_stall_s", -1), 2), "longest_gap_s": round(seen.get("longest_gap_s", -1), 2),
            "resident_mb": [round(value / 2**20) for value in (resident[0], resident[len(resident) // 3], max(resident))],
            "complaints": dict(attack.complaints)}


def problems_of(report, seen):
    problems = [f"{count} x {text}" for text, count in report["complaints"].items()]
    if "error" in seen:
        return [*problems, f"the watch ended: {seen['error']}"]
    if report["wrong_streams"]:
        problems.append(f"{report['wrong_streams']} of {report['streams']} streams changed")
    if not report["streams"]:
        problems.append("no stream came to its end")
    if seen["longest_stall_s"] > STALL_S:
        problems.append(f"the engine stood still for {seen['longest_stall_s']:.2f} s")
    resident = seen["resident"]
    if max(resident) - resident[len(resident) // 3] > growth_bound():
        problems.append(f"memory grew: {report['resident_mb']} MiB")
    return problems


async def streams_alone(port):
    connection = Connection(port)
    tokens = [await stream_tokens(connection, seed) for seed in range(STREAMS)]
    connection.close()
    return tokens


async def document_of(port):
    connection = Connection(port)
    answer = await connection.ask(request_bytes("GET", "/openapi.json"), "GET")
    connection.close()
    return answer.json()


async def accepted_seeds(port):
    """({endpoint: bodies that the server takes}, [what it does not])."""
    connection = Connection(port)
    seeds, refused = {}, []
    for path, bodies in sorted(SEEDS.items(), key=lambda item: item[0].startswith(ADMIN)):
        seeds[path] = []
        for body in bodies:
            answer = await connection.ask(request_bytes("POST", path, dump(body)))
            if answer.status == 200:
                seeds[path].append(body)
            else:
                refused.append(f"refused as a seed: {path} {answer.body[:200].decode()}")
    connection.close()
    await clean(port)
    return seeds, refused


def train_mood(folder):
    for mood in ("happy", "sad"):
        (folder / f"{mood}.txt").write_text("".join(f"Tell me a {mood} story about a {t}.\n" for t in ("hat", "owl", "kite", "farm")))
    run_rudder("vectors", "train", "--positive", folder / "happy.txt", "--negative", folder / "sad.txt", "--chat", "--layers",
               "5", "--name", "mood", "--output", folder)
    return folder / "mood.safetensors"


async def keep_rows(port):
    """What a seed patches in."""
    connection = Connection(port)
    answer = await connection.ask(request_bytes("POST", "/v1/completions", dump(KEPT)))
    assert answer.status == 200, answer.body
    connection.close()


def with_progress(cases, count, name):
    """The same iterator; how far it is stands on a terminal, and in a line every half minute elsewhere."""
    return iter(tqdm(cases, total=count, desc=name, unit=" requests", mininterval=0.5 if sys.stderr.isatty() else 30))


def run(requests, seed=0):
    """(report, problems) of a whole run."""
    with tempfile.TemporaryDirectory() as folder:
        mood = train_mood(pathlib.Path(folder))
        rows = [[float(i == j) for j in range(256)] for i in range(4)]
        sae = write_dictionary(pathlib.Path(folder) / "sae", "resid_post.3", rows, rows)
        with serving(*FLAGS, "--steering-module", f"mood={mood}", "--dictionary", f"sae={sae}",
                     "--dictionary-root", folder) as server:
            port = int(server.url.rsplit(":", 1)[1])
            asyncio.run(keep_rows(port))
            expected = asyncio.run(streams_alone(port))
            _, fresh = asyncio.run(left_behind(port))
            seeds, refused = asyncio.run(accepted_seeds(port))
            asyncio.run(settle_in(port))
            _, before = asyncio.run(settled(port))
            planned = planned_mappings(server.process.pid)
            cases = Cases(asyncio.run(document_of(port)), seeds, seed)
            phases, problems, examples = [], refused, []
            for name, share, admin in (("requests", 0.9, False), ("steering of the server", 0.1, True)):
                count = int(requests * share)
                possible, wrong = cases.take(count, admin)
                attack, seen = attack_beside_streams(server, port, with_progress(wrong, count, name), expected, admin)
                phases.append(summary(name, attack, seen) | {"single_changes_in_all": possible})
                problems += problems_of(phases[-1], seen)
                examples += attack.examples
            asyncio.run(clean(port))
            if asyncio.run(streams_alone(port)) != expected:
                problems.append("streams differ after the attack")
            left, after = asyncio.run(settled(port))
            memory, grown = memory_report(fresh, before, after, kept_parts(planned, before, server.process.pid, after))
            problems += [grown] if grown else []
            problems += [f"left behind: {name} {value}" for name, value in left.items()]
            if after["process_start_time_seconds"] != before["process_start_time_seconds"]:
                problems.append("the process has restarted")
            if after["process_open_fds"] > before["process_open_fds"] + 4:
                problems.append(f"descriptors left open: {after['process_open_fds'] - before['process_open_fds']}")
        server.log.seek(0)
        problems += sorted(set(SANITIZER.findall(server.log.read())))
    return {"phases": phases, "examples": examples, "idle_memory_mb": memory}, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report, problems = run(arguments.requests, arguments.seed)
    for phase in report["phases"]:
        print(json.dumps(phase, indent=1))
    for example in report["examples"]:
        print("  ", example)
    print("memory at idle, MiB:", json.dumps(report["idle_memory_mb"]))
    print("\n".join(problems) or "nothing went wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
