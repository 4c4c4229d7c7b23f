"""Insert deliveries into the tables, write the outcomes of attempts, and track failing endpoints (circuit breaker).

A stream is the sequence of deliveries from one operation to one endpoint. Its first unsettled delivery is `pending` and
may be claimed; those behind it are `waiting`, and cost nothing when a worker looks for work, however many they are. The
transaction that settles the first makes the next one pending. A claim moves `next_attempt_at` one lease ahead, so that
a delivery whose worker has died falls due again by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from time import monotonic
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Insert,
    Integer,
    bindparam,
    delete,
    func,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from hookline.store._database import express_now, insert_into
from hookline.store._delivery_claims import UNCLAIMED, ClaimedDelivery, lock_deliveries
from hookline.store._partitions import GIVEN_UP, KEPT, day_of, move_rows
from hookline.store._row_statements import insert_rows
from hookline.store._rows import stream_name
from hookline.store._tables import attempts, deliveries, endpoints, operations
from hookline.webhooks import Envelope

__all__ = [
    "Breaker",
    "DeliveryOutcome",
    "build_delivery_rows",
    "disable_endpoint",
    "enable_endpoint",
    "insert_deliveries",
    "promote_waiting",
    "reopen_endpoints",
    "settle_deliveries",
    "update_endpoints",
]

Rows: TypeAlias = Sequence[dict[str, Any]]

BATCH_SIZE = 1000
"""Streams that one statement names at most, since databases limit the number of parameters."""
_settled = deliveries.alias()

# Not `IN`: SQLAlchemy cannot expand it in a statement that is executed with many sets of parameters.
_unsettled = (deliveries.c.status == "pending") | (deliveries.c.status == "waiting")


class DeliveryOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one attempt, or of a claimed delivery that was not attempted.

    Attributes:
        claimed: The delivery.
        status: `"delivered"`; `"pending"`, to be tried again; `"dead"`, given up.
        delay: Seconds until the next attempt.
        attempted: Whether an attempt was made.
        began: When the attempt began, by `time.monotonic`.
        duration_ms: How long the attempt took.
        status_code: The HTTP status of the receiver's answer.
        error: The error, without secrets.
        failed: Whether the attempt counts as a failure of the endpoint.
        pause: Seconds for which the endpoint asked for no deliveries (`Retry-After`).
        gone: Whether the endpoint answered that it is gone for good (410).
    """

    claimed: ClaimedDelivery
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


def build_delivery_rows(envelopes: Iterable[Envelope]) -> list[dict[str, Any]]:
    """Build the rows of deliveries, without their times."""
    return [
        {
            "id": envelope.id,
            "operation_id": envelope.operation_id,
            "number": envelope.number,
            "tenant_id": envelope.tenant_id,
            "hook_id": envelope.hook.id,
            "owner_id": envelope.hook.tenant_id,
            "type": envelope.type or str(envelope.hook.type),
            "hook": msgspec.json.encode(envelope.hook),
            "endpoint": (endpoint := endpoint_of(envelope.hook.webhook.url)),
            "stream": stream_name(envelope.operation_id, endpoint),
            "payload": envelope.payload,
            "attempts": 0,
        }
        for envelope in envelopes
    ]


def endpoint_of(url: str) -> str:
    """Return the endpoint of a URL: the URL itself, or `local://name` without what follows the name."""
    parts = urlsplit(url)
    return f"local://{parts.netloc}" if parts.scheme == "local" else url


async def insert_deliveries(
    connection: AsyncConnection, rows: Rows, *, now: float | ColumnElement[float], are_new: bool = False
) -> None:
    """Insert deliveries, in order. Those whose id is stored already are left as they are.

    Args:
        connection: In a transaction that may write.
        rows: Rows from `build_delivery_rows`.
        now: The time of the database.
        are_new: Whether the caller knows that no id is stored already.
    """
    if not rows:
        return
    alike = {"status": "waiting", "next_attempt_at": now, "created_at": now}
    await insert_rows(connection, deliveries, rows, alike=alike, skip_known=True)
    if connection.dialect.name == "postgresql" and not are_new:
        await _delete_repeated(connection, [row["id"] for row in rows])
    await promote_waiting(connection, {row["stream"] for row in rows}, now=now)


async def _delete_repeated(connection: AsyncConnection, ids: Sequence[str]) -> None:
    """Delete inserted deliveries whose id a settled one has, which is in another partition.

    This is right however late the other one was settled: an insert waits for whoever is settling a delivery of its id.
    """
    for some in _split_into_batches(ids):
        repeated = select(_settled.c.id).where(_settled.c.id.in_(some), _settled.c.day != KEPT)
        found = list((await connection.execute(repeated)).scalars())
        if found:
            await connection.execute(delete(deliveries).where(deliveries.c.day == KEPT, deliveries.c.id.in_(found)))


def _in_queue(dialect: str) -> ColumnElement[bool]:
    """Return the condition that names the partition of the unsettled deliveries; on SQLite, it costs an index."""
    return deliveries.c.day == KEPT if dialect == "postgresql" else true()


async def promote_waiting(
    connection: AsyncConnection, streams: Iterable[str], *, now: float | ColumnElement[float]
) -> None:
    """Make the first unsettled delivery of each stream pending, after deliveries were inserted.

    On PostgreSQL, the pending delivery of a stream is locked until this transaction ends. Otherwise the worker that
    settles it meanwhile would not see the inserted ones, and nobody would ever make them pending.

    Args:
        connection: In a transaction that may write.
        streams: The streams into which deliveries were inserted.
        now: The time of the database.
    """
    for names in _split_into_batches(sorted(streams)):
        left = names
        while left:
            if connection.dialect.name == "postgresql":
                # Locked in the order of keys, as in `settle_deliveries`, so that two transactions never deadlock.
                first = select(deliveries.c.stream).where(
                    deliveries.c.day == KEPT, deliveries.c.stream.in_(left), deliveries.c.status == "pending"
                )
                locked = await connection.execute(first.order_by(deliveries.c.seq).with_for_update(read=True))
                left = sorted(set(left) - set(locked.scalars()))
            promoted = await _promote(connection, left, now)
            if connection.dialect.name == "sqlite":
                break
            # A stream that was neither locked nor promoted is settled, or its worker has just moved to the next one.
            left = sorted(set(left) - promoted)
            if left:
                found = await connection.execute(
                    select(deliveries.c.stream)
                    .distinct()
                    .where(_in_queue(connection.dialect.name), deliveries.c.stream.in_(left), _unsettled)
                )
                left = sorted(found.scalars())


async def _promote(connection: AsyncConnection, streams: Sequence[str], now: float | ColumnElement[float]) -> set[str]:
    if not streams:
        return set()
    at_given_time = not isinstance(now, ColumnElement)
    values = {"streams": streams, "now": now} if at_given_time else {"streams": streams}
    promoting = _build_promotion(connection.dialect.name, at_given_time=at_given_time)
    return set((await connection.execute(promoting, values)).scalars())


@cache
def _build_promotion(dialect: str, *, at_given_time: bool) -> ReturningUpdate[str]:
    """Build the statement for `_promote` once: SQLAlchemy takes longer to build it than SQLite to run it."""
    in_queue = _in_queue(dialect)
    first = (
        select(func.min(deliveries.c.seq))
        .where(in_queue, deliveries.c.stream.in_(bindparam("streams", expanding=True)), _unsettled)
        .group_by(deliveries.c.stream)
    )
    waiting = in_queue & deliveries.c.seq.in_(first) & (deliveries.c.status == "waiting")
    now = bindparam("now") if at_given_time else express_now(dialect)
    promoting = update(deliveries).where(waiting).values(status="pending", next_attempt_at=now)
    return promoting.returning(deliveries.c.stream)


# Plain SQL: SQLAlchemy takes longer to make the parameters of a row than SQLite to update it.
_DELIVERED = f"""
    UPDATE deliveries SET status = 'delivered', attempts = attempts + 1, last_status_code = ?, last_error = NULL,
        settled_at = ?, {", ".join(f"{column} = NULL" for column in UNCLAIMED)}
    WHERE seq = ? AND day <= {GIVEN_UP} AND status <> 'delivered'
"""
_not_delivered = (
    update(deliveries)
    # The number of attempts tells whether another worker has attempted it after this worker's claim had run out.
    .where(
        deliveries.c.seq == bindparam("its_seq"),
        deliveries.c.day == KEPT,
        deliveries.c.attempts == bindparam("so_far"),
        _unsettled,
    )
    .values(
        status=bindparam("becomes"),
        attempts=deliveries.c.attempts + bindparam("made"),
        next_attempt_at=bindparam("next"),
        last_status_code=bindparam("code"),
        last_error=bindparam("error"),
        settled_at=bindparam("settled"),
        **UNCLAIMED,
    )
)


async def settle_deliveries(
    connection: AsyncConnection,
    outcomes: Sequence[DeliveryOutcome],
    *,
    now: float,
    worker: str,
    breaker: Breaker,
    others: Collection[int] = (),
) -> None:
    """Write the outcomes of deliveries, and make the next deliveries of their streams pending.

    A success counts whoever holds the delivery by now. A failure counts only if nobody has attempted it since.

    Args:
        connection: In a transaction that may write.
        outcomes: The outcomes, in the order in which they happened.
        now: The time of the database.
        worker: The id of the worker that made the attempts.
        breaker: When deliveries to failing endpoints pause.
        others: Keys of further deliveries that the transaction will change. They are locked here too, since a
            transaction locks operations first, and then all its deliveries at once.
    """
    await _fail_operations(connection, outcomes)
    await lock_deliveries(connection, {outcome.claimed.seq for outcome in outcomes}.union(others))
    if not outcomes:
        return
    partitioned = connection.dialect.name == "postgresql"
    days = {"delivered": day_of(now), "dead": GIVEN_UP} if partitioned else {}
    made = [
        {**_attempt_row(outcome, now, worker), "day": days.get(outcome.status, KEPT)}
        for outcome in outcomes
        if outcome.attempted
    ]
    if made:
        await insert_rows(connection, attempts, made)
    delivered = {outcome.claimed.seq: outcome.status_code for outcome in outcomes if outcome.status == "delivered"}
    if delivered and partitioned:
        await _move(connection, _build_delivered(delivered, now), day_of(now))
    elif delivered:
        await connection.exec_driver_sql(_DELIVERED, [(code, now, seq) for seq, code in delivered.items()])
    failed = [_failure_values(outcome, now) for outcome in outcomes if outcome.status != "delivered"]
    if failed:
        await connection.execute(_not_delivered, failed)
    dead = {outcome.claimed.seq for outcome in outcomes if outcome.status == "dead"}
    if dead and partitioned:
        which = deliveries.c.seq.in_(dead) & (deliveries.c.day == KEPT) & (deliveries.c.status == "dead")
        await _move(connection, move_rows(deliveries, which, lambda _: {"day": GIVEN_UP}), GIVEN_UP)
    for streams in _split_into_batches(sorted({o.claimed.stream for o in outcomes if o.status != "pending"})):
        await _promote(connection, streams, now)
    await update_endpoints(connection, outcomes, now=now, breaker=breaker)


def _build_delivered(codes: Mapping[int, int | None], now: float) -> Insert:
    """Build the statement for PostgreSQL that `_DELIVERED` is for SQLite; it moves the rows to the present day.

    Args:
        codes: The status codes of the answers, by the keys of the deliveries.
        now: The time of the database.
    """
    keys = literal(list(codes), ARRAY(BigInteger)), literal(list(codes.values()), ARRAY(Integer))
    answers = func.unnest(*keys).table_valued("its_seq", "code", name="answers").render_derived()
    which = (deliveries.c.seq == answers.c.its_seq) & (deliveries.c.day <= GIVEN_UP)
    return move_rows(
        deliveries,
        which & (deliveries.c.status != "delivered"),
        lambda gone: {
            "status": "delivered",
            "attempts": gone.c.attempts + 1,
            "last_status_code": gone.c.code,
            "last_error": None,
            "settled_at": now,
            "day": day_of(now),
            **UNCLAIMED,
        },
        given=[answers.c.code],
    )


async def _move(connection: AsyncConnection, moving: Insert, day: int) -> None:
    """Move deliveries to the partition of a day or of those given up, and their attempts with them."""
    ids = list((await connection.execute(moving.returning(deliveries.c.id))).scalars())
    theirs = attempts.c.delivery_id.in_(ids) & (attempts.c.day <= GIVEN_UP) & (attempts.c.day != day)
    await connection.execute(move_rows(attempts, theirs, lambda _: {"day": day}))


async def _fail_operations(connection: AsyncConnection, outcomes: Sequence[DeliveryOutcome]) -> None:
    """Record in an operation that a delivery was given up whose webhook has `fallback="none"`."""
    failed = {
        outcome.claimed.envelope.operation_id: f"Hook {outcome.claimed.envelope.hook.id!r}: {outcome.error}"
        for outcome in outcomes
        if outcome.status == "dead" and outcome.claimed.envelope.hook.webhook.fallback == "none"
    }
    # Operations are locked before deliveries, and in order, as commits do it, to avoid deadlocks.
    for operation_id in sorted(failed):
        first = (operations.c.operation_id == operation_id) & operations.c.failed_delivery.is_(None)
        await connection.execute(update(operations).where(first).values(failed_delivery=failed[operation_id]))


def _attempt_row(outcome: DeliveryOutcome, now: float, worker: str) -> dict[str, Any]:
    return {
        "delivery_id": outcome.claimed.envelope.id,
        "nth": outcome.claimed.attempts + 1,
        "started_at": now - max(0.0, monotonic() - outcome.began),
        "duration_ms": outcome.duration_ms,
        "status_code": outcome.status_code,
        "error": outcome.error,
        "worker": worker,
    }


def _failure_values(outcome: DeliveryOutcome, now: float) -> dict[str, Any]:
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


def _split_into_batches(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), BATCH_SIZE):
        yield list(names[start : start + BATCH_SIZE])


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
