"""The steering ops, one function each: `ops.add("blocks.5.hook_resid_post", direction, scale=2)`.

`point` is a hook name (`blocks.5.hook_resid_post`, `resid_post.5`), or a site (`resid_post`) with `layers`: a number, a
list, "all", or "4,8-12,-1". `vector` is one vector [width], one for each layer [layers, width], or the name of a steering
module, whose vector at the same point is meant. Formulas: h is the activation of a token, s the scale, u the vector divided
by its length, p = h.u. Arrays are packed once, when the op is made; the op can then be sent any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from .packing import pack
from .selectors import Gate, Select, gate_json

Layers = int | str | Sequence[int]
Vector = npt.ArrayLike | str
Stream = int | Literal["all"]  # of a residual that has several, from 0


def stream_json(stream: int | str) -> int | str:
    return stream if isinstance(stream, str) else int(stream)


@dataclass(frozen=True)
class SteeringOp:
    """One element of the field `steering`, as it is sent."""

    fields: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dict(self.fields)

    def on_heads(self, heads: Layers) -> SteeringOp:
        """The same op for these heads of `attn_z` alone: `ops.add("blocks.4.attn.hook_z", v).on_heads([0, -1])`. Vectors are
        of the heads side by side, head_dim numbers each. A number, a list, "all", or "0,2-3,-1"."""
        listed = heads if isinstance(heads, (int, str)) else [int(head) for head in heads]
        return SteeringOp({**self.fields, "heads": listed})

    def on_stream(self, stream: Stream) -> SteeringOp:
        """The same op for the row of this stream alone, where the model's residual has several, or for each ("all"):
        `ops.add("blocks.4.hook_resid_post", v).on_stream(1)`. Vectors have the model's width."""
        return SteeringOp({**self.fields, "stream": stream_json(stream)})

    def __repr__(self) -> str:
        shown = {key: "..." if isinstance(value, dict) and "data" in value else value
                 for key, value in self.fields.items()}
        return f"SteeringOp({shown})"


def _vector_json(vector: Vector, path: str) -> Any:
    return vector if isinstance(vector, str) else pack(vector, path)


def _op(name: str, point: str, vector: Vector, layers: Layers | None, select: Select | None, gate: Gate | None,
        **own: Any) -> SteeringOp:
    fields: dict[str, Any] = {"op": name, "site": point}
    if layers is not None:
        fields["layers"] = layers if isinstance(layers, (int, str)) else [int(layer) for layer in layers]
    fields["vector"] = _vector_json(vector, "vector")
    fields.update({key: value for key, value in own.items() if value is not None})
    if select is not None:
        fields["select"] = select.to_json()
    if gate is not None:
        fields["gate"] = gate_json(gate)
    return SteeringOp(fields)


def add(point: str, vector: Vector, *, scale: float = 1.0, layers: Layers | None = None, select: Select | None = None,
        gate: Gate | None = None) -> SteeringOp:
    """h + s v"""
    return _op("add", point, vector, layers, select, gate, scale=scale)


def add_norm(point: str, vector: Vector, *, scale: float = 1.0, layers: Layers | None = None,
             select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h + s |h| u: the scale is a share of the activation's own length."""
    return _op("add_norm", point, vector, layers, select, gate, scale=scale)


def add_renorm(point: str, vector: Vector, *, scale: float = 1.0, only_if_grew: bool = False,
               layers: Layers | None = None, select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """(h + s v) |h| / |h + s v|: the length stays; `only_if_grew`: only where the add made it longer."""
    return _op("add_renorm", point, vector, layers, select, gate, scale=scale, only_if_grew=only_if_grew)


def ablate(point: str, vector: Vector, *, scale: float = 1.0, layers: Layers | None = None,
           select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h - s p u; rows [axes, width] are axes of one subspace, and all of their span is removed."""
    return _op("ablate", point, vector, layers, select, gate, scale=scale)


def mean_ablate(point: str, vector: Vector, mean: float | npt.ArrayLike, *, scale: float = 1.0,
                layers: Layers | None = None, select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h - s (p - m) u; `mean` is m, or a vector whose projection on u is m."""
    value = mean if isinstance(mean, (int, float)) else pack(mean, "mean")
    return _op("mean_ablate", point, vector, layers, select, gate, scale=scale, mean=value)


def orthogonal(point: str, vector: Vector, coefficient: float, *, scale: float = 1.0, layers: Layers | None = None,
               select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h + s (c - 1) p u: the part along u is multiplied by c."""
    return _op("orthogonal", point, vector, layers, select, gate, scale=scale, coefficient=coefficient)


def swap(point: str, vector: Vector, target: Vector, *, scale: float = 1.0, layers: Layers | None = None,
         select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h + s p (t - u), t the target divided by its length: what pointed along u points along t."""
    return _op("swap", point, vector, layers, select, gate, scale=scale, target=_vector_json(target, "target"))


def rotate(point: str, vector: Vector, target: Vector, angle: float, *, mode: Literal["to", "by"] = "to",
           adaptive: bool = False, scale: float | None = None, layers: Layers | None = None,
           select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """Turns the part of h in the plane of vector and target to `angle` degrees from u, or by it (`mode="by"`, no scale).

    `adaptive`: only where p > 0.
    """
    return _op("rotate", point, vector, layers, select, gate, scale=scale, target=_vector_json(target, "target"),
               angle=angle, mode=mode, adaptive=adaptive)


def patch(point: str, vector: Vector, *, scale: float = 1.0, layers: Layers | None = None,
          select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h + s (v - h): with scale 1 the activation is replaced, as by a captured row of another run."""
    return _op("patch", point, vector, layers, select, gate, scale=scale)


def patch_from(point: str, request: str, positions: Sequence[int], dest: Sequence[int] | None = None, *, choice: int = 0,
               scale: float = 1.0, layers: Layers | None = None, gate: Gate | None = None) -> SteeringOp:
    """The patch by rows that a finished request kept: `KeptCapture`, and the `id` of its answer.

    The row of each of `positions` goes to the one of `dest`, by default the same; negative ones count from a prompt's end.
    """
    own = {"source": {"request": request, "choice": int(choice), "positions": [int(each) for each in positions]}}
    fields = dict(_op("patch", point, [0.0], layers, None, gate, scale=scale).fields, **own)
    del fields["vector"]
    if dest is not None:
        fields["dest"] = [int(each) for each in dest]
    return SteeringOp(fields)


def clamp(point: str, vector: Vector, *, lo: float | None = None, hi: float | None = None, scale: float = 1.0,
          layers: Layers | None = None, select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h + s (clip(p, lo, hi) - p) u, with one bound or both."""
    return _op("clamp", point, vector, layers, select, gate, scale=scale, lo=lo, hi=hi)


def cap(point: str, vector: Vector, hi: float, *, scale: float = 1.0, layers: Layers | None = None,
        select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """The clamp without a lower bound."""
    return _op("cap", point, vector, layers, select, gate, scale=scale, hi=hi)


def set(point: str, vector: Vector, value: float, *, scale: float = 1.0, layers: Layers | None = None,  # noqa: A001
        select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """h + s (value - p) u: the projection on u becomes `value`."""
    return _op("set", point, vector, layers, select, gate, scale=scale, value=value)


def experts(point: str = "router_logits", *, activate: Layers | None = None, deactivate: Layers | None = None, layers: Layers | None = None,
            select: Select | None = None, gate: Gate | None = None) -> SteeringOp:
    """Which experts of mixtures the routers choose before all others, and which behind them (SteerMoE). They are given by number, in
    the forms of `layers`; other sites than router_logits are refused."""
    fields: dict[str, Any] = {"op": "experts", "site": point}
    for key, named in (("layers", layers), ("activate", activate), ("deactivate", deactivate)):
        if named is not None:
            fields[key] = named if isinstance(named, (int, str)) else [int(number) for number in named]
    if select is not None:
        fields["select"] = select.to_json()
    if gate is not None:
        fields["gate"] = gate_json(gate)
    return SteeringOp(fields)
