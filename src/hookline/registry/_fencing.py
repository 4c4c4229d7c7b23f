"""Fenced changes: the processes that take part keep a lease, confirm each change, and are waited for."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError, StoreUnavailableError, message_of
from hookline.interceptors import Fence, boot_time
from hookline.registry._errors import FenceError
from hookline.store import FENCES, SqlStore, after_commit, generate_worker_id, insert_into, read_clock, registry_members

__all__ = ["FenceMember", "check_members", "wait_for_members"]

logger = logging.getLogger("hookline")

RENEWALS = 3
"""How often a lease is renewed until it would end."""
DRAIN_SECONDS = 0.01
"""Seconds between two looks whether calls are still judged by hooks that were replaced."""
LOOK_SECONDS = 1.0
"""Seconds between two looks whether all processes have confirmed a change, if no wake-up comes."""
SPARE = 1.05
"""By how much longer than its lease a process is waited for, as clocks do not run equally fast."""

_mine = registry_members.c.member_id


class FenceMember:
    """Keeps the lease of this process, and confirms fenced changes once no call is judged by what they have replaced.

    Args:
        store: The store of the definitions.
        fence: The fence of the registry.
        lease_seconds: Seconds for which calls are judged without a renewal of the lease.
        read_changes: Reads the changes of definitions and puts them in force.
        report: Takes the reason why the lease could not be renewed; `""` once it could.
    """

    def __init__(
        self,
        store: SqlStore,
        fence: Fence,
        lease_seconds: float,
        read_changes: Callable[[], Awaitable[None]],
        report: Callable[[str], None],
    ) -> None:
        self.member_id = generate_worker_id()
        self._store = store
        self._fence = fence
        self._lease_seconds = lease_seconds
        self._read_changes = read_changes
        self._report = report
        self._confirmed = -1
        self._is_member = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Begin a lease, read the definitions, and begin to judge by them.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        began, self._is_member, self._fence.valid_until = boot_time(), False, -math.inf
        async with self._store.writing() as connection:
            row = {"member_id": self.member_id, "lease_seconds": self._lease_seconds, "renewals": 0, "confirmed": -1}
            added = insert_into(connection, registry_members).values(**row, started_at=await read_clock(connection))
            await connection.execute(added.on_conflict_do_nothing())  # an earlier try may have got so far
        # What is changed from now on waits for this process; what was changed before is read here.
        await self._read_changes()
        self._fence.epoch += 1
        if not await self._renew(began, self._fence.revision):
            raise StoreUnavailableError(repr(self._store), "another process has ended the lease of this one at once")
        self._is_member = True

    def start(self) -> None:
        """Keep the lease until `leave` is called."""
        self._task = asyncio.create_task(self._keep(), name="hookline-fence")

    def note_change(self) -> None:
        """Confirm the fenced changes that were read, as soon as that is true."""
        self._changed.set()

    async def leave(self) -> None:
        """End the lease. Calls of operations that still run in this process are denied from now on."""
        self._fence.valid_until = boot_time()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(StoreUnavailableError, TimeoutError):
            async with asyncio.timeout(self._lease_seconds), self._store.writing() as connection:
                await connection.execute(delete(registry_members).where(_mine == self.member_id))
                after_commit(connection, lambda: self._store.wakeups.wake(FENCES))

    async def _keep(self) -> None:
        pause = self._lease_seconds / RENEWALS
        due = boot_time() + pause
        while True:
            is_changed, is_drained = self._changed.is_set(), self._fence.is_drained
            if (is_changed and is_drained) or boot_time() >= due:
                try:
                    due = await self._confirm_and_renew(is_drained=is_drained) + pause
                    self._report("")
                except Exception as error:  # one that ended this task would deny all calls for ever
                    then = "calls are denied until it is" if self._fence.is_lost else "calls are denied when it ends"
                    self._report(f"the lease of this process could not be renewed; {then}: {message_of(error)}")
                    await asyncio.sleep(pause / RENEWALS)
            elif is_changed:
                await asyncio.sleep(DRAIN_SECONDS)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(due - boot_time()):
                        await self._changed.wait()

    async def _confirm_and_renew(self, *, is_drained: bool) -> float:
        """Renew the lease, confirm what was read if no call is judged by what it has replaced, and look for changes.

        Returns:
            When the lease began anew.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
            TimeoutError: If it takes too long.
        """
        began, revision = boot_time(), self._fence.revision if is_drained else self._confirmed
        async with asyncio.timeout(self._lease_seconds):
            # A process without a row has missed changes: it may not judge before it has read them.
            if not self._is_member or not await self._renew(began, revision):
                logger.warning("Registry: the other processes did not wait for this one; it begins a new lease")
                await self.join()
            elif revision >= self._fence.revision:
                self._changed.clear()
            await self._read_changes()  # in case that a wake-up was lost
        return began

    async def _renew(self, began: float, confirmed: int) -> bool:
        """Renew the lease, and confirm the changes up to a revision.

        Returns:
            Whether the other processes still wait for this one.
        """
        values = {"renewals": registry_members.c.renewals + 1, "confirmed": confirmed}

        async def extend(connection: AsyncConnection) -> bool:
            changed = update(registry_members).where(_mine == self.member_id).values(**values)
            is_member = bool((await connection.execute(changed)).rowcount)
            if is_member and confirmed > self._confirmed:
                after_commit(connection, lambda: self._store.wakeups.wake(FENCES))
            return is_member

        is_member = await self._store.write(extend)
        if is_member:
            self._confirmed = confirmed
            self._fence.valid_until = began + self._lease_seconds
        return is_member


async def check_members(connection: AsyncConnection) -> None:
    """Refuse a fenced change where no process takes part in them.

    Raises:
        HookUsageError: If so.
    """
    if not (await connection.execute(select(exists().where(_mine != "")))).scalar():
        raise HookUsageError(
            "No process takes part in fenced changes, so that a fence would promise nothing; nothing was changed. Open "
            "the registries of the processes that run agents with Registry(..., lease_seconds=10), or leave the fence "
            "out."
        )


class _Sign(NamedTuple):
    """The last sign of life of a process: how often it has renewed its lease, and when that was first seen."""

    renewals: int
    seen_at: float


async def wait_for_members(store: SqlStore, revision: int, timeout: float) -> None:
    """Wait until each process has confirmed a revision, or its lease has ended.

    No clock is compared with that of another machine: a lease has ended if it was not renewed while this process has
    waited for its length.

    Args:
        store: The store of the definitions.
        revision: The revision.
        timeout: Seconds to wait at most.

    Raises:
        FenceError: If some have not confirmed it in time.
    """
    signs: dict[str, _Sign] = {}
    members: tuple[str, ...] = ()
    problem = "the database did not answer"
    woken = asyncio.Event()
    try:
        async with asyncio.timeout(timeout), store.wakeups.woken(FENCES, woken.set):
            while True:
                woken.clear()
                pause = LOOK_SECONDS
                try:
                    pause, members = await _look_at_members(store, revision, signs)
                    problem = ""
                    if not members:
                        return
                except StoreUnavailableError as error:
                    problem = message_of(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await woken.wait()
    except TimeoutError:
        raise FenceError(revision, timeout, members, problem) from None


async def _look_at_members(store: SqlStore, revision: int, signs: dict[str, _Sign]) -> tuple[float, tuple[str, ...]]:
    """Find the processes that have not confirmed a revision, and end the leases that have run out.

    Args:
        store: The store.
        revision: The revision.
        signs: The last sign of life of each process, which is kept up to date.

    Returns:
        Seconds after which to look again, and the ids of the processes.
    """
    async with store.reading() as connection:
        found = (
            await connection.execute(select(registry_members).where(registry_members.c.confirmed < revision))
        ).all()
    now, pause = boot_time(), LOOK_SECONDS
    ended: list[tuple[str, int]] = []
    for row in found:
        sign = signs.get(row.member_id)
        if sign is None or sign.renewals != row.renewals:
            sign = signs[row.member_id] = _Sign(row.renewals, now)
        left = sign.seen_at + row.lease_seconds * SPARE - now
        if left <= 0:
            ended.append((row.member_id, row.renewals))
        pause = min(pause, max(0.0, left))
    if ended:
        async with store.writing() as connection:
            for member_id, renewals in ended:
                silent = (_mine == member_id) & (registry_members.c.renewals == renewals)
                await connection.execute(delete(registry_members).where(silent))
        logger.warning("Registry: the leases of %s have ended; they deny calls", ", ".join(each for each, _ in ended))
        return 0.0, tuple(row.member_id for row in found)
    return pause, tuple(row.member_id for row in found)
