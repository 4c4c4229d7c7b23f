"""`SqlStore`: operations, their events and their deliveries in one database."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar, get_args
from uuid import uuid4

import anyio
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError, StoreUnavailableError
from hookline.runtime import Approve, DurableStore, JournalEntry, OperationState, Reject
from hookline.store import _decisions as decisions
from hookline.store import _reading as reading
from hookline.store._commits import Commit, CommitQueue, Overflow, note_missing_hooks, release, write_group
from hookline.store._database import Database, Dialect, Durability, address_of
from hookline.store._decisions import StoredDecision
from hookline.store._deliveries import rows_of
from hookline.store._lease import Lease, new_worker_id
from hookline.store._migrate import migrate
from hookline.store._reading import Page, StoredOperation, prune
from hookline.store._rows import envelopes_of, event_rows, operation_row

__all__ = ["Companion", "SqlStore", "check_settings"]


class Companion(Protocol):
    """What runs as long as a store is open."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    async def finish(self) -> None:
        """Bring to an end what is begun; `run` goes on meanwhile."""
        ...


def check_settings(
    lease_seconds: float, durability: str, max_pending: int, overflow: str, retry_seconds: float, pool_size: int
) -> None:
    """Refuse options of a store that make no sense."""
    for name, value in (("lease_seconds", lease_seconds), ("retry_seconds", retry_seconds)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise HookUsageError(f"`{name}` is a number of seconds above 0; got {value!r}.")
    for name, value in (("max_pending", max_pending), ("pool_size", pool_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise HookUsageError(f"`{name}` is a whole number above 0; got {value!r}.")
    if durability not in get_args(Durability):
        raise HookUsageError(f"`durability` is 'machine' or 'process'; got {durability!r}.")
    if overflow not in get_args(Overflow):
        raise HookUsageError(f"`overflow` is 'wait' or 'refuse'; got {overflow!r}.")


T = TypeVar("T")

LONGEST_PAGE, LONGEST_EVENTS = 1000, 10_000
CLOSING = 5.0
"""Seconds that closing takes at most, after what waits was written."""


class SqlStore(DurableStore):
    """Keeps operations in a database: an SQLite file for one machine, PostgreSQL for several.

    It is opened with `async with`, on asyncio: the tables are made or brought up to date, and from then on the process
    gives signs of life. An operation that is running belongs to the process that wrote it last, until that gives none
    for `lease_seconds`; then it is an orphan, and any process may resume it. So nothing may hold the event loop for
    that long.

    Args:
        url: `sqlite:///path`, `sqlite:///:memory:`, or `postgresql://user:password@host/database`.
        lease_seconds: For how long a sign of life counts.
        durability: Of SQLite: `"machine"`: what is written survives a loss of power. `"process"`: it survives the death
            of a process, and writes do not wait for the disk.
        max_pending: Commits that may wait to be written.
        overflow: Whether one more waits for a place, or is refused with `StoreOverloadedError`.
        retry_seconds: How long a lost connection is tried again and a lock is waited for.
        pool_size: Connections to PostgreSQL.

    Attributes:
        dialect: `"sqlite"` or `"postgresql"`.
        worker_id: Names this process.

    Raises:
        HookUsageError: If an argument makes no sense.
    """

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
    ) -> None:
        check_settings(lease_seconds, durability, max_pending, overflow, retry_seconds, pool_size)
        self._address = address_of(url)
        self.dialect: Dialect = self._address.dialect
        self.worker_id = new_worker_id()
        self._database = Database(
            self._address, durability=durability, retry_seconds=retry_seconds, pool_size=pool_size
        )
        self._commits = CommitQueue(
            partial(write_group, self._database),
            store=self._address.name,
            retry_seconds=retry_seconds,
            max_pending=max_pending,
            overflow=overflow,
        )
        self._lease = Lease(self._database, self.worker_id, lease_seconds, self._commits.is_writing)
        self._closing = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._companions: list[Companion] = []
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"SqlStore({self._address.name!r})"

    async def __aenter__(self) -> Self:
        """Make the tables, or bring them up to date, and give the first sign of life.

        Raises:
            StoreVersionError: If a newer version of hookline has migrated the database; nothing was changed.
            StoreUnavailableError: If it cannot be reached.
            HookUsageError: If the store was opened before, or the event loop is not that of asyncio.
        """
        if self._loop is not None:
            raise HookUsageError(f"{self!r} was opened before; make a new one.")
        self._loop = _running_loop()
        if self._loop is None:
            raise HookUsageError("A store in a database runs on asyncio; trio cannot talk to its drivers.")
        try:
            self._database.look()
            await self._database.trying(partial(migrate, self._database))
            await self._database.trying(self._lease.renew)
        except BaseException:
            await self.aclose()
            raise
        running = (self._commits.run(), self._lease.run(), *(companion.run() for companion in self._companions))
        self._tasks = [asyncio.create_task(run) for run in running]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """See `aclose`."""
        await self.aclose()

    async def aclose(self) -> None:
        """Write what waits, give the lease up, and close the connections. May be called twice."""
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
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._tasks:
                await self._lease.give_up()
        with anyio.move_on_after(CLOSING, shield=True):  # also where somebody holds the lock that the lease needs
            await self._database.aclose()

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that may write; on SQLite there is one at a time.

        What the process is to remember of it is noted by `after_commit`, since the commit may still fail.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """
        return self._usable().writing()

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that only reads.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return self._usable().reading()

    def now_sql(self) -> ColumnElement[float]:
        """The clock of the database in SQL: seconds since 1970."""
        return self._database.now_sql()

    async def now(self) -> float:
        """The clock of the database: seconds since 1970.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await self._usable().now()

    async def check(self) -> None:
        """Find out whether the database can be read and, on SQLite, written; nothing is.

        Raises:
            StoreUnavailableError: If it cannot, or does not answer.
        """
        await self._usable().check()

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        """Write a state, its events since the last write, and the deliveries that they cause: all or nothing.

        Commits of several operations that come at the same time are written in one transaction.

        Args:
            state: What to write; its `version` is the new one, its `hooks` say what is delivered.
            expected_version: What the caller read; `None` if the operation must be new. The id of an operation that
                has ended stays taken.
            entries: The events, in order.

        Raises:
            StaleStateError: If the stored version is another one; nothing was written.
            StateFormatError: If a newer version of hookline wrote it; nothing was written.
            StoreUnavailableError: If the database could not be reached for too long. Whether it was written is then
                unknown; so it is when the caller is cancelled.
            StoreOverloadedError: If too many commits wait, and the store refuses then.
            HookUsageError: If it holds what cannot be stored; nothing was written.
        """
        self.check_open()
        if expected_version is not None and state.version <= expected_version:
            raise HookUsageError(f"Version {state.version} of a state does not follow on {expected_version}.")
        commit = Commit(
            operation_row(state, owner=self.worker_id, write_id=uuid4().hex),
            expected_version=expected_version,
            events=event_rows(state, entries),
            deliveries=rows_of(envelopes_of(state, entries)),
        )
        # Who writes it runs it again; the next renewal of the lease would take it away in the middle of the run.
        self._lease.abandoned.discard(state.operation_id)
        await self._commits.submit(commit)
        if commit.deliveries:
            for listener in self._listeners:
                listener()

    async def load(self, operation_id: str) -> OperationState | None:
        """The last state that was saved, or `None`.

        Raises:
            StateFormatError: If a newer version of hookline wrote it.
            StoreUnavailableError: If the database cannot be reached.
        """
        await self._commits.settled(operation_id)
        return await self._read(partial(reading.load, operation_id=operation_id))

    async def orphaned(self, operation_id: str) -> bool:
        """Whether the operation is running, but not in any process that is alive."""
        return await self._read(partial(reading.orphaned, self._database, operation_id=operation_id))

    async def release(self, operation_id: str) -> None:
        """Let go of a running operation that this process will not go on with, so that another one may.

        Raises:
            StoreUnavailableError: If the database cannot be reached; it is let go of as soon as that can be.
        """
        database = self._usable()
        # At once: who is cancelled here has let go of it all the same.
        self._lease.abandoned.add(operation_id)
        await self._commits.settled(operation_id)
        await release(database, operation_id, self.worker_id)
        self._lease.abandoned.discard(operation_id)

    async def orphans(
        self, limit: int = 100, *, agent_ids: Sequence[str] | None = None, exclude: Sequence[str] = ()
    ) -> list[str]:
        """Ids of operations that are running in no process that is alive, those first that were written longest ago.

        An operation that was called by a running one is left out: who resumes that one resumes it too.

        Args:
            limit: How many at most.
            agent_ids: Only those of these agents.
            exclude: Not these.
        """
        reading.check_limit(limit, LONGEST_PAGE)
        return await self._read(
            partial(reading.orphans, self._database, limit=limit, agent_ids=agent_ids, exclude=exclude)
        )

    async def note_missing_hooks(self, operation_id: str, hook_ids: Sequence[str], *, version: int) -> None:
        """Show that an operation waits for hooks, until somebody goes on with it.

        Args:
            operation_id: The operation.
            hook_ids: The interceptors that are missing where somebody wanted to go on with it.
            version: The version of its state then. Nothing is noted once it is another one: somebody has gone on.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        await note_missing_hooks(self._usable(), operation_id, hook_ids, version=version)

    async def missing_hooks(self, limit: int = 1000) -> dict[str, list[str]]:
        """List the interceptors that are missing, by the id of the operation that waits for them.

        Args:
            limit: How many operations at most.
        """
        reading.check_limit(limit, LONGEST_PAGE)
        return await self._read(partial(reading.missing_hooks, limit=limit))

    async def children(self, operation_id: str) -> list[OperationState]:
        """The operations that it called as sub-agents and that have not ended.

        Raises:
            StateFormatError: If a newer version of hookline wrote one of them.
        """
        return await self._read(partial(reading.children, operation_id=operation_id))

    async def operation(self, operation_id: str) -> StoredOperation | None:
        """What is known of an operation without reading its state."""
        return await self._read(partial(reading.operation, operation_id=operation_id))

    async def operations(
        self,
        tenant_id: str | None = None,
        status: str | None = None,
        *,
        agent_id: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[StoredOperation]:
        """A part of the list of operations, the newest first.

        Args:
            tenant_id: Only those of this tenant.
            status: Only those of this status.
            agent_id: Only those of this agent.
            cursor: Where the part begins; that of the part before.
            limit: How many at most, up to 1000.

        Raises:
            HookUsageError: If the cursor or the limit makes no sense.
        """
        reading.check_limit(limit, LONGEST_PAGE)
        wanted = {"tenant_id": tenant_id, "status": status, "agent_id": agent_id}
        return await self._read(partial(reading.page, wanted=wanted, cursor=cursor, limit=limit))

    async def events_of(self, operation_id: str, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """Events of an operation, in order: at most `limit` (up to 10,000) with a number greater than `after`."""
        reading.check_limit(limit, LONGEST_EVENTS)
        return await self._read(partial(reading.events_of, operation_id=operation_id, after=after, limit=limit))

    async def decide(
        self,
        operation_id: str,
        decision: Approve | Reject,
        *,
        by: str = "",
        tenant_id: str | None = None,
        seen: str | None = None,
    ) -> OperationState:
        """Keep what a person has decided about a call that waits, for a `Worker` to go on with.

        It is about the very pause that the operation is in: if it goes on in another way, the decision is void.

        Args:
            operation_id: The operation.
            decision: The decision.
            by: Who decided; kept with the decision, and shown with it.
            tenant_id: Only if the operation is this tenant's.
            seen: Names the call as the person saw it (`seen` of a `PendingApproval`). If it is another one by now, with
                other arguments or of a later pause, the decision is refused.

        Returns:
            The state that waits.

        Raises:
            OperationNotFoundError: If there is no such operation.
            OperationFinishedError: If it does not wait for a person.
            DecisionError: If it has no such call pending, that is decided already, or it is not as it was seen.
        """
        database = self._usable()
        return await decisions.decide(database, operation_id, decision, by=by, tenant_id=tenant_id, seen=seen)

    async def decided(
        self, agent_ids: Sequence[str], limit: int = 1000, *, exclude: Sequence[str] = ()
    ) -> list[tuple[OperationState, list[Approve | Reject]]]:
        """Operations that can go on, since all they wait for is decided, or one decision stops them.

        Args:
            agent_ids: Only those of these agents.
            limit: How many at most.
            exclude: Not these.
        """
        return await self._read(
            partial(decisions.decided, agent_ids=agent_ids, limit=limit, exclude=frozenset(exclude))
        )

    async def decisions_of(self, operation_id: str) -> list[StoredDecision]:
        """List what people have decided about calls of an operation, and who they were, the oldest first."""
        await self._commits.settled(operation_id)
        return await self._read(partial(decisions.decisions_of, operation_id=operation_id))

    async def prune(self, older_than: float) -> int:
        """Forget operations that ended so many seconds ago, with events and deliveries, and say how many it were.

        Those that still have something to deliver are kept.
        """
        return await prune(self._usable(), older_than)

    async def forget_decisions(self, operation_id: str) -> None:
        """Drop decisions about an operation that never took effect, but for those about a pause that lasts."""
        await decisions.forget(self._usable(), operation_id)

    def when_deliveries(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called whenever this process has stored deliveries.

        Args:
            listener: Must be quick, and may not raise.

        Returns:
            A function that ends it.
        """
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def accompany(self, companion: Companion) -> None:
        """Have something run as long as the store is open, and finish while it can still be written to."""
        self._companions.append(companion)
        if self._tasks:
            self._tasks.append(asyncio.create_task(companion.run()))

    async def _read(self, query: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        database = self._usable()

        async def asked() -> T:
            async with database.reading() as connection:
                return await query(connection)

        return await database.trying(asked)

    def check_open(self) -> None:
        """Refuse to go on unless the store is open.

        Raises:
            HookUsageError: If it was never opened, or another event loop has opened it.
            StoreUnavailableError: If it is closed.
        """
        if self._loop is None:
            raise HookUsageError(f"{self!r} is not open; write `async with SqlStore(...) as store:`.")
        if self._closed:
            raise StoreUnavailableError(self._address.name, "it is closed")
        if _running_loop() is not self._loop:  # what the loop of its tasks wakes would never hear of it
            raise HookUsageError(f"{self!r} was opened by another event loop; open one in the loop that uses it.")

    def _usable(self) -> Database:
        self.check_open()
        return self._database


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
