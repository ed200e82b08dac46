"""Features of the server's dictionaries (sparse autoencoders, transcoders): clamps as ops, activations as arrays.

    features.clamp("moods", 17, "set", 40)                            # an element of `steering`
    client.dictionaries.list()                                        # those of the server
    client.dictionaries.encode("moods", rows, features=[17, 3])       # [rows, 2]
    client.dictionaries.top("moods", rows, 8)                         # feature numbers and values, [rows, 8]
    run_with_features(client, prompt, "moods", features=[17])         # the answer, [positions, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from .activations import IntArray
from .errors import ArrayError
from .feature_arrays import TopFeatures, padded
from .hooks import Point
from .ops import SteeringOp
from .packing import FloatArray, as_rows, pack
from .selectors import Gate, Select, gate_json
from .transport import Transport

if TYPE_CHECKING:
    from .client import Prompt, Rudder
    from .generation import Generation

Kind = Literal["set", "add", "multiply", "min", "max"]
# Of one call: the server bounds the work of a call, so rows go in parts.
_ROWS_AT_ONCE = 64


def clamp(dictionary: str, feature: int, kind: Kind, value: float, *, layer: int | None = None,
          only_if_active: bool = False, mode: Literal["delta", "full"] = "delta", select: Select | None = None,
          gate: Gate | None = None) -> SteeringOp:
    """What becomes of a feature's value f: `set` v, `add` f + v, `multiply` f v, `min` at least v, `max` at most v.

    `only_if_active`: only where f > 0. `layer`: of a dictionary that has several. `mode`: "full" replaces the row by what
    the dictionary makes of it (SAELens: `use_error_term=False`), "delta" keeps what it does not explain.
    """
    fields: dict[str, Any] = {"op": "feature", "dictionary": dictionary, "feature": int(feature), "kind": kind,
                              "value": float(value)}
    if layer is not None:
        fields["layer"] = int(layer)
    if only_if_active:
        fields["only_if_active"] = True
    if mode != "delta":
        fields["mode"] = mode
    if select is not None:
        fields["select"] = select.to_json()
    if gate is not None:
        fields["gate"] = gate_json(gate)
    return SteeringOp(fields)


@dataclass(frozen=True)
class DictionaryLayer:
    """A dictionary of one layer: where it reads and writes, and how many features it has."""

    read: Point
    write: Point
    features: int
    activation: str


@dataclass(frozen=True)
class Dictionary:
    """A registered dictionary; `source` is the path that it was read from."""

    name: str
    source: str
    format: str
    layers: Sequence[DictionaryLayer]

    def at(self, layer: int | None) -> DictionaryLayer:
        """The dictionary of a layer, or the only one. ArrayError where there is no such."""
        found = [each for each in self.layers if layer in (None, each.read.layer)]
        if len(found) != 1:
            layers = ", ".join(str(each.read.layer) for each in self.layers)
            raise ArrayError("layer", f"the dictionary '{self.name}' has layers {layers}")
        return found[0]


class Dictionaries:
    """`client.dictionaries`. Changes need the server's steering key, where it has one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Sequence[Dictionary]:
        return [_read_dictionary(entry) for entry in self._transport.get("/steering/dictionaries")["dictionaries"]]

    def register(self, name: str, path: str, *, site: str | None = None, replace: bool = False) -> Dictionary:
        """Loads a dictionary from a path below the server's `--dictionary-root`. `site`: where it reads, where the files do
        not say. ConflictError where the name is taken, unless `replace`."""
        body = {"name": name, "path": path, **({} if site is None else {"site": site}),
                **({"replace": True} if replace else {})}
        return _read_dictionary(self._transport.post("/steering/dictionaries", body, changes_steering=True))

    def delete(self, name: str) -> None:
        """NotFoundError where there is no such dictionary."""
        self._transport.delete(f"/steering/dictionaries/{quote(name, safe='')}", changes_steering=True)

    def encode(self, name: str, rows: npt.ArrayLike, features: Sequence[int] | IntArray, *,
               layer: int | None = None) -> FloatArray:
        """The values of some features [rows, features], for rows [rows, width] of where the dictionary reads."""
        wanted = {"features": [int(feature) for feature in features]}
        return np.asarray([row["values"] for row in self._encode(name, rows, layer, wanted)], dtype=np.float32)

    def top(self, name: str, rows: npt.ArrayLike, count: int = 8, *, layer: int | None = None) -> TopFeatures:
        """The `count` largest features of each row."""
        found = self._encode(name, rows, layer, {"top": int(count)})
        return padded([row["features"] for row in found], [row["values"] for row in found], count)

    def _encode(self, name: str, rows: npt.ArrayLike, layer: int | None, wanted: dict[str, Any]) -> Sequence[dict[str, Any]]:
        all_rows = np.atleast_2d(as_rows(rows, "rows"))
        where = {} if layer is None else {"layer": int(layer)}
        found = []
        for begin in range(0, len(all_rows), _ROWS_AT_ONCE):
            packed = pack(all_rows[begin:begin + _ROWS_AT_ONCE], "rows")
            body = {"dictionary": name, **where, "rows": packed, **wanted}
            found += self._transport.post("/steering/features/encode", body)["rows"]
        return found


def run_with_features(client: Rudder, prompt: Prompt, dictionary: str, features: Sequence[int] | IntArray, *,
                      layer: int | None = None, **arguments: Any) -> tuple[Generation, FloatArray]:
    """`Rudder.run_with_cache` where the dictionary reads, and the values of features [positions, features] of its rows.

    As `HookedSAETransformer.run_with_cache_with_saes`, for the features that are named. `arguments` are those of
    `run_with_cache`: `positions`, `point`, `steering`, `max_tokens`.
    """
    known = {each.name: each for each in client.dictionaries.list()}
    if dictionary not in known:
        raise ArrayError("dictionary", f"the server has no dictionary '{dictionary}': it has {', '.join(known) or 'none'}")
    read = known[dictionary].at(layer).read
    answer, cache = client.run_with_cache(prompt, str(read), **arguments)
    return answer, client.dictionaries.encode(dictionary, cache[str(read)], features, layer=read.layer)


def _read_dictionary(entry: dict[str, Any]) -> Dictionary:
    return Dictionary(name=entry["name"], source=entry["source"], format=entry["format"], layers=[
        DictionaryLayer(read=Point.parse(each["read"]), write=Point.parse(each["write"]), features=each["features"],
                        activation=each["activation"])
        for each in entry["layers"]])
