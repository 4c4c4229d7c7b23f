"""Commits of many operations, written together: each waits its turn, and fails alone."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import (
    HookUsageError,
    StaleStateError,
    StateFormatError,
    StoreOverloadedError,
    StoreUnavailableError,
    message_of,
)
from hookline.runtime import FORMAT
from hookline.store._database import FIRST_PAUSE, LONGEST_PAUSE, Database, passes
from hookline.store._decisions import link_events
from hookline.store._deliveries import insert_deliveries
from hookline.store._rows import is_storable, storable
from hookline.store._tables import events, operations

__all__ = ["Commit", "CommitQueue", "Overflow", "note_missing_hooks", "release", "write_group"]

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


class Found(NamedTuple):
    """What decides whether a commit may be written."""

    operation_id: str
    version: int
    write_id: str
    format: int
    events: int


_found = select(*(operations.c[name] for name in Found._fields))
_kept = frozenset(("operation_id", "created_at", "failed_delivery", "updated_at"))
_changed = update(operations).where(operations.c.operation_id == bindparam("its_id"))


async def write_group(database: Database, commits: Sequence[Commit]) -> list[Exception | None]:
    """Write the commits that follow on what is stored, in one transaction, and say why the others do not.

    Args:
        database: Where to.
        commits: Of different operations.

    Returns:
        For each commit `None` if it is written, now or by an earlier try, or else the error of its caller.

    Raises:
        StoreUnavailableError: If the database cannot be reached; what was written is then unknown.
        SQLAlchemyError: If it refuses them; none was written.
    """
    async with database.writing() as connection:
        found = await stored(database, connection, commits)
        outcomes = [verdict(commit, found.get(commit.operation_id)) for commit in commits]
        winners = [
            commit
            for commit, outcome in zip(commits, outcomes, strict=True)
            if outcome is None and not written(commit, found.get(commit.operation_id))
        ]
        await write(database, connection, winners)
    return outcomes


async def stored(database: Database, connection: AsyncConnection, commits: Sequence[Commit]) -> dict[str, Found]:
    """What is stored of operations; nobody else changes it until the transaction ends."""
    ids = [commit.operation_id for commit in commits]
    query = _found.where(operations.c.operation_id.in_(ids))
    if database.dialect == "postgresql":
        # In one order, so that two processes never wait for each other.
        query = query.order_by(operations.c.operation_id).with_for_update()
    return {row.operation_id: Found(*row) for row in await connection.execute(query)}


def verdict(commit: Commit, found: Found | None) -> Exception | None:
    """Why a commit may not be written; `None` if it may, or is written already."""
    if written(commit, found):
        return None
    if found is not None and found.format > FORMAT:
        return StateFormatError(commit.operation_id, found.format, FORMAT)
    if (found.version if found else None) != commit.expected_version:
        return StaleStateError(commit.operation_id, commit.expected_version, found.version if found else None)
    first, last = commit.operation["events"] - len(commit.events) + 1, found.events if found else 0
    if first != last + 1:
        return HookUsageError(
            f"Operation {commit.operation_id!r} has {last} stored events, so the next cannot be number {first}. "
            "Nothing was written."
        )
    return None


def written(commit: Commit, found: Found | None) -> bool:
    """Whether an earlier try has written the commit, although its answer was lost."""
    return found is not None and found.write_id == commit.operation["write_id"]


async def write(database: Database, connection: AsyncConnection, commits: Sequence[Commit]) -> None:
    """Write commits that may be written."""
    now = database.now_sql()
    new = sorted((c.operation for c in commits if c.expected_version is None), key=lambda row: str(row["operation_id"]))
    changed = [changes(commit.operation) for commit in commits if commit.expected_version is not None]
    if new:
        # An `EventLog` may have heard of them before; from now on they tell of themselves.
        ids = [row["operation_id"] for row in new]
        await connection.execute(delete(events).where(events.c.operation_id.in_(ids)))
        await connection.execute(insert(operations).values(created_at=now, updated_at=now), new)
    if changed:
        await connection.execute(_changed.values(updated_at=now), changed)
    rows = [row for commit in commits for row in commit.events]
    if rows:
        await connection.execute(insert(events), rows)
        await link_events(connection, rows)
    await insert_deliveries(connection, [row for commit in commits for row in commit.deliveries], now=now)


def changes(row: dict[str, Any]) -> dict[str, Any]:
    """What a later commit changes of the row of an operation."""
    return {"its_id": row["operation_id"], **{name: value for name, value in row.items() if name not in _kept}}


async def note_missing_hooks(database: Database, operation_id: str, hook_ids: Sequence[str], *, version: int) -> None:
    """Note what an operation of this version waits for; the next commit of it forgets that."""
    its = (operations.c.operation_id == operation_id) & (operations.c.version == version)
    noted = msgspec.json.encode([storable(hook_id) for hook_id in hook_ids]).decode()
    async with database.writing() as connection:
        await connection.execute(
            update(operations).where(its).values(missing_hooks=noted, updated_at=database.now_sql())
        )


async def release(database: Database, operation_id: str, worker_id: str) -> None:
    """Take a running operation from a process, if it is that one's."""
    if not is_storable(operation_id):
        return
    its = (operations.c.operation_id == operation_id) & (operations.c.owner == worker_id)
    async with database.writing() as connection:
        await connection.execute(update(operations).where(its).values(owner=None))
