"""`ActivationCache`: activations by hook name, as TransformerLens has them, without a batch dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .hooks import Point
from .packing import FloatArray

IntArray = npt.NDArray[np.int64]


class ActivationCache(Mapping[str, FloatArray]):
    """Rows [positions, width] float32 by hook name.

    `cache["blocks.5.hook_resid_post"]`, `cache["resid_post.5"]` and `cache["resid_post", 5]` are the same array; a layer
    below 0 counts from the last one that was captured. Row i of every array belongs to the token at `positions[i]`.
    """

    def __init__(self, rows: Mapping[Point, FloatArray], positions: npt.ArrayLike) -> None:
        self._rows = {point: rows[point] for point in sorted(rows)}
        self.positions: IntArray = np.asarray(positions, dtype=np.int64)
        for point, array in self._rows.items():
            if array.ndim != 2 or len(array) != len(self.positions):
                raise ValueError(f"{point}: rows of shape {array.shape} for {len(self.positions)} positions")

    def __getitem__(self, key: str | tuple[str, int]) -> FloatArray:
        try:
            return self._rows[self._point(key)]
        except (ValueError, IndexError):
            pass
        except KeyError:
            pass
        raise KeyError(f"{key!r} was not captured; {', '.join(self)} were")

    def _point(self, key: str | tuple[str, int]) -> Point:
        if isinstance(key, str):
            return Point.parse(key)
        site, layer = key
        return Point(layer if layer >= 0 else self.layers(site)[layer], site)

    def __iter__(self) -> Iterator[str]:
        return (point.hook_name for point in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]
        except (KeyError, TypeError):
            return False
        return True

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(rows.shape)}" for name, rows in self.items())
        return f"ActivationCache({shapes})"

    @property
    def points(self) -> Sequence[Point]:
        return list(self._rows)

    def layers(self, site: str) -> list[int]:
        """The layers at which the site was captured, ascending."""
        return [point.layer for point in self._rows if point.site == site]

    def stack_activation(self, site: str) -> FloatArray:
        """The rows of a site's captured layers, [layers, positions, width]; `layers(site)` numbers the first dimension."""
        if not self.layers(site):
            raise KeyError(f"{site} was not captured; {', '.join(self)} were")
        return np.stack([self[site, layer] for layer in self.layers(site)])
