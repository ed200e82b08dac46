"""Activation patching over a grid, on the demo model: sums, whose answers are known."""

import concurrent.futures
import math
import threading
import xml.etree.ElementTree as xml

import httpx2
import pytest

from conftest import serving, wait_for
from test_steering import LAYERS, add, vector

FLAGS = ("--enable-steering", "--capture-memory-mb", "16", "--max-steering-rows", "128")


def chat(a, b):
    return {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}]}


@pytest.fixture(scope="module")
def running():
    with serving(*FLAGS) as server:
        yield server


def sweep(running, **body):
    return httpx2.post(running.url + "/v1/steering/patch_sweep", json=body, timeout=300)


def first_token(running, prompt):
    answer = httpx2.post(running.url + "/v1/chat/completions", json={**prompt, "max_tokens": 1, "temperature": 0, "return_token_ids": True})
    return answer.json()["choices"][0]["token_ids"][0]


@pytest.fixture(scope="module")
def sums(running):
    """Two sums of equally many tokens whose answers begin with different tokens."""
    clean, corrupted = chat(21, 14), chat(71, 14)
    right, wrong = first_token(running, clean), first_token(running, corrupted)
    assert right != wrong
    return {"clean": clean, "corrupted": corrupted, "answer": {"right": right, "wrong": wrong}}


def tokens_of(running, prompt):
    return httpx2.post(running.url + "/tokenize", json=prompt).json()["tokens"]


def test_patching_every_position_restores_the_clean_answer(running, sums):
    length = len(tokens_of(running, sums["clean"]))
    assert length <= 64
    answer = sweep(running, **sums, sites={"resid_post": [2, LAYERS - 1], "resid_pre": 0}, positions=[[0, None], -1, 0]).json()
    assert answer["metric"] == "logit_difference" and answer["clean"] > 1 > -1 > answer["corrupted"]
    assert answer["positions"] == [[0, length], [length - 1, length], [0, 1]] and len(answer["tokens"]) == length
    whole = answer["clean"] - answer["corrupted"]
    by_site = {grid["site"]: grid for grid in answer["grids"]}
    assert by_site["resid_post"]["layers"] == [2, LAYERS - 1]
    for row in by_site["resid_post"]["values"] + by_site["resid_pre"]["values"]:
        assert abs(row[0] - answer["clean"]) < 0.02 * whole  # all of it
        assert abs(row[2] - answer["corrupted"]) < 0.05 * whole  # the first token is the same in both
    # Behind the last layer the answer is in the last position alone; in front of the first it is not there at all.
    assert abs(by_site["resid_post"]["values"][1][1] - answer["clean"]) < 0.02 * whole
    assert abs(by_site["resid_pre"]["values"][0][1] - answer["corrupted"]) < 0.05 * whole


def test_a_cell_is_the_run_that_a_request_makes(running, sums):
    """Against a patch by hand, with the rows of a capture."""
    clean, corrupted = tokens_of(running, sums["clean"]), tokens_of(running, sums["corrupted"])
    differs = next(i for i, pair in enumerate(zip(clean, corrupted)) if pair[0] != pair[1])
    right = sums["answer"]["right"]
    told = sweep(running, clean=clean, corrupted=corrupted, answer={"right": right}, sites={"attn_out": [1], "resid_mid": [1]},
                 positions=[differs]).json()
    assert told["metric"] == "probability" and 0 <= told["corrupted"] < told["clean"] <= 1
    captured = httpx2.post(running.url + "/v1/completions", json={"prompt": clean, "max_tokens": 1, "capture": {"response": {
        "sites": {"resid_mid": [1]}, "positions": [differs], "dtype": "float32"}}}).json()
    rows = captured["capture_results"]["response"]["payload"]["rows"]["resid_mid"]
    patch = {"op": "patch", "site": "resid_mid", "layers": [1], "vector": {key: rows[key] for key in ("dtype", "shape", "data")},
             "select": {"prompt": [differs, differs + 1]}}
    answer = httpx2.post(running.url + "/v1/completions", json={
        "prompt": corrupted, "max_tokens": 1, "temperature": 0, "logprobs": 0, "allowed_token_ids": [right], "ignore_eos": True, "steering": patch}).json()
    expected = math.exp(answer["choices"][0]["logprobs"]["token_logprobs"][0])
    cell = next(grid for grid in told["grids"] if grid["site"] == "resid_mid")["values"][0][0]
    assert abs(cell - expected) < 1e-6


def test_an_svg_has_a_rectangle_a_cell(running, sums):
    answer = sweep(running, **sums, sites={"resid_post": [0, 3]}, positions=[0, -2, -1], svg=True).json()
    image = xml.fromstring(answer["svg"])
    assert len(image.findall(".//{http://www.w3.org/2000/svg}rect")) == 6
    assert "svg" not in sweep(running, **sums, sites={"resid_post": 0}, positions=[0]).json()


def test_sweeps_and_other_requests_do_not_touch_each_other(running, sums):
    body = {**sums, "sites": {"resid_post": [3], "mlp_out": [3]}, "positions": [-1, -4]}
    alone = sweep(running, **body).json()
    text = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
    plain = httpx2.post(running.url + "/v1/completions", json=text).json()["choices"][0]["text"]
    steered = httpx2.post(running.url + "/v1/completions", json={**text, **add(vector(1))}).json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        sweeps = [pool.submit(sweep, running, **body) for _ in range(2)]
        texts = [pool.submit(httpx2.post, running.url + "/v1/completions", json=one, timeout=120)
                 for _ in range(3) for one in (text, {**text, **add(vector(1))})]
        for future in sweeps:
            again = future.result().json()
            assert again["grids"] == alone["grids"] and again["clean"] == alone["clean"]
        assert [each.result().json()["choices"][0]["text"] for each in texts] == [plain, steered] * 3


def test_a_client_that_leaves_ends_its_sweep(running, sums):
    def start():
        with httpx2.Client(timeout=0.5) as client:
            try:
                client.post(running.url + "/v1/steering/patch_sweep", json={**sums, "sites": {"resid_post": "all", "attn_out": "all"}})
            except httpx2.TimeoutException:
                return
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    wait_for(lambda: httpx2.get(running.url + "/load").json()["server_load"] == 0, "the sweep ends")


def test_what_is_refused(running, sums):
    good = {**sums, "sites": {"resid_post": [3]}, "positions": [-1]}
    text = "One two three"
    windows = [[begin, end] for begin in range(16) for end in range(begin + 1, 17)]
    for field, change in [
            ("clean", {"clean": None}), ("corrupted", {"corrupted": text}), ("clean", {"clean": ""}), ("clean[0]", {"clean": [-1]}),
            ("corrupted[1]", {"clean": [5, 6, 7], "corrupted": [5, 2**31 - 1, 7]}),
            ("corrupted.messages[0].role", {"corrupted": {"messages": [{"role": 1, "content": "a"}]}}),
            ("answer", {"answer": None}), ("answer.right", {"answer": {"right": "several words here"}}),
            ("answer.right", {"answer": {"wrong": 5}}), ("answer.right", {"answer": {"right": -1}}),
            ("answer.wrong", {"answer": {"right": 5, "wrong": 5}}), ("answer.left", {"answer": {"right": 5, "left": 6}}),
            ("sites", {"sites": None}), ("sites", {"sites": {}}), ("sites.nowhere", {"sites": {"nowhere": [1]}}),
            ("sites.resid_post[0]", {"sites": {"resid_post": [LAYERS]}}), ("sites.resid_post.3", {"sites": {"resid_post.3": [3]}}),
            ("positions", {"positions": []}), ("positions[0]", {"positions": [10_000]}), ("positions[0][1]", {"positions": [[0, 10_000]]}),
            ("positions[0]", {"positions": [[3, 3]]}), ("positions[1]", {"positions": [0, 0]}), ("positions[2]", {"positions": [1, 0, [0, 1]]}),
            ("positions", {"positions": windows, "sites": dict.fromkeys(("resid_pre", "resid_post", "attn_out", "mlp_out"), "all")}), ("extra", {"extra": 1}), ("svg", {"svg": 3})]:
        answer = sweep(running, **{**good, **change})
        assert answer.status_code == 400, (field, change, answer.text)
        assert answer.json()["error"]["param"] == field, (field, answer.text)
    assert sweep(running, **good, model="none").status_code == 404


def test_a_server_without_capture_refuses():
    with serving("--enable-steering") as server:
        answer = sweep(server, clean="a", corrupted="b", answer={"right": 5}, sites={"resid_post": 1})
        assert answer.status_code == 400 and "--capture-memory-mb" in answer.text
