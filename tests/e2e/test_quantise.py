"""rudder quantise: what it writes is compressed-tensors' format, by formulas of its own, and is served where that scheme is read."""

import json

import numpy as np
import pytest
from conftest import ROOT, run_rudder
from safetensors import safe_open
from tasks import story

DEMO = ROOT / "models" / "demo"
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
