#!/usr/bin/env python3
"""Writes a model that gives the demo model's text at the cost of a large one: the shape of Llama-3.1-8B but
for the vocabulary. A figure of speculation needs both, text that means something and steps that take long.

    tools/demo_model/enlarge.py OUT [--hidden 4096] [--intermediate 14336] [--layers 32] [--heads 64] [--kv-heads 16]
        [--medusa] [--eagle]

With --medusa, OUT/medusa has the demo's Medusa heads as large, with --eagle OUT/eagle its EAGLE-3 head: they guess what
those guess.

The demo's matrices are the upper left corner of larger ones. All that is written to the residual stream
beside its 256 columns is zero, so that what reads them there may hold any weights: it holds random ones.
The added heads, MLP columns and layers compute, but their output projections are zero.
A norm over hidden columns, of which all but 256 are zero, makes its row sqrt(hidden / 256) times as large;
the norms' weights are as much smaller, and epsilon is the square of it smaller. That is exact where the
factor is a power of two: hidden must be 256, 1024, 4096 or 16384."""

import argparse
import json
import math
import pathlib
import shutil
import struct

import numpy

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models" / "demo"
MEDUSA = DEMO.parent / "demo-medusa"
EAGLE = DEMO.parent / "demo-eagle"
DTYPES = {"BF16": numpy.uint16, "I64": numpy.int64, "BOOL": numpy.bool_}
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
RANDOM_SCALE = 0.02  # standard deviation of weights that are beside the demo's


def read_tensors(folder):
    """Name to tensor, bf16 as its 16 bits."""
    data = (folder / "model.safetensors").read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = numpy.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def bf16(values):
    """Rounded to nearest; for numbers that are finite."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def scaled(bits, factor):
    """Of bf16, by a power of two."""
    return bf16((bits.astype(numpy.uint32) << 16).view(numpy.float32) * factor)


class Enlarger:
    def __init__(self, arguments):
        self.config = json.loads((DEMO / "config.json").read_text())
        self.demo = read_tensors(DEMO)
        self.shape = arguments
        columns = arguments.hidden / self.config["hidden_size"]
        self.norm = math.sqrt(columns)
        if self.norm != 2 ** round(math.log2(self.norm)):
            raise SystemExit(f"--hidden {arguments.hidden}: the square root of its {columns:g} times the demo's is no power of two")
        self.check_room()
        rng = numpy.random.default_rng(0)
        self.noise = bf16(rng.standard_normal(1 << 22) * RANDOM_SCALE)

    def check_room(self):
        wanted = {"intermediate": "intermediate_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
                  "kv_heads": "num_key_value_heads", "hidden": "hidden_size"}
        for flag, key in wanted.items():
            if getattr(self.shape, flag) < self.config[key]:
                raise SystemExit(f"--{flag.replace('_', '-')} is less than the demo's {self.config[key]}")
        group = self.shape.heads // self.shape.kv_heads
        if self.shape.heads % self.shape.kv_heads or group < self.config["num_attention_heads"] // self.config["num_key_value_heads"]:
            raise SystemExit("--heads must be a multiple of --kv-heads, with no fewer heads for each than the demo has")

    def large_config(self):
        config = dict(self.config, hidden_size=self.shape.hidden, intermediate_size=self.shape.intermediate,
                      num_hidden_layers=self.shape.layers, num_attention_heads=self.shape.heads,
                      num_key_value_heads=self.shape.kv_heads)
        config["rms_norm_eps"] = self.config["rms_norm_eps"] / self.norm ** 2
        return config

    def head_rows(self, count, large_count):
        """Where the rows of the demo's heads stand: those of one KV head stay together."""
        size = self.config["head_dim"]
        per_group = count // self.config["num_key_value_heads"]
        large_group = large_count // self.shape.kv_heads
        heads = [head // per_group * large_group + head % per_group for head in range(count)]
        return numpy.concatenate([numpy.arange(head * size, (head + 1) * size) for head in heads])

    def head_places(self, module):
        """Of q_proj, k_proj or v_proj: rows of the large tensor, and which of them are the demo's."""
        kind = "attention" if module == "q_proj" else "key_value"
        large = self.shape.heads if module == "q_proj" else self.shape.kv_heads
        return large * self.config["head_dim"], self.head_rows(self.config[f"num_{kind}_heads"], large)

    def tensor(self, module, demo):
        """The large tensor of a module; `demo` is None in an added layer."""
        shape, small = self.shape, self.config["hidden_size"]
        if module.endswith("norm"):
            large = bf16(numpy.full(shape.hidden, 1 / self.norm))
            if demo is not None:
                large[:small] = scaled(demo, 1 / self.norm)
            return large
        if module in ("o_proj", "down_proj"):
            neurons = self.config["intermediate_size"] if demo is None else demo.shape[1]
            count, places = self.head_places("q_proj") if module == "o_proj" else (shape.intermediate, numpy.arange(neurons))
        else:
            neurons = self.config["intermediate_size"] if demo is None else demo.shape[0]
            count, places = (shape.intermediate, numpy.arange(neurons)) if module in ("gate_proj", "up_proj") else self.head_places(module)
            large = numpy.resize(self.noise, count * shape.hidden).reshape(count, shape.hidden)
            if demo is not None:
                large[places, :small] = demo
            return large
        large = numpy.zeros((shape.hidden, count), numpy.uint16)
        if demo is not None:
            large[:small, places] = demo
        return large

    def shards(self):
        """(file, tensors by name): what is no layer's first, then a layer each."""
        embedding = numpy.zeros((self.config["vocab_size"], self.shape.hidden), numpy.uint16)
        embedding[:, :self.config["hidden_size"]] = self.demo["model.embed_tokens.weight"]
        yield "embedding.safetensors", {"model.embed_tokens.weight": embedding,
                                    "model.norm.weight": self.tensor("norm", self.demo["model.norm.weight"])}
        first = "model.layers.0."
        modules = [name[len(first):] for name in self.demo if name.startswith(first)]
        for layer in range(self.shape.layers):
            prefix = f"model.layers.{layer}."
            yield f"layer-{layer}.safetensors", {
                prefix + module: self.tensor(module.split(".")[-2], self.demo.get(prefix + module)) for module in modules}

    def medusa(self):
        """Heads of rows that are zero beside the demo's columns, and stay so: each is x + silu(W x), then a product."""
        small, hidden = self.config["hidden_size"], self.shape.hidden
        for name, demo in read_tensors(MEDUSA).items():
            is_square = not name.startswith("lm_heads.")
            large = numpy.resize(self.noise, (hidden if is_square else demo.shape[0]) * hidden).reshape(-1, hidden)
            if is_square:
                large[small:] = 0
            large[:demo.shape[0], :small] = demo
            yield name, large

    def eagle(self):
        """A head of such rows. What reads several of them side by side has the demo's columns at the beginning of each."""
        small, hidden = self.config["hidden_size"], self.shape.hidden
        for name, demo in read_tensors(EAGLE).items():
            module = name.split(".")[-2] if "." in name else name
            if module in ("d2t", "t2d"):
                yield name, demo
            elif module.endswith("norm") or module in ("o_proj", "gate_proj", "up_proj", "down_proj"):
                yield name, self.tensor(module, demo)
            else:
                rows, places = {"fc": (hidden, numpy.arange(small)), "lm_head": (demo.shape[0], numpy.arange(demo.shape[0]))}.get(
                    module) or self.head_places(module)
                width = demo.shape[1] // small
                large = numpy.resize(self.noise, rows * width * hidden).reshape(rows, width, hidden)
                if module == "fc":
                    large[small:] = 0
                large[places, :, :small] = demo.reshape(-1, width, small)
                yield name, large.reshape(rows, width * hidden)


def write_shard(path, tensors):
    header, begin = {}, 0
    for name, tensor in tensors.items():
        dtype = next(name for name, known in DTYPES.items() if tensor.dtype == known)
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, begin + tensor.nbytes]}
        begin += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            tensor.tofile(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=64, help="of the demo's size, 64")
    parser.add_argument("--kv-heads", type=int, default=16)
    parser.add_argument("--medusa", action="store_true", help="Medusa heads too")
    parser.add_argument("--eagle", action="store_true", help="an EAGLE-3 head too")
    arguments = parser.parse_args()
    enlarger = Enlarger(arguments)
    arguments.out.mkdir(parents=True)
    places = {}
    for file, tensors in enlarger.shards():
        write_shard(arguments.out / file, tensors)
        places.update(dict.fromkeys(tensors, file))
        print(f"{len(places)} tensors written", flush=True)
    (arguments.out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (arguments.out / "config.json").write_text(json.dumps(enlarger.large_config(), indent=2))
    for file in COPIED:
        shutil.copy(DEMO / file, arguments.out)
    if arguments.medusa:
        heads = arguments.out / "medusa"
        heads.mkdir()
        write_shard(heads / "model.safetensors", dict(enlarger.medusa()))
        config = json.loads((MEDUSA / "config.json").read_text())
        (heads / "config.json").write_text(json.dumps(dict(config, hidden_size=arguments.hidden), indent=2))
    if arguments.eagle:
        head = arguments.out / "eagle"
        head.mkdir()
        write_shard(head / "model.safetensors", dict(enlarger.eagle()))
        config = json.loads((EAGLE / "config.json").read_text())
        sizes = {key: enlarger.large_config()[key] for key in (
            "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")}
        (head / "config.json").write_text(json.dumps(dict(config, **sizes, target_hidden_size=arguments.hidden), indent=2))


if __name__ == "__main__":
    main()
