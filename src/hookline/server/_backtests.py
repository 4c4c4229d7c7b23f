"""`RunningBacktests`: bound how many backtests a server runs at a time, and keep those that a page shows."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic

import anyio
import msgspec

from hookline.registry import Backtest
from hookline.server._problems import ApiError

__all__ = ["RunningBacktests", "ShownBacktest"]

MOST = 4
RETRY_SECONDS = 5
KEPT_SECONDS = 600.0
"""How long the result of a backtest is kept for the page that shows it."""
MOST_KEPT = 50


class ShownBacktest(msgspec.Struct, eq=False):
    """A backtest that a page shows while it runs.

    Attributes:
        id: Its id, which only the page knows that has begun it.
        key_id: The key of the person who has begun it.
        hook_id: The hook.
        scope: Ends it when it is cancelled.
        found: The counts so far, or the result; `None` before it has begun.
        error: What it has raised.
        task: The task that runs it.
        ended_at: When it has ended, by `monotonic`; `None` while it runs.
    """

    id: str
    key_id: str
    hook_id: str
    scope: anyio.CancelScope
    found: Backtest | None = None
    error: Exception | None = None
    task: asyncio.Task[None] | None = None
    ended_at: float | None = None


Judge = Callable[[anyio.CancelScope, Callable[[Backtest], None]], Awaitable[Backtest]]
"""Runs a backtest, with a scope that ends it, and a function that takes its counts."""


class RunningBacktests:
    """Counts the backtests that run now: one for each tenant, and four in all. Keeps those of pages for ten minutes."""

    def __init__(self) -> None:
        self._tenants: set[str | None] = set()
        self._shown: dict[str, ShownBacktest] = {}

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

    def start(self, tenant_id: str | None, key_id: str, hook_id: str, judge: Judge) -> ShownBacktest:
        """Start a backtest that goes on after the request.

        Args:
            tenant_id: The tenant that asks; `None` for somebody who sees all tenants.
            key_id: The key of the person.
            hook_id: The hook.
            judge: Runs it.

        Raises:
            ApiError: 429, if the tenant runs one already, or too many are running.
        """
        self._drop_old()
        running = ExitStack()
        running.enter_context(self.enter(tenant_id))
        shown = ShownBacktest(secrets.token_urlsafe(12), key_id, hook_id, anyio.CancelScope())
        shown.task = asyncio.create_task(_run(shown, judge, running))
        self._shown[shown.id] = shown
        return shown

    def find(self, id: str, key_id: str, hook_id: str) -> ShownBacktest | None:  # noqa: A002
        """Return a backtest that a person has begun in this process, unless it is forgotten by now."""
        shown = self._shown.get(id)
        return shown if shown is not None and (shown.key_id, shown.hook_id) == (key_id, hook_id) else None

    async def aclose(self) -> None:
        """Cancel the backtests of pages, and wait for their ends."""
        tasks = [each.task for each in self._shown.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_old(self) -> None:
        ended = [each for each in self._shown.values() if each.ended_at is not None]
        for nth, each in enumerate(reversed(ended)):
            if nth >= MOST_KEPT or monotonic() - (each.ended_at or 0.0) > KEPT_SECONDS:
                del self._shown[each.id]


async def _run(shown: ShownBacktest, judge: Judge, running: ExitStack) -> None:
    def take(found: Backtest) -> None:
        shown.found = found

    try:
        with running:
            shown.found = await judge(shown.scope, take)
    except Exception as error:
        shown.error = error
    finally:
        shown.ended_at = monotonic()
