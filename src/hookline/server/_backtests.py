"""`RunningBacktests`: bound how many backtests a server runs at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookline.server._problems import ApiError

__all__ = ["RunningBacktests"]

MOST = 4
RETRY_SECONDS = 5


class RunningBacktests:
    """Counts the backtests that run now: one for each tenant, and four in all."""

    def __init__(self) -> None:
        self._tenants: set[str | None] = set()

    @contextmanager
    def enter(self, tenant_id: str | None) -> Iterator[None]:
        """Run a backtest in the context.

        Args:
            tenant_id: The tenant that asks; `None` for somebody who sees all tenants.

        Raises:
            ApiError: 429, if the tenant runs one already, or too many are running.
        """
        if tenant_id in self._tenants or len(self._tenants) >= MOST:
            raise ApiError(
                429,
                "backtests",
                "Another backtest is running. Wait until it has ended, and try again.",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        self._tenants.add(tenant_id)
        try:
            yield
        finally:
            self._tenants.remove(tenant_id)
