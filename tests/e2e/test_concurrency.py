"""Many clients at once, some of which hang up: every finished answer equals the same request run alone, and nothing
stays behind."""

import asyncio
import os
import random
import time

import score
from conftest import DEMO, wait_for

CLIENTS = 64
SECONDS = float(os.environ.get("RUDDER_SOAK_SECONDS", "20"))
MAX_TOKENS = 160


def requests_of_the_suites(count):
    cases = [c for task in ("addition", "recall", "json", "story", "chat")
             for c in score.read_jsonl(DEMO / "eval" / f"{task}.jsonl")]
    return random.Random(0).sample(cases, count)


async def ask(client, model, messages, hang_up_after=None):
    """The whole text, or None when the client hung up."""
    stream = await client.chat.completions.create(model=model, messages=messages, temperature=0,
                                                  max_tokens=MAX_TOKENS, stream=True)
    text, chunks = "", 0
    async for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        chunks += 1
        if hang_up_after is not None and chunks >= hang_up_after:
            await stream.close()
            return None
    return text


def are_enough(counts):
    return counts["finished"] > CLIENTS and counts["hung up"] > CLIENTS / 4


async def one_client(number, client, model, cases, deadline, finished, counts):
    rng = random.Random(number)
    while time.monotonic() < deadline or not are_enough(counts):  # an instrumented server takes longer
        case = rng.choice(cases)
        hang_up_after = rng.randint(1, 40) if rng.random() < 0.3 else None
        text = await ask(client, model, case["messages"], hang_up_after)
        counts["hung up" if text is None else "finished"] += 1
        if text is not None:
            finished.append((case["id"], text))


async def soak(server, model, cases):
    finished, counts = [], {"finished": 0, "hung up": 0}
    deadline = time.monotonic() + SECONDS
    async with server.async_client() as client:
        await asyncio.gather(*(one_client(n, client, model, cases, deadline, finished, counts)
                               for n in range(CLIENTS)))
        alone = {}
        for name in {name for name, _ in finished}:
            case = next(c for c in cases if c["id"] == name)
            alone[name] = await ask(client, model, case["messages"])
    return finished, alone, counts


def is_idle(server):
    return server.metric("rudder:num_requests_running") + server.metric("rudder:num_requests_waiting") == 0


def test_answers_do_not_depend_on_company(server, model):
    cases = requests_of_the_suites(60)
    before = server.metrics()
    finished, alone, counts = asyncio.run(soak(server, model, cases))
    wrong = [(name, text, alone[name]) for name, text in finished if text != alone[name]]
    assert not wrong, f"{len(wrong)} of {len(finished)} differ, first: {wrong[0]}"
    assert are_enough(counts), counts
    wait_for(lambda: is_idle(server), "no request runs")
    in_use = [v for k, v in server.metrics().items() if k.startswith("rudder:kv_blocks{") and "in_use" in k]
    assert in_use == [0]
    after = server.metrics()

    def grew(name):
        return sum(v - before.get(k, 0) for k, v in after.items() if k.startswith(name))

    answered = counts["finished"] + len(alone)
    assert grew("rudder:request_success_total") >= answered
    print(f"{counts['finished']} finished, {counts['hung up']} hung up, 0 differ, 0 blocks in use")
