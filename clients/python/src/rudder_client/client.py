"""`Rudder`: the client."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import openai

from .activations import ActivationCache, IntArray
from .capture import Capture, CaptureSpec, Names, Positions, Where, capture_json
from .errors import ArrayError
from .features import Dictionaries
from .generation import Generation, read_generation
from .modules import SteeringModules
from .packing import FloatArray
from .parallel import Progress, parallel_map
from .patching import Layers, PatchSweep, Window, read_sweep, sweep_json
from .transport import Transport
from .vectors import Steering, steering_json

Message = Mapping[str, Any]
# Text or token ids, which are completed as they are; or the messages of a chat, which the model's template renders.
Prompt = str | Sequence[int] | npt.NDArray[np.integer[Any]] | Sequence[Message]


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """`{"prompt": ...}` or `{"messages": ...}` of a request."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    items: list[Any] = list(prompt)
    if items and all(isinstance(item, Mapping) for item in items):
        return {"messages": [dict(item) for item in items]}
    if items and all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in items):
        return {"prompt": [int(item) for item in items]}
    raise ArrayError("prompt", "a text, token ids or the messages of a chat are needed, and one prompt a call")


class Rudder:
    """A client of one server.

    `base_url` with or without `/v1`. `model` is by default the first that the server names. `steering_api_key` is needed to
    change modules where the server guards that. `client.openai` is the plain OpenAI client for everything else.
    Methods may be called from several threads at a time.

    Every method raises a `RequestError` for a refusal (`FieldError` with the field's path), `IgnoredFieldsError` for fields
    that the server does not know, and openai's `APIConnectionError` where no answer came.
    """

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, api_key: str = "none",
                 steering_api_key: str | None = None, model: str | None = None, timeout: float = 600.0,
                 max_retries: int = 2) -> None:
        root = base_url.rstrip("/").removesuffix("/v1")
        self.openai = openai.OpenAI(base_url=root + "/v1", api_key=api_key, timeout=timeout, max_retries=max_retries)
        self._transport = Transport(self.openai, steering_api_key)
        self._model = model
        self.modules = SteeringModules(self._transport)
        self.dictionaries = Dictionaries(self._transport)

    @cached_property
    def model(self) -> str:
        return self._model or str(self._transport.get("/models")["data"][0]["id"])

    def generate(self, prompt: Prompt, *, steering: Steering | None = None,
                 capture: CaptureSpec | Sequence[CaptureSpec] | None = None, **fields: Any) -> Generation:
        """Completes a text or token ids, or answers the messages of a chat.

        `fields` are sent as they are: `max_tokens`, `temperature`, `seed`, `n`, `response_format`, `structured_outputs`
        and all others of the server's manual but `stream`.
        """
        if fields.get("stream"):
            raise ArrayError("stream", "answers come whole here; client.openai streams")
        body = {"model": self.model, **prompt_fields(prompt), "return_token_ids": True, **fields}
        if steering is not None:
            body["steering"] = steering_json(steering)
        if capture is not None:
            body["capture"] = capture_json(capture)
        return read_generation(self._transport.post("/chat/completions" if "messages" in body else "/completions", body))

    def run_with_cache(self, prompt: Prompt, names_filter: Names, *, positions: Positions = "all_prompt",
                       point: Where = "pre", steering: Steering | None = None,
                       **fields: Any) -> tuple[Generation, ActivationCache]:
        """Runs the model over a prompt and returns the activations of its tokens, [positions, width] by hook name.

        As `HookedTransformer.run_with_cache`, but that what comes beside the cache is the answer and not logits. Nothing is
        generated of a text or of token ids, and one token of a chat, unless `max_tokens` says more; `positions` says of
        which tokens rows come. CaptureError where rows are missing.
        """
        chat = "messages" in prompt_fields(prompt)
        nothing = {"max_tokens": 1} if chat else {"max_tokens": 0, "echo": True}
        run = {} if "max_tokens" in fields else nothing
        answer = self.generate(prompt, steering=steering, capture=Capture(names_filter, positions, point), **run, **fields)
        return answer, answer.cache

    def batch(self, prompts: Iterable[Prompt], *, concurrency: int = 16, progress: Progress = False,
              **arguments: Any) -> Iterator[Generation]:
        """`generate` of many prompts with the same arguments, in order; see `parallel_map` for what differs by prompt."""
        return parallel_map(lambda prompt: self.generate(prompt, **arguments), prompts, concurrency=concurrency,
                            progress=progress)

    def patch_sweep(self, clean: Prompt, corrupted: Prompt, *, right: str | int, wrong: str | int | None = None,
                    sites: Mapping[str, Layers], positions: Sequence[Window] | None = None, svg: bool = False,
                    **fields: Any) -> PatchSweep:
        """Runs the corrupted prompt once for each site, layer and position with the clean prompt's row put in there.

        The metric is the difference of the logits of two tokens, `right` and `wrong`, or the probability of `right` alone.
        `positions` are those of tokens, or windows (begin, end) that are patched at once; by default all of them, one by one.
        """
        prompts = {"clean": prompt_fields(clean), "corrupted": prompt_fields(corrupted)}
        body = {"model": self.model, **sweep_json(prompts, right, wrong, sites, positions, svg), **fields}
        return read_sweep(self._transport.post("/steering/patch_sweep", body))

    def embed(self, inputs: str | Sequence[str], *, steering: Steering | None = None, **fields: Any) -> FloatArray:
        """Embeddings [inputs, width] of texts, of length 1 unless `normalize=False`; `pooling` is "last" or "mean"."""
        body = {"model": self.model, "input": [inputs] if isinstance(inputs, str) else list(inputs),
                "encoding_format": "base64", **fields}
        if steering is not None:
            body["steering"] = steering_json(steering)
        items = self._transport.post("/embeddings", body)["data"]
        return np.stack([_read_embedding(item["embedding"]) for item in sorted(items, key=lambda item: int(item["index"]))])

    def to_tokens(self, prompt: Prompt) -> IntArray:
        """The token ids of a text, or of a chat as the model's template renders it."""
        answer = self._transport.post("/tokenize", {"model": self.model, **prompt_fields(prompt)})
        return np.asarray(answer["tokens"], dtype=np.int64)

    def to_str_tokens(self, prompt: Prompt) -> list[str]:
        """The text of each token. A token that is part of a character has the replacement character."""
        ids = [int(token) for token in self.to_tokens(prompt)]
        run = self.generate(ids, max_tokens=0, echo=True, logprobs=0, skip_special_tokens=False)
        return [str(token) for token in run.raw["choices"][0]["logprobs"]["tokens"]]

    def to_string(self, token_ids: Sequence[int] | IntArray) -> str:
        """The text of token ids, special tokens included."""
        body = {"model": self.model, "tokens": [int(token) for token in token_ids]}
        return str(self._transport.post("/detokenize", body)["prompt"])


def _read_embedding(data: str) -> FloatArray:
    return np.frombuffer(base64.b64decode(data, validate=True), dtype="<f4").astype(np.float32)
