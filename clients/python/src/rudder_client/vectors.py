"""Steering vectors by point, in memory and in files, and everything that the field `steering` may hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ArrayError, FileFormatError
from .hooks import Point
from .ops import SteeringOp, add
from .packing import FloatArray, as_rows
from .safetensors_file import read_safetensors, write_safetensors
from .selectors import Gate, Select


class SteeringVectors(Mapping[str, FloatArray]):
    """One vector [width] for each of some points, by hook name. As steering, each is added at its point.

    `SteeringVectors({"blocks.5.hook_resid_post": direction})`. Keys are read in every form of `Point.parse`; values are
    float32. Files are those that `rudder vectors train` writes and `rudder serve --steering-module` loads.
    """

    def __init__(self, vectors: Mapping[str, npt.ArrayLike]) -> None:
        self._vectors: dict[Point, FloatArray] = {}
        for name, vector in vectors.items():
            values = as_rows(vector, name)
            if values.ndim != 1:
                raise ArrayError(name, f"shape {values.shape}: one vector [width] is needed")
            if Point.parse(name) in self._vectors:
                raise ArrayError(name, "the point is given twice")
            self._vectors[Point.parse(name)] = values.astype(np.float32)

    def __getitem__(self, name: str) -> FloatArray:
        try:
            return self._vectors[Point.parse(name)]
        except (KeyError, ValueError):
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (point.hook_name for point in sorted(self._vectors))

    def __len__(self) -> int:
        return len(self._vectors)

    def __repr__(self) -> str:
        return f"SteeringVectors({', '.join(self)})"

    def ops(self, *, scale: float = 1.0, select: Select | None = None, gate: Gate | None = None) -> list[SteeringOp]:
        """An `add` for each site, of all of its layers."""
        by_site: dict[tuple[str, int], list[Point]] = {}
        for point in sorted(self._vectors):
            by_site.setdefault((point.site, self._vectors[point].size), []).append(point)
        return [add(site, np.stack([self._vectors[point] for point in points]), scale=scale, select=select, gate=gate,
                    layers=[point.layer for point in points])
                for (site, _), points in by_site.items()]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a safetensors file with a tensor `SITE.LAYER` [width] for each point."""
        write_safetensors(path, {str(point): vector for point, vector in self._vectors.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SteeringVectors:
        """Reads what `save` and `rudder vectors train` write. FileFormatError for tensors that are no vector of a point."""
        tensors, _ = read_safetensors(path)
        for name, tensor in tensors.items():
            try:
                Point.parse(name)
            except ValueError as error:
                raise FileFormatError(f"{path}: {error}") from error
            if tensor.ndim != 1:
                raise FileFormatError(f"{path}: tensor '{name}' of shape {tensor.shape}: one vector [width] is needed")
        return cls(tensors)


@dataclass(frozen=True)
class Named:
    """A steering module of the server; `scale` multiplies the scales of its adds."""

    name: str
    scale: float = 1.0

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "scale": self.scale}


# A module's name, an op, vectors to add, an element of the field `steering` as JSON, or a list of such.
SteeringElement = str | Named | SteeringOp | SteeringVectors | Mapping[str, Any]
Steering = SteeringElement | Sequence[SteeringElement]


def steering_json(steering: Steering) -> list[dict[str, Any]]:
    """The field `steering` of a request."""
    elements: Sequence[Any] = [steering]
    if isinstance(steering, Sequence) and not isinstance(steering, str):
        elements = steering
    out: list[dict[str, Any]] = []
    for element in elements:
        if isinstance(element, str):
            out.append({"name": element})
        elif isinstance(element, SteeringVectors):
            out.extend(op.to_json() for op in element.ops())
        elif isinstance(element, (Named, SteeringOp)):
            out.append(element.to_json())
        elif isinstance(element, Mapping):
            out.append(dict(element))
        else:
            raise ArrayError(f"steering[{len(out)}]", f"a {type(element).__name__} is no steering")
    return out
