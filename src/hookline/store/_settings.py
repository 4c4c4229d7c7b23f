"""What a store may be told, and what may run beside it."""

import math
from typing import Protocol, get_args

from hookline.errors import HookUsageError
from hookline.store._commits import Overflow
from hookline.store._engine import Durability

__all__ = ["Companion", "check_settings"]


class Companion(Protocol):
    """What runs as long as a store is open."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    async def finish(self) -> None:
        """Bring to an end what is begun; `run` goes on meanwhile."""
        ...


def check_settings(
    lease_seconds: float, durability: str, max_pending: int, overflow: str, retry_seconds: float, pool_size: int
) -> None:
    """Refuse options of a store that make no sense."""
    for name, value in (("lease_seconds", lease_seconds), ("retry_seconds", retry_seconds)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise HookUsageError(f"`{name}` is a number of seconds above 0; got {value!r}.")
    for name, value in (("max_pending", max_pending), ("pool_size", pool_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise HookUsageError(f"`{name}` is a whole number above 0; got {value!r}.")
    if durability not in get_args(Durability):
        raise HookUsageError(f"`durability` is 'machine' or 'process'; got {durability!r}.")
    if overflow not in get_args(Overflow):
        raise HookUsageError(f"`overflow` is 'wait' or 'refuse'; got {overflow!r}.")
