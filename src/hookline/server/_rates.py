"""Rate limits of requests, per API key, tenant and address (token bucket, as one timestamp per sender: GCRA).

Litestar's `RateLimitConfig` and the strategies of `limits` count in windows of time. Here a whole allowance may be used
at once and then refills evenly, which neither of them offers, and Litestar's would run behind the gate.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import Literal, TypeAlias

import msgspec

from hookline.asgi import Scope
from hookline.errors import HookUsageError
from hookline.server._callers import Caller
from hookline.server._client_addresses import client_address, network_of
from hookline.server._problems import ApiError

__all__ = ["Allowance", "RateLimit", "RateLimiter", "RateLimits", "check_allowance"]

REMEMBERED = 10_000
Whose: TypeAlias = Literal["key", "tenant", "address"]
_OF = {"key": "with this key", "tenant": "of this tenant", "address": "from this address"}


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A number of requests in a number of seconds, for each key or tenant, in each process.

    Attributes:
        requests: Number of requests; all of them may come at once.
        seconds: Seconds in which the whole allowance refills.
    """

    requests: int = 6000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.requests < 1 or not 0 < self.seconds < math.inf:
            raise HookUsageError("A RateLimit needs `requests` of 1 or more and `seconds` above 0.")


KEYS_OF_A_TENANT = 5
"""Number of keys of a tenant that may use their whole rate at the same time, by default."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that a key, tenant or address may still send.

    Attributes:
        allowed: Whether this request is within the limit.
        limit: Number of requests that may come at once.
        remaining: Number of requests that may still come at once.
        reset: Seconds until the whole allowance is available again.
        wait: Seconds until the next request is allowed.
        whose: Whether the limit is that of a key, a tenant or an address.
    """

    allowed: bool
    limit: int
    remaining: int
    reset: float
    wait: float = 0.0
    whose: Whose = "key"


class RateLimiter:
    """Counts requests of senders, each by one number: the time at which its whole allowance will be available again.

    Args:
        limit: The limit of each sender.
        whose: What a sender is: a key, a tenant or an address.
    """

    def __init__(self, limit: RateLimit, *, whose: Whose = "key") -> None:
        self.limit, self._whose = limit, whose
        self._each = limit.seconds / limit.requests
        self._back: dict[str, float] = {}

    def take(self, sender: str) -> Allowance:
        """Count a request if it is within the limit, and return the sender's allowance."""
        now = monotonic()
        back = max(self._back.get(sender, now), now)
        if back - now > self.limit.seconds - self._each * 0.999:
            wait = back - now - self.limit.seconds + self._each
            return self._allowance(back - now, allowed=False, wait=wait)
        if len(self._back) >= REMEMBERED and sender not in self._back:
            self._drop_full(now)
        back = self._back[sender] = back + self._each
        return self._allowance(back - now, allowed=True)

    def _allowance(self, reset: float, *, allowed: bool, wait: float = 0.0) -> Allowance:
        remaining = int((self.limit.seconds - reset) / self._each + 0.001) if allowed else 0
        return Allowance(
            allowed=allowed, limit=self.limit.requests, remaining=remaining, reset=reset, wait=wait, whose=self._whose
        )

    def _drop_full(self, now: float) -> None:
        """Remove senders whose whole allowance is available; if there are none, the oldest ones."""
        self._back = {sender: back for sender, back in self._back.items() if back > now}
        while len(self._back) >= REMEMBERED:
            del self._back[next(iter(self._back))]


class RateLimits:
    """The rate limits of keys, of all keys of a tenant together, and of addresses without a valid key.

    Args:
        key: The limit of each key, and of each address without a valid key; `None` for no limit.
        tenant: The limit of all keys of a tenant together; `None` for no limit, `"auto"` for five times `key`.

    Attributes:
        key: The limit of each key.
        tenant: The limit of all keys of a tenant together.

    Raises:
        HookUsageError: If one is no `RateLimit`.
    """

    def __init__(self, key: RateLimit | None, tenant: RateLimit | Literal["auto"] | None) -> None:
        if tenant == "auto":
            tenant = None if key is None else RateLimit(requests=key.requests * KEYS_OF_A_TENANT, seconds=key.seconds)
        for name, given in (("rate_limit", key), ("tenant_rate_limit", tenant)):
            if given is not None and not isinstance(given, RateLimit):
                raise HookUsageError(f"`{name}` must be a RateLimit, or None for no limit; got {given!r:.200}.")
        self._keys = None if key is None else RateLimiter(key)
        self._addresses = None if key is None else RateLimiter(key, whose="address")
        self._tenants = None if tenant is None else RateLimiter(tenant, whose="tenant")
        self.key, self.tenant = key, tenant

    def take(self, caller: Caller) -> Allowance | None:
        """Count a request for its key and its tenant. A request beyond the key's limit does not count for the tenant.

        Returns:
            The smaller of the two allowances; `None` without limits.
        """
        own = None if self._keys is None else self._keys.take(caller.key_id)
        if self._tenants is None or (own is not None and not own.allowed):
            return own
        shared = self._tenants.take(caller.tenant_id)
        return shared if own is None or not shared.allowed or shared.remaining < own.remaining else own

    def take_address(self, scope: Scope) -> Allowance | None:
        """Count a request without a valid key, by the address of its client."""
        return None if self._addresses is None else self._addresses.take(network_of(client_address(scope)))


def check_allowance(allowance: Allowance | None) -> None:
    """Raise if a request is beyond its limit.

    Raises:
        ApiError: 429, with `Retry-After`.
    """
    if allowance is not None and not allowance.allowed:
        wait = max(1, math.ceil(allowance.wait))
        detail = f"Too many requests {_OF[allowance.whose]}; try again in {wait} s."
        raise ApiError(429, "rate", detail, headers={"Retry-After": str(wait)})
