"""The queue of commits that a relay has yet to tell.

A commit whose events somebody hears in another process writes a row of the queue in its own transaction, and the row is
deleted once the bus has kept the commit. So the position of the relay is what is left of the queue: a transaction that
stays open longer than later ones is found when it commits, which a position by number or time would pass over. Within
an operation, commits follow one another, so that the order of the rows is that of the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import msgspec
from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.runtime import JournalEntry, OperationState, RemoteHearer
from hookline.store._relay_lease import count_told, forget_losses
from hookline.store._tables import events, operations, relay_queue

__all__ = ["QueuedCommit", "build_relay_row", "confirm_told", "encode_hearers", "read_queue", "replay_events"]

Row: TypeAlias = dict[str, Any]

REPLAYED = 100
"""Events of an operation that a replay puts into one message at most."""
_queued = relay_queue.alias()


class QueuedCommit(NamedTuple):
    """A commit that waits to be told.

    Attributes:
        seq: The key of its row.
        operation_id: The operation.
        first: The number of its first event.
        number: The number of its last event.
        tenant_id: The tenant.
        hearers: The names under which it is heard.
        wanted: Wire names of the events that are for a name; a name that is not there hears all of them.
        replay: The id of the replay that tells it again, or `""`.
        events: Its events, as they are stored.
    """

    seq: int
    operation_id: str
    first: int
    number: int
    tenant_id: str
    hearers: list[str]
    wanted: dict[str, list[str]]
    replay: str
    events: list[bytes]


def build_relay_row(state: OperationState, entries: Sequence[JournalEntry]) -> Row | None:
    """Build the row of the queue for a commit; `None` if nobody hears its events in another process."""
    if not state.hearers or not entries:
        return None
    wanted = select_hearers(state.hearers, {entry.type for entry in entries})
    if not wanted:
        return None
    return {
        "operation_id": state.operation_id,
        "first": entries[0].number,
        "number": entries[-1].number,
        "tenant_id": state.tenant_id,
        "hearers": encode_hearers(wanted),
        "replay": "",
    }


def select_hearers(hearers: Sequence[RemoteHearer], types: Set[str]) -> dict[str, list[str]]:
    """Return the names that hear at least one of some types of events, each with the types that it hears.

    A name without types hears all of them.
    """
    selected: dict[str, list[str]] = {}
    for hearer in hearers:
        if hearer.events and types.isdisjoint(hearer.events):
            continue
        known = selected.get(hearer.name)
        hears_all = not hearer.events or known == []
        selected[hearer.name] = [] if hears_all else [*(known or ()), *hearer.events]
    return selected


def encode_hearers(hearers: Mapping[str, Sequence[str]]) -> str:
    """Return names with the types of events that each hears as JSON; a list of names if each hears all."""
    return msgspec.json.encode(hearers if any(hearers.values()) else list(hearers)).decode()


def decode_hearers(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return names, and the types of events of those that do not hear all."""
    found = msgspec.json.decode(text, type=list[str] | dict[str, list[str]])
    if isinstance(found, list):
        return found, {}
    return list(found), {name: types for name, types in found.items() if types}


async def read_queue(connection: AsyncConnection, limit: int) -> list[QueuedCommit]:
    """Read the oldest commits of the queue, with their events."""
    rows = (await connection.execute(select(relay_queue).order_by(relay_queue.c.seq).limit(limit))).all()
    if not rows:
        return []
    its = and_(
        events.c.operation_id == _queued.c.operation_id,
        events.c.number.between(_queued.c.first, _queued.c.number),
        # Retention may have moved the events of the operation to day 0.
        or_(events.c.day == _queued.c.day, events.c.day == 0),
    )
    wanted = select(_queued.c.seq, events.c.wire).join(events, its).where(_queued.c.seq.in_([row.seq for row in rows]))
    wires: dict[int, list[bytes]] = {}
    for seq, wire in await connection.execute(wanted.order_by(_queued.c.seq, events.c.number)):
        wires.setdefault(seq, []).append(wire)
    return [
        QueuedCommit(
            row.seq,
            row.operation_id,
            row.first,
            row.number,
            row.tenant_id,
            *decode_hearers(row.hearers),
            row.replay,
            wires.get(row.seq, []),
        )
        for row in rows
    ]


async def confirm_told(connection: AsyncConnection, seqs: Sequence[int], *, now: ColumnElement[float]) -> None:
    """Remove commits from the queue that were told."""
    await connection.execute(delete(relay_queue).where(relay_queue.c.seq.in_(seqs)))
    await count_told(connection, len(seqs), now=now)


async def replay_events(
    connection: AsyncConnection,
    hearer: str,
    *,
    operation_id: str | None = None,
    first: int = 1,
    since: float | None = None,
    now: ColumnElement[float],
) -> int:
    """Queue stored events again for one name, those of each operation in order.

    Args:
        connection: The transaction.
        hearer: The name, which need not have heard them before.
        operation_id: Only those of this operation.
        first: With an operation: from this number on.
        since: Only those that happened at this time or later, in unix seconds.
        now: The present time.

    Returns:
        The number of events.
    """
    query = select(
        events.c.operation_id,
        func.min(events.c.number).label("first"),
        func.max(events.c.number).label("last"),
        operations.c.tenant_id,
        operations.c.day,
    ).join(
        operations,
        and_(operations.c.operation_id == events.c.operation_id, events.c.day == operations.c.day),
    )
    if operation_id is not None:
        query = query.where(events.c.operation_id == operation_id, events.c.number >= first)
    if since is not None:
        query = query.where(events.c.time_unix_nano >= int(since * 1e9))
    query = query.group_by(events.c.operation_id, operations.c.tenant_id, operations.c.day)
    replay = uuid4().hex
    rows = [
        {
            "operation_id": row.operation_id,
            "first": begin,
            "number": min(begin + REPLAYED - 1, row.last),
            "tenant_id": row.tenant_id,
            "hearers": encode_hearers({hearer: []}),
            "replay": replay,
            "day": row.day,
        }
        for row in await connection.execute(query.order_by(func.min(events.c.time_unix_nano), events.c.operation_id))
        for begin in range(row.first, row.last + 1, REPLAYED)
    ]
    if rows:
        await connection.execute(insert(relay_queue).values(created_at=now), rows)
    if since is not None and operation_id is None:
        await forget_losses(connection, hearer, since)
    return sum(row["number"] - row["first"] + 1 for row in rows)
