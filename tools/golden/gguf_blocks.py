#!/usr/bin/env python3
"""Random blocks of each type of GGUF and the values that the package `gguf` reads in them.

    .venv-models/bin/python tools/golden/gguf_blocks.py tests/gguf/blocks.safetensors

Of each type three tensors: TYPE.blocks (bytes), TYPE.values (float32, of the first blocks) and TYPE.digest (int64, of all blocks: the
sum of the values' bits, each times its place, modulo 2^64). The scales of the blocks are those that matter: usual ones, the smallest
and largest that are finite, subnormal, negative and zero.
"""

import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

BLOCKS = 48
SHOWN = 4
TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0 F16 BF16".split()
TYPES += "IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M NVFP4".split()
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "TQ1_0": [52], "TQ2_0": [64], "IQ2_XXS": [0], "IQ2_XS": [0],
          "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [], "NVFP4": []}
EXTREME = np.array([0.0625, -0.0371, 65504, -65504, 6e-8, 6.1e-5, 0, -0.0, 1, 0.7793], np.float16)
DTYPES = {"uint8": "U8", "float32": "F32", "int64": "I64"}


def blocks_of(name, random):
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    if name in ("F16", "BF16"):
        bits = random.integers(0, 1 << 16, BLOCKS * 16).astype("<u2")
        exponent = 0x7C00 if name == "F16" else 0x7F80
        return np.where(bits & exponent == exponent, bits & 0x83FF, bits).astype("<u2").view(np.uint8)
    blocks = random.integers(0, 256, (BLOCKS, size)).astype(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 2, 127, 128, 250, *random.integers(100, 150, BLOCKS - 6)]
    if name == "IQ1_M":  # its scale lies in the high nibbles of four words: finite ones
        words = blocks[:, 48:].view("<u2")
        words[:, 3] &= np.uint16(0xBFFF)
    for at in HALVES[name]:
        usual = random.normal(0, 0.05, BLOCKS).astype(np.float16)
        usual[: len(EXTREME)] = random.permutation(EXTREME)
        blocks[:, at : at + 2] = usual.view(np.uint8).reshape(BLOCKS, 2)
    return blocks.reshape(-1)


def digest(values):
    bits = values.view(np.uint32).astype(np.uint64)
    return int((bits * np.arange(1, len(bits) + 1, dtype=np.uint64)).sum(dtype=np.uint64).astype(np.int64))


def main():
    from safetensors.numpy import save_file

    random = np.random.default_rng(20260829)
    tensors = {}
    for name in TYPES:
        type_ = GGMLQuantizationType[name]
        blocks = blocks_of(name, random)
        values = quants.dequantize(blocks, type_).astype(np.float32).reshape(-1)
        count, _ = GGML_QUANT_SIZES[type_]
        tensors[f"{name}.blocks"] = blocks
        tensors[f"{name}.values"] = values[: max(SHOWN * count, 64)]
        tensors[f"{name}.digest"] = np.array([digest(values)], np.int64)
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
