"""Wrong requests at the routes that the run of invalid/run.py finds switched off: sleep, pause and new weights, adapters, rerankers; and
at every route of the document connections that end their half in the middle of a request. The server answers, with a type, keeps
running, and says afterwards what it said before."""

import asyncio
import json
import random
import shutil
import time

import pytest

from conftest import DEMO, ROOT, serving
from invalid.cases import Cases
from invalid.client import Connection, request_bytes
from invalid.raw import dump
from invalid.run import complaint, document_of, left_behind
from invalid.seeds import SEEDS

ADAPTERS = ROOT / "tests" / "adapters"
PER_ROUTE = 150  # cases of a route
RESTING = {
    "/sleep": [{}, {"level": 2, "mode": "wait", "timeout": 5}, {"level": 1, "tags": ["weights"]}],
    "/wake_up": [{}, {"tags": ["weights"]}], "/pause": [{}, {"mode": "keep", "clear_cache": False, "timeout": 2}], "/resume": [{}],
    "/v1/weights/update": [{"path": "same"}, {"model_path": "same", "weight_version": "2", "mode": "wait", "flush_cache": True, "timeout": 5}],
    "/reset_prefix_cache": [{}]}
ADAPTED = {
    "/v1/load_lora_adapter": [{"lora_name": "a", "lora_path": str(ADAPTERS / "tone"), "load_inplace": True}],
    "/v1/unload_lora_adapter": [{"lora_name": "a"}], "/v1/responses/{id}/cancel": [{}], "/ping": [{}]}
RANKING = {
    "/v1/rerank": [{"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True}],
    "/v1/score": [{"text_1": "a", "text_2": ["b", "c"]}]}
PROBE = json.dumps({"prompt": "A boat", "max_tokens": 8, "temperature": 0, "return_token_ids": True}).encode()


@pytest.fixture(scope="module")
def resting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    shutil.copytree(DEMO, folder / "same")
    with serving("--device", "cpu", "--enable-sleep-mode", "--weights-root", str(folder), "--log-level", "error") as server:
        yield server


@pytest.fixture(scope="module")
def adapted():
    with serving("--device", "cpu", "--enable-lora", "--max-lora-rank", "8", "--lora-root", str(ADAPTERS), "--enable-steering",
                 "--capture-memory-mb", "8", "--log-level", "error") as server:
        yield server


@pytest.fixture(scope="module")
def ranking():
    with serving("--log-level", "error", model=ROOT / "tests" / "rerankers" / "Qwen3-Reranker-tiny") as server:
        yield server


def port_of(server):
    return int(server.url.rsplit(":", 1)[1])


async def said(port):
    connection = Connection(port)
    answer = await connection.ask(request_bytes("POST", "/v1/completions", PROBE))
    connection.close()
    return answer.status, answer.status == 200 and answer.json()["choices"][0]["token_ids"]


def drawn(cases, endpoint, count):
    singles = [*cases.singles([endpoint])]
    cases.random.shuffle(singles)
    made = [cases.single(*each) for each in singles[:count // 2]]
    makers = [cases.pair, cases.syntax, cases.cut, cases.double, cases.nest, cases.many, cases.frame, cases.header, cases.big]
    return made + [cases.random.choice(makers)(endpoint) for _ in range(count - len(made))]


async def set_right(connection):
    """A model that a right request has put to sleep or stopped, with or without its weights, runs again."""
    for path in ("/resume", "/v1/weights/update", "/wake_up"):
        body = b'{"path": "same"}' if path == "/v1/weights/update" else b"{}"
        await connection.ask(request_bytes("POST", path, body))


async def probe(server, seeds, rests=False):
    """[what was wrong] of requests at the routes of `seeds`, one behind the other."""
    port = port_of(server)
    before = await said(port)
    cases = Cases(await document_of(port), {**SEEDS, **seeds}, 3)
    wrong, statuses = [], set()
    connection = Connection(port)
    for endpoint in seeds:
        for case in drawn(cases, endpoint, PER_ROUTE):
            began = time.monotonic()
            try:
                answer = await asyncio.wait_for(connection.ask(case.data(), case.method), 30)
            except (TimeoutError, OSError, EOFError, ValueError) as error:
                connection.close()
                wrong.append(f"no answer: {error!r} <- {case.describe()}")
                continue
            statuses.add(answer.status)
            if text := complaint(case, answer, time.monotonic() - began):
                wrong.append(f"{text} {answer.body[:200]} <- {case.describe()}")
            if rests and answer.status == 200:
                await set_right(connection)
    connection.close()
    assert {200, 400} <= statuses, statuses
    assert await said(port) == before
    assert server.process.poll() is None
    left, _ = await left_behind(port)
    return wrong + [f"left behind: {name}" for name in left]


def test_routes_by_which_the_model_rests(resting):
    wrong = asyncio.run(probe(resting, RESTING, rests=True))
    assert not wrong, "\n".join(wrong[:40])


def test_routes_of_adapters(adapted):
    wrong = asyncio.run(probe(adapted, ADAPTED))
    assert not wrong, "\n".join(wrong[:40])


def test_routes_of_rerankers(ranking):
    async def both():
        port = port_of(ranking)
        cases = Cases(await document_of(port), {**SEEDS, **RANKING}, 3)
        wrong, connection = [], Connection(port)
        for endpoint in RANKING:
            for case in drawn(cases, endpoint, PER_ROUTE):
                began = time.monotonic()
                answer = await asyncio.wait_for(connection.ask(case.data(), case.method), 30)
                if text := complaint(case, answer, time.monotonic() - began):
                    wrong.append(f"{text} <- {case.describe()}")
        connection.close()
        return wrong

    wrong = asyncio.run(both())
    assert not wrong, "\n".join(wrong[:40])


def test_connections_that_end_their_half_in_the_middle(adapted):
    """Of every route: the whole request and then the end, the end in its body, the end in its header."""
    async def one(port, data):
        connection = Connection(port)
        await connection.send(data)
        connection.half_close()
        try:
            answer = await asyncio.wait_for(connection.receive(), 20)
            return None if answer.status < 500 or answer.status in (501, 503) else f"status {answer.status}"
        except (EOFError, ConnectionError):
            return None  # who ends its half has gone, to the server: nobody can be told
        except (TimeoutError, ValueError) as error:
            return f"hangs: {error!r}"
        finally:
            connection.close()

    async def all_routes():
        port = port_of(adapted)
        document, rng, wrong = await document_of(port), random.Random(5), []
        for path, item in document["paths"].items():
            for method in item:
                body = dump((SEEDS.get(path) or ADAPTED.get(path) or [{}])[0]) if method == "post" else None
                data = request_bytes(method.upper(), path.replace("{id}", "x"), body)
                head = data.index(b"\r\n\r\n")
                for cut in (len(data), len(data) - 1, rng.randrange(1, head), head + 4):
                    if text := await one(port, data[:cut]):
                        wrong.append(f"{text} <- {method} {path}, {cut} of {len(data)} bytes")
        return wrong, (await left_behind(port))[0]

    wrong, left = asyncio.run(all_routes())
    assert not wrong, "\n".join(wrong[:40])
    assert not left, left
