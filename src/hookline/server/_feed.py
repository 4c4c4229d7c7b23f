"""`Feed`: tells of operations as they change, in whatever process they run. One look serves all who listen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, TypeAlias

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore, StoredOperation, operation_from_row, operations

__all__ = ["Change", "Feed"]

logger = logging.getLogger("hookline")

LOOK_SECONDS = 0.25
OVERLAP = 5.0
"""Seconds before the last look in which a transaction may have begun that has ended since."""
RESUMABLE = 86_400.0
"""Seconds. Of operations that began longer ago than this before a lost position, an end in between is not told."""
LIVE = ("running", "waiting_for_human")
MOST_WAITING = 10_000
TOGETHER = 500

Change: TypeAlias = tuple[float, StoredOperation]
"""The position after a change, and the operation as it is then."""

_columns = tuple(operations.c[name] for name in StoredOperation.__struct_fields__)
_seen = tuple(operations.c[name] for name in ("operation_id", "version", "status", "missing_hooks"))


class Seen(NamedTuple):
    """How an operation was at a look."""

    version: int
    live: bool
    missing_hooks: str | None


class Listener:
    """Somebody who listens: the newest state of each operation that has changed and that it was not told of."""

    def __init__(self, tenant_id: str | None) -> None:
        self.tenant_id = tenant_id
        self.changed: dict[str, Change] = {}
        self.something = asyncio.Event()

    def tell(self, position: float, changed: Sequence[StoredOperation]) -> None:
        for operation in changed:
            if self.tenant_id in (None, operation.tenant_id):
                # One that has changed again goes to the end; a slow listener misses states, and never the last one.
                self.changed.pop(operation.operation_id, None)
                self.changed[operation.operation_id] = position, operation
        while len(self.changed) > MOST_WAITING:
            del self.changed[next(iter(self.changed))]
        if self.changed:
            self.something.set()


class Feed:
    """Tells of operations as they change. It looks only while somebody listens.

    Args:
        store: Where they are.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._listeners: set[Listener] = set()
        self._looking: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()

    async def changes(
        self, tenant_id: str | None, *, since: float | None = None
    ) -> AsyncGenerator[Change | None, None]:
        """Operations as they change, each in its newest state; `None` after a second in which nothing did.

        Args:
            tenant_id: Only those of this tenant.
            since: Begin with what has changed since this position.

        Raises:
            StoreUnavailableError: If the database cannot be reached for the beginning.
        """
        listener = Listener(tenant_id)
        self._listeners.add(listener)
        try:
            if self._looking is None:
                self._looked.clear()
                self._looking = asyncio.create_task(self._keep_looking())
            # From now on no change is missed, so that what came before may be read.
            await self._looked.wait()
            if since is not None:
                listener.tell(*await self._since(since, tenant_id))
            while True:
                while listener.changed:
                    yield listener.changed.pop(next(iter(listener.changed)))
                listener.something.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await listener.something.wait()
                except TimeoutError:
                    yield None
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _keep_looking(self) -> None:
        known: dict[str, Seen] | None = None
        position, failing = 0.0, False
        while True:
            try:
                position, known, changed = await self._look(position, known)
                failing = False
                self._looked.set()
                for listener in self._listeners:
                    listener.tell(position, changed)
            except StoreUnavailableError as error:
                if not failing:
                    logger.warning("Streams of operations wait for the store: %s", error)
                failing = True
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(
        self, position: float, known: dict[str, Seen] | None
    ) -> tuple[float, dict[str, Seen], list[StoredOperation]]:
        """What has changed: of those that live, those that lived at the last look, and those that began since."""
        async with self._store.reading() as connection:
            now = await self._now(connection)
            young = operations.c.created_at >= (position or now) - OVERLAP
            query = select(
                operations.c.operation_id, operations.c.version, operations.c.status, operations.c.missing_hooks
            )
            rows = (await connection.execute(query.where(or_(operations.c.status.in_(LIVE), young)))).all()
            found = {row.operation_id: Seen(row.version, row.status in LIVE, row.missing_hooks) for row in rows}
            if known is None:
                return now, found, []
            ended = [each for each, seen in known.items() if seen.live and each not in found]
            changed = [each for each, seen in found.items() if known.get(each) != seen]
            return now, found, await _read(connection, [*changed, *ended])

    async def _since(self, since: float, tenant_id: str | None) -> tuple[float, list[StoredOperation]]:
        """What has changed since a position, as far as it can be found without looking at all there is."""
        young = operations.c.created_at >= since - RESUMABLE
        query = select(*_columns).where(
            operations.c.updated_at >= since - OVERLAP, or_(operations.c.status.in_(LIVE), young)
        )
        if tenant_id is not None:
            query = query.where(operations.c.tenant_id == tenant_id)
        async with self._store.reading() as connection:
            now = await self._now(connection)
            rows = await connection.execute(query.order_by(operations.c.updated_at.desc()).limit(MOST_WAITING))
            return now, [operation_from_row(row) for row in rows][::-1]

    async def _now(self, connection: AsyncConnection) -> float:
        return float((await connection.execute(select(self._store.now_sql()))).scalar_one())


async def _read(connection: AsyncConnection, ids: Sequence[str]) -> list[StoredOperation]:
    found: list[StoredOperation] = []
    for start in range(0, len(ids), TOGETHER):
        query = select(*_columns).where(operations.c.operation_id.in_(ids[start : start + TOGETHER]))
        found += [operation_from_row(row) for row in await connection.execute(query)]
    return sorted(found, key=lambda each: each.updated_at)
