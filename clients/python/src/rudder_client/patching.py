"""Activation patching over a grid: which clean activations bring back the clean answer.

    sweep = client.patch_sweep("The Eiffel Tower is in", "The Colosseum is in", right=" Paris", wrong=" Rome",
                               sites={"resid_post": "all"})
    sweep.values["resid_post"]      # [layers, positions]: the metric behind each patch
    sweep.restored("resid_post")    # the same as a share: 0 the corrupted run, 1 the clean one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ArrayError
from .packing import FloatArray

Layers = int | str | Sequence[int]
Window = int | tuple[int, int | None]


@dataclass(frozen=True)
class PatchSweep:
    """What a sweep measured. `positions` are windows [begin, end) of the prompts' tokens."""

    metric: str  # "logit_difference" or "probability"
    clean: float
    corrupted: float
    tokens: tuple[str, ...]  # of the corrupted prompt
    positions: tuple[tuple[int, int], ...]
    layers: dict[str, tuple[int, ...]]
    values: dict[str, FloatArray]  # by site, [layers, positions]
    svg: str | None
    raw: dict[str, Any]

    def restored(self, site: str) -> FloatArray:
        """The share of the metric that each patch brought back."""
        if self.clean == self.corrupted:
            raise ArrayError("metric", "the clean and the corrupted run measure the same: there is nothing to restore")
        return (self.values[site] - self.corrupted) / (self.clean - self.corrupted)


def sweep_json(prompts: Mapping[str, dict[str, Any]], right: str | int, wrong: str | int | None,
               sites: Mapping[str, Layers], positions: Sequence[Window] | None, svg: bool) -> dict[str, Any]:
    """The body of a sweep; `prompts` are fields of requests, by what the sweep calls them."""
    body: dict[str, Any] = {name: fields if "messages" in fields else fields["prompt"] for name, fields in prompts.items()}
    body["answer"] = {"right": right} if wrong is None else {"right": right, "wrong": wrong}
    body["sites"] = {site: layers if isinstance(layers, (int, str)) else [int(layer) for layer in layers]
                     for site, layers in sites.items()}
    if positions is not None:
        body["positions"] = [list(each) if isinstance(each, tuple) else int(each) for each in positions]
    if svg:
        body["svg"] = True
    return body


def read_sweep(document: dict[str, Any]) -> PatchSweep:
    grids = document["grids"]
    return PatchSweep(
        metric=str(document["metric"]), clean=float(document["clean"]), corrupted=float(document["corrupted"]),
        tokens=tuple(document["tokens"]), positions=tuple((begin, end) for begin, end in document["positions"]),
        layers={grid["site"]: tuple(grid["layers"]) for grid in grids},
        values={grid["site"]: np.asarray(grid["values"], dtype=np.float32) for grid in grids},
        svg=document.get("svg"), raw=document)
