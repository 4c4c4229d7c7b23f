"""`OperationFeed`: stream operations as they change, in whatever process they run, by one query for all listeners."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from time import monotonic
from typing import NamedTuple, TypeAlias

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store import OPERATIONS, SqlStore, StoredOperation, operation_from_row, operations, read_clock

__all__ = ["Change", "OperationFeed"]

logger = logging.getLogger("hookline")

SOONEST = 0.25
"""Seconds between two polls at least: operations may change all the time."""
OVERLAP = 5.0
"""Seconds before the last poll from which changes are read again, since transactions may end out of order."""
LONG_OVERLAP = 120.0
"""The same in some polls, for a transaction that took long."""
LONG_EVERY = 10.0
"""Seconds from one poll with the long overlap to the next, at least."""
RESUMABLE = 86_400.0
"""Longest age, in seconds, of the changes that a listener gets which reconnects after a position."""
MOST_WAITING = 10_000
BATCH_SIZE = 500

Change: TypeAlias = tuple[float, StoredOperation]
"""The position after a change, and the operation as it is there."""

_columns = tuple(operations.c[name] for name in StoredOperation.__struct_fields__)
_seen = tuple(operations.c[name] for name in ("operation_id", "version", "missing_hooks", "interrupt_asked_at"))


class SeenOperation(NamedTuple):
    """The state of an operation at the last poll that found it: its version, and the fields that change without one."""

    version: int
    missing_hooks: str | None
    interrupt_asked_at: float | None


class ChangedOperations:
    """Finds the operations that have changed since the last poll, at a cost that does not grow with the live ones.

    Args:
        store: The store of the operations.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._position = 0.0
        self._long_poll_at = -math.inf
        """When (by `monotonic`) the last poll with the long overlap was."""
        self._known: dict[str, SeenOperation] = {}

    async def poll(self) -> tuple[float, list[StoredOperation]]:
        """Return the present time of the database, and what has changed; nothing at the first poll."""
        is_first, is_long = self._position == 0.0, monotonic() - self._long_poll_at >= LONG_EVERY

        async def look(connection: AsyncConnection) -> tuple[float, dict[str, SeenOperation], list[StoredOperation]]:
            now = await read_clock(connection)
            since = min(self._position or now, now) - (LONG_OVERLAP if is_long else OVERLAP)
            query = select(*_seen).where(operations.c.updated_at >= since)
            if now >= self._position:  # otherwise the clock was set back, and the last changes are in its future
                query = query.where(operations.c.updated_at <= now)
            found = {row.operation_id: SeenOperation(*row[1:]) for row in await connection.execute(query)}
            new = [] if is_first else [each for each, seen in found.items() if self._known.get(each) != seen]
            changed = await _read_operations(connection, new)
            return now, found, changed

        now, found, changed = await self._store.read(look)
        if is_long:
            self._known, self._long_poll_at = found, monotonic()
        else:
            self._known.update(found)
        self._position = now
        return now, changed


class Listener:
    """A subscriber, with the newest state of each changed operation that it has not received yet."""

    def __init__(self, tenant_id: str | None) -> None:
        self.tenant_id = tenant_id
        self.changed: dict[str, Change] = {}
        self.has_changes = asyncio.Event()

    def notify(self, position: float, changed: Sequence[StoredOperation]) -> None:
        for operation in changed:
            if self.tenant_id in (None, operation.tenant_id):
                # A repeated change moves to the end: a slow listener may miss states, but never the last one.
                self.changed.pop(operation.operation_id, None)
                self.changed[operation.operation_id] = position, operation
        while len(self.changed) > MOST_WAITING:
            del self.changed[next(iter(self.changed))]
        if self.changed:
            self.has_changes.set()


class OperationFeed:
    """Streams operations as they change. It queries the store when some have, and only while there are listeners.

    Args:
        store: The store of the operations.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._listeners: set[Listener] = set()
        self._polling: asyncio.Task[None] | None = None
        self._first_poll_done = asyncio.Event()

    async def changes(
        self, tenant_id: str | None, *, since: float | None = None
    ) -> AsyncGenerator[Change | None, None]:
        """Yield operations as they change, each in its newest state, and `None` after each second without a change.

        Args:
            tenant_id: Only operations of this tenant.
            since: Start with the changes since this position.

        Raises:
            StoreUnavailableError: If the database cannot be reached at the start.
        """
        listener = Listener(tenant_id)
        self._listeners.add(listener)
        try:
            if self._polling is None:
                self._first_poll_done.clear()
                self._polling = asyncio.create_task(self._poll_when_woken())
            # After the first poll no change is missed, so that earlier changes can be read now.
            await self._first_poll_done.wait()
            if since is not None:
                listener.notify(*await self._read_since(since, tenant_id))
            while True:
                while listener.changed:
                    yield listener.changed.pop(next(iter(listener.changed)))
                listener.has_changes.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await listener.has_changes.wait()
                except TimeoutError:
                    yield None
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll_when_woken(self) -> None:
        woken = asyncio.Event()
        async with self._store.wakeups.woken(OPERATIONS, woken.set):
            await self._poll(woken)

    async def _poll(self, woken: asyncio.Event) -> None:
        changes, failing = ChangedOperations(self._store), False
        while True:
            woken.clear()
            try:
                position, changed = await changes.poll()
                failing = False
                self._first_poll_done.set()
                for listener in self._listeners:
                    listener.notify(position, changed)
            except StoreUnavailableError as error:
                if not failing:
                    logger.warning("Streams of operations cannot reach the store and will retry: %s", error)
                failing = True
            except Exception:  # one that ended this task would silence all streams
                if not failing:
                    logger.exception("Streams of operations could not check for changes")
                failing = True
            await asyncio.sleep(SOONEST)
            if not failing:
                await woken.wait()

    async def _read_since(self, since: float, tenant_id: str | None) -> tuple[float, list[StoredOperation]]:
        """Read the operations that changed since a position, the newest changes if there are too many."""

        async def read(connection: AsyncConnection) -> tuple[float, list[StoredOperation]]:
            now = await read_clock(connection)
            query = select(*_columns).where(operations.c.updated_at >= max(since, now - RESUMABLE) - OVERLAP)
            if tenant_id is not None:
                query = query.where(operations.c.tenant_id == tenant_id)
            rows = await connection.execute(query.order_by(operations.c.updated_at.desc()).limit(MOST_WAITING))
            return now, [operation_from_row(row) for row in rows][::-1]

        return await self._store.read(read)


async def _read_operations(connection: AsyncConnection, ids: Sequence[str]) -> list[StoredOperation]:
    found: list[StoredOperation] = []
    for start in range(0, len(ids), BATCH_SIZE):
        query = select(*_columns).where(operations.c.operation_id.in_(ids[start : start + BATCH_SIZE]))
        found += [operation_from_row(row) for row in await connection.execute(query)]
    return sorted(found, key=lambda each: each.updated_at)
