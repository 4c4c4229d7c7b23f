"""Signatures of deliveries: `sign` for who sends, `verify` for who receives.

Source:
    Standard Webhooks 1.0.0, symmetric (`v1`) and asymmetric (`v1a`) signatures.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from hookline.delivery._keys import KeyRing, Keys, as_key_ring
from hookline.errors import HooklineError, HookUsageError

__all__ = ["ANSWER_PREFIX", "SIGNATURE_HEADERS", "KeyRing", "Verified", "WebhookVerificationError", "sign", "verify"]

ANSWER_PREFIX = "answer_"
"""Begins the id with which an answer is signed. Without it, a question sent back would be a signed answer to itself."""
SIGNATURE_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
ID = re.compile(r"[!-\-/-~]{1,256}")
"""Printable, and no `.`, which would make the signed text ambiguous."""
TIMESTAMP = re.compile(r"[0-9]{1,15}")
LONGEST_SIGNATURES = 4096
"""Characters of `webhook-signature`: some forty signatures, each of which costs work to refuse."""


class WebhookVerificationError(HooklineError, ValueError):
    """A request was not signed with one of the keys, or not just now.

    Attributes:
        reason: What is wrong with it; it may be told to whoever sent it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"Not a delivery that was signed for us: {self.reason}."


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery whose signature was verified.

    Attributes:
        id: Of the delivery; the same in every attempt.
        timestamp: When this attempt was signed, in unix seconds.
    """

    id: str
    timestamp: int


def sign(id: str, timestamp: int, body: bytes, keys: Keys, *, name: str = "") -> dict[str, str]:  # noqa: A002
    """The three headers that sign a delivery.

    Args:
        id: Of the delivery; the same in every attempt.
        timestamp: Of this attempt, in unix seconds.
        body: What is sent, byte by byte.
        keys: A ring, or secrets, newest first; every one of the name signs.
        name: Which key of the ring.

    Raises:
        HookUsageError: If the id cannot be signed, or the body is no bytes.
        WebhookKeyError: If there is no secret of that name, or one cannot be read.
    """
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise HookUsageError("The id of a delivery is 1 to 256 printable ASCII characters without '.' or spaces.")
    if not isinstance(body, bytes):
        raise HookUsageError(f"What is signed is the body as bytes; got {type(body).__name__}.")
    text = f"{id}.{timestamp:d}.".encode() + body
    values = (id, f"{timestamp:d}", as_key_ring(keys).signatures(text, name))
    return dict(zip(SIGNATURE_HEADERS, values, strict=True))


def verify(
    headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]],
    body: bytes,
    keys: Keys,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> Verified:
    """Make sure that a request was signed with one of the keys, and just now.

    It is the receiver's duty to remember ids: a request may come again, unchanged, within the tolerance. `WebhookGuard`
    does both.

    Args:
        headers: Of the request: a mapping, or pairs of names and values, as ASGI has them.
        body: Of the request, as it came: what was parsed and written again has other bytes.
        keys: A ring, of which every key is accepted, or secrets; public keys (`whpk_`) will do.
        tolerance: How many seconds old, or ahead of our clock, the signature may be.
        now: Unix seconds; the clock's unless given.

    Raises:
        WebhookVerificationError: If anything about the request is wrong.
        HookUsageError: If the body is no bytes.
        WebhookKeyError: If a key cannot be read.
    """
    if not isinstance(body, bytes):
        raise HookUsageError(f"What is verified is the body as it came, as bytes; got {type(body).__name__}.")
    ring = as_key_ring(keys)
    id, timestamp, signatures = _signed_headers(headers)  # noqa: A001
    if not ID.fullmatch(id):
        raise WebhookVerificationError("`webhook-id` is not 1 to 256 printable characters without '.'")
    if not TIMESTAMP.fullmatch(timestamp):
        raise WebhookVerificationError("`webhook-timestamp` is not a number of unix seconds")
    age = (time.time() if now is None else now) - int(timestamp)
    if not age <= tolerance:
        raise WebhookVerificationError("`webhook-timestamp` is too old")
    if not age >= -tolerance:
        raise WebhookVerificationError("`webhook-timestamp` is in the future")
    if len(signatures) > LONGEST_SIGNATURES:
        raise WebhookVerificationError("`webhook-signature` is too long")
    if not ring.accepts(f"{id}.{timestamp}.".encode() + body, signatures):
        raise WebhookVerificationError("no signature in `webhook-signature` is by a known key")
    return Verified(id=id, timestamp=int(timestamp))


def _signed_headers(headers: object) -> list[str]:
    """The values of the three headers, each of which is there exactly once.

    Raises:
        WebhookVerificationError: If that is not so.
    """
    found: dict[str, str] = {}
    for name, value in _pairs(headers):
        lower = name.lower()
        if lower in found and lower in SIGNATURE_HEADERS:
            raise WebhookVerificationError(f"`{lower}` is there more than once")
        found[lower] = value
    missing = [name for name in SIGNATURE_HEADERS if not found.get(name)]
    if missing:
        raise WebhookVerificationError(f"`{missing[0]}` is missing")
    return [found[name] for name in SIGNATURE_HEADERS]


def _pairs(headers: object) -> Iterator[tuple[str, str]]:
    given = headers.items() if isinstance(headers, Mapping) else headers
    try:
        for name, value in given:  # type: ignore[attr-defined]
            if isinstance(name, str | bytes) and isinstance(value, str | bytes):
                yield _text(name), _text(value)
    except (TypeError, ValueError):
        raise WebhookVerificationError("its headers cannot be read") from None


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
