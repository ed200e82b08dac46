"""The steering modules of a server: named steering that requests refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from .hooks import Point
from .transport import Transport
from .vectors import Steering, steering_json


@dataclass(frozen=True)
class ModuleOp:
    """One op of a module at one point. `norm` is the length of its vector."""

    op: str
    point: Point
    scale: float
    norm: float
    phase: str


@dataclass(frozen=True)
class SteeringModule:
    """A registered module; `source` is the file it came from, or how it was registered."""

    name: str
    source: str
    ops: Sequence[ModuleOp]


class SteeringModules:
    """`client.modules`. Changes need the server's steering key, where it has one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def register(self, name: str, steering: Steering, *, replace: bool = False) -> SteeringModule:
        """Registers vectors or ops under a name. ConflictError where it is taken, unless `replace`.

        FieldError names the wrong field; requests that run keep the module that they began with.
        """
        body = {"name": name, "steering": steering_json(steering), **({"replace": True} if replace else {})}
        return _read_module(self._transport.post("/steering/modules", body, changes_steering=True))

    def list(self) -> Sequence[SteeringModule]:
        """Every module, with the points and lengths of its vectors; the server does not give the vectors back."""
        return [_read_module(entry) for entry in self._transport.get("/steering/modules")["modules"]]

    def delete(self, name: str) -> None:
        """NotFoundError where there is no such module."""
        self._transport.delete(f"/steering/modules/{quote(name, safe='')}", changes_steering=True)


def _read_module(entry: dict[str, Any]) -> SteeringModule:
    return SteeringModule(name=entry["name"], source=entry["source"], ops=[
        ModuleOp(op=op["op"], point=Point(op["layer"], op["site"]), scale=op["scale"], norm=op["norm"], phase=op["phase"])
        for op in entry["ops"]])
