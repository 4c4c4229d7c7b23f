"""Events of runs that keep no state in the store, such as those of other frameworks: heard, and written in batches."""

import asyncio
import logging
from collections import deque
from typing import Any, Literal, TypeAlias, get_args

from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError, StoreOverloadedError, StoreUnavailableError
from hookline.events import EVENTS, Event, encode
from hookline.hooks import Hooks
from hookline.store._database import FIRST_PAUSE, LONGEST_PAUSE
from hookline.store._store import SqlStore
from hookline.store._tables import events, operations

__all__ = ["EventLog"]

logger = logging.getLogger("hookline")
Row: TypeAlias = dict[str, Any]
Overflow: TypeAlias = Literal["drop", "refuse"]

TOGETHER = 1000
"""Events that one transaction takes at most."""
TRIES = 5
"""How often a batch is numbered anew, where other processes number the same operations."""


class EventLog(Hooks):
    """Hears all events of the runs that it is given to, and keeps them in a store.

    The run never waits for it. Numbers go on where those of the operation ended. Operations whose state is in the store
    are left out: they keep their events themselves.

    Args:
        store: Where they are kept. It may be opened later; until then they wait.
        max_queued: How many may wait to be written.
        overflow: What becomes of one more: `"drop"`: it is counted, and told of in the log. `"refuse"`: the hook fails
            with `StoreOverloadedError` too, which whoever watches hooks can see.
        id: Name of the bundle.
        inherit: Whether it goes along into the operations of sub-agents.

    Attributes:
        dropped: How many events were not kept.
        written: How many were.

    Raises:
        HookUsageError: If an argument makes no sense.
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
            raise HookUsageError(f"`max_queued` is a whole number above 0; got {max_queued!r}.")
        if overflow not in get_args(Overflow):
            raise HookUsageError(f"`overflow` is 'drop' or 'refuse'; got {overflow!r}.")
        super().__init__(id, inherit=inherit)
        self.dropped = self.written = 0
        self._store = store
        self._max_queued, self._overflow = max_queued, overflow
        self._queue: deque[Row] = deque()
        self._parts: deque[list[Row]] = deque()
        self._sent: list[Row] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        for event in EVENTS.values():
            self.on(event, id=f"{id}.{event.hook_type}")(self._hear)
        store.accompany(self)

    async def flush(self) -> None:
        """Wait until what was heard so far is written.

        Raises:
            HookUsageError: If the store was never opened.
            StoreUnavailableError: If it is closed.
        """
        self._store.check_open()
        await self.finish()

    async def finish(self) -> None:
        """Wait until what was heard so far is written; the store calls it before it closes."""
        self._idle.clear()
        self._wake.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Write what is heard; the store runs it."""
        self._loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        try:
            while True:
                part = await self._next()
                try:
                    await self._write(part)
                except StoreUnavailableError as error:
                    logger.warning("%s. %d events wait to be written.", error, self._waiting())
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                except (SQLAlchemyError, ValueError, OverflowError) as error:
                    self._part(part, error)
                else:
                    self.written += len(self._sent)
                self._parts.popleft()
                self._sent, pause = [], FIRST_PAUSE
        finally:
            self._loop = None
            if self._waiting():
                self._give_up(self._waiting(), "the store was closed before they were written")
            self._idle.set()

    def _hear(self, event: Event) -> None:
        if self._waiting() >= self._max_queued:
            self._give_up(1, f"{self._max_queued} wait to be written already")
            if self._overflow == "refuse":
                raise StoreOverloadedError(repr(self._store), f"{self._max_queued} events wait to be written already")
            return
        self._queue.append(
            {
                "operation_id": event.operation_id,
                "tenant_id": event.tenant_id,
                "type": str(event.hook_type),
                "time_unix_nano": event.time_unix_nano,
                "wire": encode(event),
            }
        )
        # The run may be in another thread than the store.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _waiting(self) -> int:
        return len(self._queue) + sum(len(part) for part in self._parts)

    async def _next(self) -> list[Row]:
        """What is to be written next; it stays in its place until it is."""
        while not self._parts:
            if self._queue:
                self._parts.append([self._queue.popleft() for _ in range(min(len(self._queue), TOGETHER))])
                break
            self._idle.set()
            self._wake.clear()
            if not self._queue:
                await self._wake.wait()
        return self._parts[0]

    async def _write(self, part: list[Row]) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._store.writing() as connection:
                    # An earlier try may have written it all the same, and only its answer was lost.
                    if not await is_stored(connection, self._sent[:1]):
                        self._sent = await numbered(connection, part)
                        if self._sent:
                            await connection.execute(insert(events), self._sent)
                return
            except IntegrityError:
                # Another process has numbered events of the same operation meanwhile.
                self._sent = []
                if not tries_left:
                    raise

    def _part(self, refused: list[Row], error: Exception) -> None:
        """Try each operation by itself, so that one which cannot be stored takes no other along."""
        apart: dict[str, list[Row]] = {}
        for row in refused:
            apart.setdefault(row["operation_id"], []).append(row)
        if len(apart) == 1:
            problem = getattr(error, "orig", error)
            self._give_up(
                len(refused), f"those of operation {refused[0]['operation_id']!r} cannot be stored: {problem}"
            )
        else:
            self._parts.extend(apart.values())

    def _give_up(self, count: int, why: str) -> None:
        before, self.dropped = self.dropped, self.dropped + count
        # Each time that the number doubles, since whoever drops one drops many.
        if before.bit_length() != self.dropped.bit_length():
            logger.warning("Event log %r has not kept %d events so far: %s.", self.id, self.dropped, why)


async def is_stored(connection: AsyncConnection, rows: list[Row]) -> bool:
    """Whether an event stands where it was about to be written."""
    for row in rows:
        its = (events.c.operation_id == row["operation_id"]) & (events.c.number == row["number"])
        found = (await connection.execute(select(events.c.wire).where(its))).scalar_one_or_none()
        return bool(found == row["wire"])
    return False


async def numbered(connection: AsyncConnection, rows: list[Row]) -> list[Row]:
    """Events with their numbers, without those of operations that keep their events themselves."""
    ids = {row["operation_id"] for row in rows}
    known = select(operations.c.operation_id).where(operations.c.operation_id.in_(ids))
    keeping = set((await connection.execute(known)).scalars())
    last = select(events.c.operation_id, func.max(events.c.number)).where(events.c.operation_id.in_(ids))
    found = await connection.execute(last.group_by(events.c.operation_id))
    numbers: dict[str, int] = {row.operation_id: row[1] for row in found}
    told: list[Row] = []
    for row in rows:
        name = row["operation_id"]
        if name not in keeping:
            numbers[name] = numbers.get(name, 0) + 1
            told.append({**row, "number": numbers[name]})
    return told
