"""Writing the log: a bounded queue that a run only appends to, and a task that empties it in batches."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import TypeAlias

from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError

from hookline.errors import StoreUnavailableError
from hookline.registry._logs_rows import (
    ExecutionRow,
    Recorded,
    hook_rows,
    key_of,
    main_row,
    request_id,
    respare,
    row_of,
)
from hookline.registry._statistics import Sums, write_statistics
from hookline.store import SqlStore, execution_hooks, executions

__all__ = ["LogWriter", "Sample"]

logger = logging.getLogger("hookline")
Sample: TypeAlias = Callable[[Recorded], bool]

TOGETHER = 200
"""Rows of one transaction: they keep the event loop for about 5 ms, and other writers of SQLite for about 10."""
EVERY = 0.2
"""Seconds between two looks into the queue."""
SUMS_EVERY = 1.0
"""Seconds after which sums are written even though more rows wait."""
COMPLAINTS_EVERY = 60.0
TRIES = 5
"""How often a batch gets new keys, if another process took one of its keys in the same microsecond."""


class LogWriter:
    """Takes records from runs, and writes them when it can.

    Args:
        store: Where to.
        max_queued: Records that may wait; what comes then is dropped and counted.
        sample: Says which records become rows; all unless given.

    Attributes:
        dropped: Records that were not written.
        written: Rows that were.
    """

    def __init__(self, store: SqlStore, max_queued: int, sample: Sample | None) -> None:
        self._store = store
        self._max_queued = max_queued
        self._sample = sample
        self._queue: deque[tuple[Recorded, str]] = deque()
        self._batch: list[ExecutionRow] | None = None
        self._uncertain = False
        self._sums = Sums()
        self._sums_due = 0.0
        self._spare = count(secrets.randbelow(1 << 11))
        self._turn = asyncio.Lock()
        self._complained = -COMPLAINTS_EVERY
        self._told = 0
        self._waits = False
        self.dropped = self.written = 0

    @property
    def queued(self) -> int:
        """Records that wait."""
        return len(self._queue) + len(self._batch or ())

    def put(self, recorded: Recorded) -> None:
        """Have a record written some time; all that a run pays for."""
        if len(self._queue) < self._max_queued:
            self._queue.append((recorded, request_id.get()))
        else:
            self.dropped += 1

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.flush()
            self._complain()

    async def flush(self) -> bool:
        """Write all that waits; whether the store took it."""
        async with self._turn:
            while self._batch is not None or self._queue:
                if self._batch is None:
                    self._batch = self._next()
                uncertain, self._uncertain = self._uncertain, True
                try:
                    await self._write(self._batch, uncertain)
                except StoreUnavailableError as error:
                    if not self._waits:
                        logger.warning("The log of hook executions waits for its store: %s", error)
                    self._waits = True
                    return False
                except Exception:
                    self.dropped += len(self._batch)
                    logger.exception("%d hook executions cannot be logged, and are dropped", len(self._batch))
                else:
                    self.written += len(self._batch)
                    self._waits = False
                self._batch, self._uncertain = None, False
                await asyncio.sleep(0)
        return True

    def give_up(self) -> None:
        """Drop what waits."""
        self.dropped += self.queued
        self._queue.clear()
        self._batch = None
        self._complain(last=True)

    def _next(self) -> list[ExecutionRow]:
        """The next rows; sums have all that comes along, rows only what the sample keeps."""
        rows: list[ExecutionRow] = []
        while self._queue and len(rows) < TOGETHER:
            recorded, request = self._queue.popleft()
            try:
                row = row_of(recorded, request, next(self._spare))
                self._sums.note(row)
                if self._sample is None or self._sample(recorded):
                    rows.append(row)
            except Exception:
                self.dropped += 1
                logger.exception("A hook execution cannot be logged, and is dropped")
        return rows

    async def _write(self, batch: list[ExecutionRow], uncertain: bool) -> None:
        for _ in range(TRIES):
            try:
                return await self._write_once(batch, uncertain)
            except IntegrityError:
                batch[:] = [respare(row, next(self._spare)) for row in batch]
        return await self._write_once(batch, uncertain)

    async def _write_once(self, batch: list[ExecutionRow], uncertain: bool) -> None:
        now = monotonic()
        sums = self._sums.changed() if not self._queue or now >= self._sums_due else []
        async with self._store.writing() as connection:
            new = bool(batch)
            if new and uncertain:
                # The answer to an earlier try may have been lost.
                its = executions.c.id.in_([key_of(row.id) for row in batch])
                new = (await connection.execute(select(func.count()).where(its))).scalar() != len(batch)
            if new:
                await connection.execute(insert(executions), [main_row(row) for row in batch])
                found_by = [place for row in batch for place in hook_rows(row)]
                if found_by:
                    await connection.execute(insert(execution_hooks), found_by)
            await write_statistics(connection, sums)
        if sums:
            self._sums.written()
            self._sums_due = now + SUMS_EVERY

    def _complain(self, *, last: bool = False) -> None:
        """Say once in a minute how many were dropped."""
        if self.dropped > self._told and (last or monotonic() - self._complained >= COMPLAINTS_EVERY):
            logger.warning("The log of hook executions has dropped %d of them", self.dropped - self._told)
            self._told, self._complained = self.dropped, monotonic()
