"""The relay of a store: which process has its lease, what it has told, and what the bus has lost."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._database import insert_into
from hookline.store._tables import dead_letters, relay_queue, relays

__all__ = [
    "RelayStatus",
    "claim_relay",
    "count_told",
    "forget_losses",
    "note_relay",
    "note_stream",
    "read_losses",
    "read_relay_status",
    "release_relay",
]

NAME = "relay"
"""The name of the only row of `relays`."""
SPARE_SECONDS = 600.0
"""How much older than its commit an event may be: by so much more is told again of what the bus has lost."""


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


async def count_told(connection: AsyncConnection, commits: int, *, now: ColumnElement[float]) -> None:
    """Add to the number of commits that were told."""
    await connection.execute(
        update(relays).where(relays.c.name == NAME).values(told=relays.c.told + commits, told_at=now)
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


def decode_times(text: str | None) -> dict[str, float]:
    """Return times in unix seconds by name; none for `None`."""
    return {} if text is None else msgspec.json.decode(text, type=dict[str, float])


def encode_times(times: Mapping[str, float]) -> str | None:
    """Return times by name as JSON; `None` if there are none."""
    return msgspec.json.encode(times).decode() if times else None
