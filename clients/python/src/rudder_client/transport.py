"""Requests and answers as JSON over the `openai` client, which keeps connections, retries and deadlines."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from .errors import IgnoredFieldsError, request_error

_IGNORED = "x-rudder-ignored-fields"


class Transport:
    """Every call raises a RequestError for a refusal, and IgnoredFieldsError where the server passed over a field.

    `changes_steering`: the call is made with the key that guards changes of steering, where one was given.
    """

    def __init__(self, client: openai.OpenAI, steering_api_key: str | None) -> None:
        self.client = client
        self._steering_client = client if steering_api_key is None else client.with_options(api_key=steering_api_key)

    def get(self, path: str) -> dict[str, Any]:
        try:
            return _document(self.client.get(path, cast_to=httpx2.Response))
        except openai.APIStatusError as error:
            raise request_error(error) from error

    def post(self, path: str, body: dict[str, Any], *, changes_steering: bool = False) -> dict[str, Any]:
        client = self._steering_client if changes_steering else self.client
        try:
            return _document(client.post(path, body=body, cast_to=httpx2.Response))
        except openai.APIStatusError as error:
            raise request_error(error) from error

    def delete(self, path: str, *, changes_steering: bool = False) -> dict[str, Any]:
        client = self._steering_client if changes_steering else self.client
        try:
            return _document(client.delete(path, cast_to=httpx2.Response))
        except openai.APIStatusError as error:
            raise request_error(error) from error


def _document(response: httpx2.Response) -> dict[str, Any]:
    ignored = response.headers.get(_IGNORED, "")
    if ignored:
        raise IgnoredFieldsError([field.strip() for field in ignored.split(",")])
    document: dict[str, Any] = response.json()
    return document
