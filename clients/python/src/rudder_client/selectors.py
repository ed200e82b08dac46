"""Which tokens are steered (`Select`), and how strongly (`Probe`, `PromptScore`, `Control`, `Ramp`,
`StepWindow`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from .errors import ArrayError
from .packing import pack

# A window [begin, end) of tokens: None leaves a side open, a number below 0 counts from the prompt's end.
Window = slice | tuple[int | None, int | None]
Windows = Window | Sequence[Window]
Phase = Literal["all", "prefill", "decode"]
Role = Literal["system", "user", "assistant", "reasoning"]


def _window_json(window: Window, path: str) -> list[int | None]:
    if isinstance(window, slice):
        if window.step not in (None, 1):
            raise ArrayError(path, "a window has no step")
        return [window.start, window.stop]
    if len(window) != 2:
        raise ArrayError(path, f"a window is (begin, end), not {window}")
    return list(window)


def _is_window(windows: Windows) -> TypeGuard[Window]:
    return isinstance(windows, slice) or not any(isinstance(item, (slice, tuple, list)) for item in windows)


def _windows_json(windows: Windows, path: str) -> list[list[int | None]]:
    if _is_window(windows):
        return [_window_json(windows, path)]
    return [_window_json(window, f"{path}[{i}]") for i, window in enumerate(cast(Sequence[Window], windows))]


@dataclass(frozen=True)
class Select:
    """Tokens at which an op works: those for which every condition that is given holds.

    `Select(phase="decode")`, `Select(prompt=slice(-1, None))`, `Select(prompt=[(0, 4), (-8, -2)], generation=(0, 16))`,
    `Select(roles=["user"])`, `Select(token_ids=[412], special=False)`. Where windows are given, no token outside them is steered; with `prompt` alone, no generated
    token is; nor with `token_ids`, which are of the prompt. `special=False` leaves out the prompt's special tokens. The roles
    are those of a chat's messages.
    """

    phase: Phase | None = None
    prompt: Windows | None = None
    generation: Windows | None = None
    roles: Sequence[Role] | None = None
    token_ids: Sequence[int] | None = None
    special: bool | None = None

    @classmethod
    def positions(cls, positions: Iterable[int]) -> Select:
        """Single tokens of the prompt, counted from 0; neighbours become one window (a request has at most 64)."""
        wanted = sorted({int(position) for position in positions})
        if not wanted or wanted[0] < 0:
            raise ArrayError("select.prompt", "at least one position is needed, counted from 0")
        breaks = [i for i in range(1, len(wanted)) if wanted[i] != wanted[i - 1] + 1]
        starts, ends = [0, *breaks], [*breaks, len(wanted)]
        return cls(prompt=[(wanted[a], wanted[b - 1] + 1) for a, b in zip(starts, ends, strict=True)])

    @classmethod
    def mask(cls, mask: npt.ArrayLike) -> Select:
        """The tokens of the prompt where a boolean array [tokens] is true."""
        array = np.asarray(mask)
        if array.dtype != np.bool_ or array.ndim != 1:
            raise ArrayError("select.prompt", f"a boolean array [tokens] is needed, not {array.dtype} {array.shape}")
        return cls.positions(np.flatnonzero(array).tolist())

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.phase is not None:
            out["phase"] = self.phase
        if self.prompt is not None:
            out["prompt"] = _windows_json(self.prompt, "select.prompt")
        if self.generation is not None:
            out["generation"] = _windows_json(self.generation, "select.generation")
        if self.roles is not None:
            out["roles"] = list(self.roles)
        if self.token_ids is not None:
            out["token_ids"] = [int(token) for token in self.token_ids]
        if self.special is not None:
            out["special"] = self.special
        return out


@dataclass(frozen=True)
class Probe:
    """Gate by h.v of the token itself: 1 above `threshold`, else 0; with a sharpness k, 1/(1 + exp(-k (h.v - threshold)))."""

    vector: npt.ArrayLike | str
    threshold: float
    sharpness: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"probe": _probe_json(self.vector, self.threshold, self.sharpness, "gate.probe.vector")}


@dataclass(frozen=True)
class FeatureGate:
    """Gate by a feature of the row that the op changes: 1 where its value is above `above`, else 0. The op is where the
    dictionary reads. `layer`: of a dictionary that has several."""

    dictionary: str
    feature: int
    above: float = 0.0
    layer: int | None = None

    def to_json(self) -> dict[str, Any]:
        layer = {} if self.layer is None else {"layer": int(self.layer)}
        return {"feature": {"dictionary": self.dictionary, "feature": int(self.feature), "above": self.above, **layer}}


@dataclass(frozen=True)
class PromptScore:
    """Gate by the mean of h.v over the prompt's tokens at `point` (a hook name); opens at the prompt's last token."""

    vector: npt.ArrayLike | str
    point: str
    threshold: float
    sharpness: float | None = None

    def to_json(self) -> dict[str, Any]:
        fields = _probe_json(self.vector, self.threshold, self.sharpness, "gate.prompt_score.vector")
        return {"prompt_score": {"site": self.point, **fields}}


@dataclass(frozen=True)
class Control:
    """Gate each generated token by what the one before showed: clip(gain (target - r), low, high).

    r is h.v at `point` (a hook name) for a `vector`, or the value of a `feature` of a `dictionary`, at its `layer` where it has several.
    """

    target: float
    gain: float
    low: float
    high: float
    vector: npt.ArrayLike | str | None = None
    point: str | None = None
    dictionary: str | None = None
    feature: int | None = None
    layer: int | None = None

    def to_json(self) -> dict[str, Any]:
        read: dict[str, Any]
        if self.vector is not None and self.point is not None and self.dictionary is None:
            vector = self.vector if isinstance(self.vector, str) else pack(self.vector, "gate.control.probe.vector")
            read = {"probe": {"vector": vector, "site": self.point}}
        elif self.dictionary is not None and self.feature is not None and self.vector is None:
            layer = {} if self.layer is None else {"layer": self.layer}
            read = {"feature": {"dictionary": self.dictionary, "feature": int(self.feature), **layer}}
        else:
            raise ArrayError("gate.control", "a vector and its point are needed, or a dictionary and a feature")
        return {"control": {**read, "target": self.target, "gain": self.gain, "min": self.low, "max": self.high}}


@dataclass(frozen=True)
class Ramp:
    """A factor on the scale that goes from `start` at generated token `begin` to `stop` at `end`, and stays there."""

    end: int
    start: float = 0.0
    stop: float = 1.0
    begin: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"schedule": {"kind": "ramp", "begin": self.begin, "end": self.end, "from": self.start, "to": self.stop}}


@dataclass(frozen=True)
class StepWindow:
    """A factor of 1 from generated token `begin` up to `end` (None: for ever), else 0."""

    begin: int = 0
    end: int | None = None

    def to_json(self) -> dict[str, Any]:
        end = {} if self.end is None else {"end": self.end}
        return {"schedule": {"kind": "window", "begin": self.begin, **end}}


GatePart = Probe | FeatureGate | PromptScore | Control | Ramp | StepWindow
Gate = GatePart | Sequence[GatePart]


def gate_json(gate: Gate) -> dict[str, Any]:
    """One part, or a schedule beside another part, as the field `gate`."""
    parts = gate if isinstance(gate, Sequence) else (gate,)
    out: dict[str, Any] = {}
    for part in parts:
        for key, value in part.to_json().items():
            if key in out:
                raise ArrayError(f"gate.{key}", "is given twice")
            out[key] = value
    return out


def _probe_json(vector: npt.ArrayLike | str, threshold: float, sharpness: float | None, path: str) -> dict[str, Any]:
    out: dict[str, Any] = {"vector": vector if isinstance(vector, str) else pack(vector, path), "threshold": threshold}
    if sharpness is not None:
        out["sharpness"] = sharpness
    return out
