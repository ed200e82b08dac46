"""Writes dictionaries without numpy: in the server's own format, and as Gemma Scope 1 has them."""

import json
import pathlib
import struct
import zipfile


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


def write_gemma_scope(folder, encoder, decoder, encoder_bias, thresholds, output_bias):
    """params.npz: the encoder's rows and the decoder's are those of features; returns the folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"W_enc": list(map(list, zip(*encoder))), "W_dec": decoder, "b_enc": encoder_bias,
               "threshold": thresholds, "b_dec": output_bias}
    with zipfile.ZipFile(folder / "params.npz", "w") as archive:
        for name, rows in tensors.items():
            is_matrix = isinstance(rows[0], list)
            values = [value for row in rows for value in row] if is_matrix else rows
            shape = (len(rows), len(rows[0])) if is_matrix else (len(rows),)
            header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
            header += " " * (-(10 + len(header) + 1) % 64) + "\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                             + struct.pack(f"<{len(values)}f", *values))
    return folder
