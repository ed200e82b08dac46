"""Capture through the real server: rows in the answer, in files and in the log, and what steering does to them."""

import base64
import hashlib
import json
import struct

import pytest

from conftest import serving, wait_for
from test_steering import HIDDEN, LAYERS, add, vector

PROMPT = "A small boat sails over the sea."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("captures")


@pytest.fixture(scope="module")
def capturing(folder):
    with serving("--enable-steering", "--capture-memory-mb", "8", "--capture-consumer", f"filesystem:root={folder}",
                 "--capture-consumer", "logging") as running:
        yield running


@pytest.fixture(scope="module")
def client(capturing):
    return capturing.client()


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


def complete(client, name, extra, **more):
    return client.completions.create(model=name, prompt=PROMPT, temperature=0,
                                     extra_body={"ignore_eos": True, **extra}, **{"max_tokens": 6, **more})


def rows_of(pack):
    """[[floats] of each row] of a pack."""
    raw = base64.b64decode(pack["data"])
    if pack["dtype"] == "bfloat16":
        raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
    count, width = pack["shape"]
    values = struct.unpack(f"<{count * width}f", raw)
    return [values[i * width:(i + 1) * width] for i in range(count)]


def response(sites, positions="last_prompt", **more):
    return {"capture": {"response": {"sites": sites, "positions": positions, "dtype": "float32", **more}}}


def test_rows_in_the_answer(client, name):
    answer = complete(client, name, response({"resid_pre": "all", "resid_post": "all"}, "all"))
    result = answer.capture_results["response"]
    assert result["status"] == "ok" and result["error"] is None
    payload = result["payload"]
    # Every token that was read: the last one sampled is not.
    read = answer.usage.prompt_tokens + answer.usage.completion_tokens - 1
    assert payload["positions"] == list(range(read))
    pre, post = rows_of(payload["rows"]["resid_pre"]), rows_of(payload["rows"]["resid_post"])
    assert len(pre) == len(post) == read * LAYERS and len(pre[0]) == HIDDEN
    for i in range(read):
        for layer in range(1, LAYERS):
            assert pre[i * LAYERS + layer] == post[i * LAYERS + layer - 1]


def test_branches_add_up(client, name):
    answer = complete(client, name, response({"resid_pre": [2], "attn_out": [2], "mlp_out": [2], "resid_post": [2]}))
    rows = answer.capture_results["response"]["payload"]["rows"]
    pre, attn, mlp, post = (rows_of(rows[s])[0] for s in ("resid_pre", "attn_out", "mlp_out", "resid_post"))
    scale = max(abs(v) for v in post)
    assert max(abs(a + b + c - d) for a, b, c, d in zip(pre, attn, mlp, post)) < 1e-2 * scale


def test_before_and_after_steering(client, name):
    values = vector(1)
    steering = add(values, layer=4)

    def row(extra, layer=4, point="pre"):
        answer = complete(client, name, {**extra, **response({"resid_post": [layer]}, point=point)})
        return rows_of(answer.capture_results["response"]["payload"]["rows"]["resid_post"])[0]

    plain, before, after = row({}), row(steering), row(steering, point="post")
    # The op works at every token: what layer 4 reads is as without, for attention there looks at unsteered rows.
    assert before == plain
    assert max(abs(b + v - a) for b, v, a in zip(before, values, after)) < 0.3
    assert row(steering, layer=3) == row({}, layer=3)
    assert row(steering, layer=6) != row({}, layer=6)


def test_capture_changes_no_token_and_the_cache_no_row(client, name):
    plain = complete(client, name, {}).choices[0].text
    first = complete(client, name, response({"resid_post": [5]}, "all"))
    second = complete(client, name, response({"resid_post": [5]}, "all"))
    last = complete(client, name, response({"resid_post": [5]}))
    assert first.choices[0].text == second.choices[0].text == plain
    rows = [rows_of(a.capture_results["response"]["payload"]["rows"]["resid_post"]) for a in (first, second, last)]
    assert rows[0] == rows[1]
    assert rows[2] == [rows[0][first.usage.prompt_tokens - 1]]


def test_streamed_values_come_token_by_token(client, name):
    extra = response({"resid_post": [5]}, "all_generated", values=["norms"])
    stream = client.completions.create(model=name, prompt=PROMPT, temperature=0, max_tokens=6, stream=True,
                                       extra_body={"ignore_eos": True, **extra})
    positions, results, text = [], None, ""
    for chunk in stream:
        if getattr(chunk, "capture", None):
            positions.append(chunk.capture["position"])
            assert chunk.capture["consumer"] == "response"
            assert chunk.capture["values"]["norms"]["resid_post.5"] > 0
        results = getattr(chunk, "capture_results", None) or results
        text += "".join(c.text for c in chunk.choices)
    assert text == complete(client, name, {}).choices[0].text
    assert len(positions) == 5 and positions == sorted(positions)
    assert results["response"]["status"] == "ok"


def test_rows_of_a_long_prompt_in_a_stream(client, name):
    extra = response({"resid_post": "all"}, "all_prompt")
    stream = client.completions.create(model=name, prompt=PROMPT * 40, temperature=0, max_tokens=4, stream=True,
                                       extra_body={"ignore_eos": True, **extra}, stream_options={"include_usage": True})
    size, positions, usage = 0, [], None
    for chunk in stream:
        usage = chunk.usage or usage
        if getattr(chunk, "capture", None):
            positions.append(chunk.capture["position"])
            size += len(chunk.capture["values"]["rows"]["resid_post"]["data"])
    assert positions == list(range(usage.prompt_tokens))
    assert size > 2 << 20  # more than a slow reader may leave unread


def test_probes_and_several_choices(client, name):
    probe = vector(3, norm=1.0)
    extra = response({"resid_post": [5]}, values=["probes"], probes={"mood": probe})
    answer = complete(client, name, extra, n=3)
    assert [c.capture_results["response"]["status"] for c in answer.choices] == ["ok"] * 3
    rows = complete(client, name, response({"resid_post": [5]}))
    row = rows_of(rows.capture_results["response"]["payload"]["rows"]["resid_post"])[0]
    value = answer.choices[0].capture_results["response"]["payload"]["probes"]["mood"]["resid_post.5"][0]
    assert value == pytest.approx(sum(a * b for a, b in zip(row, probe)), rel=1e-3, abs=1e-3)


def test_files(client, name, folder):
    answer = complete(client, name, {"capture": {
        "filesystem": {"sites": {"resid_post": [1, 2]}, "positions": "all", "tag": "boats"}}})
    result = answer.capture_results["filesystem"]
    assert result["status"] == "ok", result
    read = answer.usage.prompt_tokens + answer.usage.completion_tokens - 1
    home = folder / "boats" / answer.id
    for layer in (1, 2):
        raw = (home / f"{layer}_resid_post.bin").read_bytes()
        about = json.loads((home / f"{layer}_resid_post.json").read_text())
        assert about["shape"] == [read, HIDDEN]
        assert hashlib.sha256(raw).hexdigest() == about["sha256"]
        assert about["positions"] == list(range(read))
    refused = complete(client, name, {"capture": {
        "filesystem": {"sites": {"resid_post": [1]}, "tag": "fine"},
        "logging": {"sites": {"resid_post": [1]}}}})
    assert {k: v["status"] for k, v in refused.capture_results.items()} == {"filesystem": "ok", "logging": "ok"}


def test_one_consumer_fails_alone(client, name, folder):
    blocked = folder / "blocked"
    blocked.write_text("a file where a folder should be")
    answer = complete(client, name, {"capture": {
        "filesystem": {"sites": {"resid_post": [1]}, "tag": "blocked"},
        "response": {"sites": {"resid_post": [1]}}}})
    assert answer.choices[0].text == complete(client, name, {}).choices[0].text
    assert answer.capture_results["filesystem"]["status"] == "error"
    assert answer.capture_results["filesystem"]["error"]
    assert answer.capture_results["response"]["status"] == "ok"


def test_metrics_count_rows(capturing):
    metrics = capturing.metrics()
    rows = {k: v for k, v in metrics.items() if k.startswith("rudder:capture_rows_total")}
    assert sum(rows.values()) > 0
    assert capturing.metric("rudder:capture_lost_tokens_total") == 0
    wait_for(lambda: capturing.metric("rudder:capture_requests_open") == 0, "every capture ends")
