"""Reads what the consumer `filesystem` wrote: `LAYER_SITE.bin` with its `.json`, or shards of many requests."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from .activations import ActivationCache
from .errors import FileFormatError
from .hooks import Point
from .packing import FloatArray, widen_bfloat16
from .safetensors_file import read_safetensors

_DTYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int16": "<i2"}

# Of one point of one request: number, positions [rows] and rows [rows, width].
_Block = tuple[int, npt.NDArray[np.int64], FloatArray]


def read_capture(root: str | os.PathLike[str], paths: Iterable[str], request: str | None = None) -> ActivationCache:
    """The rows of one choice. `root` is the consumer's root, `paths` are those of `CaptureResult.paths`.

    `request` is the folder's name or the name in a shard (the answer's id, or `FileCapture.request_id`); it is needed where
    shards hold rows of several requests. Hashes, sizes and positions are checked: FileFormatError where a file is not what
    its description says, or where blocks are missing.
    """
    blocks: dict[Point, list[_Block]] = {}
    for path in sorted(paths):
        if path.endswith(".safetensors"):
            for point, block in _shard_blocks(pathlib.Path(root, path), request):
                blocks.setdefault(point, []).append(block)
        elif path.endswith(".bin"):
            point, block = _file_block(pathlib.Path(root, path))
            blocks.setdefault(point, []).append(block)
        elif not path.endswith(".json"):
            raise FileFormatError(f"{path}: no file of captured rows")
    if not blocks:
        raise FileFormatError(f"{root}: no rows of {request or 'a request'}")
    joined = {point: _join(point, found) for point, found in blocks.items()}
    positions = next(iter(joined.values()))[0]
    for point, (own, _) in joined.items():
        if not np.array_equal(own, positions):
            raise FileFormatError(f"{root}: {point} has other positions than the rest")
    return ActivationCache({point: rows for point, (_, rows) in joined.items()}, positions)


def _join(point: Point, blocks: list[_Block]) -> tuple[npt.NDArray[np.int64], FloatArray]:
    blocks = sorted(blocks, key=lambda block: block[0])
    if [number for number, _, _ in blocks] != list(range(len(blocks))):
        raise FileFormatError(f"{point}: blocks {[number for number, _, _ in blocks]}, some are missing or there twice")
    return np.concatenate([positions for _, positions, _ in blocks]), np.concatenate([rows for _, _, rows in blocks])


def _file_block(path: pathlib.Path) -> tuple[Point, _Block]:
    about = json.loads(path.with_suffix(".json").read_text())
    if about.get("format") != "rudder.capture.rows.1" or about.get("dtype") not in _DTYPES:
        raise FileFormatError(f"{path}: rows of format {about.get('format')!r}, dtype {about.get('dtype')!r}")
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != about["sha256"]:
        raise FileFormatError(f"{path}: the hash of the rows is not that of the description")
    count, width = about["shape"]
    values = np.frombuffer(raw, dtype=_DTYPES[about["dtype"]])
    if values.size != count * width or len(about["positions"]) != count:
        raise FileFormatError(f"{path}: {values.size} values and {len(about['positions'])} positions for {about['shape']}")
    rows = widen_bfloat16(values) if about["dtype"] == "bfloat16" else values.astype(np.float32)
    point = Point(int(about["layer"]), str(about["site"]))
    return point, (0, np.asarray(about["positions"], dtype=np.int64), rows.reshape(count, width))


def _shard_blocks(path: pathlib.Path, request: str | None) -> Iterator[tuple[Point, _Block]]:
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != "rudder.capture.shard.1":
        raise FileFormatError(f"{path}: a shard of format {metadata.get('format')!r}")
    raw = path.read_bytes()
    data = raw[8 + int.from_bytes(raw[:8], "little"):]
    if hashlib.sha256(data).hexdigest() != metadata.get("data_sha256"):
        raise FileFormatError(f"{path}: the hash of the data is not that of the metadata")
    requests = sorted({name.split("/")[0] for name in tensors})
    if request is None and len(requests) > 1:
        raise FileFormatError(f"{path}: rows of {len(requests)} requests; say which one: {', '.join(requests)}")
    for name, rows in tensors.items():
        owner, point, number = name.split("/")
        if number.endswith(".positions") or owner != (request or requests[0]):
            continue
        positions = tensors[f"{name}.positions"].astype(np.int64)
        yield Point.parse(point), (int(number), positions, rows.astype(np.float32))
