"""Copies of the demo model with other weights, as a trainer writes them."""

import json
import shutil
import struct

import numpy

from conftest import DEMO

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def read_tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (info["dtype"], info["shape"], data[8 + size + info["data_offsets"][0]:8 + size + info["data_offsets"][1]])
            for name, info in header.items()}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def shifted(tensors, seed):
    """Other weights: each number of every matrix is moved by some hundredths of itself."""
    random = numpy.random.default_rng(seed)

    def moved(dtype, shape, data):
        assert dtype == "BF16"
        values = (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        values = values * (1 + 0.06 * random.standard_normal(values.size, dtype="f4"))
        return dtype, shape, (values.view("<u4") >> 16).astype("<u2").tobytes()

    return {name: moved(*tensor) if len(tensor[1]) == 2 else tensor for name, tensor in tensors.items()}


def write_checkpoint(folder, tensors, files=FILES, config=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        shutil.copy(DEMO / name, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", tensors)
    return folder
