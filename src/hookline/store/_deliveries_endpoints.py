"""Endpoints: how often they have failed, for how long they are left alone, and which want nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._tables import deliveries, endpoints

if TYPE_CHECKING:
    from hookline.store._deliveries import Outcome

__all__ = ["Breaker", "disable_endpoint", "enable_endpoint", "note_endpoints", "reopen_endpoints"]


def _inserting(connection: AsyncConnection) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(endpoints) if connection.dialect.name == "postgresql" else sqlite.insert(endpoints)


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """When an endpoint that fails is left alone.

    After that many failures one after another it gets nothing for a while, then one delivery to see how it is. As long
    as that fails, the while gets twice as long.

    Attributes:
        failures: One after another.
        pause: Seconds for which it is left alone at first.
        longest_pause: Seconds for which it is left alone at most.
    """

    failures: int = 5
    pause: float = 5.0
    longest_pause: float = 1800.0

    def pause_after(self, failures: int) -> float:
        """Seconds for which an endpoint is left alone after that many failures; 0 if it is not."""
        if failures < self.failures:
            return 0.0
        return min(self.pause * 2.0 ** min(failures - self.failures, 60), self.longest_pause)


async def note_endpoints(
    connection: AsyncConnection, outcomes: Sequence[Outcome], *, now: float, breaker: Breaker
) -> None:
    """Count what endpoints did: a success ends a row of failures, whatever came before it.

    Args:
        connection: In a transaction that may write.
        outcomes: In the order in which they came about.
        now: The clock of the database.
        breaker: When endpoints are left alone.
    """
    told: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.status == "delivered" or outcome.failed or outcome.gone:
            told.setdefault((outcome.claimed.envelope.tenant_id, outcome.claimed.endpoint), []).append(outcome)
    if not told:
        return
    failing = sorted(key for key, their in told.items() if their[-1].status != "delivered")
    if failing:
        new = [{"tenant_id": tenant, "url": url, "failures": 0} for tenant, url in failing]
        await connection.execute(_inserting(connection).on_conflict_do_nothing(), new)
    known = select(endpoints).where(
        endpoints.c.tenant_id.in_(sorted({tenant for tenant, _ in told})),
        endpoints.c.url.in_(sorted({url for _, url in told})),
    )
    if connection.dialect.name == "postgresql":
        known = known.order_by(endpoints.c.tenant_id, endpoints.c.url).with_for_update()
    for row in (await connection.execute(known)).all():
        their = told.get((row.tenant_id, row.url))
        if their is not None:
            await _note(connection, row, their, now, breaker)


async def _note(
    connection: AsyncConnection, row: Any, outcomes: Sequence[Outcome], now: float, breaker: Breaker
) -> None:
    here = (endpoints.c.tenant_id == row.tenant_id) & (endpoints.c.url == row.url)
    gone = next((outcome for outcome in outcomes if outcome.gone), None)
    if gone is not None:
        await disable_endpoint(connection, row.tenant_id, row.url, reason=gone.error or "gone", now=now)
        return
    if outcomes[-1].status == "delivered":
        if row.failures:
            await connection.execute(update(endpoints).where(here).values(failures=0, closed_until=None))
        return
    closed = row.closed_until is not None and row.closed_until > now
    failures = _count(row.failures, outcomes, closed=closed, enough=breaker.failures)
    pause = max(0.0 if closed else breaker.pause_after(failures), *(outcome.pause or 0.0 for outcome in outcomes))
    until = max(row.closed_until or 0.0, now + pause) if pause else row.closed_until
    await connection.execute(update(endpoints).where(here).values(failures=failures, closed_until=until))


def _count(known: int, outcomes: Sequence[Outcome], *, closed: bool, enough: int) -> int:
    """How many failures there were one after another. Those that were under way together close an endpoint once."""
    failures = known
    for outcome in outcomes:
        if outcome.status == "delivered":
            known = failures = 0
        else:
            failures += 1
    if known >= enough:
        return known if closed else known + 1
    return min(failures, enough)


async def disable_endpoint(connection: AsyncConnection, tenant_id: str, url: str, *, reason: str, now: float) -> None:
    """Send nothing more to an endpoint: what is pending for it is given up, and so is what comes.

    Args:
        connection: In a transaction that may write.
        tenant_id: Whose.
        url: Which.
        reason: Why, for those who look.
        now: The clock of the database.
    """
    row = {"failures": 0, "closed_until": None, "disabled_at": now, "reason": reason}
    statement = _inserting(connection).values(tenant_id=tenant_id, url=url, **row)
    await connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id", "url"], set_=row))
    # A worker gives them up one by one, as they fall due, so that each is told of like any other.
    theirs = (deliveries.c.tenant_id == tenant_id) & (deliveries.c.endpoint == url)
    idle = (deliveries.c.status == "pending") & deliveries.c.claimed_by.is_(None)
    await connection.execute(update(deliveries).where(theirs & idle).values(next_attempt_at=now))


async def enable_endpoint(connection: AsyncConnection, tenant_id: str, url: str) -> bool:
    """Send to an endpoint again, as if it had never failed.

    Args:
        connection: In a transaction that may write.
        tenant_id: Whose.
        url: Which.

    Returns:
        Whether it had failed, or was disabled.
    """
    here = (endpoints.c.tenant_id == tenant_id) & (endpoints.c.url == url)
    return bool((await connection.execute(delete(endpoints).where(here))).rowcount)


async def reopen_endpoints(connection: AsyncConnection, places: Iterable[tuple[str, str]]) -> None:
    """Try endpoints at once that are left alone for a while.

    Args:
        connection: In a transaction that may write.
        places: Tenants and addresses.
    """
    for tenant_id, url in sorted(set(places)):
        here = (endpoints.c.tenant_id == tenant_id) & (endpoints.c.url == url) & endpoints.c.closed_until.is_not(None)
        await connection.execute(update(endpoints).where(here).values(closed_until=None))
