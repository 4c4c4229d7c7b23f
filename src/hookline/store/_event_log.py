"""`EventLog`: store the events of runs whose state is not in the store, such as other frameworks' runs, in batches."""

import asyncio
import logging
from collections import deque
from typing import Any, Literal, TypeAlias, get_args

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError, StoreOverloadedError, StoreUnavailableError
from hookline.events import EVENTS, Event, encode
from hookline.hooks import Hooks
from hookline.store._database import FIRST_PAUSE, LONGEST_PAUSE
from hookline.store._partitions import KEPT
from hookline.store._row_statements import insert_rows
from hookline.store._store import SqlStore
from hookline.store._tables import events, operations
from hookline.store._topics import events_topic

__all__ = ["EventLog"]

logger = logging.getLogger("hookline")
Row: TypeAlias = dict[str, Any]
Overflow: TypeAlias = Literal["drop", "refuse"]

BATCH_SIZE = 1000
"""Events that are written in one transaction at most."""
TRIES = 5
"""How often a batch is numbered again if other processes store events of the same operations meanwhile."""


class EventLog(Hooks):
    """Hooks that store all events of a run in the background; the run never waits for the database.

    Numbering continues after the last stored event of the operation. Operations whose state is in the store are left
    out, since they store their events themselves.

    Args:
        store: The store. It may be opened later; until then, events wait.
        max_queued: Number of events that may wait to be written.
        overflow: What happens to a further event. `"drop"`: it is dropped, counted and logged. `"refuse"`: the hook
            also fails with `StoreOverloadedError`, which appears in the records of hooks.
        id: The id of the bundle.
        inherit: Whether the bundle is passed on to the operations of sub-agents.

    Attributes:
        dropped: Number of events that were not stored.
        written: Number of events that were stored.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    recorded = False

    def __init__(
        self,
        store: SqlStore,
        *,
        max_queued: int = 10_000,
        overflow: Overflow = "drop",
        id: str = "event-log",  # noqa: A002
        inherit: bool = True,
    ) -> None:
        if isinstance(max_queued, bool) or not isinstance(max_queued, int) or max_queued < 1:
            raise HookUsageError(f"`max_queued` must be a whole number above 0; got {max_queued!r}.")
        if overflow not in get_args(Overflow):
            raise HookUsageError(f"`overflow` must be 'drop' or 'refuse'; got {overflow!r}.")
        super().__init__(id, inherit=inherit)
        self.dropped = self.written = 0
        self._store = store
        self._max_queued, self._overflow = max_queued, overflow
        self._queue: deque[Row] = deque()
        self._batches: deque[list[Row]] = deque()
        self._sent: list[Row] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        for event in EVENTS.values():
            self.on(event, id=f"{id}.{event.hook_type}")(self._enqueue)
        store.accompany(self)

    async def flush(self) -> None:
        """Wait until all events so far are written.

        Raises:
            HookUsageError: If the store was never opened.
            StoreUnavailableError: If the store is closed.
        """
        self._store.check_open()
        await self.finish()

    async def finish(self) -> None:
        """Wait until all events so far are written; called by the store before it closes."""
        self._idle.clear()
        self._wake.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Write events until cancelled; run by the store."""
        self._loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        try:
            while True:
                batch = await self._next_batch()
                try:
                    await self._write(batch)
                except StoreUnavailableError as error:
                    logger.warning("%s. %d events wait to be written.", error, self._count_waiting())
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                except (SQLAlchemyError, ValueError, OverflowError) as error:
                    self._split_refused(batch, error)
                else:
                    self.written += len(self._sent)
                self._batches.popleft()
                self._sent, pause = [], FIRST_PAUSE
        finally:
            self._loop = None
            if self._count_waiting():
                self._drop(self._count_waiting(), "the store was closed before they were written")
            self._idle.set()

    def _enqueue(self, event: Event) -> None:
        if self._count_waiting() >= self._max_queued:
            self._drop(1, f"{self._max_queued} events already wait to be written")
            if self._overflow == "refuse":
                raise StoreOverloadedError(repr(self._store), f"{self._max_queued} events already wait to be written")
            return
        self._queue.append(
            {
                "operation_id": event.operation_id,
                "tenant_id": event.tenant_id,
                "type": str(event.hook_type),
                "time_unix_nano": event.time_unix_nano,
                "wire": encode(event),
                "day": KEPT,
            }
        )
        # The run may be in another thread than the store.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _count_waiting(self) -> int:
        return len(self._queue) + sum(len(batch) for batch in self._batches)

    async def _next_batch(self) -> list[Row]:
        """Wait for the next batch, and return it; it stays in the queue until it is written."""
        while not self._batches:
            if self._queue:
                self._batches.append([self._queue.popleft() for _ in range(min(len(self._queue), BATCH_SIZE))])
                break
            self._idle.set()
            self._wake.clear()
            if not self._queue:
                await self._wake.wait()
        return self._batches[0]

    async def _write(self, batch: list[Row]) -> None:
        async def write_batch(connection: AsyncConnection) -> None:
            # An earlier try may have committed the batch, although its answer was lost.
            if not await is_stored(connection, self._sent[:1]):
                self._sent = await assign_numbers(connection, batch)
                if self._sent:
                    await insert_rows(connection, events, self._sent)

        for tries_left in reversed(range(TRIES)):
            try:
                await self._store.write(write_batch)
                for topic in {events_topic(row["operation_id"]) for row in self._sent}:
                    self._store.wakeups.wake(topic)
                return
            except IntegrityError:
                # Another process has stored events of the same operation meanwhile.
                self._sent = []
                if not tries_left:
                    raise

    def _split_refused(self, refused: list[Row], error: Exception) -> None:
        """Split a refused batch by operation, so that only the events that cannot be stored are dropped."""
        apart: dict[str, list[Row]] = {}
        for row in refused:
            apart.setdefault(row["operation_id"], []).append(row)
        if len(apart) == 1:
            problem = getattr(error, "orig", error)
            self._drop(len(refused), f"those of operation {refused[0]['operation_id']!r} cannot be stored: {problem}")
        else:
            self._batches.extend(apart.values())

    def _drop(self, count: int, why: str) -> None:
        before, self.dropped = self.dropped, self.dropped + count
        # Log only when the number doubles: if one event is dropped, many will be.
        if before.bit_length() != self.dropped.bit_length():
            logger.warning("Event log %r has dropped %d events so far: %s.", self.id, self.dropped, why)


async def is_stored(connection: AsyncConnection, rows: list[Row]) -> bool:
    """Return whether the first of the rows is stored under its number."""
    for row in rows:
        its = (events.c.operation_id == row["operation_id"]) & (events.c.number == row["number"])
        its &= events.c.day == KEPT
        found = (await connection.execute(select(events.c.wire).where(its))).scalar_one_or_none()
        return bool(found == row["wire"])
    return False


async def assign_numbers(connection: AsyncConnection, rows: list[Row]) -> list[Row]:
    """Number events, leaving out those of operations that store their events themselves."""
    ids = {row["operation_id"] for row in rows}
    known = select(operations.c.operation_id).where(operations.c.operation_id.in_(ids))
    keeping = set((await connection.execute(known)).scalars())
    last = select(events.c.operation_id, func.max(events.c.number)).where(events.c.operation_id.in_(ids))
    last = last.where(events.c.day == KEPT)
    found = await connection.execute(last.group_by(events.c.operation_id))
    numbers: dict[str, int] = {row.operation_id: row[1] for row in found}
    numbered_rows: list[Row] = []
    for row in rows:
        name = row["operation_id"]
        if name not in keeping:
            numbers[name] = numbers.get(name, 0) + 1
            numbered_rows.append({**row, "number": numbers[name]})
    return numbered_rows
