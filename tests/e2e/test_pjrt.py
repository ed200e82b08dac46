"""`--device pjrt:PATH`: compiled modules answer what the CPU backend answers, with all that goes through them."""

import base64
import concurrent.futures
import glob
import os
import struct

import httpx2
import pytest

from conftest import is_instrumented, run_rudder, serving

pytestmark = pytest.mark.skipif(is_instrumented(), reason="the compiler of a plugin is not instrumented")

PLUGIN = os.environ.get("RUDDER_PJRT_PLUGIN") or next(iter(glob.glob(os.path.join(
    os.path.dirname(__file__), "../../.venv-pjrt/lib/python3*/site-packages/lammps_jax_pjrt_cpu/*.so"))), "")
DEVICE = ("--device", f"pjrt:{PLUGIN}")
FLAGS = ("--dtype", "float32", "--enable-steering", "--capture-memory-mb", "8", "--max-num-batched-tokens", "320",
         "--max-model-len", "1024", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64MiB", "--speculative-method", "ngram", "--prompt-lookup-min", "1",
         "--prompt-lookup-max", "3", "--no-speculative-adaptive")
RAMP = [((i * 37) % 101 - 50) / 50 for i in range(256)]
SITES = {"resid_pre": [0, 3], "attn_in": [1], "attn_z": [2], "attn_out": [2], "resid_mid": [3], "mlp_in": [3], "mlp_act": [5],
         "mlp_out": [5], "resid_post": [4, 7], "final_norm": [7]}


def steered(op, site, layers):
    return {"op": op, "site": site, "layers": layers, "vector": RAMP, **({"scale": 2} if op == "add" else {})}


def asks():
    prompt = "the boat goes over the lake and the boat goes "
    capture = {"response": {"sites": SITES, "positions": "all", "dtype": "float32"}}
    return [
        {"prompt": prompt, "logprobs": 3},
        {"prompt": prompt * 30},  # several chunks, and more blocks than one page bucket
        {"prompt": prompt * 6, "temperature": 0.8, "seed": 7, "repetition_penalty": 1.2},
        {"prompt": "one two three", "n": 3, "temperature": 1, "seed": 3},
        {"prompt": "a number:", "structured_outputs": {"regex": "[0-9]{3,5}"}},
        {"prompt": "cats sing about rain", "prompt_logprobs": 2},
        {"prompt": "What is 27 + 58?", "capture": capture},
        {"prompt": "one two three", "steering": steered("add", "resid_post", [2]), "capture": capture},
        {"prompt": "one two three"},
        {"prompt": prompt, "steering": [steered("ablate", "attn_out", [1]), steered("add", "resid_pre", [5])]},
        {"prompt": prompt * 3, "steering": {**steered("add", "resid_post", [6]), "select": {"phase": "decode"}}},
    ]


def numbers(payload):
    """Every captured row, by site and layer."""
    found = {}
    for site, rows in payload["rows"].items():
        data = base64.b64decode(rows["data"])
        found[site] = struct.unpack(f"<{len(data) // 4}f", data)
    return found


def answers(server):
    def ask(body):
        answer = httpx2.post(server.url + "/v1/completions", timeout=300,
                             json={"max_tokens": 16, "temperature": 0, "return_token_ids": True, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    bodies = asks()
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(ask, bodies))
    return together + [ask(body) for body in bodies]  # the second time from the prefix cache


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Compiled modules of this run alone."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


# Codes are one apart where a number lies between two; tokens then may differ, once they are sampled.
@pytest.mark.parametrize("kv,tolerance", [("auto", 1e-4), ("int8_per_token_head", 2e-2)])
def test_modules_answer_what_the_cpu_answers(cache, kv, tolerance):
    assert PLUGIN, "tools/setup.sh test installs the plugin"
    flags = (*FLAGS, "--kv-cache-dtype", kv)
    with serving(*flags, "--device", "cpu") as cpu:
        expected = answers(cpu)
    with serving(*flags, *DEVICE) as modules:
        actual = answers(modules)
        assert modules.metric("rudder:spec_decode_num_accepted_tokens_total") > 0
    for ask, one, other in zip(asks() * 2, expected, actual, strict=True):
        if kv == "auto" or "temperature" not in ask:
            assert [c["token_ids"] for c in one["choices"]] == [c["token_ids"] for c in other["choices"]], ask
        if "capture" in ask:
            rows = numbers(one["capture_results"]["response"]["payload"])
            assert set(rows) == set(SITES)
            for site, values in numbers(other["capture_results"]["response"]["payload"]).items():
                worst = max(abs(a - b) for a, b in zip(rows[site], values, strict=True))
                largest = max(map(abs, rows[site]))
                assert worst <= tolerance * max(1, largest), (site, worst, largest)
    assert asks()[7]["prompt"] == asks()[8]["prompt"] and "steering" in asks()[7]
    assert actual[7]["choices"][0]["token_ids"] != actual[8]["choices"][0]["token_ids"], "steering does something"
    assert any(name.endswith(".pjrt") for name in os.listdir(cache / "rudder/pjrt"))


@pytest.mark.parametrize("flags,where", [
    (("--device", "pjrt:/no/such/plugin.so"), "device"),
    (("--device", "pjrt:README.md"), "device"),
    (("--device", "pjrt:"), "device"),
    ((*DEVICE, "--quantization", "fp8"), "quantization"),
    ((*DEVICE, "--kv-cache-dtype", "fp8"), "kv-cache-dtype"),
    ((*DEVICE, "--tensor-parallel-size", "2"), "tensor-parallel-size"),
    ((*DEVICE, "--pipeline-parallel-size", "2"), "pipeline-parallel-size"),
    ((*DEVICE, "--enable-lora"), "enable-lora"),
    ((*DEVICE, "--kv-host-gib", "1"), "kv-host-gib"),
    ((*DEVICE, "--batch-invariant"), "batch-invariant"),
])
def test_what_modules_do_not_do_is_refused_by_name(flags, where):
    done = run_rudder("generate", "--prompt", "a", "--max-tokens", "1", *flags)
    assert done.returncode != 0
    assert where in done.stderr, done.stderr
