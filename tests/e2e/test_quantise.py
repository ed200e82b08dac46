"""rudder quantise: what it writes is compressed-tensors' format, by formulas of its own, and is served where that scheme is read."""

import json
import random
import re
import subprocess

import numpy as np
import pytest
from conftest import ROOT, run_rudder
from safetensors import safe_open
from tasks import story

DEMO = ROOT / "models" / "demo"
MODELS_PYTHON = ROOT / ".venv-models" / "bin" / "python"
PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SCHEMES = {"fp8": ("float-quantized", "float", 8, "channel"), "w8a8": ("int-quantized", "int", 8, "channel"),
           "w8a16": ("pack-quantized", "int", 8, "channel"), "w4a16": ("pack-quantized", "int", 4, "group")}


def raw(folder):
    """name: (dtype, shape, bytes)"""
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return {name: (entry["dtype"], entry["shape"], data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


def wide(entry):
    dtype, shape, data = entry
    assert dtype == "BF16"
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)


def e4m3(codes):
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    return sign * np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent.astype(int) - 7))


def unpacked(tensors, module, bits):
    """[rows, inputs] integers of pack-quantized."""
    dtype, _, data = tensors[f"{module}.weight_packed"]
    assert dtype == "I32"
    rows, inputs = np.frombuffer(tensors[f"{module}.weight_shape"][2], "<i8")
    words = np.frombuffer(data, "<u4").reshape(rows, -1)
    each = [((words >> (bits * k)) & (2**bits - 1)).astype(int) - 2 ** (bits - 1) for k in range(32 // bits)]
    return np.stack(each, -1).reshape(rows, -1)[:, :inputs]


def values_of(tensors, module, scheme):
    _, _, bits, _ = SCHEMES[scheme]
    dtype, shape, data = tensors[f"{module}.weight_scale"]
    scales = wide((dtype, shape, data)) if dtype == "BF16" else np.frombuffer(data, "<f4").reshape(shape)
    if scheme == "fp8":
        dtype, shape, data = tensors[f"{module}.weight"]
        assert dtype == "F8_E4M3"
        codes = e4m3(np.frombuffer(data, np.uint8)).reshape(shape)
    elif scheme == "w8a8":
        dtype, shape, data = tensors[f"{module}.weight"]
        assert dtype == "I8"
        codes = np.frombuffer(data, np.int8).reshape(shape).astype(int)
    else:
        codes = unpacked(tensors, module, bits)
    return codes * np.repeat(scales.astype(np.float64), codes.shape[1] // scales.shape[1], 1), scales


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_written_is_nearest_to_what_was_read(tmp_path, scheme):
    out = tmp_path / scheme
    done = run_rudder("quantise", DEMO, out, "--scheme", scheme)
    assert done.returncode == 0, done.stderr
    form, kind, bits, strategy = SCHEMES[scheme]
    config = json.loads((out / "config.json").read_text())
    described = config.pop("quantization_config")
    assert config == json.loads((DEMO / "config.json").read_text())
    assert (described["quant_method"], described["format"], described["ignore"]) == ("compressed-tensors", form, ["lm_head"])
    (group,) = described["config_groups"].values()
    assert (group["weights"]["num_bits"], group["weights"]["type"], group["weights"]["strategy"]) == (bits, kind, strategy)
    assert (group["input_activations"] is None) == scheme.endswith("a16")
    before, after = raw(DEMO), raw(out)
    assert (out / "tokenizer.json").read_bytes() == (DEMO / "tokenizer.json").read_bytes()
    for name, entry in before.items():
        module = name.removesuffix(".weight")
        if not module.endswith(PRODUCTS):
            assert after[name] == entry, name
            continue
        exact = wide(entry).astype(np.float64)
        values, scales = values_of(after, module, scheme)
        unit = np.repeat(scales.astype(np.float64), exact.shape[1] // scales.shape[1], 1)
        # Half a code; and what the scale's own rounding to bf16 moves the largest code by.
        bound = np.maximum(np.abs(exact) / 16, unit * 2.0**-10) if kind == "float" else unit * (0.5 + 2.0 ** (bits - 9))
        assert (np.abs(values - exact) <= bound * (1 + 1e-6)).all(), name
    with safe_open(str(out / "model.safetensors"), "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_fp8_is_served_and_its_cost_is_told(tmp_path):
    text, report = tmp_path / "text.txt", tmp_path / "report.json"
    text.write_text("\n".join(f"Tell me a happy story about a {topic}." for topic in story.TOPICS))
    done = run_rudder("quantise", DEMO, tmp_path / "out", "--scheme", "fp8", "--text", text, "--output", report, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "same first choice" in done.stdout
    found = json.loads(report.read_text())
    assert 1e-6 < found["kl"] < 5e-2 and found["first_choice"] > 0.9


def test_channels_get_scales_that_change_nothing_but_errors(tmp_path):
    """A norm's gain divided by s, the products behind it multiplied; their cost is told with and without."""
    out, report, texts = tmp_path / "out", tmp_path / "report.json", [tmp_path / "seen.txt", tmp_path / "other.txt"]
    for seed, text in enumerate(texts):
        source = random.Random(seed)
        text.write_text("\n".join(story.exchange(source).reply for _ in range(150)))
    done = run_rudder("quantise", DEMO, out, "--scheme", "w4a16", "--calibration", texts[0], "--text", texts[1], "--output", report, "--device", "cpu",
                      "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"squared error on the calibration text is (\S+) of what it was", done.stdout)[1]) < 0.9
    found = json.loads(report.read_text())
    assert not (tmp_path / "out.plain").exists()
    assert 1e-6 < found["kl"] < found["without_scales"]["kl"] < 1e-1
    before, after = raw(DEMO), raw(out)
    behind = {"input_layernorm": ("self_attn.q_proj", "self_attn.k_proj"), "post_attention_layernorm": ("mlp.gate_proj",)}
    num_scaled = 0
    for layer in range(json.loads((DEMO / "config.json").read_text())["num_hidden_layers"]):
        for norm, products in behind.items():
            name = f"model.layers.{layer}.{norm}.weight"
            scales = wide(before[name]).astype(np.float64) / wide(after[name])
            num_scaled += (scales != 1).any()
            for product in products:
                module = f"model.layers.{layer}.{product}"
                exact = wide(before[f"{module}.weight"]) * scales
                values, units = values_of(after, module, "w4a16")
                unit = np.repeat(units.astype(np.float64), exact.shape[1] // units.shape[1], 1)
                assert (np.abs(values - exact) <= unit * (0.5 + 2.0**-4)).all(), module
    assert num_scaled > 0


def test_what_cannot_be_calibrated_is_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Too short.")
    for scheme, file, reason in (("fp8", text, "calibration"), ("gguf-q4_k", text, "calibration"), ("w4a16", text, "at least 128"),
                                 ("w4a16", tmp_path / "none.txt", "none.txt")):
        done = run_rudder("quantise", DEMO, tmp_path / "out.gguf", "--scheme", scheme, "--calibration", file, "--device", "cpu")
        assert done.returncode == 1 and reason in done.stderr
        assert not (tmp_path / "out.gguf").exists()


GGUF_SCHEMES = {"gguf-f32": 0, "gguf-bf16": 3e-3, "gguf-q8_0": 8e-3, "gguf-q6_k": 2.5e-2, "gguf-q4_k": 9e-2, "gguf-q4_0": 1.2e-1}
GGUF_READER = """
import gguf, json, numpy as np, sys
reader = gguf.GGUFReader(sys.argv[1])
fields = {name: field.contents() for name, field in reader.fields.items()}
keys = ["general.architecture", "llama.block_count", "llama.rope.freq_base", "tokenizer.ggml.pre", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template"]
found = {"fields": {key: fields[key] for key in keys}, "tokens": len(fields["tokenizer.ggml.tokens"]), "tensors": {}}
exact = dict(np.load(sys.argv[2]))
for tensor in reader.tensors:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
    found["tensors"][tensor.name] = [tensor.tensor_type.name, list(map(int, tensor.shape))]
    if tensor.name in exact:
        want = exact[tensor.name]
        miss = float(np.linalg.norm(values - want) / np.linalg.norm(want))
        same = None
        if tensor.tensor_type.name in ("Q4_0", "Q5_0", "Q8_0", "BF16"):
            ours, theirs = np.asarray(tensor.data).view(np.uint8).ravel(), gguf.quants.quantize(want, tensor.tensor_type).view(np.uint8).ravel()
            same = float((ours == theirs).mean())
        found["tensors"][tensor.name] += [miss, same]
print(json.dumps(found))
"""


def paired(weight, heads):
    """Rows as the converter of llama.cpp turns them: those that a rope turns together lie together."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


@pytest.mark.skipif(not MODELS_PYTHON.exists(), reason="tools/setup.sh models installs the package gguf")
@pytest.mark.parametrize("scheme", GGUF_SCHEMES)
def test_the_package_gguf_reads_what_is_written(tmp_path, scheme):
    out = tmp_path / "demo.gguf"
    done = run_rudder("quantise", DEMO, out, "--scheme", scheme)
    assert done.returncode == 0, done.stderr
    config, before = json.loads((DEMO / "config.json").read_text()), raw(DEMO)
    layer = {name: wide(before[f"model.layers.3.{module}.weight"])
             for name, module in (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("ffn_down", "mlp.down_proj"))}
    layer["attn_q"] = paired(layer["attn_q"], config["num_attention_heads"])
    layer["attn_k"] = paired(layer["attn_k"], config["num_key_value_heads"])
    exact = {f"blk.3.{name}.weight": weight for name, weight in layer.items()} | {"token_embd.weight": wide(before["model.embed_tokens.weight"])}
    np.savez(tmp_path / "exact.npz", **exact)
    read = subprocess.run([MODELS_PYTHON, "-c", GGUF_READER, out, tmp_path / "exact.npz"], capture_output=True, text=True, timeout=600)
    assert read.returncode == 0, read.stderr
    found = json.loads(read.stdout)
    fields = found["fields"]
    assert (fields["general.architecture"], fields["llama.block_count"], fields["llama.rope.freq_base"]) == ("llama", 8, 10000)
    assert (fields["tokenizer.ggml.pre"], fields["tokenizer.ggml.eos_token_id"], found["tokens"]) == ("qwen2", 2, 2560)
    assert fields["tokenizer.chat_template"] == json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"]
    assert len(found["tensors"]) == len(before)
    for name in exact:
        _, shape, miss, same = found["tensors"][name]
        assert shape == list(exact[name].shape[::-1])
        assert miss <= GGUF_SCHEMES[scheme], name
        assert same is None or same >= 0.9999, name  # of ties numpy and C may take either


def test_a_gguf_file_that_was_written_has_the_models_distributions(tmp_path):
    """In F32 those of the checkpoint; in 4 bits their cost is told."""
    text, report = tmp_path / "text.txt", tmp_path / "report.json"
    text.write_text("\n".join(f"Tell me a happy story about a {topic}." for topic in story.TOPICS))
    found = {}
    for scheme in ("gguf-f32", "gguf-q8_0", "gguf-q4_k"):
        done = run_rudder("quantise", DEMO, tmp_path / f"{scheme}.gguf", "--scheme", scheme, "--text", text, "--output", report, "--device", "cpu",
                          "--dtype", "float32")
        assert done.returncode == 0, done.stderr
        found[scheme] = json.loads(report.read_text())["kl"]
    assert found["gguf-f32"] <= 1e-9 < found["gguf-q8_0"] < 1e-3 < found["gguf-q4_k"] < 1e-1


def test_what_cannot_be_is_refused(tmp_path):
    def refusal(*arguments):
        done = run_rudder("quantise", *arguments)
        assert done.returncode in (1, 2)
        return done.stderr

    out = tmp_path / "out"
    assert run_rudder("quantise", DEMO, out, "--scheme", "fp8").returncode == 0
    assert "holds a model already" in refusal(DEMO, out)
    assert "quantization_config" in refusal(out, tmp_path / "again")
    assert "name the model" in refusal(DEMO)
    assert "scheme" in refusal(DEMO, tmp_path / "other", "--scheme", "w3a16")
    assert "ends in .gguf" in refusal(DEMO, tmp_path / "other", "--scheme", "gguf-q8_0")
