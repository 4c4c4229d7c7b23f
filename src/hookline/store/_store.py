"""`SqlStore`: store operations, their events and their deliveries in one database (SQLite or PostgreSQL)."""

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from secrets import token_hex
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, get_args

import anyio
from sqlalchemy import ColumnElement, Delete, Insert, Row, Select, Update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.budgets import Amounts, BudgetFigures, BudgetRequest, Reservation, Settlement
from hookline.errors import HookUsageError, OperationNotFoundError, StoreUnavailableError
from hookline.runtime import Approve, DurableStore, JournalEntry, ModelCallRecord, OperationState, Reject
from hookline.store import _budgets as counts
from hookline.store import _conversation as conversation
from hookline.store import _decisions as decisions
from hookline.store import _reading as reading
from hookline.store._commits import Commit, CommitQueue, CommitWriter, Overflow, note_missing_hooks, release_operation
from hookline.store._conversation import ConversationHead, EventPart, StoredMessage
from hookline.store._database import Database, Dialect, Durability, parse_address
from hookline.store._decisions import DecisionFilter, DecisionRecord, StoredDecision
from hookline.store._deliveries import build_delivery_rows
from hookline.store._interrupts import InterruptWatch, find_unattended_interrupts, request_interrupt
from hookline.store._lease import Lease, generate_worker_id, is_orphaned, read_next_lease_end
from hookline.store._migrate import migrate
from hookline.store._operation_search import OperationFilter, OperationPage, OperationSort, search_operations
from hookline.store._operation_totals import count_live
from hookline.store._partitions import Partitions, make_partitions
from hookline.store._reading import Page, StoredOperation
from hookline.store._relay_queue import build_relay_row
from hookline.store._retention import prune_operations
from hookline.store._rows import (
    build_change,
    build_envelopes,
    build_event_rows,
    build_model_call_rows,
    build_operation_row,
)
from hookline.store._state_rows import StateChange
from hookline.store._topics import DELIVERIES, INTERRUPTS, OPERATIONS, RELAY, WORK, choose_wakeups, events_topic
from hookline.wakeups import Wakeups

__all__ = ["Companion", "SqlStore", "check_settings"]


class Companion(Protocol):
    """A background task that runs while a store is open, such as the writer of an `EventLog`."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    async def finish(self) -> None:
        """Finish the work that has begun; `run` goes on meanwhile."""
        ...


def check_settings(
    lease_seconds: float, durability: str, max_pending: int, overflow: str, retry_seconds: float, pool_size: int
) -> None:
    """Raise `HookUsageError` if an option of a store is invalid."""
    for name, value in (("lease_seconds", lease_seconds), ("retry_seconds", retry_seconds)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise HookUsageError(f"`{name}` must be a number of seconds above 0; got {value!r}.")
    for name, value in (("max_pending", max_pending), ("pool_size", pool_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise HookUsageError(f"`{name}` must be a whole number above 0; got {value!r}.")
    if durability not in get_args(Durability):
        raise HookUsageError(f"`durability` must be 'machine' or 'process'; got {durability!r}.")
    if overflow not in get_args(Overflow):
        raise HookUsageError(f"`overflow` must be 'wait' or 'refuse'; got {overflow!r}.")


T = TypeVar("T")

LONGEST_EVENTS = 10_000
LONGEST_MESSAGE, MOST = 64 * 1024, 4 * 1024 * 1024
"""Bytes of the longest message or event that is read whole unless asked for, and of all events read at once."""
CLOSING = 5.0
"""Seconds that closing may take at most, after the waiting commits are written."""


class SqlStore(DurableStore):
    """Stores operations in a database: an SQLite file for one machine, PostgreSQL for several.

    Open it with `async with`, on asyncio. Opening creates or migrates the tables, and starts to renew the lease of this
    process. A running operation belongs to the process that wrote it last, until the lease of that process ends; then
    the operation is an orphan, and any process may resume it. So nothing may block the event loop for `lease_seconds`.

    Args:
        url: `sqlite:///path`, `sqlite:///:memory:`, or `postgresql://user:password@host/database`.
        lease_seconds: Seconds after which the operations of a process that has died may be taken over.
        durability: For SQLite. `"machine"`: commits survive a loss of power. `"process"`: they survive the death of the
            process, and do not wait for the disk.
        max_pending: Number of commits that may wait to be written.
        overflow: Whether a further commit waits for a place, or is refused with `StoreOverloadedError`.
        retry_seconds: Seconds for which a lost connection is retried, and for which a lock is waited for.
        pool_size: Number of connections to PostgreSQL.
        wakeups: Wakes those who wait for a change, here and in other processes, such as `PollingWakeups()`; you close
            it yourself. By default, `PostgresWakeups` for PostgreSQL, and `FileWakeups` for SQLite.

    Attributes:
        dialect: `"sqlite"` or `"postgresql"`.
        worker_id: The unique id of this process.
        wakeups: Wakes those who wait for a change.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    relays = True

    def __init__(
        self,
        url: str,
        *,
        lease_seconds: float = 30.0,
        durability: Durability = "machine",
        max_pending: int = 10_000,
        overflow: Overflow = "wait",
        retry_seconds: float = 10.0,
        pool_size: int = 8,
        wakeups: Wakeups | None = None,
    ) -> None:
        check_settings(lease_seconds, durability, max_pending, overflow, retry_seconds, pool_size)
        if wakeups is not None and not isinstance(wakeups, Wakeups):
            raise HookUsageError(f"`wakeups` must have `wake`, `woken` and `aclose`; got {type(wakeups).__name__}.")
        self._address = parse_address(url)
        self.dialect: Dialect = self._address.dialect
        self.worker_id = generate_worker_id()
        self._database = Database(
            self._address, durability=durability, retry_seconds=retry_seconds, pool_size=pool_size
        )
        self._commit_writer = CommitWriter(self._database)
        self._commits = CommitQueue(
            self._write_group,
            store=self._address.name,
            retry_seconds=retry_seconds,
            max_pending=max_pending,
            overflow=overflow,
            # A connection is left for all who read, and for the lease.
            writers=2 if self.dialect == "postgresql" and pool_size > 2 else 1,
        )
        self._own_wakeups = wakeups is None
        self.wakeups: Wakeups = choose_wakeups(self._address) if wakeups is None else wakeups
        self._lease = Lease(
            self._database, self.worker_id, lease_seconds, self._commits.is_writing, partial(self.wakeups.wake, WORK)
        )
        self._interrupts = InterruptWatch(self._database, self.worker_id, self.wakeups)
        self._closing = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._companions: list[Companion] = []

    def __repr__(self) -> str:
        return f"SqlStore({self._address.name!r})"

    @property
    def name(self) -> str:
        """The address of the database, without its password."""
        return self._address.name

    async def __aenter__(self) -> Self:
        """Create or migrate the tables, and start to renew this process's lease.

        Raises:
            StoreVersionError: If a newer version of hookline has migrated the database; nothing was changed.
            StoreUnavailableError: If the database cannot be reached.
            HookUsageError: If the store was opened before, or the event loop is not that of asyncio.
        """
        if self._loop is not None:
            raise HookUsageError(f"{self!r} was already opened; create a new one for each `async with`.")
        self._loop = _running_loop()
        if self._loop is None:
            raise HookUsageError("A SqlStore needs asyncio; its database drivers do not run on trio.")
        try:
            self._database.check_file()
            await self._database.retry(partial(migrate, self._database))
            await self._database.retry(partial(make_partitions, self._database))
            await self._database.retry(self._lease.renew)
        except BaseException:
            await self.aclose()
            raise
        making = Partitions(self._database).run()
        running = (self._commits.run(), self._lease.run(), making, *(companion.run() for companion in self._companions))
        self._tasks = [asyncio.create_task(run) for run in running]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write the waiting commits, end the lease, and close the connections. May be called twice."""
        if self._closing:
            return
        self._closing = True
        with anyio.move_on_after(self._database.retry_seconds + CLOSING, shield=True):
            if self._tasks:
                for companion in self._companions:
                    await companion.finish()
            self._commits.close()
            if self._tasks:
                await asyncio.wait(self._tasks[:1])
        self._closed = True
        with anyio.move_on_after(CLOSING, shield=True):
            await self._interrupts.aclose()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._tasks:
                await self._lease.give_up()
        if self._own_wakeups:
            with anyio.move_on_after(CLOSING, shield=True):
                await self.wakeups.aclose()
        with anyio.move_on_after(CLOSING, shield=True):  # also where somebody holds the lock that the lease needs
            await self._database.aclose()

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a transaction that may write, as an async context manager; on SQLite there is one at a time.

        Change state in memory with `after_commit` only, since the commit may still fail.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """
        return self._open_database().writing()

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a read-only transaction, as an async context manager.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return self._open_database().reading()

    async def write(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a transaction that may write as a whole, as a function: on SQLite, it costs a third of `writing`.

        Args:
            work: Takes the connection, and waits for nothing but its statements. Where the caller is cancelled, it goes
                on to its end.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """
        return await self._open_database().write(work)

    async def read(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a read-only transaction as a whole, as a function: on SQLite, it costs a third of `reading`.

        Args:
            work: Takes the connection, and waits for nothing but its statements.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await self._open_database().read(work)

    async def read_rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
        """Run one query in a transaction of its own, and return its rows.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await self._open_database().read_rows(query)

    async def write_one(self, statement: Update | Delete | Insert) -> None:
        """Run one statement that changes rows in a transaction of its own.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """
        await self._open_database().write_one(statement)

    def now_sql(self) -> ColumnElement[float]:
        """Return the SQL expression for the database's present time, in unix seconds."""
        return self._database.now_sql()

    async def now(self) -> float:
        """Read the database's clock, in unix seconds.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await self._open_database().now()

    async def check(self) -> None:
        """Check that the database can be read and, on SQLite, written, without writing anything.

        Raises:
            StoreUnavailableError: If it cannot, or does not answer.
        """
        await self._open_database().check()

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        """Write a state, its events since the last write, and their deliveries, atomically.

        Commits of several operations that arrive at the same time are written in one transaction.

        Args:
            state: The new state; `version` is its new version, `hooks` decide which events are delivered.
            expected_version: The version that the caller read; `None` if the operation must be new. The id of an
                operation that has ended cannot be reused.
            entries: The events, in order.

        Raises:
            StaleStateError: If another version is stored; nothing was written.
            StateFormatError: If a newer version of hookline wrote the stored state; nothing was written.
            StoreUnavailableError: If the database could not be reached for too long. It is unknown then whether the
                state was written; the same is true if the caller is cancelled.
            StoreOverloadedError: If too many commits wait, and `overflow` is "refuse".
            HookUsageError: If the state has a value that cannot be stored; nothing was written.
        """
        await self._write(state, build_change(state), expected_version=expected_version, entries=entries)

    async def append(
        self,
        state: OperationState,
        *,
        expected_version: int,
        entries: Sequence[JournalEntry],
        kept_messages: int,
        kept_outcomes: Collection[str],
        model_calls: Sequence[ModelCallRecord] = (),
    ) -> None:
        """Write what a state adds to the stored one, like `commit`: new messages and outcomes as rows of their own.

        Rows that the new state does not need any more are deleted.

        Args:
            state: The new state, whole, with the new `version`.
            expected_version: The version that the caller read.
            entries: The events, in order.
            kept_messages: The first messages of `state` that begin the stored conversation too.
            kept_outcomes: Ids of the outcomes of `state` that are stored already.
            model_calls: The model calls that ended since the last write.

        Raises:
            HookUsageError: As for `commit`, and if `kept_messages` is not a number of messages that `state` has.
            StaleStateError: As for `commit`.
            StoreUnavailableError: As for `commit`.
            StoreOverloadedError: As for `commit`.
        """
        if not 0 <= kept_messages <= len(state.messages) or not state.outcomes.keys() >= set(kept_outcomes):
            raise HookUsageError(
                f"The state of operation {state.operation_id!r} has {len(state.messages)} messages and "
                f"{len(state.outcomes)} outcomes; `kept_messages` and `kept_outcomes` name some of them."
            )
        change = build_change(state, kept_messages=kept_messages, kept_outcomes=kept_outcomes)
        await self._write(
            state, change, expected_version=expected_version, entries=entries, model_calls=model_calls, is_whole=False
        )

    async def _write(
        self,
        state: OperationState,
        change: StateChange,
        *,
        expected_version: int | None,
        entries: Sequence[JournalEntry],
        model_calls: Sequence[ModelCallRecord] = (),
        is_whole: bool = True,
    ) -> None:
        self.check_open()
        if expected_version is not None and state.version <= expected_version:
            raise HookUsageError(f"Version {state.version} of a state does not follow on {expected_version}.")
        commit = Commit(
            build_operation_row(state, change.head, owner=self.worker_id, write_id=token_hex(16)),
            change,
            is_whole=is_whole,
            expected_version=expected_version,
            events=build_event_rows(state, entries),
            deliveries=build_delivery_rows(build_envelopes(state, entries)),
            model_calls=build_model_call_rows(state, model_calls),
            relayed=build_relay_row(state, entries),
        )
        # This process owns the operation again; the next renewal of the lease must not release it.
        self._lease.abandoned.discard(state.operation_id)
        if state.status == "running":
            self._interrupts.begin()
        await self._commits.submit(commit)
        if commit.is_interrupted and state.status == "running":
            self._interrupts.interrupt(state.operation_id)
        elif commit.is_interrupted and state.status == "waiting_for_human":
            self.wakeups.wake(INTERRUPTS)

    async def load(self, operation_id: str) -> OperationState | None:
        """Load the state of an operation; `None` if there is no such operation.

        Raises:
            StateFormatError: If a newer version of hookline wrote it.
            StoreUnavailableError: If the database cannot be reached.
        """
        await self._commits.wait_until_written(operation_id)
        return await self._read(partial(reading.load_state, operation_id=operation_id))

    async def wait_until_stopped(self, operation_id: str) -> OperationState:
        """Wait until an operation has ended or waits for a person, in whatever process it runs, and load its state.

        Raises:
            OperationNotFoundError: If there is no such operation.
            StoreUnavailableError: If the database cannot be reached.
        """
        changed = anyio.Event()

        def note_change() -> None:
            changed.set()

        async with self.wakeups.woken(events_topic(operation_id), note_change):
            while True:
                changed = anyio.Event()
                stored = await self.operation(operation_id)
                if stored is None:
                    raise OperationNotFoundError(operation_id)
                if stored.status != "running" and (state := await self.load(operation_id)) is not None:
                    return state
                await changed.wait()

    async def orphaned(self, operation_id: str) -> bool:
        """Return whether an operation has the status "running" while its process is dead."""
        return await self._read(partial(is_orphaned, self._database, operation_id=operation_id))

    async def release(self, operation_id: str) -> None:
        """Release a running operation that this process will not continue, so that another process may take it.

        Raises:
            StoreUnavailableError: If the database cannot be reached; the operation is released as soon as it can be.
        """
        database = self._open_database()
        # Before the first await: a caller that is cancelled below has released the operation all the same.
        self._lease.abandoned.add(operation_id)
        await self._commits.wait_until_written(operation_id)
        await release_operation(database, operation_id, self.worker_id)
        self._lease.abandoned.discard(operation_id)
        self.wakeups.wake(WORK)

    async def orphans(
        self,
        limit: int = 100,
        *,
        agent_ids: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        agent_versions: Sequence[str] | None = None,
    ) -> list[str]:
        """List the ids of operations whose process is dead, least recently written first.

        A sub-agent of a running operation is left out, since resuming its parent resumes it too.

        Args:
            limit: Number of operations at most.
            agent_ids: Only operations of these agents.
            exclude: Ids to leave out.
            agent_versions: Only operations that were begun with one of these versions of the agent.
        """
        reading.check_limit(limit)
        query = partial(reading.find_orphans, self._database, agent_ids=agent_ids, agent_versions=agent_versions)
        return await self._read(partial(query, limit=limit, exclude=exclude))

    async def find_work(
        self,
        agent_ids: Sequence[str],
        *,
        exclude: Sequence[str] = (),
        agent_versions: Sequence[str] | None = None,
    ) -> tuple[list[str], float | None]:
        """Find what a process can go on with: operations that are decided, and orphans; in one transaction.

        Args:
            agent_ids: Only operations of these agents.
            exclude: Ids to leave out.
            agent_versions: Only operations that were begun with one of these versions of the agent.

        Returns:
            The ids of up to 1,000 of each, decided ones first, and the seconds until the first lease of another process
            ends; `None` if no other process is alive. A living process renews its lease before. If one has died, its
            operations are orphans from then on.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        database = self._open_database()

        async def find(connection: AsyncConnection) -> tuple[list[str], float | None]:
            decided = await decisions.find_decided_operations(
                connection, agent_ids=agent_ids, agent_versions=agent_versions, limit=1000, exclude=frozenset(exclude)
            )
            orphans = await reading.find_orphans(
                database, connection, limit=1000, agent_ids=agent_ids, agent_versions=agent_versions, exclude=exclude
            )
            ends = await read_next_lease_end(database, connection, self.worker_id)
            return [*(state.operation_id for state, _ in decided), *orphans], ends

        return await self._read(find)

    async def note_missing_hooks(self, operation_id: str, hook_ids: Sequence[str], *, version: int) -> None:
        """Record that an operation waits for missing hooks, until it is resumed.

        Args:
            operation_id: The id of the operation.
            hook_ids: The ids of the interceptors that were missing when a process tried to resume it.
            version: The version of its state at that time. Nothing is recorded if the stored version is another one,
                since the operation was resumed then.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        await note_missing_hooks(self._open_database(), operation_id, hook_ids, version=version)
        self.wakeups.wake(OPERATIONS)

    async def missing_hooks(self, limit: int = 1000) -> dict[str, list[str]]:
        """List the ids of missing interceptors, by the id of the operation that waits for them.

        Args:
            limit: Number of operations at most.
        """
        reading.check_limit(limit)
        return await self._read(partial(reading.read_missing_hooks, limit=limit))

    async def children(self, operation_id: str) -> list[OperationState]:
        """Load the states of the sub-agent operations of an operation that have not ended.

        Raises:
            StateFormatError: If a newer version of hookline wrote one of them.
        """
        return await self._read(partial(reading.load_children, operation_id=operation_id))

    async def operation(self, operation_id: str) -> StoredOperation | None:
        """Read the summary of an operation; `None` if there is no such operation."""
        return await self._read(partial(reading.read_operation, operation_id=operation_id))

    async def operations(
        self,
        tenant_id: str | None = None,
        status: str | None = None,
        *,
        agent_id: str | None = None,
        user_id: str | None = None,
        tag: str | None = None,
        tool: str | None = None,
        search: str | None = None,
        since: float | None = None,
        until: float | None = None,
        sort: OperationSort = "newest",
        cursor: str | None = None,
        limit: int = 50,
    ) -> OperationPage:
        """Read a page of operations, newest first unless sorted otherwise.

        A page looks at 10,000 operations at most, or at 1,000 if `tool` is given, or `tag` with another filter. If it
        stops before the end, it says so in `looked_at`, and `cursor` continues. Any other order is that of the
        operations which a page looks at.

        Args:
            tenant_id: Only operations of this tenant.
            status: Only operations with this status.
            agent_id: Only operations of this agent.
            user_id: Only operations of this user.
            tag: Only operations with this tag.
            tool: Only operations that called this tool: `"search"`, or with its toolset `"local/search"`.
            search: Only operations whose id begins with this text, or whose prompt preview contains it.
            since: Only operations that started at this time or later, in unix seconds.
            until: Only operations that started before this time, in unix seconds.
            sort: `"newest"`, or what comes first: the last `"changed"`, `"longest"` or `"costliest"` operation, or the
                one with the most `"tokens"` or `"steps"`.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of operations at most, up to 1000.

        Raises:
            HookUsageError: If the search, the sorting, the cursor or the limit is invalid.
        """
        reading.check_limit(limit)
        wanted = OperationFilter(
            tenant_id=tenant_id,
            status=status,
            agent_id=agent_id,
            user_id=user_id,
            tag=tag,
            tool=tool,
            search=search,
            since=since,
            until=until,
        )
        return await self._read(partial(search_operations, wanted=wanted, sort=sort, cursor=cursor, limit=limit))

    async def count_operations(self, tenant_id: str | None = None) -> dict[str, int]:
        """Count the operations that have not ended: those with the status "running" and "waiting_for_human".

        Args:
            tenant_id: Only operations of this tenant.
        """
        return await self._read(partial(count_live, tenant_id=tenant_id))

    async def events_of(self, operation_id: str, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """Read events of an operation, in order: at most `limit` (up to 10,000) with a number greater than `after`."""
        reading.check_limit(limit, LONGEST_EVENTS)
        return await self._read(partial(reading.read_events, operation_id=operation_id, after=after, limit=limit))

    async def messages_of(
        self, operation_id: str, after: int = 0, limit: int = 50, *, longest: int = LONGEST_MESSAGE
    ) -> list[StoredMessage]:
        """Read messages of the stored conversation of an operation, in order.

        After a compaction, a summary stands in place of the oldest messages.

        Args:
            operation_id: The id of the operation.
            after: How many of the first messages to leave out.
            limit: Number of messages at most, up to 1000.
            longest: Bytes of the longest message that is read whole; of a longer one, only the beginning is.

        Raises:
            HookUsageError: If the limit is invalid.
            StateFormatError: If a newer version of hookline wrote the state, or it cannot be decoded.
        """
        reading.check_limit(limit)
        query = partial(conversation.read_messages, after=after, limit=limit, longest=longest)
        return await self._read(partial(query, operation_id=operation_id))

    async def conversation_head(self, operation_id: str) -> ConversationHead | None:
        """Read what the state of an operation says of its conversation; `None` if there is no such operation.

        Raises:
            StateFormatError: If a newer version of hookline wrote the state, or it cannot be decoded.
        """
        return await self._read(partial(conversation.read_head, operation_id=operation_id))

    async def event_parts_of(
        self, operation_id: str, after: int = 0, limit: int = 200, *, longest: int = LONGEST_MESSAGE, most: int = MOST
    ) -> tuple[list[EventPart], bool]:
        """Read events of an operation, in order, without the content of long ones, and whether more follow.

        Args:
            operation_id: The id of the operation.
            after: Only events with a greater number.
            limit: Number of events at most, up to 1000.
            longest: Bytes of the longest event whose content is read.
            most: Bytes of all contents together, at most.
        """
        reading.check_limit(limit)
        query = partial(conversation.read_event_parts, after=after, limit=limit, longest=longest, most=most)
        return await self._read(partial(query, operation_id=operation_id))

    async def sub_agents_of(self, operation: StoredOperation, limit: int = 200) -> list[StoredOperation]:
        """Read the operations of the sub-agents that an operation has called, oldest first."""
        return await self._read_related(operation, "parent_operation_id", limit)

    async def retries_of(self, operation: StoredOperation, limit: int = 50) -> list[StoredOperation]:
        """Read the operations that retry an operation, oldest first."""
        return await self._read_related(operation, "retry_of", limit)

    async def _read_related(self, operation: StoredOperation, column: str, limit: int) -> list[StoredOperation]:
        reading.check_limit(limit)
        query = partial(conversation.read_related, column=column, limit=limit)
        return await self._read(partial(query, operation_id=operation.operation_id, tenant_id=operation.tenant_id))

    async def model_calls_of(self, operation_id: str, *, steps: tuple[int, int] | None = None) -> list[ModelCallRecord]:
        """Read the model calls of an operation, in order; the newest of a running operation may be missing.

        Args:
            operation_id: The id of the operation.
            steps: Only those of the steps from the first to the last of these.
        """
        return await self._read(partial(reading.read_model_calls, operation_id=operation_id, steps=steps))

    async def decide(
        self,
        operation_id: str,
        decision: Approve | Reject,
        *,
        by: str = "",
        tenant_id: str | None = None,
        seen: str | None = None,
    ) -> OperationState:
        """Store a person's decision about a pending call, so that a `Worker` resumes the operation.

        The decision is about the present pause of the operation; if it is resumed in another way, the decision is void.

        Args:
            operation_id: The id of the operation.
            decision: The decision.
            by: Who decided; stored and shown with the decision.
            tenant_id: Accept the decision only if the operation is this tenant's.
            seen: The token of the call as the person saw it (`seen` of a `PendingApproval`). If the call has other
                arguments by now, or belongs to a later pause, the decision is refused.

        Returns:
            The state that waits.

        Raises:
            OperationNotFoundError: If there is no such operation.
            OperationFinishedError: If the operation does not wait for a person.
            DecisionError: If the call is not pending, is decided already, or has changed since the person saw it.
        """
        database = self._open_database()
        state = await decisions.store_decision(database, operation_id, decision, by=by, tenant_id=tenant_id, seen=seen)
        self.wakeups.wake(WORK)
        return state

    async def request_interrupt(
        self, operation_id: str, *, by: str = "", tenant_id: str | None = None
    ) -> StoredOperation:
        """Ask for the interruption of an operation and its sub-agents, in whatever process they run.

        The process that runs it is woken and stops it at once, in a model call, a tool or between steps. An operation
        that waits for a person, or whose process is dead, is ended by a `Worker` that has its agent. It ends with the
        reason `"interrupted"`. To ask again changes nothing: the first request counts. The audit log has an entry.

        Args:
            operation_id: The id of the operation.
            by: Who asks; stored and shown with the operation.
            tenant_id: Accept the request only if the operation is this tenant's.

        Returns:
            The operation, with who asked first and when.

        Raises:
            OperationNotFoundError: If there is no such operation.
            OperationFinishedError: If the operation has ended.
            StoreUnavailableError: If the database cannot be reached.
        """
        database = self._open_database()
        operation = await request_interrupt(database, operation_id, by=by, tenant_id=tenant_id)
        for topic in (INTERRUPTS, WORK, OPERATIONS, events_topic(operation_id)):
            self.wakeups.wake(topic)
        return operation

    async def unattended_interrupts(
        self, agent_ids: Sequence[str], limit: int = 1000, *, exclude: Sequence[str] = ()
    ) -> list[str]:
        """List the ids of operations whose interruption was asked for and that no process runs.

        They wait for a person, or their process is dead; `recover_agent` ends them with `abandon=True`.

        Args:
            agent_ids: Only operations of these agents.
            limit: Number of operations at most.
            exclude: Ids to leave out.
        """
        reading.check_limit(limit)
        return await self._read(
            partial(
                find_unattended_interrupts, self._database, agent_ids=agent_ids, exclude=tuple(exclude), limit=limit
            )
        )

    async def decided(
        self,
        agent_ids: Sequence[str],
        limit: int = 1000,
        *,
        exclude: Sequence[str] = (),
        agent_versions: Sequence[str] | None = None,
    ) -> list[tuple[OperationState, list[Approve | Reject]]]:
        """List operations that can be resumed, since all pending calls are decided or one decision stops the run.

        Args:
            agent_ids: Only operations of these agents.
            limit: Number of operations at most.
            exclude: Ids to leave out.
            agent_versions: Only operations that were begun with one of these versions of the agent.
        """
        query = partial(decisions.find_decided_operations, agent_ids=agent_ids, agent_versions=agent_versions)
        return await self._read(partial(query, limit=limit, exclude=frozenset(exclude)))

    async def ready_decisions(self, operation_id: str) -> list[Approve | Reject]:
        """Read the decisions about an operation that waits for a person; empty if they do not suffice to resume it.

        Raises:
            StateFormatError: If a newer version of hookline wrote the state.
        """
        return await self._read(partial(decisions.read_ready_decisions, operation_id=operation_id))

    async def decisions_of(self, operation_id: str) -> list[StoredDecision]:
        """List the decisions about calls of an operation, with who made them, oldest first."""
        await self._commits.wait_until_written(operation_id)
        return await self._read(partial(decisions.list_decisions, operation_id=operation_id))

    async def decisions(
        self, which: DecisionFilter | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> Page[DecisionRecord]:
        """Read a page of the stored decisions about calls of all operations, newest first.

        Args:
            which: Only decisions that match this filter; all by default.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of decisions at most, up to 1000.

        Raises:
            HookUsageError: If the cursor or the limit is invalid.
        """
        reading.check_limit(limit)
        wanted = which or DecisionFilter()
        return await self._read(partial(decisions.read_decisions, which=wanted, cursor=cursor, limit=limit))

    async def reserve_budget(self, request: BudgetRequest) -> Reservation:
        """Reserve amounts if their window, by the clock of the database, has that much left and is not closed.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await counts.reserve(self._open_database(), request)

    async def settle_budget(self, reservation_id: str, used: Amounts | None = None) -> Settlement | None:
        """Replace a reservation by what its call took; after its lease too, and never twice.

        Args:
            reservation_id: The reservation.
            used: What the call took; `None` to count all that it reserved.

        Returns:
            What changed; `None` if there is no such reservation, because it was settled or never made.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await counts.settle(self._open_database(), reservation_id, used)

    async def budgets(
        self, *, tenant_id: str | None = None, budget_id: str | None = None, open_only: bool = False, limit: int = 100
    ) -> list[BudgetFigures]:
        """Read the counts of budgets, the windows that changed last first.

        Args:
            tenant_id: Only windows of this tenant.
            budget_id: Only windows of this budget.
            open_only: Only windows that have not ended.
            limit: Number of windows at most, up to 1000.
        """
        reading.check_limit(limit)
        query = partial(counts.read_windows, tenant_id=tenant_id, budget_id=budget_id, open_only=open_only, limit=limit)
        return await self._read(query)

    async def budget_figures(self, window_id: str) -> BudgetFigures | None:
        """Read the counts of one window of a budget; `None` if there is no such window."""
        return await self._read(partial(counts.read_figures, window_id=window_id))

    async def reset_budget(self, window_id: str) -> BudgetFigures | None:
        """Start the counts of a window again, and open it. Calls that are running keep their reservations.

        Returns:
            The counts before; `None` if there is no such window.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._open_database().writing() as connection:
            return await counts.reset(connection, window_id=window_id)

    async def prune(self, older_than: float) -> int:
        """Delete operations that ended that many seconds ago, with events and deliveries, and return their number.

        Windows of budgets that ended so long ago are deleted too; they are not in the number.
        Operations that still have something to deliver are kept. Runs go on meanwhile, and several processes may do
        this at once. PostgreSQL drops the events of a whole day at a time; so if `older_than` is a day or more, an
        operation is deleted up to a day later there.
        """
        deleted = await prune_operations(self._open_database(), older_than)
        await counts.prune_budgets(self._open_database(), older_than)
        return deleted

    async def forget_decisions(self, operation_id: str) -> None:
        """Delete decisions about an operation that never took effect, except those about a pause that still lasts."""
        await decisions.delete_void_decisions(self._open_database(), operation_id)

    def accompany(self, companion: Companion) -> None:
        """Run a background task while the store is open, and let it finish before the store closes."""
        self._companions.append(companion)
        if self._tasks:
            self._tasks.append(asyncio.create_task(companion.run()))

    async def _write_group(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Write a group of commits, and then wake those who wait for what has changed."""
        outcomes = await self._commit_writer.write(commits)
        self.wakeups.wake(OPERATIONS)
        if any(commit.deliveries for commit in commits):
            self.wakeups.wake(DELIVERIES)
        if any(commit.relayed is not None for commit in commits):
            self.wakeups.wake(RELAY)
        for topic in {events_topic(commit.operation_id) for commit in commits}:
            self.wakeups.wake(topic)
        return outcomes

    async def _read(self, query: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        database = self._open_database()
        return await database.retry(partial(database.read, query))

    def check_open(self) -> None:
        """Raise unless the store is open in the running event loop.

        Raises:
            HookUsageError: If the store was never opened, or was opened by another event loop.
            StoreUnavailableError: If the store is closed.
        """
        if self._loop is None:
            raise HookUsageError(f"{self!r} is not open; use `async with SqlStore(...) as store:`.")
        if self._closed:
            raise StoreUnavailableError(self._address.name, "it is closed")
        if _running_loop() is not self._loop:  # its tasks could never be woken from this loop
            raise HookUsageError(f"{self!r} was opened in another event loop; open a store in the loop that uses it.")

    def _open_database(self) -> Database:
        self.check_open()
        return self._database


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
