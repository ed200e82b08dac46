"""What can go wrong, by type. The error of a request is an openai error too, so `except openai.BadRequestError` works."""

from __future__ import annotations

import openai


class RudderError(Exception):
    """Base of every error that this package raises."""


class ArrayError(RudderError, ValueError):
    """An array or argument that no request could carry. `path` names the field that it was meant for."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class FileFormatError(RudderError, ValueError):
    """A file of vectors or captured rows that is not what its format says."""


class RequestError(RudderError, openai.APIStatusError):
    """The server refused the request.

    `path` is the field that is wrong, as the server names it (`steering[1].vector`), or "" where it names none.
    `code` is the server's word for the kind of error (`invalid_value`, `not_found`, `overloaded`).
    """

    @property
    def path(self) -> str:
        return self.param or ""

    def __str__(self) -> str:
        body = self.body if isinstance(self.body, dict) else {}
        message = str(body.get("message", self.message))
        return message if message.startswith(self.path) else f"{self.path}: {message}"


class FieldError(RequestError, openai.BadRequestError):
    """400: a field has a wrong type, value, width or name."""


class KeyRefusedError(RequestError, openai.AuthenticationError):
    """401: the API key, or the key for changes of steering, is missing or wrong."""


class NotFoundError(RequestError, openai.NotFoundError):
    """404: no such model, steering module or response."""


class ConflictError(RequestError, openai.ConflictError):
    """409: a steering module of that name is registered already."""


class ServerError(RequestError, openai.InternalServerError):
    """5xx: the queue is full, the server is shutting down, or it failed."""


class IgnoredFieldsError(RudderError):
    """The server does not know these fields and answered without them: a misspelt field must not pass for one obeyed."""

    def __init__(self, fields: list[str]) -> None:
        super().__init__(f"the server ignored the fields {', '.join(fields)}")
        self.fields = fields


class CaptureError(RudderError):
    """A consumer's capture is incomplete or failed; the answer itself is whole. `status` is the server's word."""

    def __init__(self, consumer: str, status: str, message: str) -> None:
        super().__init__(f"capture.{consumer}: {status}: {message}")
        self.consumer = consumer
        self.status = status


_BY_STATUS: dict[int, type[RequestError]] = {
    400: FieldError, 401: KeyRefusedError, 404: NotFoundError, 409: ConflictError}


def request_error(error: openai.APIStatusError) -> RequestError:
    """The error of this package for one of openai's, with the same response and body."""
    kind = _BY_STATUS.get(error.status_code, ServerError if error.status_code >= 500 else RequestError)
    return kind(error.message, response=error.response, body=error.body)
