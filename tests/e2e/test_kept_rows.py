"""Patches of rows that an earlier request kept."""

import httpx2
import pytest

from conftest import serving
from test_steering import LAYERS

FLAGS = ("--enable-steering", "--capture-memory-mb", "16", "--max-steering-rows", "128", "--api-key", "one", "--api-key", "two")
CLEAN = {"messages": [{"role": "user", "content": "What is 21 + 14?"}]}
CORRUPTED = {"messages": [{"role": "user", "content": "What is 71 + 14?"}]}


@pytest.fixture(scope="module")
def running():
    with serving(*FLAGS, "--capture-consumer", "kept:bytes=4M") as server:
        yield server


def chat(running, prompt, key="one", **more):
    answer = httpx2.post(running.url + "/v1/chat/completions", headers={"authorization": f"Bearer {key}"},
                         json={**prompt, "temperature": 0, "max_tokens": 8, "return_token_ids": True, **more})
    return answer


def keep(running, prompt, layers=(LAYERS - 1,), positions="all_prompt", **more):
    answer = chat(running, prompt, capture={"kept": {"sites": {"resid_post": list(layers)}, "positions": positions}}, **more).json()
    result = answer["capture_results"]["kept"]
    assert result["status"] == "ok", result
    assert result["payload"]["request"] == answer["id"]
    return answer


def patch(source, layer=LAYERS - 1, **more):
    return {"steering": {"op": "patch", "site": "resid_post", "layers": [layer], "source": source, **more}}


def first(answer):
    return answer.json()["choices"][0]["token_ids"][0]


def test_the_last_rows_of_another_request_bring_its_token(running):
    clean = keep(running, CLEAN)
    right, wrong = clean["choices"][0]["token_ids"][0], first(chat(running, CORRUPTED))
    assert right != wrong
    assert first(chat(running, CORRUPTED, **patch({"request": clean["id"], "positions": [-1]}))) == right
    # Of all positions behind an early layer, all of it.
    early = keep(running, CLEAN, layers=[0])
    length = len(early["prompt_token_ids"])
    everything = {"request": early["id"], "positions": list(range(length))}
    assert first(chat(running, CORRUPTED, **patch(everything, layer=0))) == right
    # To another place, and half of it, it is another run; a run that is not patched is as before.
    assert first(chat(running, CORRUPTED)) == wrong
    assert first(chat(running, CORRUPTED, **patch({"request": clean["id"], "positions": [0]}))) == wrong
    assert first(chat(running, CORRUPTED, **patch({"request": clean["id"], "positions": [-1]}, dest=[0]))) == wrong


def test_generated_rows_are_kept_too(running):
    kept = keep(running, CLEAN, positions="all")
    length = len(kept["prompt_token_ids"])
    assert chat(running, CORRUPTED, **patch({"request": kept["id"], "positions": [length]}, dest=[-1])).status_code == 200


def test_rows_are_the_keys_own(running):
    clean = keep(running, CLEAN)
    answer = chat(running, CORRUPTED, key="two", **patch({"request": clean["id"], "positions": [-1]}))
    assert answer.status_code == 404 and answer.json()["error"]["param"] == "steering.source.request"


def test_what_is_refused(running):
    clean = keep(running, CLEAN, positions="last_prompt")
    good = {"request": clean["id"], "positions": [-1]}
    assert chat(running, CORRUPTED, **patch(good)).status_code == 200
    for field, given in [
            ("steering.source.positions[0]", patch({**good, "positions": [0]})), ("steering.source.positions", patch({**good, "positions": []})),
            ("steering.source.positions", patch({"request": clean["id"]})), ("steering.source.positions[0]", patch(good, layer=3)),
            ("steering.dest", patch(good, dest=[1, 2])), ("steering.dest[0]", patch(good, dest=["a"])), ("steering.source.depth", patch({**good, "depth": 1})),
            ("steering.select", patch(good, select={"phase": "decode"})), ("steering.dest", patch("zeros", dest=[1])),
            ("steering.source.positions[0]", patch({**good, "positions": [2 ** 31 - 1]}))]:
        answer = chat(running, CORRUPTED, **given)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field, (field, answer.text)
    for gone in ({**good, "request": "chatcmpl-none"}, {**good, "choice": 1}):
        assert chat(running, CORRUPTED, **patch(gone)).status_code == 404


def test_the_oldest_go_first():
    with serving(*FLAGS, "--capture-consumer", "kept:bytes=100000") as server:
        ids = [keep(server, CLEAN)["id"] for _ in range(12)]
        statuses = [chat(server, CORRUPTED, **patch({"request": each, "positions": [-1]})).status_code for each in ids]
        assert statuses[0] == 404 and statuses[-1] == 200 and statuses == sorted(statuses, reverse=True)
        result = chat(server, {"messages": [{"role": "user", "content": "word " * 150}]}, capture={
            "kept": {"sites": {"resid_post": "all"}, "positions": "all_prompt"}}).json()["capture_results"]["kept"]
        assert result["status"] == "error" and "100000" in result["error"]


def test_a_server_without_the_consumer_refuses():
    with serving("--enable-steering", "--capture-memory-mb", "16") as server:
        answer = chat(server, CORRUPTED, **patch({"request": "x", "positions": [-1]}))
        assert answer.status_code == 400 and "--capture-consumer kept" in answer.text
