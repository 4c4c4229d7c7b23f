"""Deliveries in the tables: put in, and settled in batches with what became of them.

A stream is what one operation has for one endpoint. The first of its deliveries that is not settled is `pending`, which
may be claimed; those behind it are `waiting`, however many they are, and cost the search for work nothing. Who settles
the first makes the next one pending. A claim is a `next_attempt_at` that lies one lease ahead, so that one whose worker
is gone falls due again by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._delivery_claims import Claimed
from hookline.store._rows import stream_of
from hookline.store._tables import attempts, deliveries, endpoints, operations
from hookline.webhooks import Envelope

__all__ = [
    "Breaker",
    "Outcome",
    "disable_endpoint",
    "enable_endpoint",
    "insert_deliveries",
    "line_up",
    "note_endpoints",
    "reopen_endpoints",
    "rows_of",
    "settle",
]

Rows: TypeAlias = Sequence[dict[str, Any]]

TOGETHER = 1000
"""Streams that one statement names at most; databases count the parameters."""

# No `IN`, which cannot be part of a statement that is executed for many.
_unsettled = (deliveries.c.status == "pending") | (deliveries.c.status == "waiting")
_inserts: dict[str, postgresql.Insert | sqlite.Insert] = {
    "sqlite": sqlite.insert(deliveries).on_conflict_do_nothing(index_elements=["id"]),
    "postgresql": postgresql.insert(deliveries).on_conflict_do_nothing(index_elements=["id"]),
}
_free: dict[str, None] = {"claimed_by": None, "claimed_until": None}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one attempt, or of a delivery that gets none.

    Attributes:
        claimed: The delivery.
        status: `"delivered"`; `"pending"`, to be tried again; `"dead"`, given up.
        delay: Seconds until it is tried again.
        attempted: Whether there was an attempt.
        began: When it began, by `time.monotonic`.
        duration_ms: How long it took.
        status_code: What the receiver answered.
        error: What went wrong, without secrets.
        failed: Whether the endpoint is to blame.
        pause: Seconds for which the endpoint asks to be left alone.
        gone: Whether the endpoint wants nothing more, ever.
    """

    claimed: Claimed
    status: Literal["delivered", "pending", "dead"]
    delay: float = 0.0
    attempted: bool = True
    began: float = 0.0
    duration_ms: float = 0.0
    status_code: int | None = None
    error: str | None = None
    failed: bool = False
    pause: float | None = None
    gone: bool = False


def rows_of(envelopes: Iterable[Envelope]) -> list[dict[str, Any]]:
    """The rows of deliveries, but for their times."""
    return [
        {
            "id": envelope.id,
            "operation_id": envelope.operation_id,
            "number": envelope.number,
            "tenant_id": envelope.tenant_id,
            "hook_id": envelope.hook.id,
            "owner_id": envelope.hook.tenant_id,
            "type": str(envelope.hook.type),
            "hook": msgspec.json.encode(envelope.hook),
            "endpoint": (endpoint := endpoint_of(envelope.hook.webhook.url)),
            "stream": stream_of(envelope.operation_id, endpoint),
            "payload": envelope.payload,
            "attempts": 0,
        }
        for envelope in envelopes
    ]


def endpoint_of(url: str) -> str:
    """Where deliveries to an address go: there, or to the function of a process that is named in it."""
    parts = urlsplit(url)
    return f"local://{parts.netloc}" if parts.scheme == "local" else url


async def insert_deliveries(connection: AsyncConnection, rows: Rows, *, now: float | ColumnElement[float]) -> None:
    """Put deliveries in, in order. Those whose id is there already are left as they are.

    Args:
        connection: In a transaction that may write.
        rows: What `rows_of` gives.
        now: The clock of the database.
    """
    if not rows:
        return
    statement = _inserts[connection.dialect.name].values(status="waiting", next_attempt_at=now, created_at=now)
    await connection.execute(statement, rows)
    await line_up(connection, {row["stream"] for row in rows}, now=now)


async def line_up(connection: AsyncConnection, streams: Iterable[str], *, now: float | ColumnElement[float]) -> None:
    """Make the first unsettled delivery of each stream pending, after others were put in.

    On PostgreSQL, the pending one of a stream is locked against being settled until this transaction ends; else its
    worker would not see what was put in behind it, and nobody would ever make that pending.

    Args:
        connection: In a transaction that may write.
        streams: Where something was put in.
        now: The clock of the database.
    """
    for names in _portions(sorted(streams)):
        left = names
        while left:
            if connection.dialect.name == "postgresql":
                # In the order of rows, as `settle` does, so that two never wait for each other.
                first = select(deliveries.c.stream).where(
                    deliveries.c.stream.in_(left), deliveries.c.status == "pending"
                )
                locked = await connection.execute(first.order_by(deliveries.c.seq).with_for_update(read=True))
                left = sorted(set(left) - set(locked.scalars()))
            promoted = await _promote(connection, left, now)
            if connection.dialect.name == "sqlite":
                break
            # Where neither happened, all is settled already, or another worker went one further just now.
            rest = set(left) - promoted
            found = await connection.execute(
                select(deliveries.c.stream).distinct().where(deliveries.c.stream.in_(rest), _unsettled)
            )
            left = sorted(found.scalars()) if rest else []


async def _promote(connection: AsyncConnection, streams: Sequence[str], now: float | ColumnElement[float]) -> set[str]:
    if not streams:
        return set()
    first = (
        select(func.min(deliveries.c.seq))
        .where(deliveries.c.stream.in_(streams), _unsettled)
        .group_by(deliveries.c.stream)
    )
    waiting = (deliveries.c.seq.in_(first)) & (deliveries.c.status == "waiting")
    changed = update(deliveries).where(waiting).values(status="pending", next_attempt_at=now)
    return set((await connection.execute(changed.returning(deliveries.c.stream))).scalars())


_delivered = (
    update(deliveries)
    .where(deliveries.c.seq == bindparam("its_seq"), deliveries.c.status != "delivered")
    .values(
        status="delivered",
        attempts=deliveries.c.attempts + 1,
        last_status_code=bindparam("code"),
        last_error=None,
        settled_at=bindparam("now"),
        **_free,
    )
)
_not_delivered = (
    update(deliveries)
    # The count of attempts tells whether another worker has gone on with it after this one's claim had run out.
    .where(deliveries.c.seq == bindparam("its_seq"), deliveries.c.attempts == bindparam("so_far"), _unsettled)
    .values(
        status=bindparam("becomes"),
        attempts=deliveries.c.attempts + bindparam("made"),
        next_attempt_at=bindparam("next"),
        last_status_code=bindparam("code"),
        last_error=bindparam("error"),
        settled_at=bindparam("settled"),
        **_free,
    )
)


async def settle(
    connection: AsyncConnection,
    outcomes: Sequence[Outcome],
    *,
    now: float,
    worker: str,
    breaker: Breaker,
) -> None:
    """Write what became of deliveries, and let those behind them go.

    What was delivered is delivered, whoever holds it by now. A failure counts only if nobody has tried since.

    Args:
        connection: In a transaction that may write.
        outcomes: In the order in which they came about.
        now: The clock of the database.
        worker: Who made the attempts.
        breaker: When endpoints are left alone.
    """
    if not outcomes:
        return
    await _fail_operations(connection, outcomes)
    if connection.dialect.name == "postgresql":
        seqs = [outcome.claimed.seq for outcome in outcomes]
        rows = select(deliveries.c.seq).where(deliveries.c.seq.in_(seqs)).order_by(deliveries.c.seq)
        await connection.execute(rows.with_for_update())
    made = [_attempt(outcome, now, worker) for outcome in outcomes if outcome.attempted]
    if made:
        await connection.execute(insert(attempts), made)
    delivered = [
        {"its_seq": outcome.claimed.seq, "code": outcome.status_code, "now": now}
        for outcome in outcomes
        if outcome.status == "delivered"
    ]
    if delivered:
        await connection.execute(_delivered, delivered)
    others = [_change(outcome, now) for outcome in outcomes if outcome.status != "delivered"]
    if others:
        await connection.execute(_not_delivered, others)
    for streams in _portions(sorted({o.claimed.stream for o in outcomes if o.status != "pending"})):
        await _promote(connection, streams, now)
    await note_endpoints(connection, outcomes, now=now, breaker=breaker)


async def _fail_operations(connection: AsyncConnection, outcomes: Sequence[Outcome]) -> None:
    """Mark the operations that were for the sake of a delivery that was given up."""
    failed = {
        outcome.claimed.envelope.operation_id: f"Hook {outcome.claimed.envelope.hook.id!r}: {outcome.error}"
        for outcome in outcomes
        if outcome.status == "dead" and outcome.claimed.envelope.hook.webhook.fallback == "none"
    }
    # Before the deliveries, and in order: a commit takes its locks like this too.
    for operation_id in sorted(failed):
        first = (operations.c.operation_id == operation_id) & operations.c.failed_delivery.is_(None)
        await connection.execute(update(operations).where(first).values(failed_delivery=failed[operation_id]))


def _attempt(outcome: Outcome, now: float, worker: str) -> dict[str, Any]:
    return {
        "delivery_id": outcome.claimed.envelope.id,
        "nth": outcome.claimed.attempts + 1,
        "started_at": now - max(0.0, monotonic() - outcome.began),
        "duration_ms": outcome.duration_ms,
        "status_code": outcome.status_code,
        "error": outcome.error,
        "worker": worker,
    }


def _change(outcome: Outcome, now: float) -> dict[str, Any]:
    return {
        "its_seq": outcome.claimed.seq,
        "so_far": outcome.claimed.attempts,
        "becomes": outcome.status,
        "made": int(outcome.attempted),
        "next": now + outcome.delay,
        "code": outcome.status_code,
        "error": outcome.error,
        "settled": now if outcome.status == "dead" else None,
    }


def _portions(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), TOGETHER):
        yield list(names[start : start + TOGETHER])


if TYPE_CHECKING:
    pass


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
