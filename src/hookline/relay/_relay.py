"""`Relay`: tell stored commits to those who hear them in other processes (a transactional-outbox relay)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from secrets import token_hex
from time import monotonic
from types import TracebackType
from typing import Self

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from hookline._checks import quote
from hookline.bus import (
    DEAD_LETTERS,
    Bus,
    BusUnavailableError,
    CommittedEvents,
    CommitTooLargeError,
    FailedEvent,
    is_for,
)
from hookline.errors import HookUsageError, StoreUnavailableError, message_of
from hookline.signals import announce, dead_letter_stored
from hookline.store import (
    RELAY,
    RELAY_LEASE,
    DeadLetter,
    QueuedCommit,
    RelayStatus,
    SqlStore,
    add_dead_letter,
    claim_relay,
    confirm_told,
    note_relay,
    note_stream,
    read_dead_letters,
    read_queue,
    read_relay_status,
    release_relay,
    replay_dead_letters,
    replay_events,
)

__all__ = ["Relay", "list_dead_letters", "relay_status", "replay", "retry_dead_letters"]

logger = logging.getLogger("hookline")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Shortest and longest pause, in seconds, before commits that could not be told are told again."""
LEASE_MARGIN = 0.05
"""Seconds after the end of another relay's lease after which this one takes over."""
GATHERING = 0.01
"""Seconds for which commits are gathered before they are read, as a run stores several in a row."""
CLOSING = 5.0
"""Seconds that closing may take at most."""


class Relay:
    """Tells each stored commit that somebody hears in another process to the bus, in order for each operation.

    Commits of runs with remote observers wait in a queue in the database, and leave it once the bus has kept them. So
    if the bus is away or full, they wait; if the relay is killed between the two, the next one tells them again with
    the same id. Of all the relays of a store, one tells; another one takes over when it is killed. Use it with
    `async with`, in a process that runs as long as the store is used.

    Args:
        store: The store, which is open.
        bus: The bus, which is open.
        lease_seconds: Seconds after which another relay takes over from one that was killed.
        batch_size: Number of commits that are read together at most.
        concurrency: Number of operations whose commits are told at the same time.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    def __init__(
        self, store: SqlStore, bus: Bus, *, lease_seconds: float = 15.0, batch_size: int = 500, concurrency: int = 64
    ) -> None:
        if not isinstance(store, SqlStore):
            raise HookUsageError(f"A Relay needs an SqlStore; got {quote(store)}.")
        if not isinstance(bus, Bus):
            raise HookUsageError(f"A Relay needs a NatsBus or another subclass of Bus; got {quote(bus)}.")
        if isinstance(lease_seconds, bool) or not isinstance(lease_seconds, int | float) or not 0 < lease_seconds < 1e6:
            raise HookUsageError(f"`lease_seconds` must be a number of seconds above 0; got {lease_seconds!r}.")
        for name, value in (("batch_size", batch_size), ("concurrency", concurrency)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise HookUsageError(f"`{name}` must be a whole number above 0; got {value!r}.")
        self._store, self._bus = store, bus
        self._id = f"{store.worker_id}-{token_hex(2)}"
        self._lease_seconds, self._batch_size = lease_seconds, batch_size
        self._slots = asyncio.Semaphore(concurrency)
        self._woken = asyncio.Event()
        self._lease_ended = False
        """Whether the relay that led has said so when it stopped."""
        self._stopped = False
        self._leads = False
        self._problem: str | None = None
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether this relay tells the commits of the store now; otherwise another one does."""
        return self._leads

    async def __aenter__(self) -> Self:
        """Start to relay.

        Raises:
            HookUsageError: If the store or the bus is not open, or the relay was started before.
        """
        if self._task is not None:
            raise HookUsageError("This Relay was already started; create a new one for each `async with`.")
        self._store.check_open()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._store.wakeups.woken(RELAY, self._wake))
            await stack.enter_async_context(self._store.wakeups.woken(RELAY_LEASE, self._note_lease))
            await stack.enter_async_context(self._bus.answer(DEAD_LETTERS, self._take_dead_letter))
            self._task = asyncio.create_task(self._run())
            stack.push_async_callback(self._stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the commits that are being told, and let another relay take over."""
        await self._stack.aclose()

    async def _stop(self) -> None:
        self._stopped = True
        self._wake()
        assert self._task is not None
        await asyncio.wait([self._task], timeout=CLOSING)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(StoreUnavailableError, SQLAlchemyError):
            async with self._store.writing() as connection:
                await release_relay(connection, self._id)
        self._leads = False
        self._store.wakeups.wake(RELAY_LEASE)

    def _wake(self) -> None:
        self._woken.set()

    def _note_lease(self) -> None:
        if not self._leads:
            self._lease_ended = True
            self._wake()

    async def _run(self) -> None:
        renew_at, pause = 0.0, FIRST_PAUSE
        while not self._stopped:
            self._woken.clear()
            told, failed = 0, False
            try:
                if self._lease_ended or monotonic() >= renew_at:
                    self._lease_ended = False
                    left = await self._renew()
                    renew_at = monotonic() + (self._lease_seconds / 3 if left is None else left + LEASE_MARGIN)
                if self._leads:
                    told = await self._relay_batch()
                failed = self._problem is not None
            except (StoreUnavailableError, SQLAlchemyError) as error:
                failed = True
                logger.warning("A relay cannot use its store, and tries again in %g s: %s", pause, message_of(error))
            if failed:
                await self._wait(pause, for_wakeup=False)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if told < self._batch_size:
                await self._wait(max(0.0, renew_at - monotonic()))
                await asyncio.sleep(GATHERING)

    async def _wait(self, seconds: float, *, for_wakeup: bool = True) -> None:
        """Wait until woken, for some seconds at most; not for a wake-up while the bus is away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._stopped:
                    await self._woken.wait()
                    if for_wakeup:
                        return
                    self._woken.clear()

    async def _renew(self) -> float | None:
        """Claim or extend the lease, and store what is known of the bus.

        Returns:
            `None` if this relay leads; else the seconds until the lease of the other one ends.
        """
        depths: dict[str, int] = {}
        stream = ""
        if self._leads:
            with suppress(BusUnavailableError, HookUsageError, TimeoutError):
                stream = await self._bus.stream_id()
                depths = await self._bus.depths()
        lost: dict[str, float] = {}
        now = self._store.now_sql()
        async with self._store.writing() as connection:
            left = await claim_relay(connection, self._id, self._lease_seconds, now=now)
            if left is None and self._leads:
                await note_relay(connection, self._id, problem=self._problem, depths=depths, now=now)
                if stream:
                    lost = await note_stream(connection, self._id, stream, depths, now=now)
        for name, since in sorted(lost.items()):
            logger.error(
                "The bus has lost the commits of %r that it kept. Tell %r again what it has not heard: hookline relay "
                "replay %s --since %.0f",
                self._store,
                name,
                name,
                since,
            )
        if self._leads is not (left is None):
            self._leads, self._problem = left is None, None
            logger.info(
                "%s %s the commits of %r",
                self._id,
                "tells" if self._leads else "no longer tells",
                self._store,
            )
        return left

    async def _relay_batch(self) -> int:
        """Tell the oldest commits of the queue, and return how many were told."""
        async with self._store.reading() as connection:
            batch = await read_queue(connection, self._batch_size)
        by_operation: dict[str, list[QueuedCommit]] = {}
        for queued in batch:
            by_operation.setdefault(queued.operation_id, []).append(queued)
        told: list[int] = []
        problems: list[str] = []
        await asyncio.gather(*(self._tell_in_turn(theirs, told, problems) for theirs in by_operation.values()))
        if told:
            await self._confirm(told)
        problem = problems[0] if problems else None
        if problem != self._problem:
            self._problem = problem
            if problem is not None:
                logger.error("Commits of %r cannot be told, and wait: %s", self._store, problem)
            else:
                logger.info("Commits of %r are told again", self._store)
            async with self._store.writing() as connection:
                now = self._store.now_sql()
                await note_relay(connection, self._id, problem=problem, depths={}, now=now)
        return len(told)

    async def _confirm(self, told: Sequence[int]) -> None:
        """Remove commits from the queue that the bus has kept."""
        async with self._store.writing() as connection:
            await confirm_told(connection, told, now=self._store.now_sql())

    async def _tell_in_turn(self, commits: Sequence[QueuedCommit], told: list[int], problems: list[str]) -> None:
        """Tell the commits of one operation, one after the other, until one of any operation could not be told.

        Args:
            commits: The commits, oldest first.
            told: Takes the keys of those that were told.
            problems: Takes the reason why one could not be told.
        """
        async with self._slots:
            for queued in commits:
                if self._stopped or problems:
                    return
                if len(queued.events) < queued.number - queued.first + 1:
                    logger.warning(
                        "Events %d to %d of operation %r are not stored any more, and are not told",
                        queued.first,
                        queued.number,
                        queued.operation_id,
                    )
                    told.append(queued.seq)
                    continue
                try:
                    await self._tell(queued, queued.first, queued.events)
                except (BusUnavailableError, HookUsageError) as error:
                    problems.append(message_of(error))
                    return
                told.append(queued.seq)

    async def _tell(self, queued: QueuedCommit, first: int, wires: Sequence[bytes]) -> None:
        """Tell a commit, in several messages if it is too large for one.

        Raises:
            BusUnavailableError: If the bus did not keep it.
            HookUsageError: If the bus is not open, or set up differently.
        """
        commit = CommittedEvents(
            operation_id=queued.operation_id,
            number=first + len(wires) - 1,
            events=[msgspec.Raw(wire) for wire in wires],
            tenant_id=queued.tenant_id,
            hearers=queued.hearers,
            wanted=queued.wanted,
            replay=queued.replay,
        )
        try:
            await self._bus.tell(commit)
        except CommitTooLargeError as error:
            half = len(wires) // 2
            if half:
                await self._tell(queued, first, wires[:half])
                await self._tell(queued, first + half, wires[half:])
                return
            for name in queued.hearers:
                if not is_for(name, commit, commit.events[0]):
                    continue
                failed = FailedEvent(
                    hearer=name,
                    hook_id="",
                    operation_id=queued.operation_id,
                    number=first,
                    tenant_id=queued.tenant_id,
                    tries=1,
                    error=message_of(error),
                )
                await self._store_dead_letter(failed)

    async def _take_dead_letter(self, question: bytes) -> bytes:
        await self._store_dead_letter(msgspec.json.decode(question, type=FailedEvent))
        return b""

    async def _store_dead_letter(self, failed: FailedEvent) -> None:
        async with self._store.writing() as connection:
            await add_dead_letter(connection, **msgspec.structs.asdict(failed), now=self._store.now_sql())
        logger.error(
            "Event %s:%d is a dead letter of %r: %s", failed.operation_id, failed.number, failed.hearer, failed.error
        )
        if dead_letter_stored.receivers:
            announce(dead_letter_stored, self, failed=failed)


async def relay_status(store: SqlStore) -> RelayStatus:
    """Read what the relay of a store is doing, in whatever process it runs.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.reading() as connection:
        return await read_relay_status(connection, now=store.now_sql())


async def list_dead_letters(
    store: SqlStore, *, hearer: str | None = None, tenant_id: str | None = None, limit: int = 100
) -> list[DeadLetter]:
    """List the events that remote observers could not handle, newest first.

    Args:
        store: The store.
        hearer: Only those of the observers that are served under this name.
        tenant_id: Only those of this tenant.
        limit: Number of dead letters at most.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.reading() as connection:
        return await read_dead_letters(connection, hearer=hearer, tenant_id=tenant_id, limit=limit)


async def retry_dead_letters(store: SqlStore, ids: Sequence[str] | None = None, *, hearer: str | None = None) -> int:
    """Tell the events of dead letters again to the observers that could not handle them, and return their number.

    Args:
        store: The store.
        ids: The ids of the dead letters; `None` for all.
        hearer: Only those of this name.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.writing() as connection:
        count = await replay_dead_letters(connection, ids, hearer, now=store.now_sql())
    store.wakeups.wake(RELAY)
    return count


async def replay(
    store: SqlStore, hearer: str, *, operation_id: str | None = None, first: int = 1, since: float | None = None
) -> int:
    """Tell stored events again to the observers that are served under a name, and return their number.

    The events of each operation are told in order. They have the same ids as the first time.

    Args:
        store: The store.
        hearer: The name.
        operation_id: Only events of this operation.
        first: With an operation: only events from this number on.
        since: Only events from this time on, in unix seconds.

    Raises:
        HookUsageError: If neither an operation nor a time is given.
        StoreUnavailableError: If the database cannot be reached.
    """
    if operation_id is None and since is None:
        raise HookUsageError("Say what to replay: give `operation_id` or `since`.")
    async with store.writing() as connection:
        count = await replay_events(
            connection, hearer, operation_id=operation_id, first=first, since=since, now=store.now_sql()
        )
    store.wakeups.wake(RELAY)
    return count
