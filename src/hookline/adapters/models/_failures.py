"""Convert the failures of providers: which are transient, and what an error may show without secrets."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import httpx2
from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UserError,
)

from hookline.errors import ModelError, TransientModelError, define_error, message_of
from hookline.redaction import Redaction

try:
    import httpx
except ImportError:  # only some providers' clients are made with it
    TRANSPORT_ERRORS: tuple[type[Exception], ...] = (httpx2.TransportError, httpx2.StreamError)
else:
    TRANSPORT_ERRORS = (httpx2.TransportError, httpx2.StreamError, httpx.TransportError, httpx.StreamError)

__all__ = ["CallTimeoutError", "CutStreamError", "ProviderError", "make_secret_filter", "to_model_error"]

TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
TRANSIENT_ERRORS = (
    ModelConnectionError,
    ModelRequestTimeout,
    ModelRateLimitError,
    ModelUnavailableError,
    ModelServerError,
)
CLIENT_FAULTS = ("UnsupportedProtocol", "LocalProtocolError", "InvalidURL")
"""Names of HTTP client errors that a retry cannot fix: an invalid URL, or a header that cannot be sent."""

CUT_CHARACTER = "unexpected end of data"
"""Python's reason for bytes that end in the middle of a character, as in a stream that was cut off there."""

LONGEST_WAIT = 60.0
"""Most seconds that a run waits because a provider asks for it; a wrong date or unit must not hold it for hours."""

SHOWN_CHARACTERS = 600
"""Characters of a provider's error that are shown; an error page can have megabytes."""

SEARCHED_CHARACTERS = 20_000
"""Characters of a provider's error that are searched for secrets."""

REPLACEMENT = "[redacted]"
ADVICE = {
    401: "Check its API key.",
    403: "Check its API key, and what the key may use.",
    404: "Check the model's name, and the provider's base URL.",
}


@define_error()
class ProviderError(ModelError):
    """A provider refused a call, or its answer cannot be read; a retry would not help.

    Attributes:
        model: The model's name.
        said: The provider's message, without keys.
        status: The HTTP status; `None` if there was none.
    """

    model: str
    said: str
    status: int | None = None

    def __str__(self) -> str:
        if self.status is None:
            return f"Model {self.model!r} gave no answer: {self.said}"
        advice = f" {ADVICE[self.status]}" if self.status in ADVICE else ""
        return f"Model {self.model!r} gave no answer, but status {self.status}: {self.said}{advice}"


class CallTimeoutError(Exception):
    """A model call exceeded its time limit."""


class CutStreamError(Exception):
    """A stream ended before the answer was complete."""


def to_model_error(error: Exception, model: str, hide: Callable[[str], str]) -> ModelError:
    """Convert an exception of Pydantic AI to a new error that holds nothing of the request.

    Args:
        error: The exception.
        model: The model's name.
        hide: Removes secrets from a text.
    """
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    converted = ProviderError(model, _clean(_describe(error), hide), status)
    if _is_transient(error):
        return TransientModelError(str(converted), _retry_after(error))
    return converted


def make_secret_filter(*holders: object) -> Callable[[str], str]:
    """Return a function that removes secrets from a text: the known ones, and everything that looks like one.

    Args:
        holders: Clients, settings and other objects whose keys and headers are secret.
    """
    known = {secret for holder in holders for secret in _secrets(holder, 6, set())}
    known |= {value for name, value in os.environ.items() if len(value) >= 8 and _redaction().is_secret(name)}
    known |= set(_url_credentials())
    longest_first = sorted((secret for secret in known if len(secret) >= 4), key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, REPLACEMENT)
        return _redaction().text(text)

    return hide


def _url_credentials() -> Iterator[str]:
    """Yield user, password and port of the base URLs in the environment, where a key may have been misplaced."""
    for name, value in os.environ.items():
        if name.endswith(("_BASE_URL", "_API_BASE", "_ENDPOINT", "_HOST")) and "://" in value:
            user, _, host = value.partition("://")[2].partition("/")[0].rpartition("@")
            beside = (*user.split(":"), host.rpartition("]")[2].partition(":")[2])
            yield from (word for word in beside if not word.isdecimal())


@cache
def _redaction() -> Redaction:
    return Redaction(
        replacement=REPLACEMENT, patterns=(*Redaction().patterns, r"\b(?:sk|pk|rk|gsk|xai|key)-[\w*-]{6,}")
    )


def _secrets(holder: object, depth: int, seen: set[int]) -> Iterator[str]:
    """Yield the secret values of an object: attributes named like `api_key`, headers like `authorization`."""
    if depth == 0 or id(holder) in seen or isinstance(holder, type | str | bytes | int | float):
        return
    seen.add(id(holder))
    if isinstance(holder, list | tuple):
        for item in holder:
            yield from _secrets(item, depth - 1, seen)
        return
    fields = holder if isinstance(holder, Mapping) else getattr(holder, "__dict__", None)
    if not isinstance(fields, Mapping):
        return
    for name, value in list(fields.items()):
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if not isinstance(value, str):
            yield from _secrets(value, depth - 1, seen)
        elif isinstance(name, str) and _redaction().is_secret(name):
            yield value.strip()
            yield value.strip().rpartition(" ")[2]


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, ModelQuotaExceededError) or any(
        type(each).__name__ in CLIENT_FAULTS for each in _chain(error)
    ):
        return False
    if any(isinstance(each, UnicodeDecodeError) and each.reason == CUT_CHARACTER for each in _chain(error)):
        return True
    if isinstance(error, ModelHTTPError):
        return error.status_code in TRANSIENT_STATUSES or error.status_code >= 500
    if isinstance(error, FallbackExceptionGroup):
        return any(_is_transient(each) for each in error.exceptions)
    return isinstance(
        error, (*TRANSIENT_ERRORS, *TRANSPORT_ERRORS, CallTimeoutError, CutStreamError, ConnectionError, TimeoutError)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _describe(error: Exception) -> str:
    if isinstance(error, FallbackExceptionGroup):
        return "; ".join(_describe(each) for each in error.exceptions)
    if isinstance(error, ModelHTTPError):
        return " ".join(text for text in (_body_message(error.body), error.hint) if text)
    if isinstance(error, ModelTimeoutError) and error.phase == "read":
        return "it sent nothing for too long. Increase `stall_timeout`, or `timeout` for an answer in one piece."
    if isinstance(error, ModelConnectionError):
        *_, root = _chain(error)
        return message_of(error) if root is error else f"{message_of(error)} ({message_of(root)})"
    if isinstance(error, (AgentRunError, UserError, CallTimeoutError, CutStreamError)):
        return message_of(error)
    return f"{type(error).__name__}: {message_of(error)}"


def _body_message(body: object) -> str:
    """Return the message of an error body, in any of the forms that providers use."""
    for _ in range(3):
        if not isinstance(body, Mapping):
            break
        inner = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
        if inner is None:
            break
        body = inner
    return "(nothing)" if body is None or body == "" else str(body)


def _clean(text: str, hide: Callable[[str], str]) -> str:
    text = " ".join(hide(text[:SEARCHED_CHARACTERS]).split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _retry_after(error: BaseException) -> float | None:
    """Return the seconds that the provider asked to wait, within bounds; `None` without a usable value."""
    if isinstance(error, FallbackExceptionGroup):
        waits = [wait for wait in map(_retry_after, error.exceptions) if wait is not None]
        return min(waits, default=None)
    if not isinstance(error, ModelAPIError):
        return None
    asked = error.retry_after
    if asked is None and isinstance(error, ModelHTTPError) and error.headers:
        asked = _seconds(error.headers.get("retry-after", ""))
    return None if asked is None or not math.isfinite(asked) or asked < 0 else min(asked, LONGEST_WAIT)


def _seconds(text: str) -> float | None:
    """Return a number of seconds with a fraction, which the library does not parse."""
    return float(text) if re.fullmatch(r"\s*\d+\.\d*\s*", text) else None
