"""Writes a dictionary in the server's own format, without numpy."""

import json
import pathlib
import struct


def write_tensors(path, tensors):
    """{name: (shape, flat list of numbers)} as a safetensors file of float32."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_dictionary(folder, read, encoder, decoder, activation="relu", thresholds=None, **more):
    """Rows of features, lists of one length; returns the folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count, width = len(encoder), len(encoder[0])

    def flat(rows):
        return [value for row in rows for value in row]

    tensors = {"encoder": ([count, width], flat(encoder)), "encoder_bias": ([count], [0.0] * count),
               "decoder": ([count, width], flat(decoder)), "output_bias": ([width], [0.0] * width)}
    if thresholds is not None:
        tensors["threshold"] = ([count], thresholds)
    write_tensors(folder / "weights.safetensors", tensors)
    (folder / "dictionary.json").write_text(json.dumps({
        "format": "rudder-dictionary", "read": read, "activation": activation, "weights": "weights.safetensors",
        **more}))
    return folder
