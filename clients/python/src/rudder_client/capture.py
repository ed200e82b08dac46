"""What to capture (`Capture`, `FileCapture`) and what came of it (`CaptureResult`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .activations import ActivationCache, IntArray
from .errors import ArrayError, CaptureError
from .feature_arrays import TopFeatures, padded
from .hooks import Point
from .ops import Layers, Stream, stream_json
from .packing import FloatArray, pack, unpack
from .patterns import AttentionPattern, Patterns, hook_name, read_pattern

# Hook names or sites (a site alone means all of its layers), or layers by site.
Names = str | Sequence[str] | Mapping[str, Layers]
Positions = Literal["last_prompt", "all_prompt", "all_generated", "all"] | Sequence[int] | Mapping[str, int]
Where = Literal["pre", "post"]
Value = Literal["rows", "means", "norms", "probes"]


def sites_json(names: Names) -> dict[str, Any]:
    """The field `sites`: `["blocks.5.hook_resid_post", "mlp_act"]` and `{"resid_post": [4, 5]}` are both taken."""
    if isinstance(names, Mapping):
        return {site: layers if isinstance(layers, (int, str)) else [int(layer) for layer in layers]
                for site, layers in names.items()}
    listed = [names] if isinstance(names, str) else list(names)
    if not listed:
        raise ArrayError("capture.sites", "at least one hook name is needed")
    return {name: True if "." in name else "all" for name in listed}


def _positions_json(positions: Positions) -> Any:
    if isinstance(positions, Mapping):  # {"from": 3}
        return {key: int(position) for key, position in positions.items()}
    return positions if isinstance(positions, str) else [int(position) for position in positions]


def _common_json(names: Names, positions: Positions, point: Where, stream: Stream | None) -> dict[str, Any]:
    where = _positions_json(positions)
    sites = {} if names == () else {"sites": sites_json(names)}
    return {**sites, "positions": where, "point": point, **({} if stream is None else {"stream": stream_json(stream)})}


@dataclass(frozen=True)
class Lens:
    """The logit lens: the `top` likeliest next tokens as the model's norm and head read resid_post of these layers. `stream`,
    where the residual has several: the row of this one, or all as the model reads its last row ("collapsed", the default)."""

    layers: Layers
    top: int = 5
    stream: int | Literal["collapsed"] | None = None

    def to_json(self) -> dict[str, Any]:
        layers = self.layers if isinstance(self.layers, (int, str)) else [int(layer) for layer in self.layers]
        which = {} if self.stream is None else {"stream": stream_json(self.stream)}
        return {"layers": layers, "top": self.top, **which}


@dataclass(frozen=True)
class Features:
    """Features of a dictionary at the rows where it reads: the `top` largest, or those of `numbers`. `layer`: of a
    dictionary that has several."""

    dictionary: str
    top: int = 8
    numbers: Sequence[int] | IntArray | None = None
    layer: int | None = None

    def to_json(self) -> dict[str, Any]:
        which = {"top": int(self.top)} if self.numbers is None else {"features": [int(each) for each in self.numbers]}
        return {"dictionary": self.dictionary, **({} if self.layer is None else {"layer": int(self.layer)}), **which}


@dataclass(frozen=True)
class LensReading:
    """Of one layer: token ids and log-probabilities [positions, top], the likeliest first. `stream` says of which row, where
    the residual has several."""

    token_ids: IntArray
    logprobs: FloatArray
    stream: int | str | None = None


@dataclass(frozen=True)
class Capture:
    """Activations that come back with the answer.

    `names`: hook names or sites. `positions` count tokens through prompt and answer, below 0 from the prompt's end; `{"from": 3}`
    is position 3 and all behind it.
    `point`: before ("pre") or after ("post") the steering ops of the point itself. `values`: which of rows, means over the
    positions, norms and dot products with `probes`; by default probes where there are some, else rows. `measure`: of
    probes, h.v, h.v/|v| or h.v/(|h||v|). `lens`: what the output head reads of layers. `features`: of a dictionary. `patterns`: of
    attention; `point` says nothing of them. With any of these, `names` may be empty. `heads`: which heads of `attn_z` its rows have, side by side:
    `rows.reshape(positions, heads, head_dim)` takes them apart. `stream`, where the residual has several: rows of resid_pre, resid_mid
    and resid_post are those of this one; else of all, side by side.
    """

    names: Names
    positions: Positions = "last_prompt"
    point: Where = "pre"
    values: Sequence[Value] | None = None
    probes: Mapping[str, npt.ArrayLike | str] | None = None
    measure: Literal["dot", "projection", "cosine"] | None = None
    lens: Lens | None = None
    features: Features | None = None
    heads: Layers | None = None
    patterns: Patterns | None = None
    stream: Stream | None = None

    def to_json(self) -> dict[str, Any]:
        out = _common_json(self.names, self.positions, self.point, self.stream)
        if self.patterns is not None:
            out["patterns"] = self.patterns.to_json()
            if self.names == () and self.lens is None and self.features is None:
                del out["point"]
        if self.heads is not None:
            out["heads"] = self.heads if isinstance(self.heads, (int, str)) else [int(head) for head in self.heads]
        if self.lens is not None:
            out["lens"] = self.lens.to_json()
        if self.features is not None:
            out.update(self.features.to_json())
        if self.values is not None:
            out["values"] = list(self.values)
        if self.probes is not None:
            out["probes"] = {name: vector if isinstance(vector, str) else pack(vector, f"capture.response.probes.{name}")
                             for name, vector in self.probes.items()}
        if self.measure is not None:
            out["measure"] = self.measure
        return {"response": out}


@dataclass(frozen=True)
class FileCapture:
    """Activations that the server writes to files below its root (`--capture-consumer filesystem:root=DIR`).

    `tag` and `request_id` name folders; `layout` is a file for each point, or shards of many requests. `read_capture`
    reads both.
    """

    names: Names
    positions: Positions = "all"
    point: Where = "pre"
    tag: str | None = None
    request_id: str | None = None
    layout: Literal["files", "shards"] | None = None
    stream: Stream | None = None

    def to_json(self) -> dict[str, Any]:
        out = _common_json(self.names, self.positions, self.point, self.stream)
        own = {"tag": self.tag, "request_id": self.request_id, "layout": self.layout}
        out.update({key: value for key, value in own.items() if value is not None})
        return {"filesystem": out}


@dataclass(frozen=True)
class KeptCapture:
    """Activations that the server keeps (`--capture-consumer kept`), for `ops.patch_from` of later requests."""

    names: Names
    positions: Positions = "all_prompt"
    point: Where = "pre"
    stream: Stream | None = None

    def to_json(self) -> dict[str, Any]:
        return {"kept": _common_json(self.names, self.positions, self.point, self.stream)}


# A mapping is the field `capture` as JSON: consumers by name, a plugin's too.
CaptureSpec = Capture | FileCapture | KeptCapture | Mapping[str, Any]


def capture_json(specs: CaptureSpec | Sequence[CaptureSpec]) -> dict[str, Any]:
    """The field `capture` of a request, from one specification or several of different consumers."""
    out: dict[str, Any] = {}
    for spec in specs if isinstance(specs, Sequence) else (specs,):
        for consumer, fields in (spec if isinstance(spec, Mapping) else spec.to_json()).items():
            if consumer in out:
                raise ArrayError(f"capture.{consumer}", "is given twice; two requests are needed")
            out[consumer] = fields
    return out


@dataclass(frozen=True)
class CaptureResult:
    """What one consumer made of a choice's rows. `payload` is its document as it came."""

    consumer: str
    status: str
    error: str | None
    payload: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_json(cls, consumer: str, entry: Mapping[str, Any]) -> CaptureResult:
        return cls(consumer, entry["status"], entry.get("error"), entry.get("payload") or {})

    def checked(self) -> CaptureResult:
        """Itself where it is whole; else CaptureError."""
        if self.status != "ok":
            raise CaptureError(self.consumer, self.status, self.error or "no rows")
        return self

    @property
    def positions(self) -> IntArray:
        return np.asarray(self.payload.get("positions", []), dtype=np.int64)

    @property
    def cache(self) -> ActivationCache:
        """The captured rows. CaptureError unless all of them are there."""
        packs = self._packs("rows")
        rows: dict[Point, FloatArray] = {}
        for site, packed in packs.items():
            rows.update(_by_point(site, packed, len(self.positions)))
        return ActivationCache(rows, self.positions)

    @property
    def means(self) -> dict[str, FloatArray]:
        """By hook name, the mean row [width] over the positions."""
        return {point.hook_name: rows[0] for site, packed in self._packs("means").items()
                for point, rows in _by_point(site, packed, 1).items()}

    @property
    def norms(self) -> dict[str, FloatArray]:
        """By hook name, the length of each row [positions]."""
        return _by_hook(self._packs("norms"))

    @property
    def probes(self) -> dict[str, dict[str, FloatArray]]:
        """By probe and hook name, the products [positions]."""
        return {name: _by_hook(values) for name, values in self._packs("probes").items()}

    @property
    def lens(self) -> dict[str, LensReading]:
        """By hook name of resid_post, the likeliest tokens [positions, top]."""
        return {Point.parse(name).hook_name: LensReading(np.asarray(told["token_ids"], dtype=np.int64),
                                                         np.asarray(told["logprobs"], dtype=np.float32), told.get("stream"))
                for name, told in self._packs("lens").items()}

    @property
    def features(self) -> TopFeatures:
        """Numbers and values [positions, count] of the dictionary that was asked for."""
        told = self._packs("dictionary")
        return padded(told["features"], told["values"], max((len(row) for row in told["features"]), default=0))

    @property
    def patterns(self) -> dict[str, AttentionPattern]:
        """By hook name (`blocks.5.attn.hook_pattern`), the weights of attention."""
        return {hook_name(layer): read_pattern(told) for layer, told in self._packs("patterns").items()}

    @property
    def paths(self) -> list[str]:
        """Of `FileCapture`: the files, relative to the consumer's root."""
        return list(self.checked().payload.get("paths", []))

    def _packs(self, value: str) -> Mapping[str, Any]:
        found = self.checked().payload.get(value)
        if found is None:
            raise CaptureError(self.consumer, self.status, f"{value} were not asked for")
        return dict(found)


def _by_hook(values: Mapping[str, Sequence[float]]) -> dict[str, FloatArray]:
    return {Point.parse(name).hook_name: np.asarray(numbers, dtype=np.float32) for name, numbers in values.items()}


def _by_point(site: str, packed: Mapping[str, Any], num_positions: int) -> dict[Point, FloatArray]:
    """A pack has all layers of the first position, then all of the second. A site whose layers differ in width has a pack
    for each (`mlp_act.3`)."""
    rows = unpack(packed)
    layers = list(packed["layer_indices"])
    count = len(layers) // num_positions if num_positions else 0
    if len(rows) != len(layers) or layers != layers[:count] * num_positions:
        raise CaptureError("response", "ok", f"{site}: {len(rows)} rows, layers {layers} at {num_positions} positions")
    name = site.split(".")[0]
    return {Point(layer, name): np.ascontiguousarray(rows[i::count]) for i, layer in enumerate(layers[:count])}
