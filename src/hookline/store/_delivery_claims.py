"""Who delivers what next: claims of the first unsettled deliveries of streams, in SQL for both databases."""

import logging
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Double, Integer, Row, String, TextClause, bindparam, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._tables import deliveries, endpoints
from hookline.webhooks import Envelope, HookData

__all__ = [
    "LONGEST_LEASE",
    "Claimed",
    "Run",
    "claim",
    "correct_times",
    "due",
    "extend",
    "lock",
    "release",
    "release_unknown",
]

logger = logging.getLogger("hookline")

LEFT_SECONDS = 60.0
"""For how long a delivery is left to others that this version of hookline cannot read."""
UNREADABLE = "its hook cannot be read by this version of hookline; a newer one has written it, or it was damaged"
LONGEST_LEASE = 3600.0
"""Seconds. A claim that ends later than that from now was made when the clock was wrong."""

LANES = """
WITH RECURSIVE lane(seq) AS (
    SELECT (SELECT seq FROM deliveries WHERE status = 'pending' ORDER BY tenant_id, endpoint LIMIT 1)
    UNION ALL
    SELECT (
        SELECT later.seq FROM deliveries AS later
        WHERE later.status = 'pending' AND (later.tenant_id, later.endpoint) > (here.tenant_id, here.endpoint)
        ORDER BY later.tenant_id, later.endpoint LIMIT 1
    )
    FROM lane CROSS JOIN deliveries AS here WHERE here.seq = lane.seq
)"""
"""One pending delivery of each tenant and endpoint, found by leaps in the index, however many there are behind it."""

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
SELECT head.seq FROM lane CROSS JOIN deliveries AS here ON here.seq = lane.seq
    LEFT JOIN endpoints ON endpoints.tenant_id = here.tenant_id AND endpoints.url = here.endpoint
    CROSS JOIN deliveries AS head ON head.seq IN ({FIRSTS})
WHERE {OPEN} ORDER BY head.next_attempt_at, head.seq LIMIT :limit""",
    "postgresql": f"""{LANES}
SELECT head.seq FROM lane JOIN deliveries AS here ON here.seq = lane.seq
    LEFT JOIN endpoints ON endpoints.tenant_id = here.tenant_id AND endpoints.url = here.endpoint
    CROSS JOIN LATERAL ({FIRSTS.replace("SELECT d.seq", "SELECT d.seq, d.next_attempt_at")}) AS head
WHERE {OPEN} ORDER BY head.next_attempt_at, head.seq LIMIT :limit""",
}

CLAIM = {
    "sqlite": "UPDATE deliveries SET claimed_by = :worker, claimed_until = :until, next_attempt_at = :until "
    f"WHERE seq IN ({HEADS['sqlite']}) RETURNING seq",
    # Who locks first has it; who comes second goes on to others, and does not wait.
    "postgresql": "UPDATE deliveries SET claimed_by = :worker, claimed_until = :until, next_attempt_at = :until "
    "WHERE seq IN (SELECT free.seq FROM deliveries AS free WHERE free.status = 'pending' "
    f"AND free.next_attempt_at <= :now AND free.seq IN ({HEADS['postgresql']}) "
    "FOR UPDATE SKIP LOCKED) RETURNING seq",
}

FOLLOWERS = """
    SELECT w.seq FROM deliveries AS w
    WHERE w.stream = head.stream AND w.status = 'waiting' AND w.seq > head.seq AND NOT EXISTS (
        SELECT 1 FROM deliveries AS other
        WHERE other.stream = head.stream AND other.status = 'pending' AND other.seq > head.seq
    )
    ORDER BY w.seq LIMIT :followers
"""
"""What waits behind a claimed delivery, unless something in between has been claimed already."""

BEHIND = {
    "sqlite": f"""SELECT behind.seq FROM deliveries AS head
    CROSS JOIN deliveries AS behind ON behind.seq IN ({FOLLOWERS})
WHERE head.seq IN :heads""",
    "postgresql": f"""SELECT behind.seq FROM deliveries AS head CROSS JOIN LATERAL ({FOLLOWERS}) AS behind
WHERE head.seq IN :heads""",
}


def _statement(sql: str) -> TextClause:
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


_claim = {dialect: _statement(sql) for dialect, sql in CLAIM.items()}
_behind = {dialect: _statement(sql) for dialect, sql in BEHIND.items()}
_heads = {dialect: _statement(sql) for dialect, sql in HEADS.items()}
_rows = (
    select(deliveries, endpoints.c.failures, endpoints.c.disabled_at, endpoints.c.reason)
    .outerjoin(
        endpoints,
        (endpoints.c.tenant_id == deliveries.c.tenant_id) & (endpoints.c.url == deliveries.c.endpoint),
    )
    .where(deliveries.c.seq.in_(bindparam("seqs", expanding=True)))
    .order_by(deliveries.c.stream, deliveries.c.seq)
)
_hook = lru_cache(1000)(msgspec.json.Decoder(HookData).decode)


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that a worker holds.

    Attributes:
        seq: Its row.
        stream: Names those that are delivered in order with it.
        endpoint: Where it goes.
        attempts: How many were made so far.
        envelope: What is delivered.
        refused: Why it is not to be sent, if its endpoint is disabled.
        failures: Of its endpoint, one after another.
    """

    seq: int
    stream: str
    endpoint: str
    attempts: int
    envelope: Envelope
    refused: str | None = None
    failures: int = 0


Run: TypeAlias = list[Claimed]
"""Deliveries of one stream, in order, of which the first carries the claim for all."""


async def claim(
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
) -> list[Run]:
    """Claim what is due: of each stream its first unsettled delivery, and with it what waits behind that.

    Args:
        connection: In a transaction that may write.
        now: The clock of the database.
        worker: Who claims.
        lease_seconds: For how long; `extend` prolongs it.
        limit: How many streams at most.
        each: How many of them for one endpoint.
        longest: How many deliveries of one stream.
        busy: Endpoints that get nothing now.
        served: Names for which this process takes `local://name`; other processes take the others.

    Returns:
        The runs, what has been due for longest first.
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
    runs = [_run(run) for _, run in groupby(rows, key=lambda row: row.stream)]
    left = set(heads) - {run[0].seq for run in runs if run}
    if left:
        await _leave(connection, left, now=now)
    return sorted((run for run in runs if run), key=lambda run: run[0].seq)


def _run(rows: Iterable[Row[Any]]) -> Run:
    """What can be read of a stream, up to the first that cannot be: those behind that wait for it."""
    run: Run = []
    for row in rows:
        try:
            run.append(_claimed(row))
        except msgspec.MsgspecError:
            break
    return run


async def _leave(connection: AsyncConnection, seqs: Collection[int], *, now: float) -> None:
    """Leave deliveries for a while to a worker that can read them: a newer version of hookline has written them."""
    free = {"claimed_by": None, "claimed_until": None, "next_attempt_at": now + LEFT_SECONDS}
    changed = update(deliveries).where(deliveries.c.seq.in_(seqs)).values(**free, last_error=UNREADABLE)
    for delivery_id in (await connection.execute(changed.returning(deliveries.c.id))).scalars():
        logger.error("Delivery %s is left to others for %g s: %s", delivery_id, LEFT_SECONDS, UNREADABLE)


def _claimed(row: Row[Any]) -> Claimed:
    return Claimed(
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


async def due(connection: AsyncConnection, *, now: float, served: Collection[str] = ()) -> bool:
    """Whether there is anything that could be claimed now."""
    found = await connection.execute(
        _heads[connection.dialect.name],
        {"now": now, "limit": 1, "each": 1, "busy": [], "served": [f"local://{name}" for name in served]},
    )
    return found.first() is not None


async def lock(connection: AsyncConnection, seqs: Collection[int]) -> None:
    """On PostgreSQL, take rows in their order before any of them is changed, so that two never wait for each other."""
    if connection.dialect.name == "postgresql" and seqs:
        rows = select(deliveries.c.seq).where(deliveries.c.seq.in_(seqs)).order_by(deliveries.c.seq)
        await connection.execute(rows.with_for_update())


async def extend(
    connection: AsyncConnection, seqs: Collection[int], *, now: float, worker: str, lease_seconds: float
) -> set[int]:
    """Prolong claims.

    Args:
        connection: In a transaction that may write.
        seqs: What was claimed.
        now: The clock of the database.
        worker: Who holds the claims.
        lease_seconds: From now.

    Returns:
        Those that still are this worker's.
    """
    until = now + lease_seconds
    mine = (deliveries.c.seq.in_(seqs)) & (deliveries.c.claimed_by == worker) & (deliveries.c.status == "pending")
    prolonged = update(deliveries).where(mine).values(claimed_until=until, next_attempt_at=until)
    return set((await connection.execute(prolonged.returning(deliveries.c.seq))).scalars())


async def release(connection: AsyncConnection, seqs: Collection[int], *, now: float, worker: str) -> None:
    """Give claims back, so that another worker may take them at once.

    Args:
        connection: In a transaction that may write.
        seqs: What was claimed.
        now: The clock of the database.
        worker: Who held the claims.
    """
    mine = (deliveries.c.seq.in_(seqs)) & (deliveries.c.claimed_by == worker) & (deliveries.c.status == "pending")
    await connection.execute(
        update(deliveries).where(mine).values(claimed_by=None, claimed_until=None, next_attempt_at=now)
    )


async def release_unknown(
    connection: AsyncConnection, ends: Collection[float], *, kept: Collection[int], now: float, worker: str
) -> None:
    """Give back what a worker has claimed without knowing it, since it never heard that its claim was committed.

    Args:
        connection: In a transaction that may write.
        ends: When such claims would end, which tells them from those of other workers of the same process.
        kept: What the worker knows that it holds.
        now: The clock of the database.
        worker: Who claimed.
    """
    theirs = deliveries.c.claimed_until.in_(ends) & (deliveries.c.claimed_by == worker)
    lost = theirs & (deliveries.c.status == "pending") & deliveries.c.seq.not_in(kept)
    await connection.execute(
        update(deliveries).where(lost).values(claimed_by=None, claimed_until=None, next_attempt_at=now)
    )


async def correct_times(connection: AsyncConnection, *, now: float, longest_delay: float) -> int:
    """Make due what waits for a time that no delay can have meant: the clock was wrong when it was written.

    Args:
        connection: In a transaction that may write.
        now: The clock of the database.
        longest_delay: Seconds that a delivery may have been told to wait.

    Returns:
        How many deliveries were made due.
    """
    pending, free = deliveries.c.status == "pending", deliveries.c.claimed_by.is_(None)
    lost = (free & (deliveries.c.next_attempt_at > now + longest_delay)) | (
        ~free & (deliveries.c.next_attempt_at > now + LONGEST_LEASE)
    )
    changed = await connection.execute(update(deliveries).where(pending & lost).values(next_attempt_at=now))
    closed = endpoints.c.closed_until > now + longest_delay
    await connection.execute(update(endpoints).where(closed).values(closed_until=None))
    return changed.rowcount
