"""Group commit: write the states of many operations in one transaction, in which each fails only by itself."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import Table, bindparam, insert, select, update
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
from hookline.events import HookType
from hookline.runtime import FORMAT
from hookline.store._database import FIRST_PAUSE, LONGEST_PAUSE, Database, is_transient
from hookline.store._decisions import link_events
from hookline.store._deliveries import insert_deliveries
from hookline.store._lease import build_release
from hookline.store._partitions import KEPT, today
from hookline.store._row_statements import delete_rows, insert_into_tables, update_rows
from hookline.store._rows import is_storable, parse_tags, replace_unstorable
from hookline.store._state_rows import StateChange, decode_layout, find_dropped
from hookline.store._tables import events, model_calls, operation_tags, operations, relay_queue, state_rows

__all__ = ["Commit", "CommitQueue", "CommitWriter", "Overflow", "note_missing_hooks", "release_operation"]

logger = logging.getLogger("hookline")
Overflow: TypeAlias = Literal["wait", "refuse"]
Row: TypeAlias = dict[str, Any]

BATCH_SIZE = 500
"""Commits that are written in one transaction at most."""
MOST_AT_ONCE = 250
"""The same where two groups can be written at the same time: one is built while the database writes the other."""
WORTH_A_GROUP = 50
"""Commits that are worth a second group beside the one that is being written: a transaction has a price of its own."""
MOST_REMEMBERED = 10_000
"""Operations whose last commit a process remembers."""


class Commit:
    """A new state of an operation with its events and deliveries, ready to be written.

    Args:
        operation: The row of the operation; its `write_id` identifies this commit.
        change: What the commit adds to the stored state.
        is_whole: Whether the change holds the whole state, so that nothing of the stored one stays.
        expected_version: The stored version that this commit follows; `None` for a new operation.
        events: The rows of its events.
        deliveries: The rows of its deliveries.
        model_calls: The rows of its model calls, without their numbers.
        relayed: The row of the queue of relays, if somebody hears its events in another process.

    Attributes:
        is_interrupted: Whether somebody had asked for the interruption of the operation when it was written.
        was_tried: Whether there was a try to write it, which may have succeeded although its answer was lost.
    """

    def __init__(
        self,
        operation: Row,
        change: StateChange,
        *,
        is_whole: bool,
        expected_version: int | None,
        events: Sequence[Row],
        deliveries: Sequence[Row],
        model_calls: Sequence[Row] = (),
        relayed: Row | None = None,
    ) -> None:
        self.operation = operation
        self.change = change
        self.is_whole = is_whole
        self.operation_id: str = operation["operation_id"]
        self.expected_version = expected_version
        self.model_calls = model_calls
        self.events = events
        self.relayed = relayed
        self.deliveries = deliveries
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.deadline = 0.0
        self.is_interrupted = False
        self.was_tried = False


GroupWriter: TypeAlias = Callable[[Sequence[Commit]], Awaitable[list[Exception | None]]]


class CommitQueue:
    """Writes commits in groups: those that arrive while one group is written form the next group.

    Where `writers` allows it, that group is written beside the other one, if it is large. At no time are two commits of
    one operation being written.

    Args:
        write: Writes a group in one transaction, and returns the error of each refused commit.
        store: The name of the store in messages.
        retry_seconds: Seconds for which a commit is retried while the database cannot be reached.
        max_pending: Number of commits that may wait.
        overflow: Whether a further commit waits for a place, or is refused.
        writers: Number of groups that can be written at the same time.
    """

    def __init__(
        self,
        write: GroupWriter,
        *,
        store: str,
        retry_seconds: float,
        max_pending: int,
        overflow: Overflow,
        writers: int = 1,
    ) -> None:
        self._write = write
        self._store = store
        self._retry_seconds = retry_seconds
        self._max_pending = max_pending
        self._overflow = overflow
        self._writers = writers
        self._waiting: deque[Commit] = deque()
        self._writing: list[Commit] = []
        self._written = asyncio.Event()
        self._places = asyncio.Semaphore(max_pending)
        self._wake = asyncio.Event()
        self._closed = False

    async def submit(self, commit: Commit) -> None:
        """Queue a commit and wait until it is written. Cancelling removes it, unless it is being written already.

        Raises:
            StaleStateError: If the commit does not follow the stored version.
            StoreOverloadedError: If too many commits wait, and `overflow` is "refuse".
            StoreUnavailableError: If the database cannot be reached, or the store is closed.
        """
        if self._overflow == "refuse" and self._places.locked():
            raise StoreOverloadedError(self._store, f"{self._max_pending} commits already wait to be written")
        async with self._places:
            if self._closed:
                raise self._is_closed()
            commit.deadline = asyncio.get_running_loop().time() + self._retry_seconds
            self._waiting.append(commit)
            self._wake.set()
            await commit.done

    def is_writing(self, operation_id: str) -> bool:
        """Return whether a commit of an operation is being written, or waits with a caller that still wants it."""
        # The futures alone do not tell: the future of a cancelled caller is done while the database still writes.
        waiting = (commit for commit in self._waiting if not commit.done.done())
        return any(commit.operation_id == operation_id for commit in (*self._writing, *waiting))

    async def wait_until_written(self, operation_id: str) -> None:
        """Wait until the commit of an operation that is being written is written or refused."""
        while any(commit.operation_id == operation_id for commit in self._writing):
            await self._written.wait()

    async def run(self) -> None:
        """Write commits until the queue is closed and empty."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._writers):
                    group.create_task(self._write_groups())
        finally:
            self._closed = True
            for commit in (*self._writing, *self._waiting):
                finish_commit(commit, self._is_closed())
            self._tell_written(self._writing)

    async def _write_groups(self) -> None:
        """Write one group after the other."""
        pause = FIRST_PAUSE
        while True:
            group = self._next_group()
            if not group:
                if self._closed:  # what still waits is for the writer of the other group
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            self._writing = [*self._writing, *group]
            error = await self._write_group(group)
            again = self._select_retries(group, error, pause) if error else ()
            self._tell_written(group)
            if again:
                self._waiting.extendleft(reversed(again))
                await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE) if again else FIRST_PAUSE

    def _tell_written(self, group: Sequence[Commit]) -> None:
        """Tell those who wait for commits that these are not being written any more."""
        ended = set(map(id, group))
        self._writing = [commit for commit in self._writing if id(commit) not in ended]
        written, self._written = self._written, asyncio.Event()
        written.set()

    def close(self) -> None:
        """Accept no further commits; `run` returns once the waiting ones are written."""
        self._closed = True
        self._wake.set()

    def _next_group(self) -> list[Commit]:
        """Take the next commits from the queue, at most one of each operation.

        A row has one `write_id`, so that only the last commit of an operation can be recognized as written already.
        """
        group: dict[str, Commit] = {}
        later: list[Commit] = []
        if self._writing and len(self._waiting) < WORTH_A_GROUP:
            return []
        busy = {commit.operation_id for commit in self._writing}
        most = BATCH_SIZE if self._writers == 1 else MOST_AT_ONCE
        while self._waiting and len(group) < most:
            commit = self._waiting.popleft()
            if commit.done.done():
                continue
            if commit.operation_id in group or commit.operation_id in busy:
                later.append(commit)
            else:
                group[commit.operation_id] = commit
        self._waiting.extendleft(reversed(later))
        return list(group.values())

    async def _write_or_split(self, group: Sequence[Commit]) -> list[Exception | None]:
        """Write a group; if the database refuses it, write each commit by itself, so that only the bad one fails."""
        problem: Exception
        try:
            return await self._write(group)
        except IntegrityError:
            # Another process created one of these operations a moment ago; the second try sees it.
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
            return [(await self._write_or_split([commit]))[0] for commit in group]
        return [unstorable_commit_error(group[0].operation_id, problem)]

    async def _write_group(self, group: Sequence[Commit]) -> StoreUnavailableError | None:
        try:
            outcomes = await self._write_or_split(group)
        except StoreUnavailableError as error:
            return error
        for commit, outcome in zip(group, outcomes, strict=True):
            finish_commit(commit, outcome)
        return None

    def _select_retries(self, group: Sequence[Commit], error: StoreUnavailableError, pause: float) -> list[Commit]:
        """Return the commits of a failed group that may be retried after a pause; all others fail with the error."""
        late = asyncio.get_running_loop().time() + pause
        again: list[Commit] = []
        for commit in group:
            if is_transient(error) and commit.deadline > late:
                again.append(commit)
            else:
                finish_commit(commit, copy_error(error))
        if again:
            logger.warning("%s. %d commits will be retried.", error, len(again))
        return again

    def _is_closed(self) -> StoreUnavailableError:
        return StoreUnavailableError(self._store, "it is closed")


def finish_commit(commit: Commit, outcome: Exception | None) -> None:
    """Report the outcome of a commit to its caller, if the caller still waits."""
    if commit.done.done():
        return
    if outcome is None:
        commit.done.set_result(None)
    else:
        commit.done.set_exception(outcome)


def copy_error(error: StoreUnavailableError) -> StoreUnavailableError:
    """Copy an error for another caller, since each caller adds its own traceback."""
    twin = StoreUnavailableError(error.store, error.problem)
    twin.__cause__ = error.__cause__
    return twin


def unstorable_commit_error(operation_id: str, problem: Exception) -> HookUsageError:
    """Build the error for a commit that the database refuses."""
    why = message_of(problem.orig) if isinstance(problem, SQLAlchemyError) and hasattr(problem, "orig") else problem
    error = HookUsageError(f"Operation {operation_id!r} cannot be stored: {why}. Nothing of this commit was written.")
    error.__cause__ = problem
    return error


class StoredVersion(NamedTuple):
    """The columns of a stored operation that decide whether a commit may follow it."""

    operation_id: str
    version: int
    write_id: str
    format: int
    events: int
    prompt: str
    layout: bytes | None
    day: int
    interrupt_asked_at: float | None


_SELECT_VERSIONS = f"SELECT {', '.join(StoredVersion._fields)} FROM operations WHERE operation_id"
_COUNT_WRITTEN = "SELECT count(*) FROM operations WHERE operation_id = ANY($1) AND write_id = ANY($2)"
"""For PostgreSQL, which does not say how many rows several updates have changed."""
_immutable_columns = frozenset(
    (
        *("created_at", "day", "failed_delivery", "tags", "updated_at"),
        # Most of these have an index, of which SQLite would write the entry again.
        *("operation_id", "tenant_id", "user_id", "parent_operation_id", "retry_of"),
    )
)
_insert_tag = insert(operation_tags).from_select(
    ["operation_id", "tag", "tenant_id", "created_at"],
    # The time of the operation itself, as its place in a list is the same in both tables.
    select(
        operations.c.operation_id,
        bindparam("its_tag", type_=operation_tags.c.tag.type),
        operations.c.tenant_id,
        operations.c.created_at,
    ).where(operations.c.operation_id == bindparam("its_id")),
)
_times = {operations: ("created_at", "updated_at"), relay_queue: ("created_at",)}
"""Columns that an insert sets to the time of the database."""


class OutdatedVersionError(Exception):
    """The stored version of an operation is not the one that this process wrote last."""


class CommitWriter:
    """Writes groups of commits, each in one transaction.

    It remembers what this process has written last of each running operation, so that the next commit need not read it:
    the commit names what it follows, and changes nothing if that is not what is stored.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_written: dict[str, StoredVersion] = {}

    async def write(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Write those commits that follow the stored versions, in one transaction, and return the errors of the others.

        Args:
            commits: Commits of different operations.

        Returns:
            For each commit, `None` if it was written, now or by an earlier try, else the error for its caller.

        Raises:
            StoreUnavailableError: If the database cannot be reached; it is unknown then whether they were written.
            SQLAlchemyError: If the database refuses them; none was written.
        """
        assumed = self._assume_versions(commits)
        try:
            outcomes, written = await self._database.write(partial(self._write, commits=commits, assumed=assumed))
        except OutdatedVersionError:
            outcomes, written = await self._database.write(partial(self._write, commits=commits, assumed={}))
        for commit in written:
            self._remember(commit)
        return outcomes

    def _assume_versions(self, commits: Sequence[Commit]) -> dict[str, StoredVersion | None]:
        """Return what is most likely stored of operations, `None` for nothing; `{}` if they have to be read.

        Only the first try of a commit assumes something: another one does not know what the try before has written.
        """
        assumed: dict[str, StoredVersion | None] = {}
        for commit in commits:
            last = self._last_written.pop(commit.operation_id, None)
            is_new = commit.expected_version is None
            can_tell = not commit.was_tried and (is_new or last is not None)
            commit.was_tried = True
            if can_tell and check_commit(commit, None if is_new else last) is None:
                assumed[commit.operation_id] = None if is_new else last
        # If one has to be read, all are: rows that are locked in two steps could be locked in another order elsewhere.
        return assumed if len(assumed) == len(commits) else {}

    async def _write(
        self, connection: AsyncConnection, *, commits: Sequence[Commit], assumed: Mapping[str, StoredVersion | None]
    ) -> tuple[list[Exception | None], list[Commit]]:
        """Write commits in a transaction, and return their outcomes, and those that were written now.

        Raises:
            OutdatedVersionError: If something else is stored than was assumed.
        """
        found = assumed or await read_stored_versions(connection, [commit.operation_id for commit in commits])
        outcomes = [check_commit(commit, found.get(commit.operation_id)) for commit in commits]
        winners = [
            commit
            for commit, outcome in zip(commits, outcomes, strict=True)
            if outcome is None and not is_written(commit, found.get(commit.operation_id))
        ]
        for commit in winners:
            its = found.get(commit.operation_id)
            place_events(commit, its, today(self._database.dialect))
            commit.is_interrupted = its is not None and its.interrupt_asked_at is not None
        await write_commits(self._database, connection, winners, found)
        return outcomes, winners

    def _remember(self, commit: Commit) -> None:
        if commit.operation["status"] != "running" or commit.is_interrupted:
            return
        if len(self._last_written) >= MOST_REMEMBERED:
            del self._last_written[next(iter(self._last_written))]
        its = {**commit.operation, "interrupt_asked_at": None}
        self._last_written[commit.operation_id] = StoredVersion(*(its[name] for name in StoredVersion._fields))


def place_events(commit: Commit, found: StoredVersion | None, day: int) -> None:
    """Set the day of a commit's events to that of the operation, or to a given one if the operation is new."""
    its_day = day if found is None else found.day
    for row in (commit.operation, *commit.events, *([commit.relayed] if commit.relayed is not None else ())):
        row["day"] = its_day


async def read_stored_versions(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, StoredVersion]:
    """Read the stored versions of operations, and lock their rows until the transaction ends.

    Rows are locked in the order of Python, here and by the updates of commits, so that two processes never deadlock.
    """
    if connection.dialect.name == "postgresql":
        query = f'{_SELECT_VERSIONS} = ANY($1) ORDER BY operation_id COLLATE "C" FOR UPDATE'
        rows = await connection.exec_driver_sql(query, (ids,))
    else:
        query = f"{_SELECT_VERSIONS} IN ({', '.join('?' * len(ids))})"
        rows = await connection.exec_driver_sql(query, tuple(ids))
    return {row[0]: StoredVersion._make(row) for row in rows}


def check_commit(commit: Commit, found: StoredVersion | None) -> Exception | None:
    """Return the error of a commit that may not be written; `None` if it may, or is written already."""
    if is_written(commit, found):
        return None
    if found is not None and found.format > FORMAT:
        return StateFormatError(commit.operation_id, found.format, FORMAT)
    if (found.version if found else None) != commit.expected_version:
        return StaleStateError(commit.operation_id, commit.expected_version, found.version if found else None)
    first, last = commit.operation["events"] - len(commit.events) + 1, found.events if found else 0
    if first != last + 1:
        return HookUsageError(
            f"Operation {commit.operation_id!r} has {last} stored events, so the next one cannot be number {first}. "
            "Nothing was written."
        )
    return None


def is_written(commit: Commit, found: StoredVersion | None) -> bool:
    """Return whether an earlier try has written the commit, although its answer was lost."""
    return found is not None and found.write_id == commit.operation["write_id"]


async def write_commits(
    database: Database,
    connection: AsyncConnection,
    commits: Sequence[Commit],
    found: Mapping[str, StoredVersion | None],
) -> None:
    """Write commits that passed `check_commit`.

    Args:
        database: The database.
        connection: The transaction.
        commits: The commits.
        found: The stored versions of their operations.

    Raises:
        OutdatedVersionError: If another version than that is stored.
    """
    state = StateWriter()
    for commit in commits:
        state.place(commit, found.get(commit.operation_id))
    new: list[Row] = []
    changed: list[tuple[Row, Row]] = []
    for commit in sorted(commits, key=lambda commit: commit.operation_id):
        if (its := found.get(commit.operation_id)) is None:
            new.append(commit.operation)
        else:
            changed.append((updated_columns(commit.operation), identifying_columns(its)))
    if new:
        # An `EventLog` may have stored events of these operations; from now on they store their own.
        await delete_rows(connection, events, [{"operation_id": row["operation_id"], "day": KEPT} for row in new])
    if changed and await update_operations(connection, changed) != len(changed):
        raise OutdatedVersionError
    await state.delete_dropped(connection)
    rows = [row for commit in commits for row in commit.events]
    relayed = [commit.relayed for commit in commits if commit.relayed is not None]
    await insert_into_tables(
        connection, {operations: new, **state.rows, events: rows, relay_queue: relayed}, now=_times
    )
    tags = [
        {"its_id": row["operation_id"], "its_tag": tag}
        for row in new
        if row["tags"] is not None
        for tag in parse_tags(row["tags"])
    ]
    if tags:
        await connection.execute(_insert_tag, tags)
    await link_events(connection, rows)
    new_deliveries = [row for commit in commits for row in commit.deliveries]
    if new_deliveries:
        await insert_deliveries(connection, new_deliveries, now=database.now_sql(), are_new=True)


async def update_operations(connection: AsyncConnection, changes: Sequence[tuple[Row, Row]]) -> int:
    """Update operations that are still as they were found, and return how many are.

    Args:
        connection: The transaction.
        changes: The `updated_columns` and the `identifying_columns` of each.
    """
    updated = await update_rows(connection, operations, changes, now="updated_at")
    if updated is None:
        ids = [found["operation_id"] for _, found in changes]
        written = await connection.exec_driver_sql(_COUNT_WRITTEN, (ids, [new["write_id"] for new, _ in changes]))
        updated = int(written.scalar_one())
    return updated


class StateWriter:
    """Gathers the rows of the states and of the model calls of commits.

    Attributes:
        rows: The new rows of each table.
    """

    def __init__(self) -> None:
        self.rows: dict[Table, list[Row]] = {state_rows: [], model_calls: []}
        self._dropped: list[Row] = []

    def place(self, commit: Commit, found: StoredVersion | None) -> None:
        """Number the new rows of a commit, and complete the row of its operation.

        Args:
            commit: The commit.
            found: The stored version of its operation, if it has one.
        """
        stored = decode_layout(found.layout) if found is not None and found.layout is not None else None
        compactions = [row["type"] for row in commit.events].count(HookType.AFTER_COMPACT)
        layout, rows = commit.change.place(stored, is_whole=commit.is_whole, compactions=compactions)
        self.rows[state_rows] += rows
        if stored is not None:
            its = {"operation_id": commit.operation_id}
            self._dropped += [{**its, "number": number} for number in find_dropped(stored, layout)]
        for row in commit.model_calls:
            layout.model_calls += 1
            self.rows[model_calls].append({**row, "number": layout.model_calls})
        commit.operation["layout"] = msgspec.json.encode(layout)
        if found is not None and found.prompt and commit.operation["llm_calls"]:
            commit.operation["prompt"] = found.prompt  # what users say later is not the prompt

    async def delete_dropped(self, connection: AsyncConnection) -> None:
        """Delete the rows that the states no longer need."""
        if self._dropped:
            await delete_rows(connection, state_rows, self._dropped)


def updated_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of an operation that a later commit updates."""
    return {name: value for name, value in row.items() if name not in _immutable_columns}


def identifying_columns(found: StoredVersion) -> dict[str, Any]:
    """Return the columns whose values the row of an operation has only as long as it is the one that was found."""
    return {
        "operation_id": found.operation_id,
        "write_id": found.write_id,
        "format": found.format,
        "day": found.day,
        "interrupt_asked_at": found.interrupt_asked_at,
    }


async def note_missing_hooks(database: Database, operation_id: str, hook_ids: Sequence[str], *, version: int) -> None:
    """Record the hooks that an operation waits for, if its version is still this one; its next commit clears them."""
    its = (operations.c.operation_id == operation_id) & (operations.c.version == version)
    noted = msgspec.json.encode([replace_unstorable(hook_id) for hook_id in hook_ids]).decode()
    await database.write_one(update(operations).where(its).values(missing_hooks=noted, updated_at=database.now_sql()))


async def release_operation(database: Database, operation_id: str, worker_id: str) -> None:
    """Clear the owner of a running operation, if the owner is this process."""
    if not is_storable(operation_id):
        return
    await database.write_one(build_release(operation_id, worker_id))
