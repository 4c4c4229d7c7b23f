"""Commits of many operations, written together: each waits its turn, and fails alone."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from hookline.errors import HookUsageError, StoreOverloadedError, StoreUnavailableError, message_of
from hookline.store._engine import FIRST_PAUSE, LONGEST_PAUSE
from hookline.store._failures import passes

__all__ = ["Commit", "CommitQueue", "Overflow"]

logger = logging.getLogger("hookline")
Overflow: TypeAlias = Literal["wait", "refuse"]
Row: TypeAlias = dict[str, Any]

TOGETHER = 500
"""Commits that one transaction takes at most."""


class Commit:
    """A state and its events, ready to be written.

    Args:
        operation: The row of the operation; its `write_id` is this commit's own.
        expected_version: The version on which it follows; `None` for a new operation.
        events: The rows of its events.
        deliveries: The rows of its deliveries.
    """

    def __init__(
        self, operation: Row, *, expected_version: int | None, events: Sequence[Row], deliveries: Sequence[Row]
    ) -> None:
        self.operation = operation
        self.operation_id: str = operation["operation_id"]
        self.expected_version = expected_version
        self.events = events
        self.deliveries = deliveries
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.deadline = 0.0


Write: TypeAlias = Callable[[Sequence[Commit]], Awaitable[list[Exception | None]]]


class CommitQueue:
    """Writes commits in groups: those that arrive while one group is written make up the next.

    Args:
        write: Writes a group in one transaction and says which commits it refused.
        store: How messages call the store.
        retry_seconds: How long a commit is tried again while the database cannot be reached.
        max_pending: How many may wait.
        overflow: Whether one more waits for a place, or is refused.
    """

    def __init__(self, write: Write, *, store: str, retry_seconds: float, max_pending: int, overflow: Overflow) -> None:
        self._write = write
        self._store = store
        self._retry_seconds = retry_seconds
        self._max_pending = max_pending
        self._overflow = overflow
        self._waiting: deque[Commit] = deque()
        self._writing: list[Commit] = []
        self._written = asyncio.Event()
        self._places = asyncio.Semaphore(max_pending)
        self._wake = asyncio.Event()
        self._closed = False

    async def submit(self, commit: Commit) -> None:
        """Have a commit written. If the caller is cancelled, it is left out, unless it is being written already.

        Raises:
            StaleStateError: If it does not follow on the stored version.
            StoreOverloadedError: If too many wait, and the store refuses then.
            StoreUnavailableError: If the database could not be reached, or the store is closed.
        """
        if self._overflow == "refuse" and self._places.locked():
            raise StoreOverloadedError(self._store, f"{self._max_pending} commits wait to be written already")
        async with self._places:
            if self._closed:
                raise self._is_closed()
            commit.deadline = asyncio.get_running_loop().time() + self._retry_seconds
            self._waiting.append(commit)
            self._wake.set()
            await commit.done

    def is_writing(self, operation_id: str) -> bool:
        """Whether a commit of an operation is being written now, or waits to be, and somebody waits for it."""
        # Not by their futures alone: that of a cancelled caller is done while the database still writes.
        waiting = (commit for commit in self._waiting if not commit.done.done())
        return any(commit.operation_id == operation_id for commit in (*self._writing, *waiting))

    async def settled(self, operation_id: str) -> None:
        """Wait until what was being written of an operation is written or refused."""
        while any(commit.operation_id == operation_id for commit in self._writing):
            await self._written.wait()

    async def run(self) -> None:
        """Write until closed and empty."""
        pause = FIRST_PAUSE
        try:
            while True:
                self._writing = self._next_group()
                if not self._writing:
                    if self._closed:
                        return
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                self._written.clear()
                error = await self._write_group(self._writing)
                again = self._set_aside(self._writing, error, pause) if error else ()
                self._writing = []
                self._written.set()
                if again:
                    self._waiting.extendleft(reversed(again))
                    await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE) if again else FIRST_PAUSE
        finally:
            self._closed = True
            for commit in (*self._writing, *self._waiting):
                settle(commit, self._is_closed())
            self._writing = []
            self._written.set()

    def close(self) -> None:
        """Take no more; `run` returns once what waits is written."""
        self._closed = True
        self._wake.set()

    def _next_group(self) -> list[Commit]:
        """The next commits, at most one of each operation: a row tells only of its last write whether it was done."""
        group: dict[str, Commit] = {}
        later: list[Commit] = []
        while self._waiting and len(group) < TOGETHER:
            commit = self._waiting.popleft()
            if commit.done.done():
                continue
            if commit.operation_id in group:
                later.append(commit)
            else:
                group[commit.operation_id] = commit
        self._waiting.extendleft(reversed(later))
        return list(group.values())

    async def _outcomes(self, group: Sequence[Commit]) -> list[Exception | None]:
        """Write a group; if the database refuses it, each commit by itself, so that one bad one harms no other."""
        problem: Exception
        try:
            return await self._write(group)
        except IntegrityError:
            # Another process made one of these operations a moment ago; the next try sees it.
            try:
                return await self._write(group)
            except StoreUnavailableError:
                raise
            except Exception as error:
                problem = error
        except StoreUnavailableError:
            raise
        except Exception as error:
            problem = error
        if len(group) > 1:
            return [(await self._outcomes([commit]))[0] for commit in group]
        return [refusal(group[0].operation_id, problem)]

    async def _write_group(self, group: Sequence[Commit]) -> StoreUnavailableError | None:
        try:
            outcomes = await self._outcomes(group)
        except StoreUnavailableError as error:
            return error
        for commit, outcome in zip(group, outcomes, strict=True):
            settle(commit, outcome)
        return None

    def _set_aside(self, group: Sequence[Commit], error: StoreUnavailableError, pause: float) -> list[Commit]:
        """What of a group that could not be written may be tried again after a pause; the rest fails."""
        late = asyncio.get_running_loop().time() + pause
        again: list[Commit] = []
        for commit in group:
            if passes(error) and commit.deadline > late:
                again.append(commit)
            else:
                settle(commit, alike(error))
        if again:
            logger.warning("%s. %d commits are tried again.", error, len(again))
        return again

    def _is_closed(self) -> StoreUnavailableError:
        return StoreUnavailableError(self._store, "it is closed")


def settle(commit: Commit, outcome: Exception | None) -> None:
    """Tell the caller, if it still waits, what has become of its commit."""
    if commit.done.done():
        return
    if outcome is None:
        commit.done.set_result(None)
    else:
        commit.done.set_exception(outcome)


def alike(error: StoreUnavailableError) -> StoreUnavailableError:
    """The same error for another caller, since each caller adds its own traceback."""
    twin = StoreUnavailableError(error.store, error.problem)
    twin.__cause__ = error.__cause__
    return twin


def refusal(operation_id: str, problem: Exception) -> HookUsageError:
    """What is raised for a commit that the database does not take."""
    told = message_of(problem.orig) if isinstance(problem, SQLAlchemyError) and hasattr(problem, "orig") else problem
    error = HookUsageError(f"Operation {operation_id!r} cannot be stored: {told}. Nothing of this commit was written.")
    error.__cause__ = problem
    return error
