"""Insert deliveries into the tables, and write the outcomes of attempts.

A stream is the sequence of deliveries from one operation to one endpoint. Its first unsettled delivery is `pending` and
may be claimed; those behind it are `waiting`, and cost nothing when a worker looks for work, however many they are. The
transaction that settles the first makes the next one pending. A claim moves `next_attempt_at` one lease ahead, so that
a delivery whose worker has died falls due again by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from time import monotonic
from typing import Any, TypeAlias
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
    select,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from hookline.store._circuit_breaker import Breaker, update_endpoints
from hookline.store._database import express_now
from hookline.store._delivery_claims import UNCLAIMED, DeliveryOutcome, lock_deliveries
from hookline.store._partitions import GIVEN_UP, KEPT, day_of, move_rows
from hookline.store._row_statements import insert_rows
from hookline.store._rows import stream_name
from hookline.store._tables import attempts, deliveries, operations
from hookline.webhooks import Envelope

__all__ = [
    "build_delivery_rows",
    "insert_deliveries",
    "promote_waiting",
    "settle_deliveries",
]

Rows: TypeAlias = Sequence[dict[str, Any]]

BATCH_SIZE = 1000
"""Streams that one statement names at most, since databases limit the number of parameters."""

# Not `IN`: SQLAlchemy cannot expand it in a statement that is executed with many sets of parameters.
_unsettled = (deliveries.c.status == "pending") | (deliveries.c.status == "waiting")


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
    settled = deliveries.alias()
    for some in _split_into_batches(ids):
        repeated = select(settled.c.id).where(settled.c.id.in_(some), settled.c.day != KEPT)
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
        given = {"seqs": list(delivered), "codes": list(delivered.values()), "now": now, "its_day": day_of(now)}
        await _move(connection, _move_delivered(), given)
    elif delivered:
        await connection.exec_driver_sql(_DELIVERED, [(code, now, seq) for seq, code in delivered.items()])
    failed = [_failure_values(outcome, now) for outcome in outcomes if outcome.status != "delivered"]
    if failed:
        await connection.execute(_not_delivered, failed)
    dead = {outcome.claimed.seq for outcome in outcomes if outcome.status == "dead"}
    if dead and partitioned:
        await _move(connection, _move_dead(), {"seqs": list(dead), "its_day": GIVEN_UP})
    for streams in _split_into_batches(sorted({o.claimed.stream for o in outcomes if o.status != "pending"})):
        await _promote(connection, streams, now)
    await update_endpoints(connection, outcomes, now=now, breaker=breaker)


@cache
def _move_delivered() -> ReturningInsert[str]:
    """Build the statement for PostgreSQL that `_DELIVERED` is for SQLite; it moves the rows to the present day."""
    keys = bindparam("seqs", type_=ARRAY(BigInteger)), bindparam("codes", type_=ARRAY(Integer))
    answers = func.unnest(*keys).table_valued("its_seq", "code", name="answers").render_derived()
    which = (deliveries.c.seq == answers.c.its_seq) & (deliveries.c.day <= GIVEN_UP)
    moving = move_rows(
        deliveries,
        which & (deliveries.c.status != "delivered"),
        lambda gone: {
            "status": "delivered",
            "attempts": gone.c.attempts + 1,
            "last_status_code": gone.c.code,
            "last_error": None,
            "settled_at": bindparam("now"),
            "day": bindparam("its_day"),
            **UNCLAIMED,
        },
        given=[answers.c.code],
    )
    return moving.returning(deliveries.c.id)


@cache
def _move_dead() -> ReturningInsert[str]:
    its = deliveries.c.seq.in_(bindparam("seqs", expanding=True)) & (deliveries.c.day == KEPT)
    moving = move_rows(deliveries, its & (deliveries.c.status == "dead"), lambda _: {"day": bindparam("its_day")})
    return moving.returning(deliveries.c.id)


@cache
def _move_attempts() -> Insert:
    day = bindparam("its_day", type_=Integer)
    theirs = attempts.c.delivery_id.in_(bindparam("ids", expanding=True)) & (attempts.c.day <= GIVEN_UP)
    return move_rows(attempts, theirs & (attempts.c.day != day), lambda _: {"day": day})


async def _move(connection: AsyncConnection, moving: ReturningInsert[str], given: Mapping[str, object]) -> None:
    """Move deliveries to the partition of a day or of those given up, and their attempts with them."""
    ids = list((await connection.execute(moving, given)).scalars())
    await connection.execute(_move_attempts(), {"ids": ids, "its_day": given["its_day"]})


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
