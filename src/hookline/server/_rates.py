"""How many requests somebody may send: so many at once, and then as fast as they come back."""

from __future__ import annotations

import ipaddress
import math
from time import monotonic
from typing import Literal, TypeAlias

import msgspec

from hookline.asgi import Scope
from hookline.errors import HookUsageError
from hookline.server._callers import Caller
from hookline.server._problems import ApiError

__all__ = ["Allowance", "RateLimit", "RateLimiter", "RateLimits", "check_allowance", "client_address"]

REMEMBERED = 10_000
Whose: TypeAlias = Literal["key", "tenant", "address"]
_OF = {"key": "with this key", "tenant": "of this tenant", "address": "from this address"}


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """So many requests in so many seconds, of each key or each tenant, and in each process.

    Attributes:
        requests: How many; all of them may come at once.
        seconds: The time in which that many come back.
    """

    requests: int = 6000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.requests < 1 or not 0 < self.seconds < math.inf:
            raise HookUsageError("A RateLimit has `requests` from 1 and `seconds` above 0.")


KEYS_OF_A_TENANT = 5
"""As many keys of a tenant may send all that they may at the same time, unless said otherwise."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to somebody.

    Attributes:
        allowed: Whether this request may be done.
        limit: How many may come at once.
        remaining: How many more may come at once.
        reset: Seconds until all of them are back.
        wait: Seconds until one may come.
        whose: Whose it is.
    """

    allowed: bool
    limit: int
    remaining: int
    reset: float
    wait: float = 0.0
    whose: Whose = "key"


class RateLimiter:
    """Counts requests, by one number for each sender: the time at which all of its requests would be back.

    Args:
        limit: How many each may send.
        whose: Who a sender is.
    """

    def __init__(self, limit: RateLimit, *, whose: Whose = "key") -> None:
        self.limit, self._whose = limit, whose
        self._each = limit.seconds / limit.requests
        self._back: dict[str, float] = {}

    def take(self, sender: str) -> Allowance:
        """Count a request, if it may be done."""
        now = monotonic()
        back = max(self._back.get(sender, now), now)
        if back - now > self.limit.seconds - self._each * 0.999:
            wait = back - now - self.limit.seconds + self._each
            return self._left(back - now, allowed=False, wait=wait)
        if len(self._back) >= REMEMBERED and sender not in self._back:
            self._forget(now)
        back = self._back[sender] = back + self._each
        return self._left(back - now, allowed=True)

    def _left(self, reset: float, *, allowed: bool, wait: float = 0.0) -> Allowance:
        remaining = int((self.limit.seconds - reset) / self._each + 0.001) if allowed else 0
        return Allowance(
            allowed=allowed, limit=self.limit.requests, remaining=remaining, reset=reset, wait=wait, whose=self._whose
        )

    def _forget(self, now: float) -> None:
        """Forget those that have everything back; if that is nobody, the oldest."""
        self._back = {sender: back for sender, back in self._back.items() if back > now}
        while len(self._back) >= REMEMBERED:
            del self._back[next(iter(self._back))]


class RateLimits:
    """Counts the requests of each key, of all keys of a tenant together, and of each address that has no valid key.

    Args:
        key: How many each key may send, and each address without one; `None` for any number.
        tenant: How many all keys of a tenant may send together; `None` for any number, `"auto"` for five times what
            each may.

    Raises:
        HookUsageError: If one is no limit.
    """

    def __init__(self, key: RateLimit | None, tenant: RateLimit | Literal["auto"] | None) -> None:
        if tenant == "auto":
            tenant = None if key is None else RateLimit(requests=key.requests * KEYS_OF_A_TENANT, seconds=key.seconds)
        for name, given in (("rate_limit", key), ("tenant_rate_limit", tenant)):
            if given is not None and not isinstance(given, RateLimit):
                raise HookUsageError(
                    f"`{name}` is a RateLimit, or None for any number of requests; got {given!r:.200}."
                )
        self._keys = None if key is None else RateLimiter(key)
        self._addresses = None if key is None else RateLimiter(key, whose="address")
        self._tenants = None if tenant is None else RateLimiter(tenant, whose="tenant")

    def take(self, caller: Caller) -> Allowance | None:
        """Count a request of a key and of its tenant; what its key may not send does not count for its tenant.

        Returns:
            What is left of the allowance that ends first; `None` without limits.
        """
        own = None if self._keys is None else self._keys.take(caller.key_id)
        if self._tenants is None or (own is not None and not own.allowed):
            return own
        shared = self._tenants.take(caller.tenant_id)
        return shared if own is None or not shared.allowed or shared.remaining < own.remaining else own

    def take_address(self, scope: Scope) -> Allowance | None:
        """Count a request without a valid key, by the address that it comes from."""
        return None if self._addresses is None else self._addresses.take(network_of(client_address(scope)))


def check_allowance(allowance: Allowance | None) -> None:
    """Refuse a request that is one too many.

    Raises:
        ApiError: 429.
    """
    if allowance is not None and not allowance.allowed:
        wait = max(1, math.ceil(allowance.wait))
        detail = f"Too many requests {_OF[allowance.whose]}; come again in {wait} s."
        raise ApiError(429, "rate", detail, headers={"Retry-After": str(wait)})


def client_address(scope: Scope) -> str:
    """Return the address that a request comes from; `""` if the server does not know it."""
    client = scope.get("client")
    return str(client[0])[:100] if client else ""


def network_of(address: str) -> str:
    """Return who an address stands for: of IPv6, everybody has a network of 64 bits or more."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
