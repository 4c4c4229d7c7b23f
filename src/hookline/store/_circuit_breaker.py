"""The circuit breaker of endpoints: it pauses those that fail, and disables those that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._database import insert_into
from hookline.store._delivery_claims import DeliveryOutcome
from hookline.store._partitions import KEPT
from hookline.store._tables import deliveries, endpoints

__all__ = ["Breaker", "disable_endpoint", "enable_endpoint", "reopen_endpoints", "update_endpoints"]


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the circuit breaker, which pauses deliveries to an endpoint that fails.

    After a number of consecutive failures, deliveries to the endpoint pause; then a single one is attempted. As long as
    that fails, each pause is twice as long as the one before.

    Attributes:
        failures: Consecutive failures after which deliveries pause.
        pause: Seconds of the first pause.
        longest_pause: Seconds of the longest pause.
    """

    failures: int = 5
    pause: float = 5.0
    longest_pause: float = 1800.0

    def pause_after(self, failures: int) -> float:
        """Return the seconds of the pause after a number of consecutive failures; 0 if there is none."""
        if failures < self.failures:
            return 0.0
        return min(self.pause * 2.0 ** min(failures - self.failures, 60), self.longest_pause)


_lock_endpoints = (
    select(endpoints)
    .where(
        endpoints.c.tenant_id.in_(bindparam("tenants", expanding=True)),
        endpoints.c.url.in_(bindparam("urls", expanding=True)),
    )
    .order_by(endpoints.c.tenant_id, endpoints.c.url)
    .with_for_update()  # SQLite, where one transaction writes at a time, gets none of this
)


async def update_endpoints(
    connection: AsyncConnection, outcomes: Sequence[DeliveryOutcome], *, now: float, breaker: Breaker
) -> None:
    """Count successes and failures of endpoints, and pause or disable them.

    Args:
        connection: In a transaction that may write.
        outcomes: The outcomes, in the order in which they happened.
        now: The time of the database.
        breaker: When deliveries to failing endpoints pause.
    """
    by_endpoint: dict[tuple[str, str], list[DeliveryOutcome]] = {}
    for outcome in outcomes:
        if outcome.status == "delivered" or outcome.failed or outcome.gone:
            by_endpoint.setdefault((outcome.claimed.envelope.tenant_id, outcome.claimed.endpoint), []).append(outcome)
    if not by_endpoint:
        return
    failing = sorted(key for key, their in by_endpoint.items() if their[-1].status != "delivered")
    if failing:
        new = [{"tenant_id": tenant, "url": url, "failures": 0} for tenant, url in failing]
        await connection.execute(insert_into(connection, endpoints).on_conflict_do_nothing(), new)
    names = {
        "tenants": sorted({tenant for tenant, _ in by_endpoint}),
        "urls": sorted({url for _, url in by_endpoint}),
    }
    for row in (await connection.execute(_lock_endpoints, names)).all():
        their = by_endpoint.get((row.tenant_id, row.url))
        if their is not None:
            await _update_endpoint(connection, row, their, now, breaker)


async def _update_endpoint(
    connection: AsyncConnection, row: Any, outcomes: Sequence[DeliveryOutcome], now: float, breaker: Breaker
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
    failures = _count_failures(row.failures, outcomes, closed=closed, enough=breaker.failures)
    pause = max(0.0 if closed else breaker.pause_after(failures), *(outcome.pause or 0.0 for outcome in outcomes))
    until = max(row.closed_until or 0.0, now + pause) if pause else row.closed_until
    await connection.execute(update(endpoints).where(here).values(failures=failures, closed_until=until))


def _count_failures(known: int, outcomes: Sequence[DeliveryOutcome], *, closed: bool, enough: int) -> int:
    """Return the number of consecutive failures. Failures of parallel attempts start a single pause."""
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
    """Disable an endpoint: its pending and future deliveries are given up.

    Args:
        connection: In a transaction that may write.
        tenant_id: The tenant that owns the endpoint.
        url: The URL of the endpoint.
        reason: Why, to be shown to people.
        now: The time of the database.
    """
    row = {"failures": 0, "closed_until": None, "disabled_at": now, "reason": reason}
    statement = insert_into(connection, endpoints).values(tenant_id=tenant_id, url=url, **row)
    await connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id", "url"], set_=row))
    # Workers give the deliveries up one by one, as they fall due, so that each is logged like any other.
    theirs = (deliveries.c.tenant_id == tenant_id) & (deliveries.c.endpoint == url)
    idle = (deliveries.c.day == KEPT) & (deliveries.c.status == "pending") & deliveries.c.claimed_by.is_(None)
    await connection.execute(update(deliveries).where(theirs & idle).values(next_attempt_at=now))


async def enable_endpoint(connection: AsyncConnection, tenant_id: str, url: str) -> bool:
    """Enable an endpoint, as if it had never failed.

    Args:
        connection: In a transaction that may write.
        tenant_id: The tenant that owns the endpoint.
        url: The URL of the endpoint.

    Returns:
        Whether the endpoint had failed, or was disabled.
    """
    here = (endpoints.c.tenant_id == tenant_id) & (endpoints.c.url == url)
    return bool((await connection.execute(delete(endpoints).where(here))).rowcount)


async def reopen_endpoints(connection: AsyncConnection, places: Iterable[tuple[str, str]]) -> None:
    """End the pause of endpoints, so that they are tried at once.

    Args:
        connection: In a transaction that may write.
        places: The endpoints, each as tenant id and address.
    """
    for tenant_id, url in sorted(set(places)):
        here = (endpoints.c.tenant_id == tenant_id) & (endpoints.c.url == url) & endpoints.c.closed_until.is_not(None)
        await connection.execute(update(endpoints).where(here).values(closed_until=None))
