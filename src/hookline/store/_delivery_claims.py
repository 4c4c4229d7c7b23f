"""Claim due deliveries for a worker: the first unsettled ones of each stream, in SQL for both databases."""

import logging
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Double, Integer, Row, String, TextClause, bindparam, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._partitions import GIVEN_UP, KEPT
from hookline.store._tables import deliveries, endpoints
from hookline.webhooks import Envelope, HookData

__all__ = [
    "LONGEST_LEASE",
    "UNCLAIMED",
    "ClaimedDelivery",
    "DeliveryOutcome",
    "DeliveryRun",
    "claim_deliveries",
    "correct_due_times",
    "extend_claims",
    "has_due_deliveries",
    "lock_deliveries",
    "read_next_due",
    "release_claims",
    "release_uncertain_claims",
]

logger = logging.getLogger("hookline")

UNREADABLE_SECONDS = 60.0
"""Seconds until the next try of a delivery that this version of hookline cannot read; a newer process may take it."""
UNREADABLE = "its hook cannot be read by this version of hookline; a newer one has written it, or it was damaged"
LONGEST_LEASE = 3600.0
"""Longest lease, in seconds. A claim that ends later than this from now was made while the clock was wrong."""

UNCLAIMED: dict[str, None] = {"claimed_by": None, "claimed_until": None}
"""Values of the columns of a delivery that no worker has claimed."""

LANES = """
WITH RECURSIVE lane(seq) AS (
    SELECT (SELECT seq FROM deliveries WHERE status = 'pending' ORDER BY tenant_id, endpoint LIMIT 1)
    UNION ALL
    SELECT (
        SELECT later.seq FROM deliveries AS later
        WHERE later.status = 'pending' AND (later.tenant_id, later.endpoint) > (here.tenant_id, here.endpoint)
        ORDER BY later.tenant_id, later.endpoint LIMIT 1
    )
    FROM lane CROSS JOIN deliveries AS here WHERE here.seq = lane.seq AND here.day = 0
)"""
"""One pending delivery of each tenant and endpoint. The recursion skips through the index, so that the cost depends on
the number of endpoints, not of deliveries. Each join names the day of unsettled deliveries, which is 0: PostgreSQL then
knows `seq` to be one row, as its unique index has both columns. Else it joins all deliveries before it looks at `lane`.
"""

FIRSTS = """
    SELECT d.seq FROM deliveries AS d
    WHERE d.status = 'pending' AND d.tenant_id = here.tenant_id AND d.endpoint = here.endpoint
        AND d.next_attempt_at <= :now
        AND NOT EXISTS (
            SELECT 1 FROM deliveries AS earlier
            WHERE earlier.stream = d.stream AND earlier.status IN ('pending', 'waiting') AND earlier.seq < d.seq
        )
    ORDER BY d.next_attempt_at, d.seq LIMIT :each
"""

OPEN = """here.endpoint NOT IN :busy
    AND (endpoints.closed_until IS NULL OR endpoints.closed_until <= :now)
    AND (here.endpoint NOT LIKE 'local://%' OR here.endpoint IN :served)"""

HEADS = {
    "sqlite": f"""{LANES}
SELECT head.seq FROM lane CROSS JOIN deliveries AS here ON here.seq = lane.seq AND here.day = 0
    LEFT JOIN endpoints ON endpoints.tenant_id = here.tenant_id AND endpoints.url = here.endpoint
    CROSS JOIN deliveries AS head ON head.seq IN ({FIRSTS})
WHERE {OPEN} ORDER BY head.next_attempt_at, head.seq LIMIT :limit""",
    "postgresql": f"""{LANES}
SELECT head.seq FROM lane JOIN deliveries AS here ON here.seq = lane.seq AND here.day = 0
    LEFT JOIN endpoints ON endpoints.tenant_id = here.tenant_id AND endpoints.url = here.endpoint
    CROSS JOIN LATERAL ({FIRSTS.replace("SELECT d.seq", "SELECT d.seq, d.next_attempt_at")}) AS head
WHERE {OPEN} ORDER BY head.next_attempt_at, head.seq LIMIT :limit""",
}

CLAIM = {
    "sqlite": "UPDATE deliveries SET claimed_by = :worker, claimed_until = :until, next_attempt_at = :until "
    f"WHERE seq IN ({HEADS['sqlite']}) RETURNING seq",
    # The first worker to lock a row gets it; the others skip it instead of waiting.
    "postgresql": "UPDATE deliveries SET claimed_by = :worker, claimed_until = :until, next_attempt_at = :until "
    "WHERE day = 0 AND seq IN (SELECT free.seq FROM deliveries AS free WHERE free.status = 'pending' AND free.day = 0 "
    f"AND free.next_attempt_at <= :now AND free.seq IN ({HEADS['postgresql']}) "
    "FOR UPDATE SKIP LOCKED) RETURNING seq",
}

NEXT_DUE = f"""{LANES}, due(soonest, closed) AS (
    SELECT (
        SELECT min(d.next_attempt_at) FROM deliveries AS d
        WHERE d.status = 'pending' AND d.tenant_id = here.tenant_id AND d.endpoint = here.endpoint
    ), endpoints.closed_until
    FROM lane JOIN deliveries AS here ON here.seq = lane.seq AND here.day = 0
        LEFT JOIN endpoints ON endpoints.tenant_id = here.tenant_id AND endpoints.url = here.endpoint
    WHERE here.endpoint NOT IN :busy AND (here.endpoint NOT LIKE 'local://%' OR here.endpoint IN :served)
)
SELECT min(CASE WHEN closed > soonest THEN closed ELSE soonest END) FROM due"""
"""When the next delivery falls due: the first of each endpoint, or the end of the pause of that endpoint."""

FOLLOWERS = """
    SELECT w.seq FROM deliveries AS w
    WHERE w.stream = head.stream AND w.status = 'waiting' AND w.seq > head.seq AND NOT EXISTS (
        SELECT 1 FROM deliveries AS other
        WHERE other.stream = head.stream AND other.status = 'pending' AND other.seq > head.seq
    )
    ORDER BY w.seq LIMIT :followers
"""
"""Deliveries that wait behind a claimed one, unless one in between is claimed already."""

BEHIND = {
    "sqlite": f"""SELECT behind.seq FROM deliveries AS head
    CROSS JOIN deliveries AS behind ON behind.seq IN ({FOLLOWERS})
WHERE head.seq IN :heads""",
    "postgresql": f"""SELECT behind.seq FROM deliveries AS head CROSS JOIN LATERAL ({FOLLOWERS}) AS behind
WHERE head.seq IN :heads AND head.day = 0""",
}


def _statement(dialect: str, sql: str) -> TextClause:
    if dialect == "postgresql":
        # All of this is about unsettled deliveries, which are in one partition.
        sql = re.sub(r"\bdeliveries\b", "deliveries_unsettled", sql)
    kinds: dict[str, Any] = {
        "now": Double,
        "until": Double,
        "worker": String,
        "each": Integer,
        "limit": Integer,
        "followers": Integer,
    }
    lists = {"busy": String, "served": String, "heads": Integer}
    used = [bindparam(name, type_=kind) for name, kind in kinds.items() if f":{name}" in sql]
    used += [bindparam(name, type_=kind, expanding=True) for name, kind in lists.items() if f":{name}" in sql]
    return text(sql).bindparams(*used)


_claim = {dialect: _statement(dialect, sql) for dialect, sql in CLAIM.items()}
_behind = {dialect: _statement(dialect, sql) for dialect, sql in BEHIND.items()}
_next_due = {dialect: _statement(dialect, NEXT_DUE) for dialect in CLAIM}
_heads = {dialect: _statement(dialect, sql) for dialect, sql in HEADS.items()}
_rows = (
    select(deliveries, endpoints.c.failures, endpoints.c.disabled_at, endpoints.c.reason)
    .outerjoin(
        endpoints,
        (endpoints.c.tenant_id == deliveries.c.tenant_id) & (endpoints.c.url == deliveries.c.endpoint),
    )
    .where(deliveries.c.day == KEPT, deliveries.c.seq.in_(bindparam("seqs", expanding=True)))
    .order_by(deliveries.c.stream, deliveries.c.seq)
)
_lock = (
    select(deliveries.c.seq)
    .where(deliveries.c.seq.in_(bindparam("seqs", expanding=True)), deliveries.c.day <= GIVEN_UP)
    .order_by(deliveries.c.seq)
    .with_for_update()
)
_hook = lru_cache(1000)(msgspec.json.Decoder(HookData).decode)


class ClaimedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that a worker has claimed.

    Attributes:
        seq: The key of its row.
        stream: The stream whose deliveries are made in order.
        endpoint: The address of the receiver.
        attempts: Number of attempts so far.
        envelope: The delivery itself.
        refused: Why it must not be sent, if its endpoint is disabled.
        failures: Consecutive failures of its endpoint.
    """

    seq: int
    stream: str
    endpoint: str
    attempts: int
    envelope: Envelope
    refused: str | None = None
    failures: int = 0


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


DeliveryRun: TypeAlias = list[ClaimedDelivery]
"""Consecutive deliveries of one stream; the row of the first carries the claim for all of them."""


async def claim_deliveries(
    connection: AsyncConnection,
    *,
    now: float,
    worker: str,
    lease_seconds: float,
    limit: int,
    each: int,
    longest: int = 1,
    busy: Collection[str] = (),
    served: Collection[str] = (),
) -> list[DeliveryRun]:
    """Claim due deliveries: the first unsettled one of each stream, with those that wait behind it.

    Args:
        connection: In a transaction that may write.
        now: The time of the database.
        worker: The id of the worker that claims.
        lease_seconds: Seconds until the claim ends; `extend_claims` renews it.
        limit: Number of streams at most.
        each: Number of streams for one endpoint at most.
        longest: Number of deliveries of one stream at most.
        busy: Endpoints for which nothing is claimed.
        served: Names that this process serves as `local://name`; the others are left to other processes.

    Returns:
        The claimed deliveries by stream, the oldest first.
    """
    dialect = connection.dialect.name
    until = now + lease_seconds
    found = await connection.execute(
        _claim[dialect],
        {"now": now, "until": until, "worker": worker, "limit": limit, "each": each}
        | {"busy": list(busy), "served": [f"local://{name}" for name in served]},
    )
    heads = list(found.scalars())
    if not heads:
        return []
    behind: list[int] = []
    if longest > 1:
        found = await connection.execute(_behind[dialect], {"heads": heads, "followers": longest - 1})
        behind = list(found.scalars())
    rows = await connection.execute(_rows, {"seqs": [*heads, *behind]})
    runs = [_decode_stream(stream) for _, stream in groupby(rows, key=lambda row: row.stream)]
    left = set(heads) - {run[0].seq for run in runs if run}
    if left:
        await _postpone_unreadable(connection, left, now=now)
    return sorted((run for run in runs if run), key=lambda run: run[0].seq)


def _decode_stream(rows: Iterable[Row[Any]]) -> DeliveryRun:
    """Decode the deliveries of a stream, up to the first unreadable one: those behind it have to wait for it."""
    run: DeliveryRun = []
    for row in rows:
        try:
            run.append(_decode_row(row))
        except msgspec.MsgspecError:
            break
    return run


async def _postpone_unreadable(connection: AsyncConnection, seqs: Collection[int], *, now: float) -> None:
    """Postpone deliveries that a newer version of hookline has written, so that a worker of that version takes them."""
    changed = update(deliveries).where(deliveries.c.day == KEPT, deliveries.c.seq.in_(seqs))
    changed = changed.values(**UNCLAIMED, next_attempt_at=now + UNREADABLE_SECONDS, last_error=UNREADABLE)
    for delivery_id in (await connection.execute(changed.returning(deliveries.c.id))).scalars():
        logger.error("Delivery %s is postponed for %g s: %s", delivery_id, UNREADABLE_SECONDS, UNREADABLE)


def _decode_row(row: Row[Any]) -> ClaimedDelivery:
    return ClaimedDelivery(
        seq=row.seq,
        stream=row.stream,
        endpoint=row.endpoint,
        attempts=row.attempts,
        envelope=Envelope(
            id=row.id,
            hook=_hook(row.hook),
            operation_id=row.operation_id,
            tenant_id=row.tenant_id,
            number=row.number,
            payload=row.payload,
        ),
        refused=None if row.disabled_at is None else row.reason or "its endpoint is disabled",
        failures=row.failures or 0,
    )


async def has_due_deliveries(connection: AsyncConnection, *, now: float, served: Collection[str] = ()) -> bool:
    """Return whether there is a delivery that could be claimed now."""
    found = await connection.execute(
        _heads[connection.dialect.name],
        {"now": now, "limit": 1, "each": 1, "busy": [], "served": [f"local://{name}" for name in served]},
    )
    return found.first() is not None


async def read_next_due(
    connection: AsyncConnection, *, now: float, busy: Collection[str] = (), served: Collection[str] = ()
) -> float | None:
    """Return the seconds until the next delivery falls due, 0 or less if one is due; `None` if none is pending.

    A claimed delivery falls due when its claim ends. One that is due need not be claimable: it may be locked.

    Args:
        connection: In a transaction.
        now: The time of the database.
        busy: Endpoints to leave out.
        served: Names that this process serves as `local://name`; the others are left out.
    """
    names = {"busy": list(busy), "served": [f"local://{name}" for name in served]}
    at = (await connection.execute(_next_due[connection.dialect.name], names)).scalar()
    return None if at is None else float(at) - now


async def lock_deliveries(connection: AsyncConnection, seqs: Collection[int]) -> None:
    """Lock rows of deliveries in the order of their keys, so that two transactions never deadlock (PostgreSQL only).

    Delivered ones are left out, since nothing changes them but a replay.
    """
    if connection.dialect.name == "postgresql" and seqs:
        await connection.execute(_lock, {"seqs": list(seqs)})


def _claimed_by(worker: str) -> ColumnElement[bool]:
    """Return the condition for deliveries that a worker has claimed."""
    pending = (deliveries.c.day == KEPT) & (deliveries.c.status == "pending")
    return pending & (deliveries.c.claimed_by == worker)


async def extend_claims(
    connection: AsyncConnection, seqs: Collection[int], *, now: float, worker: str, lease_seconds: float
) -> set[int]:
    """Renew claims.

    Args:
        connection: In a transaction that may write.
        seqs: The keys of the rows that carry the claims.
        now: The time of the database.
        worker: The id of the worker that holds the claims.
        lease_seconds: Seconds from now until the claims end.

    Returns:
        The keys of the claims that this worker still holds.
    """
    until = now + lease_seconds
    mine = _claimed_by(worker) & deliveries.c.seq.in_(seqs)
    prolonged = update(deliveries).where(mine).values(claimed_until=until, next_attempt_at=until)
    return set((await connection.execute(prolonged.returning(deliveries.c.seq))).scalars())


async def release_claims(connection: AsyncConnection, seqs: Collection[int], *, now: float, worker: str) -> None:
    """Release claims, so that another worker may take the deliveries at once.

    Args:
        connection: In a transaction that may write.
        seqs: The keys of the rows that carry the claims.
        now: The time of the database.
        worker: The id of the worker that held the claims.
    """
    mine = _claimed_by(worker) & deliveries.c.seq.in_(seqs)
    await connection.execute(update(deliveries).where(mine).values(**UNCLAIMED, next_attempt_at=now))


async def release_uncertain_claims(
    connection: AsyncConnection, ends: Collection[float], *, kept: Collection[int], now: float, worker: str
) -> None:
    """Release claims that were committed although the worker only saw its commit fail.

    Args:
        connection: In a transaction that may write.
        ends: Ends of such claims, which distinguish them from claims of other workers of the same process.
        kept: Keys of the claims that the worker knows it holds.
        now: The time of the database.
        worker: The id of the worker that claimed.
    """
    lost = _claimed_by(worker) & deliveries.c.claimed_until.in_(ends) & deliveries.c.seq.not_in(kept)
    await connection.execute(update(deliveries).where(lost).values(**UNCLAIMED, next_attempt_at=now))


async def correct_due_times(connection: AsyncConnection, *, now: float, longest_delay: float) -> int:
    """Make deliveries due whose next attempt lies impossibly far ahead, since the clock was wrong when it was set.

    Args:
        connection: In a transaction that may write.
        now: The time of the database.
        longest_delay: Longest time, in seconds, that a delivery may have to wait for its next attempt.

    Returns:
        The number of deliveries that were made due.
    """
    pending = (deliveries.c.day == KEPT) & (deliveries.c.status == "pending")
    free = deliveries.c.claimed_by.is_(None)
    lost = (free & (deliveries.c.next_attempt_at > now + longest_delay)) | (
        ~free & (deliveries.c.next_attempt_at > now + LONGEST_LEASE)
    )
    changed = await connection.execute(update(deliveries).where(pending & lost).values(next_attempt_at=now))
    closed = endpoints.c.closed_until > now + longest_delay
    await connection.execute(update(endpoints).where(closed).values(closed_until=None))
    return changed.rowcount
