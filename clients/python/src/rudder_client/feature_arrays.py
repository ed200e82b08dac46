"""Features of rows as arrays: what captures and `client.dictionaries` give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .activations import IntArray
from .packing import FloatArray


@dataclass(frozen=True)
class TopFeatures:
    """The largest features of rows: numbers and values [rows, count], the largest first. Where a row has fewer active
    features, the rest has number -1 and value 0."""

    features: IntArray
    values: FloatArray


def padded(features: Sequence[Sequence[int]], values: Sequence[Sequence[float]], count: int) -> TopFeatures:
    """Of lists a row, each of at most `count`."""
    numbers = np.full((len(features), count), -1, dtype=np.int64)
    sizes = np.zeros((len(features), count), dtype=np.float32)
    for i, (row, row_values) in enumerate(zip(features, values, strict=True)):
        numbers[i, :len(row)] = row
        sizes[i, :len(row_values)] = row_values
    return TopFeatures(numbers, sizes)
