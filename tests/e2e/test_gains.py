"""A transcoder that reads rows without the norm's gain, as Gemma Scope 1 publishes them: clamped, encoded whole, read
out and gated on through the real server, against formulas on the captured rows and the gain in the model's file."""

import json
import pathlib
import shutil
import struct

import httpx2
import pytest

from conftest import run_rudder, serving
from dictionary import write_gemma_scope
from test_capture import complete, response, rows_of
from test_steering import vector

LAYER = 3
FEATURES = 6
DEMO = pathlib.Path(__file__).parents[2] / "models" / "demo"
GAIN = f"model.layers.{LAYER}.post_attention_layernorm.weight"
SITES = f"blocks.{LAYER}.ln2.hook_normalized,mlp_out.{LAYER}"

ENCODER = [vector(400 + i, 1.0) for i in range(FEATURES)]
DECODER = [vector(500 + i, 8.0) for i in range(FEATURES)]
ENCODER_BIAS = [0.1 * (i - 2) for i in range(FEATURES)]
THRESHOLDS = [0.1 * i for i in range(FEATURES)]
OUTPUT_BIAS = vector(600, 2.0)


def tensor_of(file, name):
    """(dtype, where its bytes begin, where they end) in a safetensors file."""
    with open(file, "rb") as opened:
        size = struct.unpack("<Q", opened.read(8))[0]
        found = json.loads(opened.read(size))[name]
    return found["dtype"], 8 + size + found["data_offsets"][0], 8 + size + found["data_offsets"][1]


def gain():
    dtype, begin, end = tensor_of(DEMO / "model.safetensors", GAIN)
    raw = (DEMO / "model.safetensors").read_bytes()[begin:end]
    if dtype == "BF16":
        raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
    return struct.unpack(f"<{len(raw) // 4}f", raw)


@pytest.fixture(scope="module")
def transcoder(tmp_path_factory):
    return write_gemma_scope(tmp_path_factory.mktemp("scope"), ENCODER, DECODER, ENCODER_BIAS, THRESHOLDS, OUTPUT_BIAS)


@pytest.fixture(scope="module")
def server_with(transcoder):
    with serving("--enable-steering", "--dictionary", f"scope={transcoder}@{SITES}", "--capture-memory-mb", "8",
                 model=DEMO) as running:
        yield running


@pytest.fixture(scope="module")
def client(server_with):
    return server_with.client()


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


def features_of(row):
    """Of the model's row, which has the gain."""
    x = [value / g for value, g in zip(row, gain())]
    pre = [sum(a * b for a, b in zip(x, weights)) + bias for weights, bias in zip(ENCODER, ENCODER_BIAS)]
    return [max(p, 0.0) if p > threshold else 0.0 for p, threshold in zip(pre, THRESHOLDS)]


def captured(client, name, extra, site, point):
    answer = complete(client, name, {**response({site: [LAYER]}, "all_prompt", point=point), **extra})
    return rows_of(answer.capture_results["response"]["payload"]["rows"][site])


def clamp(feature, kind, value, **more):
    return {"op": "feature", "dictionary": "scope", "feature": feature, "kind": kind, "value": value, **more}


CLAMPS = [(0, "set", 2.0), (1, "multiply", 3.0), (4, "min", 1.0)]
CHANGE = {"set": lambda f, v: v, "multiply": lambda f, v: f * v, "min": max}


def edited(features):
    out = list(features)
    for i, kind, value in CLAMPS:
        out[i] = CHANGE[kind](out[i], value)
    return out


def decoded(features):
    return [sum(f * row[i] for f, row in zip(features, DECODER)) for i in range(len(DECODER[0]))]


@pytest.mark.parametrize("mode", ["delta", "full"])
def test_clamps_are_of_the_row_without_the_gain(client, name, mode):
    read, before = (captured(client, name, {}, site, "pre") for site in ("mlp_in", "mlp_out"))
    steering = {"steering": [clamp(i, kind, value, mode=mode) for i, kind, value in CLAMPS]}
    after = captured(client, name, steering, "mlp_out", "post")
    assert len(before) == len(after) == len(read) > 4
    active = 0
    for x, row, got in zip(read, before, after):
        f = features_of(x)
        active += sum(value > 0 for value in f)
        if mode == "full":
            expected = [a + b for a, b in zip(decoded(edited(f)), OUTPUT_BIAS)]
            scale = max(abs(e) for e in expected)
        else:
            moved = decoded([a - b for a, b in zip(edited(f), f)])
            expected = [a + b for a, b in zip(row, moved)]
            scale = max(abs(m) for m in moved)
        assert max(abs(e - g) for e, g in zip(expected, got)) < 1e-3 * scale
    assert 0 < active < len(read) * FEATURES


def test_readout_and_gate_agree(client, name):
    def told(answer):
        return answer.capture_results["response"]["payload"]

    ask = {"capture": {"response": {"dictionary": "scope", "positions": "all_prompt", "dtype": "float32",
                                    "features": list(range(FEATURES)), "sites": {"mlp_in": [LAYER]},
                                    "values": ["rows"]}}}
    payload = told(complete(client, name, ask))
    rows, values = rows_of(payload["rows"]["mlp_in"]), payload["dictionary"]["values"]
    for row, got in zip(rows, values):
        assert got == pytest.approx(features_of(row), rel=1e-4, abs=1e-4)
    # A gate between two values of a feature is open at the tokens above it and shut at the others.
    feature = 0
    ordered = sorted({value[feature] for value in values})
    above = (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2
    gate = {"feature": {"dictionary": "scope", "feature": feature, "above": above}}
    push = {"steering": {"op": "add", "site": "mlp_in", "layers": [LAYER], "vector": vector(700, 5.0), "gate": gate}}
    pushed = captured(client, name, push, "mlp_in", "post")
    opened = [list(row) != list(plain) for row, plain in zip(pushed, rows)]
    assert opened == [value[feature] > above for value in values] and len(set(opened)) == 2


def test_the_listing_says_so(server_with):
    listed = httpx2.get(server_with.url + "/v1/steering/dictionaries").json()
    assert listed["dictionaries"][0]["layers"][0] == {
        "read": f"mlp_in.{LAYER}", "without_gain": True, "write": f"mlp_out.{LAYER}", "writes": 1, "features": FEATURES,
        "activation": "jumprelu"}


def test_a_gain_of_zero_is_named(transcoder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    dtype, begin, end = tensor_of(model / "model.safetensors", GAIN)
    size = {"BF16": 2, "F16": 2, "F32": 4}[dtype]
    with open(model / "model.safetensors", "r+b") as opened:
        opened.seek(begin + 17 * size)
        opened.write(bytes(size))
    answer = run_rudder("serve", model, "--enable-steering", "--dictionary", f"scope={transcoder}@{SITES}", "--port", "0")
    assert answer.returncode != 0 and f"column 17 of the model's '{GAIN}' multiplies by 0" in answer.stderr
    answer = run_rudder("serve", DEMO, "--enable-steering", "--dictionary",
                        f"scope={transcoder}@mlp_in.{LAYER},mlp_out.{LAYER}", "--port", "0")
    assert answer.returncode != 0 and f"@{SITES}" in answer.stderr
