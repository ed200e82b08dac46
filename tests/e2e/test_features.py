"""Features of dictionaries through the real server: registered by flag and over HTTP, named by requests."""

import concurrent.futures
import json

import httpx2
import openai
import pytest

from conftest import run_rudder, serving
from dictionary import write_dictionary
from test_capture import PROMPT, complete, response, rows_of
from test_steering import add, ids, vector

FEATURES = 5
NORM = 400.0


@pytest.fixture(scope="module")
def rows():
    return [vector(200 + i, NORM) for i in range(FEATURES)]


@pytest.fixture(scope="module")
def root(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("dictionaries")
    encoder = [vector(300 + i, 1.0) for i in range(FEATURES)]
    write_dictionary(folder / "three", "resid_post.3", encoder, rows)
    write_dictionary(folder / "across", "mlp_in.3", encoder, rows, write="mlp_out.3")
    write_dictionary(folder / "narrow", "resid_post.3", [[1.0] * 8], [[1.0] * 8])
    return folder


@pytest.fixture(scope="module")
def server_with(root):
    with serving("--enable-steering", "--dictionary", f"sae={root / 'three'}@resid_post.3",
                 "--dictionary", f"transcoder={root / 'across'}", "--dictionary-root", root, "--capture-memory-mb", "8") as running:
        yield running


@pytest.fixture(scope="module")
def client(server_with):
    return server_with.client()


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


def feature(index, kind="add", value=1.0, **more):
    return {"steering": {"op": "feature", "dictionary": "sae", "feature": index, "kind": kind, "value": value, **more}}


def test_an_unconditional_add_is_the_decoder_row(client, name, rows):
    expected, _ = ids(client, name, add(rows[2], scale=0.5))
    assert expected != ids(client, name)[0]
    article = {"sae_clamp_specs": [{"module_name": "sae", "clamps": {"resid_post": {"3": [
        {"feature_idx": 2, "kind": "additive", "value": 0.5}]}}}]}
    for form in (feature(2, value=0.5), article):
        got, answer = ids(client, name, form)
        assert got == expected, form.keys()
        assert answer.usage.prompt_tokens_details.cached_tokens > 0  # the same content: the same prefix
    assert ids(client, name, feature(1, value=0.5))[0] != expected
    assert ids(client, name, feature(2, value=0.0))[0] == ids(client, name)[0]


def test_selected_and_server_wide(server_with, client, name, rows):
    decode = {"select": {"phase": "decode"}}
    assert ids(client, name, feature(0, **decode))[0] == ids(client, name, add(rows[0], **decode))[0]
    expected, _ = ids(client, name, feature(3))
    httpx2.post(server_with.url + "/v1/steering/set", json=feature(3)).raise_for_status()
    try:
        assert ids(client, name)[0] == expected
    finally:
        httpx2.post(server_with.url + "/v1/steering/clear", json={}).raise_for_status()
    httpx2.post(server_with.url + "/v1/steering/modules", json={"name": "set", **feature(3)}).raise_for_status()
    assert ids(client, name, {"steering_name": "set"})[0] == expected


def test_a_gate_on_a_feature(client, name, rows):
    open_gate = {"feature": {"dictionary": "sae", "feature": 1, "above": 0}}
    shut_gate = {"feature": {"dictionary": "sae", "feature": 1, "above": 1e6}}
    plain, _ = ids(client, name)
    assert ids(client, name, add(rows[2], gate=shut_gate))[0] == plain
    assert ids(client, name, add(rows[2], gate=open_gate))[0] != plain  # open at some of the tokens


def test_clamps_of_features(client, name):
    plain, _ = ids(client, name)
    for same in (feature(1, "multiply", 1), feature(1, "min", 0), feature(1, "max", 1e6)):
        assert ids(client, name, same)[0] == plain, same
    clamped, _ = ids(client, name, feature(1, "set", 1))
    assert clamped != plain
    article = {"sae_clamp_specs": [{"module_name": "sae", "clamps": {"resid_post": {"3": [
        {"feature_idx": 1, "kind": "absolute", "value": 1}]}}}]}
    got, answer = ids(client, name, article)
    assert got == clamped and answer.usage.prompt_tokens_details.cached_tokens > 0
    both = {"steering": [feature(1, "set", 1)["steering"], feature(2, "set", 1)["steering"]]}
    assert ids(client, name, both)[0] != clamped


def test_clamps_move_the_row_by_what_the_formula_says(client, name, rows):
    encoder = [vector(300 + i, 1.0) for i in range(FEATURES)]
    clamps = [(0, "set", 2.0, False), (1, "multiply", 3.0, False), (2, "min", 1.0, False), (3, "max", 0.25, False),
              (4, "add", 1.5, True)]
    steering = {"steering": [feature(i, kind, value, only_if_active=only)["steering"] for i, kind, value, only in clamps]}

    def captured(extra, point):
        answer = complete(client, name, {**response({"resid_post": [3]}, "all_prompt", point=point), **extra})
        return rows_of(answer.capture_results["response"]["payload"]["rows"]["resid_post"])

    change = {"set": lambda f, v: v, "multiply": lambda f, v: f * v, "min": max, "max": min, "add": lambda f, v: f + v}
    before, after = captured({}, "pre"), captured(steering, "post")
    assert len(before) == len(after) > 4
    active = 0
    for x, got in zip(before, after):
        expected = list(x)
        for i, kind, value, only in clamps:
            f = max(sum(a * b for a, b in zip(x, encoder[i])), 0.0)
            active += f > 0
            if only and f == 0:
                continue
            expected = [e + (change[kind](f, value) - f) * r for e, r in zip(expected, rows[i])]
        moved = max(abs(e - a) for e, a in zip(expected, x))
        assert max(abs(e - g) for e, g in zip(expected, got)) < 0.01 * moved
    assert 0 < active < len(before) * len(clamps)


def test_a_full_reconstruction_is_what_decoding_the_edited_features_gives(client, name, rows):
    encoder = [vector(300 + i, 1.0) for i in range(FEATURES)]
    steering = {"steering": [feature(0, "set", 2.0, mode="full")["steering"], feature(1, "multiply", 3.0)["steering"]]}

    def captured(extra, point):
        answer = complete(client, name, {**response({"resid_post": [3]}, "all_prompt", point=point), **extra})
        return rows_of(answer.capture_results["response"]["payload"]["rows"]["resid_post"])

    before, after = captured({}, "pre"), captured(steering, "post")
    assert len(before) == len(after) > 4
    for x, got in zip(before, after):
        values = [max(sum(a * b for a, b in zip(x, row)), 0.0) for row in encoder]
        values[0], values[1] = 2.0, 3 * values[1]
        expected = [sum(f * row[i] for f, row in zip(values, rows)) for i in range(len(x))]
        assert max(abs(e - g) for e, g in zip(expected, got)) < 0.01 * max(abs(e) for e in expected)
    article = {"sae_full_reconstruction_specs": [{"module_name": "sae", "clamps": {"resid_post": {"3": [
        {"feature_idx": 0, "kind": "absolute", "value": 2}]}}}]}
    full, _ = ids(client, name, feature(0, "set", 2, mode="full"))
    got, answer = ids(client, name, article)
    assert got == full and answer.usage.prompt_tokens_details.cached_tokens > 0
    alone = {"steering": {"op": "feature", "dictionary": "sae", "mode": "full"}}
    assert ids(client, name, alone)[0] == ids(client, name, {"sae_full_reconstruction_specs": [{"module_name": "sae"}]})[0]


def test_a_transcoder_moves_what_it_writes_by_what_it_reads(client, name, rows):
    encoder = [vector(300 + i, 1.0) for i in range(FEATURES)]
    clamps = [(0, "set", 2.0), (1, "multiply", 3.0), (4, "min", 1.0)]
    steering = {"steering": [{**feature(i, kind, value)["steering"], "dictionary": "transcoder"}
                             for i, kind, value in clamps]}

    def captured(extra, site, point):
        answer = complete(client, name, {**response({site: [3]}, "all_prompt", point=point), **extra})
        return rows_of(answer.capture_results["response"]["payload"]["rows"][site])

    change = {"set": lambda f, v: v, "multiply": lambda f, v: f * v, "min": max}
    read, before = captured({}, "mlp_in", "pre"), captured({}, "mlp_out", "pre")
    assert captured(steering, "mlp_in", "post") == read
    after = captured(steering, "mlp_out", "post")
    assert len(before) == len(after) == len(read) > 4
    for x, row, got in zip(read, before, after):
        expected = list(row)
        for i, kind, value in clamps:
            f = max(sum(a * b for a, b in zip(x, encoder[i])), 0.0)
            expected = [e + (change[kind](f, value) - f) * r for e, r in zip(expected, rows[i])]
        moved = max(abs(e - a) for e, a in zip(expected, row))
        assert max(abs(e - g) for e, g in zip(expected, got)) < 0.01 * moved


def test_features_come_with_the_answer(server_with, client, name):
    def asked(**which):
        return {"capture": {"response": {"dictionary": "sae", "positions": "all", "dtype": "float32", **which}}}

    answer = complete(client, name, asked(top=2, sites={"resid_post": [3]}, values=["rows"]))
    payload = answer.capture_results["response"]["payload"]
    encoded = httpx2.post(server_with.url + "/v1/steering/features/encode", json={
        "dictionary": "sae", "rows": {key: payload["rows"]["resid_post"][key] for key in ("dtype", "shape", "data")}, "top": 2})
    told = payload["dictionary"]
    assert told["name"] == "sae" and told["layer"] == 3
    assert told["features"] == [row["features"] for row in encoded.json()["rows"]]
    assert len(told["values"]) == len(payload["positions"]) > answer.usage.prompt_tokens
    body = {"model": name, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "stream": True,
            **asked(features=[4, 1])}
    values = {}
    with httpx2.stream("POST", server_with.url + "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {") and '"capture":' in line:
                event = json.loads(line[6:])["capture"]["values"]
                values[event["position"]] = event["dictionary"]["values"]
    whole = complete(client, name, asked(features=[4, 1]))
    payload = whole.capture_results["response"]["payload"]
    assert [values[position] for position in payload["positions"]] == payload["dictionary"]["values"]
    rows = {key.split('reader="')[1].split('"')[0]: value for key, value in server_with.metrics().items()
            if key.startswith("rudder:capture_feature_rows_total")}
    assert rows["device"] == 0 and rows["host"] >= 3 * len(payload["positions"])  # of a CPU server
    wrong = httpx2.post(server_with.url + "/v1/completions", json={"model": name, "prompt": "a", **asked(features=[99])})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "capture.response.features[0]"


def test_clamped_and_plain_at_once(client, name):
    prompts = [f"Story number {i} is about a boat and a {word}." for i, word in enumerate(("dog", "cat", "hen", "fish"))]
    extras = [feature(i, "set", 1) for i in range(4)]
    alone = [ids(client, name, prompt=p)[0] for p in prompts]
    clamped = [ids(client, name, extra, prompt=p)[0] for p, extra in zip(prompts, extras)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            plain = [pool.submit(ids, client, name, None, p) for p in prompts]
            steered = [pool.submit(ids, client, name, extra, p) for p, extra in zip(prompts, extras)]
            assert [f.result()[0] for f in plain] == alone
            assert [f.result()[0] for f in steered] == clamped


def test_dictionaries_come_and_go(server_with, client, name):
    url = server_with.url + "/v1/steering/dictionaries"
    listed = httpx2.get(url).json()
    assert [d["name"] for d in listed["dictionaries"]] == ["sae", "transcoder"] and listed["count"] == 2
    assert listed["dictionaries"][0]["layers"][0]["features"] == FEATURES
    httpx2.post(url, json={"name": "more", "path": "three"}).raise_for_status()
    assert httpx2.post(url, json={"name": "more", "path": "three"}).status_code == 409
    extra = feature(2)
    extra["steering"]["dictionary"] = "more"
    assert ids(client, name, extra)[0] == ids(client, name, feature(2))[0]
    for path, word in (("../three", "below"), ("narrow", "8 elements"), ("absent", "no such file")):
        answer = httpx2.post(url, json={"name": "bad", "path": path})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "path"
        assert word in answer.json()["error"]["message"]
    httpx2.delete(url + "/more").raise_for_status()
    with pytest.raises(openai.NotFoundError):
        ids(client, name, extra)


def encoded(server, **body):
    return httpx2.post(server.url + "/v1/steering/features/encode", json=body)


def test_captured_rows_are_encoded(server_with, client, name):
    encoder = [vector(300 + i, 1.0) for i in range(FEATURES)]
    answer = complete(client, name, response({"resid_post": [3]}, "all_prompt"))
    pack = answer.capture_results["response"]["payload"]["rows"]["resid_post"]
    rows = rows_of(pack)
    packed = {"dtype": pack["dtype"], "shape": pack["shape"], "data": pack["data"]}
    expected = [[max(sum(a * b for a, b in zip(x, e)), 0.0) for e in encoder] for x in rows]
    listed = encoded(server_with, dictionary="sae", rows=packed, features=[4, 0]).json()
    assert listed["dictionary"] == "sae" and listed["layer"] == 3
    for row, values in zip(listed["rows"], expected):
        assert row["features"] == [4, 0]
        assert row["values"] == pytest.approx([values[4], values[0]], rel=1e-4, abs=1e-3)
    top = encoded(server_with, dictionary="sae", layer=3, rows=[list(x) for x in rows], top=2).json()
    for row, values in zip(top["rows"], expected):
        best = sorted((i for i in range(FEATURES) if values[i] > 1e-2), key=lambda i: -values[i])[:2]
        assert row["features"][:len(best)] == best


def test_what_cannot_be_encoded_is_named(server_with):
    row = vector(1, 1.0)
    for body, status, param in (
            ({"rows": [row]}, 400, "dictionary"), ({"dictionary": "none", "rows": [row]}, 404, "dictionary"),
            ({"dictionary": "sae"}, 400, "rows"), ({"dictionary": "sae", "rows": [[1.0, 2.0]]}, 400, "rows"),
            ({"dictionary": "sae", "rows": [[1.0] * 255 + ["x"]]}, 400, "rows[0][255]"),
            ({"dictionary": "sae", "rows": 3}, 400, "rows"),
            ({"dictionary": "sae", "rows": [row], "layer": 4}, 400, "layer"),
            ({"dictionary": "sae", "rows": [row], "top": 0}, 400, "top"),
            ({"dictionary": "sae", "rows": [row], "top": 1, "features": [0]}, 400, "top"),
            ({"dictionary": "sae", "rows": [row], "features": []}, 400, "features"),
            ({"dictionary": "sae", "rows": [row], "features": [FEATURES]}, 400, "features[0]"),
            ({"dictionary": "sae", "rows": [row], "what": 1}, 400, "what")):
        answer = encoded(server_with, **body)
        assert answer.status_code == status and answer.json()["error"]["param"] == param, (body.keys(), answer.text)


def test_bad_input_is_answered_with_its_path(client, name):
    for extra, field in ((feature(FEATURES), "steering.feature"), (feature(0, kind="absolute"), "steering.kind"),
                         (feature(0, value="1"), "steering.value"), (feature(0, mode="half"), "steering.mode")):
        with pytest.raises(openai.APIStatusError) as refused:
            ids(client, name, extra)
        assert refused.value.status_code in (400, 501) and refused.value.body["param"] == field


def test_flags_that_are_wrong(root):
    for flags, word in ((("--dictionary", f"x={root / 'three'}"), "--enable-steering"),
                        (("--enable-steering", "--dictionary", str(root / "three")), "NAME=PATH"),
                        (("--enable-steering", "--dictionary", f"x={root / 'narrow'}"), "8 elements"),
                        (("--enable-steering", "--dictionary", f"x={root / 'three'}@resid_post.4"), "resid_post.3"),
                        (("--enable-steering", "--dictionary-root", str(root / "absent")), "no such folder")):
        answer = run_rudder("serve", *flags, "--port", "0")
        assert answer.returncode != 0 and word in answer.stderr + answer.stdout, (flags, answer.stderr)
