#!/usr/bin/env python3
"""Writes the steering modules that the loaders are tested with, by the libraries whose files users
have: numpy, gguf, safetensors. Run once, with these three installed; the files are committed.

    python3 tools/golden/steering_files.py tests/steering

Layer L of resid_post has the vector (L, -L / 2, 1 / 4, L * L); the model of the tests has hidden size
4 and 16 layers.
"""

import pathlib
import sys

import gguf
import numpy
import safetensors.numpy


def vector(layer):
    return numpy.array([layer, -layer / 2, 0.25, layer * layer], dtype=numpy.float32)


def main():
    folder = pathlib.Path(sys.argv[1])
    layers = [3, 7]
    rows = numpy.stack([vector(layer) for layer in layers])
    named = {f"resid_post.{layer}": vector(layer) for layer in layers}
    numpy.savez(folder / "named.npz", **named)
    numpy.savez_compressed(folder / "deflated.npz", **named)
    numpy.savez(folder / "stacked.npz", **{"resid_post": rows.astype(numpy.float64),
                                           "resid_post.layers": numpy.array(layers)})
    numpy.savez(folder / "half.npz", **{"resid_post": rows.astype(numpy.float16),
                                        "resid_post.layers": numpy.array(layers, dtype=numpy.int32)})
    numpy.savez(folder / "pickled.npz", **{"resid_post.3": numpy.array([1, "x"], dtype=object)})
    safetensors.numpy.save_file(named, folder / "named.safetensors",
                                metadata={"model_hint": "tiny"})
    writer = gguf.GGUFWriter(folder / "control.gguf", "controlvector")
    writer.add_string("controlvector.model_hint", "tiny")
    writer.add_uint32("controlvector.layer_count", len(layers))
    for layer in layers:
        writer.add_tensor(f"direction.{layer}", vector(layer))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
