"""Arrays in JSON: the packed form `{"dtype", "shape", "data"}`, data in base64, little-endian, row by row."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ArrayError, FileFormatError

FloatArray = npt.NDArray[np.float32]

# Larger values are refused by the server, too; here they are refused before they are sent.
MAX_MAGNITUDE = 1e6
_DTYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int16": "<i2"}


def widen_bfloat16(bits: npt.NDArray[np.uint16]) -> FloatArray:
    """bfloat16 as 16-bit words -> float32, without rounding."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def as_rows(array: npt.ArrayLike, path: str) -> npt.NDArray[Any]:
    """A vector [width] or rows [count, width] as float32, or as float16 where it is that.

    float64 and whole numbers are rounded to float32. Raises ArrayError at `path` for another shape, for no elements, and
    for values that are not finite or above 1e6 in magnitude.
    """
    rows = np.asarray(array)
    if rows.dtype != np.float16:
        if rows.dtype.kind not in "fiu" and rows.dtype.name != "bfloat16":
            raise ArrayError(path, f"numbers are needed, not {rows.dtype}")
        with np.errstate(over="ignore"):  # what overflows is refused below
            rows = rows.astype(np.float32)
    if rows.ndim not in (1, 2) or rows.size == 0:
        raise ArrayError(path, f"shape {rows.shape}: a vector [width] or rows [count, width] are needed")
    if not np.all(np.abs(rows.astype(np.float64)) <= MAX_MAGNITUDE):
        raise ArrayError(path, f"values must be finite and at most {MAX_MAGNITUDE:.0e} in magnitude")
    return np.ascontiguousarray(rows)


def pack(array: npt.ArrayLike, path: str = "vector") -> dict[str, Any]:
    """The packed form of a vector or of rows; the server reads the same bits. Errors: see `as_rows`."""
    rows = as_rows(array, path)
    data = rows.astype(rows.dtype.newbyteorder("<")).tobytes()
    return {"dtype": rows.dtype.name, "shape": list(rows.shape), "data": base64.b64encode(data).decode("ascii")}


def unpack(packed: Mapping[str, Any]) -> FloatArray:
    """Rows of an answer as float32, in their shape. Raises FileFormatError where data and shape differ."""
    if packed.get("dtype") not in _DTYPES:
        raise FileFormatError(f"packed rows of dtype {packed.get('dtype')!r}: one of {', '.join(_DTYPES)} is known")
    dtype = np.dtype(_DTYPES[packed["dtype"]])
    shape = tuple(int(extent) for extent in packed["shape"])
    try:
        data = base64.b64decode(packed["data"], validate=True)
    except binascii.Error as error:
        raise FileFormatError(f"packed rows: {error}") from error
    if len(data) != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
        raise FileFormatError(f"packed rows of shape {list(shape)} have {len(data)} bytes")
    values = np.frombuffer(data, dtype=dtype).reshape(shape)
    return widen_bfloat16(values) if packed["dtype"] == "bfloat16" else values.astype(np.float32)
