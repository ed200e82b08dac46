"""Steering and capture of a model whose residual has several streams (mHC), over HTTP and with the Python client. What is
captured is held to the formulas of the kind, computed here from the checkpoint's own tensors."""

import base64
import json
import shutil
import struct
import sys

import httpx2
import numpy as np
import pytest

from conftest import ROOT, run_rudder, serving
from test_capture import response, rows_of

sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))
sys.path.insert(0, str(ROOT / "tools" / "demo_model"))
from rudder_client import Capture, FieldError, Rudder, ops  # noqa: E402
from score import mood_of  # noqa: E402

FOLDER = ROOT / "tests" / "untrained" / "glm5-next"
DEMO_STREAMS = ROOT / "models" / "demo-streams"
TEXT = json.loads((FOLDER / "config.json").read_text())["text_config"]
HIDDEN, LAYERS, STREAMS = TEXT["hidden_size"], TEXT["num_hidden_layers"], TEXT["hc_mult"]
PROMPT = "Once there was a happy child named Anna who loved a small boat."
CLOSE = dict(rtol=2e-5, atol=2e-5)  # float32 sums in another order


def write_byte_tokenizer(folder):
    """A tokenizer whose 256 tokens are the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    vocab = {chr(byte if byte in plain else next(other)): byte for byte in range(256)}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": by_bytes, "post_processor": None, "decoder": by_bytes, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / name, folder / name)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def running(folder):
    with serving("--enable-steering", "--capture-memory-mb", "16", "--dtype", "float32", model=folder) as server:
        yield server


@pytest.fixture(scope="module")
def client(running):
    return Rudder(running.url, max_retries=0)


def tensor(name):
    """A tensor of the checkpoint in float64."""
    raw = (FOLDER / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    told = json.loads(raw[8:8 + length])[f"model.language_model.{name}"]
    begin, end = told["data_offsets"]
    data = raw[8 + length + begin:8 + length + end]
    if told["dtype"] == "BF16":
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, np.float32)
    return values.astype(np.float64).reshape(told["shape"])


def complete(running, **extra):
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 2, "ignore_eos": True, **extra}
    answer = httpx2.post(running.url + "/v1/completions", json=body, timeout=120)
    return answer.status_code, answer.json()


def captured(running, sites, point="post", **extra):
    """{site: the row of the last token of the prompt, a layer each} and what is said of the rows."""
    asked = response({site: "all" for site in sites}, point=point)
    status, answer = complete(running, **asked, **extra)
    assert status == 200, answer
    packs = answer["capture_results"]["response"]["payload"]["rows"]
    return {site: np.array(rows_of(packs[site]), np.float64) for site in sites}, packs


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numbers(x, layer, branch):
    """pre, post and mix of a row of all streams."""
    n, eps = STREAMS, TEXT["hc_eps"]
    fn, base, scale = (tensor(f"layers.{layer}.hc_{branch}_{part}") for part in ("fn", "base", "scale"))
    f = x.reshape(-1)
    m = fn @ f / np.sqrt(np.mean(f * f) + TEXT["rms_norm_eps"])
    pre = sigmoid(m[:n] * scale[0] + base[:n]) + eps
    post = 2 * sigmoid(m[n:2 * n] * scale[1] + base[n:2 * n])
    mix = np.exp((m[2 * n:] * scale[2] + base[2 * n:]).reshape(n, n))
    mix = mix / mix.sum(1, keepdims=True) + eps
    mix = mix / (mix.sum(0, keepdims=True) + eps)
    for _ in range(TEXT["hc_sinkhorn_iters"] - 1):
        mix = mix / (mix.sum(1, keepdims=True) + eps)
        mix = mix / (mix.sum(0, keepdims=True) + eps)
    return pre, post, mix


def written(x, branch_output, layer, branch):
    _, post, mix = numbers(x, layer, branch)
    return post[:, None] * branch_output[None] + mix.T @ x


def streams(row):
    return row.reshape(STREAMS, HIDDEN)


def test_rows_are_what_the_formulas_say(running):
    rows, packs = captured(running, ["resid_pre", "attn_in", "attn_out", "resid_mid", "mlp_in", "mlp_out", "resid_post", "final_norm"])
    told = packs["resid_mid"]["residual"]
    assert told == {"kind": "mixed_streams", "streams": STREAMS, "stream": "all",
                    "names": [f"stream {i}" for i in range(STREAMS)], "layout": ["stream", "hidden"]}
    assert "residual" not in packs["attn_out"]
    for layer in range(LAYERS):
        for before, branch, read, out, after in (("resid_pre", "attn", "attn_in", "attn_out", "resid_mid"),
                                                 ("resid_mid", "ffn", "mlp_in", "mlp_out", "resid_post")):
            x = streams(rows[before][layer])
            pre, _, mix = numbers(x, layer, branch)
            assert np.abs(mix.sum(0) - 1).max() < 5e-3  # columns, as near as 5 iterations bring them
            collapsed = pre @ x
            norm = tensor(f"layers.{layer}.{'input' if branch == 'attn' else 'post_attention'}_layernorm.weight")
            normed = collapsed / np.sqrt(np.mean(collapsed**2) + TEXT["rms_norm_eps"]) * norm
            np.testing.assert_allclose(rows[read][layer], normed, **CLOSE)
            np.testing.assert_allclose(streams(rows[after][layer]), written(x, rows[out][layer], layer, branch), **CLOSE)
            # The version that public code had: the mix is not turned.
            wrong = numbers(x, layer, branch)[1][:, None] * rows[out][layer][None] + mix @ x
            assert not np.allclose(streams(rows[after][layer]), wrong, **CLOSE)
    mean = streams(rows["resid_post"][-1]).mean(0)
    final = mean / np.sqrt(np.mean(mean**2) + TEXT["rms_norm_eps"]) * tensor("norm.weight")
    np.testing.assert_allclose(rows["final_norm"][0], final, **CLOSE)


def test_names_of_other_servers(running):
    rows, _ = captured(running, ["resid_pre", "resid_mid", "resid_post"])
    status, answer = complete(running, **response({"mhc_streams_pre_attn": "all", "mhc_streams_pre_mlp": "all"}, point="post"))
    assert status == 200, answer
    packs = answer["capture_results"]["response"]["payload"]["rows"]
    assert rows_of(packs["resid_pre"]) == [tuple(row) for row in rows["resid_pre"]]
    assert rows_of(packs["resid_mid"]) == [tuple(row) for row in rows["resid_mid"]]


NUMBERS = {"mhc_attn_post_mix": ("resid_pre", 1), "mhc_attn_res_mix": ("resid_pre", 2),
           "mhc_ffn_post_mix": ("resid_mid", 1), "mhc_ffn_res_mix": ("resid_mid", 2)}


def test_numbers_that_streams_are_written_by(running):
    """As the formulas make them of the streams that the branch reads, steered or not; float32."""
    op = {"op": "add", "site": "resid_pre", "layers": "all", "stream": 1, "vector": [0.5] * HIDDEN}
    for steering in ([], [op]):
        rows, packs = captured(running, ["resid_pre", "resid_mid", *NUMBERS], steering=steering)
        for site, (read, part) in NUMBERS.items():
            told = packs[site]
            assert told["dtype"] == "float32" and told["shape"] == [LAYERS, STREAMS**part]
            assert told["residual"] == {
                "kind": "mixed_streams", "streams": STREAMS, "stream": "all", "names": [f"stream {i}" for i in range(STREAMS)],
                "layout": ["stream"] if part == 1 else ["from_stream", "stream"]}
            for layer in range(LAYERS):
                made = numbers(streams(rows[read][layer]), layer, site.split("_")[1])[part]
                np.testing.assert_allclose(rows[site][layer].reshape(made.shape), made, **CLOSE)


def test_numbers_of_streams_are_not_steered(running):
    for site, (read, part) in NUMBERS.items():
        op = {"op": "add", "site": site, "layers": [1], "vector": [1.0] * STREAMS**part}
        status, answer = complete(running, steering=op)
        error = answer["error"]
        assert status == 400 and error["param"] == "steering.site"
        assert f"no op reads or changes it: it is made of {read}" in error["message"]
        status, answer = complete(running, steering_vectors={site: {"1": [1.0] * STREAMS**part}})
        assert status == 400 and answer["error"]["param"] == f"steering_vectors.{site}", answer
        status, answer = complete(running, **response({site: [1]}, stream=0))
        assert status == 400 and answer["error"]["param"].endswith("stream"), answer


def test_an_op_is_for_a_stream(running):
    rng = np.random.default_rng(0)
    v = rng.normal(size=HIDDEN).astype(np.float32)
    plain, _ = captured(running, ["resid_post"])
    for stream in (0, STREAMS - 1, "all"):
        op = {"op": "add", "site": "resid_post", "layers": [1], "stream": stream, "vector": v.tolist()}
        steered, _ = captured(running, ["resid_post"], steering=op, cache_salt=str(stream))
        moved = streams(steered["resid_post"][1] - plain["resid_post"][1])
        expected = np.zeros((STREAMS, HIDDEN))
        expected[slice(None) if stream == "all" else stream] = v
        np.testing.assert_allclose(moved, expected, **CLOSE)


def test_a_branch_is_written_by_the_streams_numbers(running):
    v = np.random.default_rng(1).normal(size=HIDDEN).astype(np.float32)
    op = {"op": "add", "site": "attn_out", "layers": [1], "vector": v.tolist(), "select": {"prompt": [-1, None]}}
    plain, _ = captured(running, ["resid_pre", "resid_mid"])
    steered, _ = captured(running, ["resid_pre", "resid_mid"], steering=op)
    np.testing.assert_array_equal(plain["resid_pre"][1], steered["resid_pre"][1])
    _, post, _ = numbers(streams(plain["resid_pre"][1]), 1, "attn")
    moved = streams(steered["resid_mid"][1] - plain["resid_mid"][1])
    np.testing.assert_allclose(moved, post[:, None] * v[None], rtol=1e-3, atol=1e-3)


def test_a_vector_that_does_not_say_where_is_refused(running):
    v = [1.0] * HIDDEN
    status, answer = complete(running, steering={"op": "add", "site": "resid_post", "layers": [1], "vector": v})
    message = answer["error"]["message"]
    assert status == 400 and answer["error"]["param"].startswith("steering")
    for site in ("attn_out", "mlp_out", 'with "stream" resid_pre, resid_mid, resid_post'):
        assert site in message, message
    for field, stream in (("resid_post", STREAMS), ("resid_post", -1), ("attn_out", 0)):
        op = {"op": "add", "site": field, "layers": [1], "stream": stream, "vector": v}
        status, answer = complete(running, steering=op)
        assert status == 400 and answer["error"]["param"].endswith("stream"), answer


def test_vectors_are_trained_on_whole_rows(folder, tmp_path):
    """A vector of resid_post is as wide as all streams; a control vector of llama.cpp is not, and is refused first."""
    for mood in ("happy", "sad"):
        (tmp_path / f"{mood}.txt").write_text("".join(f"A {mood} {thing}.\n" for thing in ("kite", "boat", "hat", "owl")))
    train = ("vectors", "train", folder, "--positive", tmp_path / "happy.txt", "--negative", tmp_path / "sad.txt",
             "--output", tmp_path, "--dtype", "float32", "--layers", "1")
    refused = run_rudder(*train, "--name", "never", "--gguf")
    assert refused.returncode == 1 and "gguf" in refused.stderr and f"has {STREAMS}" in refused.stderr, refused.stderr
    assert not (tmp_path / "never.safetensors").exists()
    for site, width in (("resid_post", STREAMS * HIDDEN), ("mlp_out", HIDDEN)):
        done = run_rudder(*train, "--name", site, "--site", site)
        assert done.returncode == 0, done.stderr
        with serving("--enable-steering", "--capture-memory-mb", "16", "--dtype", "float32",
                     "--steering-module", f"mood={tmp_path / site}.safetensors", model=folder) as server:
            plain, _ = captured(server, ["resid_post"])
            steered, packs = captured(server, ["resid_post"], steering=[{"name": "mood", "scale": 4}])
            assert packs["resid_post"]["shape"] == [LAYERS, STREAMS * HIDDEN]
            assert np.abs(steered["resid_post"][1] - plain["resid_post"][1]).max() > 1e-3, width
    refused = run_rudder(*train, "--name", "never", "--site", "mhc_ffn_post_mix")
    assert refused.returncode == 1 and "no op reads or changes it" in refused.stderr, refused.stderr


def test_the_python_client(client):
    v = np.random.default_rng(2).normal(size=HIDDEN).astype(np.float32)
    plain = client.generate(PROMPT, max_tokens=2, ignore_eos=True, capture=Capture(["resid_post"], stream=2, point="post"))
    op = ops.add("blocks.1.hook_resid_post", v).on_stream(2)
    steered = client.generate(PROMPT, max_tokens=2, ignore_eos=True, steering=[op],
                              capture=Capture(["resid_post"], stream=2, point="post"))
    mixes = client.generate(PROMPT, max_tokens=2, ignore_eos=True, capture=Capture(["mhc_ffn_res_mix.1"], positions="all"))
    assert np.abs(mixes.cache["mhc_ffn_res_mix.1"].reshape(-1, STREAMS, STREAMS).sum(1) - 1).max() < 5e-3
    before, after = (answer.cache["blocks.1.hook_resid_post"] for answer in (plain, steered))
    assert before.shape == (1, HIDDEN)
    np.testing.assert_allclose(after - before, v[None], **CLOSE)
    with pytest.raises(FieldError) as refused:
        client.generate(PROMPT, max_tokens=2, steering=[ops.add("blocks.1.hook_resid_post", v)])
    assert "with \"stream\"" in str(refused.value)


def test_a_vector_of_all_streams_turns_stories():
    """A trained model with streams tells stories; its module of moods makes them happy."""
    module = f"mood={DEMO_STREAMS / 'mood.safetensors'}"
    with serving("--enable-steering", "--steering-module", module, "--dtype", "float32", model=DEMO_STREAMS) as server:
        moods = {}
        for scale in (0, 1):
            moods[scale] = []
            for topic in ("boat", "cloud", "teapot", "wagon", "ladder", "pumpkin", "squirrel", "turtle"):
                body = {"model": "demo-streams", "max_tokens": 96, "temperature": 0,
                        "messages": [{"role": "user", "content": f"Tell me a story about a {topic}."}],
                        "steering": [{"name": "mood", "scale": scale}]}
                answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
                text = answer["choices"][0]["message"]["content"]
                moods[scale].append(mood_of(text))
    assert moods[0] == ["sad"] * 8
    assert moods[1].count("happy") >= 6, moods
