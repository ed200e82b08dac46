"""safetensors files, strictly: an 8-byte length, a JSON header, the tensors' bytes.

Own code rather than the package of that name, which is no pure Python and leaves bfloat16 to further packages.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import FileFormatError
from .packing import widen_bfloat16

_MAX_HEADER = 100_000_000
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
           "U8": "u1", "BOOL": "?"}
_NAMES = {np.dtype(spelling).str: name for name, spelling in _DTYPES.items() if name != "BF16"}

Tensors = dict[str, npt.NDArray[Any]]


def read_safetensors(path: str | os.PathLike[str]) -> tuple[Tensors, dict[str, str]]:
    """Every tensor by name, bfloat16 widened to float32, and the metadata. Raises FileFormatError, OSError."""
    raw = pathlib.Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > min(len(raw) - 8, _MAX_HEADER):
        raise FileFormatError(f"{path}: no safetensors file: a header of {length} bytes in a file of {len(raw)}")
    try:
        header = json.loads(raw[8:8 + length])
    except ValueError as error:
        raise FileFormatError(f"{path}: the header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise FileFormatError(f"{path}: the header is no object")
    metadata = header.pop("__metadata__", {})
    data = memoryview(raw)[8 + length:]
    return {name: _tensor(name, entry, data, path) for name, entry in header.items()}, metadata


def _tensor(name: str, entry: Any, data: memoryview, path: object) -> npt.NDArray[Any]:
    try:
        dtype, shape, (begin, end) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: tensor '{name}': {error!r}") from error
    counts = isinstance(shape, list) and all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    if not counts or not begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise FileFormatError(f"{path}: tensor '{name}': shape {shape} in bytes {begin} to {end} of {len(data)}")
    values = np.frombuffer(data[begin:end], dtype=dtype).reshape(shape)
    return widen_bfloat16(values) if entry["dtype"] == "BF16" else values


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, npt.NDArray[Any]],
                      metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors in the order of their names; the file appears under `path` only when it is whole."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    arrays, at = [], 0
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        little = array.dtype.newbyteorder("<")
        if little.str not in _NAMES:
            raise FileFormatError(f"{path}: tensor '{name}' of dtype {array.dtype}")
        header[name] = {"dtype": _NAMES[little.str], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        arrays.append(array.astype(little, copy=False))
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with replacing(path) as partial, open(partial, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            file.write(array.tobytes())


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A path beside `path` to write to: renamed to `path` when the block ends, removed when it raises."""
    final = pathlib.Path(path)
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, final)
    finally:
        partial.unlink(missing_ok=True)
