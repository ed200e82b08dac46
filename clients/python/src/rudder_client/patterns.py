"""Attention patterns: what to ask for (`Patterns`), and what came of it (`AttentionPattern`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .activations import IntArray
from .ops import Layers
from .packing import FloatArray, unpack


def _numbers(which: Layers) -> int | str | list[int]:
    return which if isinstance(which, (int, str)) else [int(number) for number in which]


@dataclass(frozen=True)
class Patterns:
    """With which weights heads of these layers read the positions before: TransformerLens's `attn.hook_pattern`. `keys`: so
    many keys a row may have, 256 unless it is given; no captured position may lie behind them."""

    layers: Layers
    heads: Layers = "all"
    keys: int | None = None

    def to_json(self) -> dict[str, Any]:
        keys = {} if self.keys is None else {"keys": int(self.keys)}
        return {"layers": _numbers(self.layers), "heads": _numbers(self.heads), **keys}


@dataclass(frozen=True)
class AttentionPattern:
    """Of one layer. `rows`: for each captured position weights [heads, keys], the heads in the order of `heads`; the row at
    position p has p + 1 keys."""

    heads: IntArray
    rows: Sequence[FloatArray]

    @property
    def padded(self) -> FloatArray:
        """[heads, positions, most keys], 0 behind a row's keys: TransformerLens's array without its batch dimension, where all
        positions of a prompt are captured."""
        most = max((row.shape[1] for row in self.rows), default=0)
        whole = np.zeros((len(self.heads), len(self.rows), most), dtype=np.float32)
        for i, row in enumerate(self.rows):
            whole[:, i, :row.shape[1]] = row
        return whole


def hook_name(layer: str) -> str:
    return f"blocks.{int(layer)}.attn.hook_pattern"


def read_pattern(told: Mapping[str, Any]) -> AttentionPattern:
    """Of an answer. FileFormatError (of `unpack`) where data and numbers differ."""
    heads = np.asarray(told["heads"], dtype=np.int64)
    counts = [int(keys) for keys in told["keys"]]
    values = unpack({"dtype": told["dtype"], "shape": [len(heads) * sum(counts)], "data": told["data"]})
    rows, begin = [], 0
    for keys in counts:
        end = begin + len(heads) * keys
        rows.append(values[begin:end].reshape(len(heads), keys))
        begin = end
    return AttentionPattern(heads, rows)
