"""Memory at idle, before and behind the attack: ordinary traffic first, until it makes the server grow no more; then what
grew all the same, by part."""

import asyncio
import pathlib
import random
import re

from conftest import is_instrumented
from invalid.client import Connection, metrics, request_bytes
from invalid.raw import Raw, dump
from invalid.seeds import CHAT, PROMPT, WIDTH, op

CLIENTS = 16
GROWTH = 1.3  # of resident memory at idle
STEADY = 1.01  # growth in some rounds of ordinary traffic that is none
STEADY_ROUNDS, MOST_ROUNDS = 4, 60
INSTRUMENTED_ROUNDS = 8  # fill the caches; a server with sanitizers grows on and its memory is not judged
SETTLE_S = 3.5  # behind work: an idle server gives free memory back in its second quiet second
LARGE_MAPPING = 1 << 20
ARENA = 64 << 20  # glibc's, which begin at multiples of it


def planned_mappings(pid):
    """{addresses: resident bytes} of what was mapped at the start: KV cache, workspace, tap tables, capture rings. The
    heap's own mappings are left out."""
    mappings, at = {}, None
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw\S+ \S+ \S+ 0\s*$", line)
        if head or re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            begin, end = (int(each, 16) for each in head.groups()) if head else (0, 0)
            at = (begin, end) if end - begin >= LARGE_MAPPING and begin % ARENA else None
        elif at and line.startswith("Rss:"):
            mappings[at] = int(line.split()[1]) * 1024
    return mappings


CACHES = {"compiled forms": "grammar_cache_bytes", "masks": "grammar_mask_bytes", "answers kept": "http_output_bytes",
          "vectors": "steering_vector_bytes", "ids of prompts": "token_cache_bytes"}


def kept_parts(planned, before, pid, after):
    """{part: bytes} by which each part that stays of any work has grown: pages of planned memory that were touched for the
    first time, and caches, which have bounds of their own and count themselves."""
    now = planned_mappings(pid)
    touched = sum(now[at] - was for at, was in planned.items() if at in now)
    return {"planned memory, pages touched": touched, **{part: int(after[name] - before[name]) for part, name in CACHES.items()}}


def ordinary(number):
    """(path, body) of ordinary requests, other ones for each number: prompts, forms, answers that are stored."""
    draw = random.Random(number)
    # The first ones fill the KV cache.
    ids = [draw.randrange(100, 2000) for _ in range(1500 if number < CLIENTS else 100)]
    names = [f"{draw.randrange(10**9)}" for _ in range(60)]
    schema = {"type": "object", "additionalProperties": False,
              "properties": {name: {"type": "string", "pattern": "^[a-z]{1,9}$"} for name in names}}
    words = " ".join(draw.choice(("boat", "river", "hat", "owl", "farm", "kite")) + str(draw.randrange(1000)) for _ in range(200))
    yield "/v1/completions", PROMPT | {"prompt": ids, "logprobs": 3}
    yield "/v1/chat/completions", CHAT | {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "strict": True, "schema": schema}}, "max_tokens": 8}
    yield "/v1/responses", {"input": words, "max_output_tokens": 16}
    yield "/v1/embeddings", {"input": [words[:200], words[200:400]]}
    yield "/v1/completions", PROMPT | {"steering": op("add", vector=Raw(dump([draw.random() for _ in range(WIDTH)])))}


async def resident_bytes(port):
    connection = Connection(port)
    now = await metrics(connection)
    connection.close()
    return now["process_resident_memory_bytes"]


async def settle_in(port):
    """Ordinary traffic, until some rounds of it make the server no larger."""
    async def client(number):
        connection = Connection(port)
        for path, body in ordinary(number):
            answer = await connection.ask(request_bytes("POST", path, dump(body)))
            assert answer.status == 200, (path, answer.body[:300])
        connection.close()

    sizes = [await resident_bytes(port)]
    for round in range(INSTRUMENTED_ROUNDS if is_instrumented() else MOST_ROUNDS):
        await asyncio.gather(*(client(round * CLIENTS + i) for i in range(CLIENTS)))
        sizes.append(await resident_bytes(port))
        if round >= STEADY_ROUNDS and sizes[-1] <= STEADY * max(sizes[:-STEADY_ROUNDS]):
            break


def memory_report(fresh, before, after, parts):
    """(MiB in all and by part, a problem or None). `parts`: by how much each has grown from before to after."""
    fresh, before, after = (each["process_resident_memory_bytes"] for each in (fresh, before, after))
    bound = GROWTH * before
    sizes = {"fresh": fresh, "before": before, "after": after, **parts, "grown otherwise": after - before - sum(parts.values())}
    report = {name: round(value / 2**20, 1) for name, value in sizes.items()}
    grown = after > bound and not is_instrumented()  # sanitizers keep what was freed
    return report, f"memory at idle: {report}, above {bound / 2**20:.0f} MiB" if grown else None
