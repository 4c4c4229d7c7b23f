"""What a server takes at most: sizes, times, connections, and whose word it takes for an address."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence

import msgspec

from hookline.errors import HookUsageError

__all__ = ["BODY_SECONDS", "HEADER_SECONDS", "KIBIBYTE", "MAX_CONNECTIONS", "MAX_HEADERS", "Limits", "check_proxies"]

KIBIBYTE = 1024
MAX_HEADERS = 64 * KIBIBYTE
SMALLEST_HEADERS = KIBIBYTE
"""A browser sends some 600 bytes of headers without a cookie."""
HEADER_SECONDS = BODY_SECONDS = 30.0
MAX_CONNECTIONS = 1000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one process takes at most.

    Attributes:
        max_body: Bytes that the body of a request may have.
        max_headers: Bytes that the address and the headers of a request may have together.
        header_timeout: Seconds that these may take to come.
        body_timeout: Seconds that a body may stand still, and an answer that its client does not read.
        max_connections: Connections that may be open.
    """

    max_body: int
    max_headers: int = MAX_HEADERS
    header_timeout: float = HEADER_SECONDS
    body_timeout: float = BODY_SECONDS
    max_connections: int = MAX_CONNECTIONS

    def __post_init__(self) -> None:
        for name, least in (("max_body", 1), ("max_headers", SMALLEST_HEADERS)):
            if not _is_number(number := getattr(self, name), int) or number < least:
                raise HookUsageError(f"`{name}` is a number of bytes, {least} or more; got {number!r:.200}.")
        if not _is_number(self.max_connections, int) or self.max_connections < 1:
            raise HookUsageError(f"`max_connections` is a whole number from 1; got {self.max_connections!r:.200}.")
        for name in ("header_timeout", "body_timeout"):
            if not _is_number(seconds := getattr(self, name), int | float) or not 0 < seconds < math.inf:
                raise HookUsageError(f"`{name}` is a number of seconds above 0; got {seconds!r:.200}.")


def check_proxies(given: Sequence[str]) -> list[str]:
    """Return the addresses and networks of proxies whose `X-Forwarded-For` is believed.

    Raises:
        HookUsageError: If one is neither. A name could be anybody's, and `*` would let everybody choose an address.
    """
    if isinstance(given, str):
        raise HookUsageError(f"`trusted_proxies` is a list of addresses or networks; got the text {given!r:.200}.")
    for each in given:
        try:
            ipaddress.ip_network(each)
        except (TypeError, ValueError):
            raise HookUsageError(
                f"`trusted_proxies` are addresses or networks, such as '10.0.0.7' or '10.0.0.0/8'; got {each!r:.200}."
            ) from None
    return list(given)


def _is_number(given: object, kind: type | object) -> bool:
    return isinstance(given, kind) and not isinstance(given, bool)  # type: ignore[arg-type]
