"""What a supervisor of processes sees when a thread of a server stands still for good, whichever it is: the server goes on
serving, or the process ends with a status that is not 0."""

import concurrent.futures
import os
import pathlib
import time

import httpx2
import pytest

from conftest import Server, is_instrumented
from standstill import standing_still_thread, status_of

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks on a CPU need a core each")

ENDS_S = 180 if is_instrumented() else 60
ANSWER_S = 30  # for an answer on a machine that does much else
RANKS, STAGES = ["--tensor-parallel-size", "2"], ["--pipeline-parallel-size", "2"]
KINDS = {"one engine": [], "ranks": RANKS, "stages": STAGES, "stages of ranks": RANKS + STAGES}
# Each rank of a stage wants a core, and is named by both.
of_kinds = pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.skipif(
    kind == "stages of ranks" and len(os.sched_getaffinity(0)) < 4, reason="four cores")) for kind in KINDS])
FLAGS = ["--threads", "2", "--http-threads", "2", "--tokenize-threads", "2"]


def threads_of(process):
    """[(id, name)] of the threads of a process, in the order in which they began."""
    tasks = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
    return [(int(task.name), (task / "comm").read_text().strip()) for task in sorted(tasks, key=lambda task: int(task.name))]


def serves(server):
    """Whether each of several requests at once is answered, each on a connection of its own."""
    def ask(number):
        body = {"prompt": f"Once upon a time {number}", "max_tokens": 4, "temperature": 0}
        with httpx2.Client(timeout=ANSWER_S) as client:
            answers = [client.post(server.url + "/v1/completions", json=body), client.get(server.url + "/livez")]
        return all(answer.status_code == 200 for answer in answers)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, number) for number in range(4)]
        try:
            return all(each.result() for each in asked)
        except httpx2.TransportError:
            return False


def outcome(flags, index):
    """What becomes of a server whose thread number `index` stands still: 'serves', or the status that it ends with."""
    server = Server(*FLAGS, *flags)
    try:
        assert serves(server)
        thread, _ = threads_of(server.process)[index]
        with standing_still_thread(thread):
            deadline = time.monotonic() + ENDS_S
            while status_of(server.process, thread) is None:
                if serves(server):
                    return "serves"
                if time.monotonic() > deadline:
                    return "hangs"
                time.sleep(0.2)
            return server.process.returncode
    finally:
        server.process.kill()
        server.process.wait()


def names_of(flags):
    server = Server(*FLAGS, *flags)
    try:
        assert serves(server)
        return [name for _, name in threads_of(server.process)]
    finally:
        server.stop()


def some_of_each(names):
    """The numbers of threads, one of each name but of the main one, whose name the pools of the backend have too."""
    first = {}
    for index, name in enumerate(names):
        if index > 0:
            first.setdefault(name, []).append(index)
    return [index for numbers in first.values() for index in numbers[:2]]


@of_kinds
def test_the_engine_or_an_io_thread(kind):
    flags = KINDS[kind]
    names = names_of(flags)
    wanted = {"ranks": "rudder-rank-1", "stages": "rudder-stage-1", "stages of ranks": "rudder-1.1", "one engine": "rudder-http"}[kind]
    assert outcome(flags, names.index(wanted)) == 1


@pytest.mark.slow
@of_kinds
def test_every_thread_in_turn(kind):
    flags = KINDS[kind]
    names = names_of(flags)
    outcomes = {f"{index} {names[index]}": outcome(flags, index) for index in some_of_each(names)}
    assert set(outcomes.values()) <= {"serves", 1}, outcomes
    assert 1 in outcomes.values() and "serves" in outcomes.values(), outcomes
