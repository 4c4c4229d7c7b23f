"""Limits of a server: sizes, timeouts and connections."""

from __future__ import annotations

import math

import msgspec

from hookline.errors import HookUsageError

__all__ = [
    "BODY_SECONDS",
    "HEADER_SECONDS",
    "KIBIBYTE",
    "MAX_CONNECTIONS",
    "MAX_HEADERS",
    "ServerLimits",
]

KIBIBYTE = 1024
MAX_HEADERS = 64 * KIBIBYTE
SMALLEST_HEADERS = KIBIBYTE
"""Smallest allowed `max_headers`. A browser sends about 600 bytes of headers without a cookie."""
HEADER_SECONDS = BODY_SECONDS = 30.0
MAX_CONNECTIONS = 1000


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server process.

    Attributes:
        max_body: Largest body of a request, in bytes.
        max_headers: Largest address and headers of a request together, in bytes.
        header_timeout: Seconds within which the headers have to arrive.
        body_timeout: Seconds for which a body may stall, or the reading of an answer.
        max_connections: Number of open connections.
    """

    max_body: int
    max_headers: int = MAX_HEADERS
    header_timeout: float = HEADER_SECONDS
    body_timeout: float = BODY_SECONDS
    max_connections: int = MAX_CONNECTIONS

    def __post_init__(self) -> None:
        for name, least in (("max_body", 1), ("max_headers", SMALLEST_HEADERS)):
            if not _is_number(number := getattr(self, name), int) or number < least:
                raise HookUsageError(f"`{name}` must be a number of bytes, {least} or more; got {number!r:.200}.")
        if not _is_number(self.max_connections, int) or self.max_connections < 1:
            raise HookUsageError(
                f"`max_connections` must be a whole number, 1 or more; got {self.max_connections!r:.200}."
            )
        for name in ("header_timeout", "body_timeout"):
            if not _is_number(seconds := getattr(self, name), int | float) or not 0 < seconds < math.inf:
                raise HookUsageError(f"`{name}` must be a number of seconds above 0; got {seconds!r:.200}.")


def _is_number(given: object, kind: type | object) -> bool:
    return isinstance(given, kind) and not isinstance(given, bool)  # type: ignore[arg-type]
