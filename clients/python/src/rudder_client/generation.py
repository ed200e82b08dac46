"""An answer as it is used here: text, token ids and what was captured, choice by choice."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .activations import ActivationCache, IntArray
from .capture import CaptureResult
from .errors import CaptureError


@dataclass(frozen=True)
class Choice:
    """One of a request's answers. `token_ids` are the generated ones, with the one that ended it."""

    text: str
    token_ids: IntArray = field(repr=False)
    finish_reason: str
    captures: Mapping[str, CaptureResult] = field(repr=False)
    # [tokens, layers, experts of a token], where `return_routed_experts` asked for it; -1 in layers without experts.
    routed_experts: IntArray | None = field(default=None, repr=False)

    @property
    def cache(self) -> ActivationCache:
        """The rows that `Capture` asked for. CaptureError where they are incomplete or were not asked for."""
        return self.capture("response").cache

    def capture(self, consumer: str = "response") -> CaptureResult:
        """What a consumer delivered, whole. CaptureError where it is incomplete or was not asked for."""
        if consumer not in self.captures:
            raise CaptureError(consumer, "not_requested", "the request did not ask for it")
        return self.captures[consumer].checked()


@dataclass(frozen=True)
class Generation:
    """The answer to one prompt. What is not named here stands in `raw`, the document as the server sent it."""

    id: str
    choices: Sequence[Choice]
    prompt_token_ids: IntArray = field(repr=False)
    usage: Mapping[str, Any] = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def text(self) -> str:
        """Of the first choice. Of a chat the message's content; thoughts and tool calls are in `raw`."""
        return self.choices[0].text

    @property
    def token_ids(self) -> IntArray:
        return self.choices[0].token_ids

    @property
    def cache(self) -> ActivationCache:
        return self.choices[0].cache

    def capture(self, consumer: str = "response") -> CaptureResult:
        return self.choices[0].capture(consumer)

    def tokens_at(self, positions: IntArray, choice: int = 0) -> IntArray:
        """The token ids that stand at positions of prompt and answer together, as captures count them."""
        return np.concatenate([self.prompt_token_ids, self.choices[choice].token_ids])[positions]


def read_generation(document: Mapping[str, Any]) -> Generation:
    """From the document of `/v1/completions` (one prompt) or `/v1/chat/completions`."""
    entries = document["choices"]
    prompt_ids = document.get("prompt_token_ids") or entries[0].get("prompt_token_ids") or []
    return Generation(id=document["id"], choices=[_read_choice(entry, document) for entry in entries],
                      prompt_token_ids=np.asarray(prompt_ids, dtype=np.int64), usage=document.get("usage") or {},
                      raw=document)


def _read_choice(entry: Mapping[str, Any], document: Mapping[str, Any]) -> Choice:
    # Of several choices each has its results; of one the answer has them.
    results = entry.get("capture_results") or document.get("capture_results") or {}
    text = entry["message"].get("content") if "message" in entry else entry["text"]
    return Choice(text=text or "", token_ids=np.asarray(entry.get("token_ids") or [], dtype=np.int64),
                  finish_reason=entry["finish_reason"],
                  captures={name: CaptureResult.from_json(name, result) for name, result in results.items()},
                  routed_experts=_read_experts(entry.get("routed_experts")))


def _read_experts(told: str | None) -> IntArray | None:
    if told is None:
        return None
    experts: IntArray = np.load(io.BytesIO(base64.b64decode(told, validate=True)), allow_pickle=False).astype(np.int64)
    return experts
