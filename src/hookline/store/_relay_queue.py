"""The queue of commits that a relay has yet to tell, the lease of the relay, and dead letters.

A commit whose events somebody hears in another process writes a row of the queue in its own transaction, and the row is
deleted once the bus has kept the commit. So the position of the relay is what is left of the queue: a transaction that
stays open longer than later ones is found when it commits, which a position by number or time would pass over. Within
an operation, commits follow one another, so that the order of the rows is that of the events.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import msgspec
from sqlalchemy import ColumnElement, and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.runtime import JournalEntry, OperationState, RemoteHearer
from hookline.store._database import insert_into
from hookline.store._rows import replace_unstorable
from hookline.store._tables import dead_letters, events, operations, relay_queue, relays

__all__ = [
    "DeadLetter",
    "QueuedCommit",
    "RelayStatus",
    "add_dead_letter",
    "build_relay_row",
    "claim_relay",
    "confirm_told",
    "note_relay",
    "note_stream",
    "read_dead_letters",
    "read_losses",
    "read_queue",
    "read_relay_status",
    "release_relay",
    "replay_dead_letters",
    "replay_events",
]

Row: TypeAlias = dict[str, Any]

NAME = "relay"
"""The name of the only row of `relays`."""
SPARE_SECONDS = 600.0
"""How much older than its commit an event may be: by so much more is told again of what the bus has lost."""
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


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the relay of a store.

    Attributes:
        owner: The process that relays; `None` if none does.
        waiting: Number of commits that wait to be told.
        waiting_seconds: For how long the oldest of them has waited.
        told: Number of commits that were told so far.
        told_at: When the last one was told, in unix seconds.
        problem: Why commits cannot be told now; `None` if they can.
        depths: Number of commits that the bus keeps and that a name has not heard yet, by name.
        dead_letters: Number of dead letters, by name.
        lost: Since when the bus may have lost events that a name has not heard, in unix seconds, by name; empty once
            they are replayed.
    """

    owner: str | None = None
    waiting: int = 0
    waiting_seconds: float = 0.0
    told: int = 0
    told_at: float | None = None
    problem: str | None = None
    depths: dict[str, int] = {}
    dead_letters: dict[str, int] = {}
    lost: dict[str, float] = {}


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a remote observer could not handle.

    Attributes:
        id: Its id.
        hearer: The name under which it was heard.
        hook_id: The observer; `""` if the event could not be read or carried.
        operation_id: The operation.
        number: The number of the event.
        tenant_id: The tenant.
        tries: How often it was tried.
        error: Why it failed the last time.
        created_at: When it was given up, in unix seconds.
    """

    id: str
    hearer: str
    hook_id: str
    operation_id: str
    number: int
    tenant_id: str
    tries: int
    error: str
    created_at: float


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


# The queue


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
    await connection.execute(
        update(relays).where(relays.c.name == NAME).values(told=relays.c.told + len(seqs), told_at=now)
    )


# The lease


async def claim_relay(
    connection: AsyncConnection, owner: str, seconds: float, *, now: ColumnElement[float]
) -> float | None:
    """Make a process the relay of the store for some seconds, or for longer if it is already.

    Returns:
        `None` if it is the relay now; else the seconds until the lease of another process ends.
    """
    free = or_(relays.c.owner == owner, relays.c.owner.is_(None), relays.c.owned_until < now)
    values = {"owner": owner, "owned_until": now + seconds}
    if (await connection.execute(update(relays).where(relays.c.name == NAME, free).values(values))).rowcount:
        return None
    first = {"name": NAME, "told": 0, "depths": "{}", "updated_at": now}
    made = insert_into(connection, relays).values({**first, **values}).on_conflict_do_nothing()
    if (await connection.execute(made)).rowcount > 0:
        return None
    left = (await connection.execute(select(relays.c.owned_until - now).where(relays.c.name == NAME))).scalar_one()
    return max(0.0, float(left))


async def note_relay(
    connection: AsyncConnection,
    owner: str,
    *,
    problem: str | None,
    depths: dict[str, int],
    now: ColumnElement[float],
) -> None:
    """Store what the relay of the store knows of the bus."""
    values = {"problem": problem, "depths": msgspec.json.encode(depths).decode(), "updated_at": now}
    await connection.execute(update(relays).where(relays.c.name == NAME, relays.c.owner == owner).values(values))


async def release_relay(connection: AsyncConnection, owner: str) -> None:
    """End the lease of a process, so that another one can relay at once."""
    await connection.execute(
        update(relays).where(relays.c.name == NAME, relays.c.owner == owner).values(owner=None, owned_until=0.0)
    )


async def read_relay_status(connection: AsyncConnection, *, now: ColumnElement[float]) -> RelayStatus:
    """Read what the relay of the store is doing."""
    waiting = (
        await connection.execute(
            select(func.count(), now - func.min(relay_queue.c.created_at)).select_from(relay_queue)
        )
    ).one()
    counts = select(dead_letters.c.hearer, func.count()).group_by(dead_letters.c.hearer)
    dead = {row.hearer: row[1] for row in await connection.execute(counts)}
    living = (relays.c.owned_until >= now).label("is_living")
    row = (await connection.execute(select(relays, living).where(relays.c.name == NAME))).first()
    status = RelayStatus(waiting=waiting[0], waiting_seconds=max(0.0, waiting[1] or 0.0), dead_letters=dead)
    if row is None:
        return status
    return msgspec.structs.replace(
        status,
        owner=row.owner if row.is_living else None,
        told=row.told,
        told_at=row.told_at,
        problem=row.problem,
        depths=msgspec.json.decode(row.depths, type=dict[str, int]),
        lost=decode_times(row.lost),
    )


def decode_times(text: str | None) -> dict[str, float]:
    """Return times in unix seconds by name; none for `None`."""
    return {} if text is None else msgspec.json.decode(text, type=dict[str, float])


def encode_times(times: Mapping[str, float]) -> str | None:
    """Return times by name as JSON; `None` if there are none."""
    return msgspec.json.encode(times).decode() if times else None


async def note_stream(
    connection: AsyncConnection, owner: str, stream: str, depths: Mapping[str, int], *, now: ColumnElement[float]
) -> dict[str, float]:
    """Store up to when each name has heard all, and notice that the bus has lost what it kept.

    Args:
        connection: The transaction.
        owner: The relay, which must have the lease.
        stream: The id of the stream of the bus.
        depths: Number of commits in it that a name has not heard yet, by name.
        now: The present time.

    Returns:
        Since when events may be lost that a name has not heard, by name; empty unless the stream is another one now.
    """
    mine = and_(relays.c.name == NAME, relays.c.owner == owner)
    row = (await connection.execute(select(relays, now.label("now")).where(mine))).first()
    if row is None:
        return {}
    heard = decode_times(row.heard)
    losses = dict(heard) if row.stream is not None and row.stream != stream else {}
    oldest = (await connection.execute(select(func.min(relay_queue.c.created_at)))).scalar_one()
    until = max(0.0, min(row.now, row.now if oldest is None else oldest) - SPARE_SECONDS)
    for name, depth in depths.items():
        heard[name] = heard.get(name, 0.0) if depth else until
    known = decode_times(row.lost)
    for name, since in losses.items():
        heard[name] = known[name] = min(since, known.get(name, since))
    values = {"stream": stream, "heard": encode_times(heard), "lost": encode_times(known)}
    await connection.execute(update(relays).where(mine).values(values))
    return losses


async def read_losses(connection: AsyncConnection) -> dict[str, float]:
    """Read since when the bus may have lost events that a name has not heard, in unix seconds, by name."""
    return decode_times((await connection.execute(select(relays.c.lost).where(relays.c.name == NAME))).scalar())


async def forget_losses(connection: AsyncConnection, hearer: str, since: float) -> None:
    """Note that what the bus had lost is told again to a name, if that begins early enough."""
    left = {name: lost for name, lost in (await read_losses(connection)).items() if name != hearer or lost < since}
    await connection.execute(update(relays).where(relays.c.name == NAME).values(lost=encode_times(left)))


# Dead letters and replays


async def add_dead_letter(
    connection: AsyncConnection,
    *,
    hearer: str,
    hook_id: str,
    operation_id: str,
    number: int,
    tenant_id: str,
    tries: int,
    error: str,
    now: ColumnElement[float],
) -> str:
    """Store a dead letter, once for each event and observer, and return its id."""
    key = sha256("\0".join((hearer, hook_id, operation_id, str(number))).encode(errors="surrogatepass")).hexdigest()[
        :16
    ]
    values = {
        "id": key,
        "hearer": hearer[:400],
        "hook_id": replace_unstorable(hook_id)[:400],
        "operation_id": operation_id,
        "number": number,
        "tenant_id": tenant_id,
        "tries": tries,
        "error": replace_unstorable(error),
        "created_at": now,
    }
    newer = {"tries": tries, "error": values["error"], "created_at": now}
    await connection.execute(
        insert_into(connection, dead_letters)
        .values(values)
        .on_conflict_do_update(index_elements=[dead_letters.c.id], set_=newer)
    )
    return key


async def read_dead_letters(
    connection: AsyncConnection, *, hearer: str | None = None, tenant_id: str | None = None, limit: int = 100
) -> list[DeadLetter]:
    """Read dead letters, newest first."""
    query = select(dead_letters).order_by(dead_letters.c.created_at.desc(), dead_letters.c.id).limit(limit)
    for column, value in ((dead_letters.c.hearer, hearer), (dead_letters.c.tenant_id, tenant_id)):
        if value is not None:
            query = query.where(column == value)
    return [DeadLetter(**row._mapping) for row in await connection.execute(query)]


async def replay_dead_letters(
    connection: AsyncConnection, ids: Collection[str] | None, hearer: str | None, *, now: ColumnElement[float]
) -> int:
    """Queue the events of dead letters again, each for the name that could not handle it, and remove the dead letters.

    Args:
        connection: The transaction.
        ids: The dead letters; `None` for all.
        hearer: Only those of this name.
        now: The present time.

    Returns:
        The number of dead letters.
    """
    query = select(dead_letters, operations.c.day).join(
        operations, operations.c.operation_id == dead_letters.c.operation_id
    )
    if ids is not None:
        query = query.where(dead_letters.c.id.in_(ids))
    if hearer is not None:
        query = query.where(dead_letters.c.hearer == hearer)
    found = (await connection.execute(query.order_by(dead_letters.c.operation_id, dead_letters.c.number))).all()
    if not found:
        return 0
    replay = uuid4().hex
    again = {(row.hearer, row.operation_id, row.number): row for row in found}  # one may have failed in two observers
    rows = [
        {
            "operation_id": row.operation_id,
            "first": row.number,
            "number": row.number,
            "tenant_id": row.tenant_id,
            "hearers": encode_hearers({row.hearer: []}),
            "replay": f"{replay}-{nth}"[:40],
            "day": row.day,
        }
        for nth, row in enumerate(again.values())
    ]
    await connection.execute(insert(relay_queue).values(created_at=now), rows)
    gone = delete(dead_letters).where(dead_letters.c.id == bindparam("its_id"))
    await connection.execute(gone, [{"its_id": row.id} for row in found])
    return len(found)


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
