#!/usr/bin/env python3
"""A module in each format of few bits that quantization_config declares, and the numbers that the package which defines the format reads.

    .venv-models/bin/python tools/golden/low_bit_files.py tests/quantised [CASE ...]

Needs compressed-tensors 0.20, bitsandbytes 0.50, hqq 0.2.8 and autoawq 0.2.9 (the last two with `--no-deps`, and loguru and termcolor);
GPTQ is packed by AutoGPTQ's formulas, since its packages do not install without a GPU. Each folder has a config.json with its
quantization_config, one module `model.layers.0.mlp.down_proj` in model.safetensors and its numbers in float32 in golden.safetensors.
"""

import importlib.util
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

MODULE = "model.layers.0.mlp.down_proj"
ROWS, INPUTS = 32, 128
CASES = {}


def case(name, config, **fields):
    def register(function):
        CASES[name] = (config, function, fields)
        return function

    return register


def drawn(rows=ROWS, inputs=INPUTS):
    weight = torch.randn(rows, inputs) * 0.0371
    return weight * (0.3 + torch.rand(rows, 1) * 2.7)


# ----- GPTQ -----

def words_of(codes, bits):
    """A stream of numbers along the first axis, low bits first, in words of 32 bits; one may lie in two words."""
    count, width = codes.shape
    words = [[0] * width for _ in range(-(-count * bits // 32))]
    for i, line in enumerate(codes.tolist()):
        word, shift = divmod(i * bits, 32)
        for column, code in enumerate(line):
            wide = code << shift
            words[word][column] |= wide & 0xFFFFFFFF
            if wide >> 32:
                words[word + 1][column] |= wide >> 32
    return torch.tensor(words, dtype=torch.int64).to(torch.int32)


def gptq(bits, group, sym, less_one, order=None, writes_as_v2=False):
    groups = 1 if group < 0 else INPUTS // group
    size = INPUTS // groups
    g_idx = (torch.arange(INPUTS) // size).to(torch.int32) if order is None else order
    codes = torch.randint(0, 1 << bits, (INPUTS, ROWS))
    zeros = torch.full((groups, ROWS), 1 << (bits - 1)) if sym else torch.randint(0, 1 << bits, (groups, ROWS))
    scales = (torch.rand(groups, ROWS) * 0.0213 + 0.0007).half()
    stored = zeros if writes_as_v2 or not less_one else (zeros - 1) % (1 << bits)
    tensors = {"qweight": words_of(codes, bits), "qzeros": words_of(stored.T, bits).T.contiguous(), "scales": scales, "g_idx": g_idx}
    numbers = (codes - zeros[g_idx.long()]).float() * scales.float()[g_idx.long()]
    return tensors, numbers.T.contiguous()


def gptq_config(**fields):
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False, **fields}


case("gptq-v1", gptq_config())(lambda: gptq(4, 32, False, True))
case("gptq-v2", gptq_config(checkpoint_format="gptq_v2"))(lambda: gptq(4, 32, False, False))
case("gptq-mislabelled", gptq_config(sym=True))(lambda: gptq(4, 32, True, True, writes_as_v2=True))
case("gptq-2", gptq_config(bits=2))(lambda: gptq(2, 32, False, True))
case("gptq-3", gptq_config(bits=3, group_size=-1))(lambda: gptq(3, -1, False, True))
case("gptq-3-symmetric", gptq_config(bits=3, sym=True))(lambda: gptq(3, 32, True, True))
case("gptq-8", gptq_config(bits=8))(lambda: gptq(8, 32, False, True))
case("gptq-8-symmetric", gptq_config(bits=8, sym=True))(lambda: gptq(8, 32, True, True))
case("gptq-dynamic", gptq_config(dynamic={r"-:.*up_proj": {}, r"+:.*\.0\..*down_proj": {"bits": 8, "group_size": 64}}))(
    lambda: gptq(8, 64, False, True))


@case("gptq-desc-act", gptq_config(desc_act=True))
def gptq_desc_act():
    return gptq(4, 32, False, True, order=(torch.randperm(INPUTS) // 32).to(torch.int32))


# ----- AWQ -----

@case("awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"})
def awq():
    spec = importlib.util.find_spec("awq")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "utils" / "packing_utils.py"
    spec = importlib.util.spec_from_file_location("packing_utils", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    tensors = {"qweight": torch.randint(-(1 << 31), 1 << 31, (INPUTS, ROWS // 8)).to(torch.int32),
               "qzeros": torch.randint(-(1 << 31), 1 << 31, (INPUTS // 32, ROWS // 8)).to(torch.int32),
               "scales": (torch.rand(INPUTS // 32, ROWS) * 0.0213 + 0.0007).half()}
    codes, zeros = theirs.unpack_awq(tensors["qweight"], tensors["qzeros"], 4)
    codes, zeros = theirs.reverse_awq_order(codes, zeros, 4)
    codes, zeros = codes & 15, zeros & 15
    numbers = (codes.float() - zeros.float().repeat_interleave(32, 0)) * tensors["scales"].float().repeat_interleave(32, 0)
    return tensors, numbers.T.contiguous()


# ----- compressed-tensors -----

def ct_config(form, **weights):
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, **weights}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}


def compressed(form, config, dtype=torch.bfloat16):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    described = config["config_groups"]["group_0"]["weights"]
    args = QuantizationArgs(**described)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = drawn()
    size = described.get("group_size") or INPUTS
    pieces = weight.reshape(ROWS, INPUTS // size, size)
    least, most = pieces.amin(-1), pieces.amax(-1)
    tensors = {"weight": weight}
    if form == "nvfp4-pack-quantized":
        tensors["weight_global_scale"] = torch.tensor([448.0 * 6 / weight.abs().max()]) * 0.913
        scale = (torch.maximum(-least, most) / 6 * tensors["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        tensors["weight_scale"] = scale
    else:
        scale, zero = calculate_qparams(least, most, args)
        tensors["weight_scale"] = scale if form == "mxfp4-pack-quantized" else scale.to(dtype).float()
        if not args.symmetric:
            tensors["weight_zero_point"] = zero.to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(dict(tensors), scheme)
    if form == "nvfp4-pack-quantized":  # the compressor rounds to bf16
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization.lifecycle.forward import dequantize

        codes = unpack_fp4_from_uint8(stored["weight_packed"], ROWS, INPUTS, torch.float32)
        numbers = dequantize(codes, stored["weight_scale"].float(), args=args, global_scale=stored["weight_global_scale"],
                             dtype=torch.float32)
    else:
        numbers = compressor.decompress(dict(stored), scheme)["weight"].float()
    if "weight_scale" in stored and stored["weight_scale"].dtype == torch.float32:
        stored["weight_scale"] = stored["weight_scale"].to(dtype)
    return {name: value.contiguous() for name, value in stored.items()}, numbers


def compressed_case(name, form, dtype=torch.bfloat16, **weights):
    config = ct_config(form, **weights)
    case(name, config)(lambda: compressed(form, config, dtype))


compressed_case("ct-w4a16", "pack-quantized")
compressed_case("ct-w4a16-asymmetric", "pack-quantized", symmetric=False)
compressed_case("ct-w8a16-channel", "pack-quantized", torch.float16, num_bits=8, strategy="channel", group_size=None)
compressed_case("ct-w8a16-asymmetric", "pack-quantized", num_bits=8, symmetric=False)
compressed_case("ct-int8", "int-quantized", torch.float32, num_bits=8, strategy="channel", group_size=None)
compressed_case("ct-int8-asymmetric", "int-quantized", num_bits=8, symmetric=False)
compressed_case("ct-nvfp4", "nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16)
compressed_case("ct-mxfp4", "mxfp4-pack-quantized", type="float", group_size=32, scale_dtype="torch.uint8", zp_dtype="torch.uint8")


@case("ct-actorder", ct_config("pack-quantized", actorder="group"))
def ct_actorder():
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    codes = torch.randint(-8, 8, (ROWS, INPUTS), dtype=torch.int8)
    scales = (torch.rand(ROWS, INPUTS // 32) * 0.0213 + 0.0007).bfloat16()
    order = (torch.randperm(INPUTS) // 32).to(torch.int32)
    tensors = {"weight_packed": pack_to_int32(codes, 4), "weight_scale": scales, "weight_g_idx": order,
               "weight_shape": torch.tensor([ROWS, INPUTS])}
    return tensors, codes.float() * scales.float()[:, order.long()]


# ----- fp8 with scales of blocks -----

def fp8_blocks(rows, inputs, scale_name):
    scales = torch.rand(-(-ROWS // rows), -(-INPUTS // inputs)) * 0.0213 + 0.0007
    weight = (torch.randn(ROWS, INPUTS) * 97).to(torch.float8_e4m3fn)
    wide = scales.repeat_interleave(rows, 0)[:ROWS].repeat_interleave(inputs, 1)[:, :INPUTS]
    return {"weight": weight, scale_name: scales}, weight.float() * wide


case("fp8-blocks", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [24, 48]})(
    lambda: fp8_blocks(24, 48, "weight_scale_inv"))
case("ct-fp8-blocks", ct_config("float-quantized", num_bits=8, type="float", strategy="block", group_size=None,
                                block_structure=[16, 32]))(lambda: fp8_blocks(16, 32, "weight_scale"))


# ----- bitsandbytes, HQQ -----

def nf4(is_nested):
    import bitsandbytes

    packed, state = bitsandbytes.functional.quantize_4bit(drawn(), blocksize=64, compress_statistics=is_nested, quant_type="nf4")
    tensors = {"weight": packed, **{f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}}
    return tensors, bitsandbytes.functional.dequantize_4bit(packed, state).float()


BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "uint8"}
case("bnb-nf4", {**BNB, "bnb_4bit_use_double_quant": False})(lambda: nf4(False))
case("bnb-nf4-nested", {**BNB, "bnb_4bit_use_double_quant": True})(lambda: nf4(True))


def hqq(bits):
    from hqq.core.quantize import Quantizer

    codes, meta = Quantizer.quantize(drawn(), nbits=bits, group_size=64, axis=1, device="cpu", compute_dtype=torch.float32)
    tensors = {"W_q": codes, "scale": meta["scale"].half(), "zero": meta["zero"].half()}
    meta = {**meta, "scale": tensors["scale"].float(), "zero": tensors["zero"].float()}
    return tensors, Quantizer.dequantize(codes, meta).float()


def hqq_config(bits):
    params = {"nbits": bits, "channel_wise": True, "group_size": 64, "optimize": True, "round_zero": bits == 4, "axis": 1,
              "view_as_float": False}
    return {"quant_method": "hqq", "quant_config": {"weight_quant_params": params, "scale_quant_params": None, "zero_quant_params": None},
            "skip_modules": ["lm_head"]}


case("hqq-4", hqq_config(4))(lambda: hqq(4))
case("hqq-8", hqq_config(8))(lambda: hqq(8))


def main():
    out = pathlib.Path(sys.argv[1])
    for number, (name, (config, make, _)) in enumerate(CASES.items()):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        torch.manual_seed(4711 + number)
        tensors, numbers = make()
        assert numbers.shape == (ROWS, INPUTS) and numbers.isfinite().all(), name
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=1) + "\n")
        save_file({f"{MODULE}.{key}": value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
        save_file({"numbers": numbers.contiguous()}, folder / "golden.safetensors")
        print(name, {key: (list(value.shape), str(value.dtype)) for key, value in tensors.items()}, numbers.std().item())


main()
