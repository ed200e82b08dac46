"""A data set of activations: the rows of many prompts with their token ids, in shards on the disk."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .activations import ActivationCache, IntArray
from .capture import Names, Positions, Where
from .client import Prompt, Rudder
from .errors import FileFormatError
from .generation import Generation
from .packing import FloatArray
from .parallel import Progress, parallel_map
from .safetensors_file import read_safetensors, replacing, write_safetensors
from .vectors import Steering

FORMAT = "rudder.dataset.1"
_COLUMNS = ("prompt", "position", "token_id")
FileFormat = Literal["safetensors", "parquet"]


@dataclass(frozen=True)
class DatasetShard:
    """Rows of one file. Row i is of token `token_id[i]` at `position[i]` of prompt `prompt[i]`, numbered as they were given.

    `activations`: by hook name, [rows, width] float32.
    """

    prompt: IntArray
    position: IntArray
    token_id: IntArray
    activations: dict[str, FloatArray]

    def __len__(self) -> int:
        return len(self.prompt)


def capture_dataset(client: Rudder, prompts: Iterable[Prompt], folder: str | os.PathLike[str], names: Names, *,
                    positions: Positions = "all_prompt", point: Where = "pre", steering: Steering | None = None,
                    max_tokens: int | None = None, file_format: FileFormat = "safetensors", rows_per_shard: int = 65536,
                    concurrency: int = 16, progress: Progress = True) -> dict[str, Any]:
    """Captures the rows of every prompt into `folder`, which must be empty or absent; returns the content of its
    `dataset.json`.

    Shards have whole prompts, `rows_per_shard` rows or a few more. With `max_tokens` the prompts are answered, so that
    `positions` may name generated tokens; without it they are only read. `dataset.json` is written last: a folder without
    it is a run that did not end. parquet needs the extra `rudder-client[parquet]`. CaptureError, RequestError: the first
    prompt that fails ends the run.
    """
    if file_format not in _WRITERS:
        raise ValueError(f"file format '{file_format}': one of {', '.join(_WRITERS)} is known")
    if file_format == "parquet":
        import pyarrow  # noqa: F401 (where it is missing, the run ends before it begins)

    home = pathlib.Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise FileExistsError(f"{home} is not empty")
    write = _WRITERS[file_format]
    fields: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    runs = parallel_map(lambda prompt: client.run_with_cache(prompt, names, positions=positions, point=point,
                                                             steering=steering, **fields),
                        prompts, concurrency=concurrency, progress=progress)
    shards: list[dict[str, Any]] = []
    count = 0
    for rows in _gather(runs, rows_per_shard):
        name = f"shard-{len(shards):05d}.{file_format}"
        with replacing(home / name) as partial:
            write(partial, rows)
        shards.append({"file": name, "rows": len(rows)})
        count = int(rows.prompt[-1]) + 1
    manifest = {"format": FORMAT, "model": client.model, "num_prompts": count, "steered": steering is not None,
                "positions": positions if isinstance(positions, str) else [int(position) for position in positions],
                "point": point, "shards": shards}
    with replacing(home / "dataset.json") as partial:
        partial.write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def read_dataset(folder: str | os.PathLike[str]) -> Iterator[DatasetShard]:
    """The shards of a finished run, in order. FileFormatError where the folder has no `dataset.json` of this format."""
    home = pathlib.Path(folder)
    try:
        manifest = json.loads((home / "dataset.json").read_text())
    except FileNotFoundError as error:
        raise FileFormatError(f"{home}: no dataset.json: no data set, or a run that did not end") from error
    if manifest.get("format") != FORMAT:
        raise FileFormatError(f"{home}: a data set of format {manifest.get('format')!r}")
    for entry in manifest["shards"]:
        path = home / entry["file"]
        shard = _read_parquet(path) if path.suffix == ".parquet" else _read_safetensors(path)
        if len(shard) != entry["rows"]:
            raise FileFormatError(f"{path}: {len(shard)} rows, dataset.json says {entry['rows']}")
        yield shard


def _gather(runs: Iterable[tuple[Generation, ActivationCache]], rows_per_shard: int) -> Iterator[DatasetShard]:
    parts: list[DatasetShard] = []
    for number, (answer, cache) in enumerate(runs):
        parts.append(DatasetShard(prompt=np.full(len(cache.positions), number), position=cache.positions,
                                  token_id=answer.tokens_at(cache.positions), activations=dict(cache)))
        if sum(map(len, parts)) >= rows_per_shard:
            yield _join(parts)
            parts = []
    if parts:
        yield _join(parts)


def _join(parts: list[DatasetShard]) -> DatasetShard:
    return DatasetShard(prompt=np.concatenate([part.prompt for part in parts]),
                        position=np.concatenate([part.position for part in parts]),
                        token_id=np.concatenate([part.token_id for part in parts]),
                        activations={name: np.concatenate([part.activations[name] for part in parts])
                                     for name in parts[0].activations})


def _write_safetensors(path: pathlib.Path, rows: DatasetShard) -> None:
    columns = {name: getattr(rows, name) for name in _COLUMNS}
    write_safetensors(path, {**columns, **rows.activations}, {"format": FORMAT})


def _read_safetensors(path: pathlib.Path) -> DatasetShard:
    tensors, _ = read_safetensors(path)
    columns = {name: tensors.pop(name) for name in _COLUMNS}
    return DatasetShard(**columns, activations=tensors)


def _write_parquet(path: pathlib.Path, rows: DatasetShard) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: pa.array(getattr(rows, name)) for name in _COLUMNS}
    for name, values in rows.activations.items():
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    pq.write_table(pa.table(columns), path)


def _read_parquet(path: pathlib.Path) -> DatasetShard:
    import pyarrow.parquet as pq

    table = pq.read_table(path).combine_chunks()
    columns = {name: table[name].to_numpy() for name in _COLUMNS}
    lists = {name: table[name].combine_chunks() for name in table.column_names if name not in _COLUMNS}
    return DatasetShard(**columns, activations={
        name: values.flatten().to_numpy().reshape(len(values), values.type.list_size) for name, values in lists.items()})


_WRITERS = {"safetensors": _write_safetensors, "parquet": _write_parquet}
