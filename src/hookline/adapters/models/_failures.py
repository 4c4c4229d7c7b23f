"""What went wrong between us and a provider: which failures pass, and what may be said of them."""

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
    TRANSPORT: tuple[type[Exception], ...] = (httpx2.TransportError, httpx2.StreamError)
else:
    TRANSPORT = (httpx2.TransportError, httpx2.StreamError, httpx.TransportError, httpx.StreamError)

__all__ = ["CallTimeoutError", "CutStreamError", "ProviderError", "failure", "hider"]

PASSING_STATUSES = frozenset({408, 409, 425, 429})
PASSING = (ModelConnectionError, ModelRequestTimeout, ModelRateLimitError, ModelUnavailableError, ModelServerError)
OUR_FAULT = ("UnsupportedProtocol", "LocalProtocolError", "InvalidURL")
"""Names of errors of the HTTP client that no second attempt mends: a wrong address, or a header that cannot be sent."""

CUT_CHARACTER = "unexpected end of data"
"""What Python says of bytes that end in the middle of a character, as those of a stream that was cut there do."""

LONGEST_WAIT = 60.0
"""Seconds that a provider may make a run wait: a wrong date or unit must not hold it for hours."""

SHOWN = 600
"""Characters of what a provider said that are shown; an error page can have megabytes."""

READ = 20_000
"""Characters of it that are looked through for secrets."""

HIDDEN = "[redacted]"
ADVICE = {
    401: "Check its API key.",
    403: "Check its API key, and what the key may use.",
    404: "Check the model's name, and the provider's base URL.",
}


@define_error()
class ProviderError(ModelError):
    """A provider refused a call, or gave an answer that nobody can read; asking again would not help.

    Attributes:
        model: The model's name.
        said: What the provider said, without keys.
        status: The HTTP status; `None` if it is not about one.
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
    """A model call took longer than it may."""


class CutStreamError(Exception):
    """A stream ended before the answer was whole."""


def failure(error: Exception, model: str, hide: Callable[[str], str]) -> ModelError:
    """What a run is told of an exception of Pydantic AI: a new error, with nothing of the request on it.

    Args:
        error: What was raised.
        model: The model's name.
        hide: Takes secrets out of a text.
    """
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    told = ProviderError(model, _shown(_said(error), hide), status)
    if _passes(error):
        return TransientModelError(str(told), _retry_after(error))
    return told


def hider(*holders: object) -> Callable[[str], str]:
    """Make what takes secrets out of a text: those that are known, and what looks like one.

    Args:
        holders: Clients, settings and the like, whose keys and headers must not be told.
    """
    known = {secret for holder in holders for secret in _secrets(holder, 6, set())}
    known |= {value for name, value in os.environ.items() if len(value) >= 8 and _redaction().is_secret(name)}
    known |= set(_in_addresses())
    longest_first = sorted((secret for secret in known if len(secret) >= 4), key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, HIDDEN)
        return _redaction().text(text)

    return hide


def _in_addresses() -> Iterator[str]:
    """What stands beside the host in the addresses that the environment gives, where a key may have gone astray."""
    for name, value in os.environ.items():
        if name.endswith(("_BASE_URL", "_API_BASE", "_ENDPOINT", "_HOST")) and "://" in value:
            user, _, host = value.partition("://")[2].partition("/")[0].rpartition("@")
            beside = (*user.split(":"), host.rpartition("]")[2].partition(":")[2])
            yield from (word for word in beside if not word.isdecimal())


@cache
def _redaction() -> Redaction:
    return Redaction(replacement=HIDDEN, patterns=(*Redaction().patterns, r"\b(?:sk|pk|rk|gsk|xai|key)-[\w*-]{6,}"))


def _secrets(holder: object, depth: int, seen: set[int]) -> Iterator[str]:
    """The texts that a client holds under names like `api_key`, or as headers like `authorization`."""
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


def _passes(error: BaseException) -> bool:
    if isinstance(error, ModelQuotaExceededError) or any(type(each).__name__ in OUR_FAULT for each in _chain(error)):
        return False
    if any(isinstance(each, UnicodeDecodeError) and each.reason == CUT_CHARACTER for each in _chain(error)):
        return True
    if isinstance(error, ModelHTTPError):
        return error.status_code in PASSING_STATUSES or error.status_code >= 500
    if isinstance(error, FallbackExceptionGroup):
        return any(_passes(each) for each in error.exceptions)
    return isinstance(error, (*PASSING, *TRANSPORT, CallTimeoutError, CutStreamError, ConnectionError, TimeoutError))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _said(error: Exception) -> str:
    if isinstance(error, FallbackExceptionGroup):
        return "; ".join(_said(each) for each in error.exceptions)
    if isinstance(error, ModelHTTPError):
        return " ".join(text for text in (_message(error.body), error.hint) if text)
    if isinstance(error, ModelTimeoutError) and error.phase == "read":
        return "it was silent for too long. Give it a longer `stall_timeout`, or `timeout` for an answer in one piece."
    if isinstance(error, ModelConnectionError):
        *_, root = _chain(error)
        return message_of(error) if root is error else f"{message_of(error)} ({message_of(root)})"
    if isinstance(error, (AgentRunError, UserError, CallTimeoutError, CutStreamError)):
        return message_of(error)
    return f"{type(error).__name__}: {message_of(error)}"


def _message(body: object) -> str:
    """What an error body says, in the shapes that providers give it."""
    for _ in range(3):
        if not isinstance(body, Mapping):
            break
        inner = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
        if inner is None:
            break
        body = inner
    return "(nothing)" if body is None or body == "" else str(body)


def _shown(said: str, hide: Callable[[str], str]) -> str:
    text = " ".join(hide(said[:READ]).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _retry_after(error: BaseException) -> float | None:
    """Seconds that the provider asked to wait, within bounds; `None` where it said nothing that can be meant."""
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
    """A number of seconds with a fraction, which the library does not read."""
    return float(text) if re.fullmatch(r"\s*\d+\.\d*\s*", text) else None
