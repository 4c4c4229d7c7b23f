"""`StoreEngine`: let the leases of a store say which process runs an operation."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic, time
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from hookline.errors import HookUsageError, StoreUnavailableError
from hookline.runtime import Segment
from hookline.store._topics import INTERRUPTS, WORK

if TYPE_CHECKING:
    from hookline.store._store import SqlStore

__all__ = ["StoreEngine", "WorkWatch"]

logger = logging.getLogger("hookline")

AGAIN_SECONDS = 0.5
"""Seconds until a process looks again after a query for work has failed."""
LEASE_MARGIN = 0.05
"""Seconds after the end of a lease after which a process looks, since the two clocks do not run exactly alike."""


class WorkWatch:
    """Finds the operations that a process can go on with, whenever there may be some.

    These are operations whose process has died or that were begun elsewhere, paused operations that a person has
    decided about, and interrupted operations that no process runs.

    Args:
        store: The store.
        agents: Ids of the agents that this process can run.
        start: Called with the id of each operation that is found.
        agent_versions: The versions of these agents that it can run; `None` for all.
        poll_seconds: Longest time between two queries, in seconds; `None` to rely on wake-ups and leases.

    Attributes:
        running: Operations that are started already, which are not looked for.
    """

    def __init__(
        self,
        store: SqlStore,
        agents: Collection[str],
        start: Callable[[str], object],
        *,
        agent_versions: Collection[str] | None = None,
        poll_seconds: float | None = None,
    ) -> None:
        self._store = store
        self._agents = list(agents)
        self._versions = None if agent_versions is None else ["", *agent_versions]
        self._start = start
        self._poll_seconds = poll_seconds
        self._stopped = False
        self._woken = anyio.Event()
        self._lease_end = math.inf
        """When (by `monotonic`) the first lease of another process ends, unless it is renewed before."""
        self._postponed_until: dict[str, float] = {}
        """Operations that cannot go on yet, and when (by `monotonic`) to try again."""
        self._interrupts_asked = True
        """Whether somebody may have asked for the interruption of operations since the last query for them."""
        self._ending: set[str] = set()
        """Operations that were started because of an interruption, and are not looked for again while postponed."""
        self.running: set[str] = set()

    def postpone(self, operation_id: str, seconds: float) -> None:
        """Do not look for an operation for some seconds, unless it is to be interrupted."""
        self._postponed_until[operation_id] = monotonic() + seconds

    def look(self, operation_id: str | None = None) -> None:
        """Look for work now, also for an operation that was postponed."""
        if operation_id is not None:
            self._postponed_until.pop(operation_id, None)
        self._woken.set()

    def finish(self, operation_id: str) -> None:
        """Note that an operation does not run here any more."""
        self.running.discard(operation_id)
        self._look_for_interrupts()  # it may have been decided, or released a sub-agent, while it was left out

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._woken.set()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Look whenever there may be work, until stopped."""
        failing = False
        wakeups = self._store.wakeups
        async with wakeups.woken(WORK, self.look), wakeups.woken(INTERRUPTS, self._look_for_interrupts):
            task_status.started()
            while not self._stopped:
                self._woken = anyio.Event()
                try:
                    await self.start_available()
                    failing = False
                except StoreUnavailableError as error:
                    if not failing:
                        logger.error("A worker cannot reach its store and will retry: %s", error)
                    failing = True
                except Exception:
                    if not failing:
                        logger.exception("A worker could not check for operations")
                    failing = True
                with anyio.move_on_after(AGAIN_SECONDS if failing else self._find_pause()):
                    await self._woken.wait()

    def _look_for_interrupts(self) -> None:
        """Look for operations that are to be interrupted, now."""
        self._interrupts_asked = True
        self._woken.set()

    def _find_pause(self) -> float:
        """Return the seconds until the next look, if nothing wakes the process before."""
        ends = min((self._lease_end + LEASE_MARGIN, *self._postponed_until.values()))
        return max(0.0, min(ends - monotonic(), math.inf if self._poll_seconds is None else self._poll_seconds))

    async def start_available(self) -> None:
        """Start every operation that can go on now."""
        now = monotonic()
        self._postponed_until = {name: until for name, until in self._postponed_until.items() if until > now}
        exclude = [*self.running, *self._postponed_until]
        if self._interrupts_asked:
            await self._start_interrupted()
        found, seconds = await self._store.find_work(self._agents, exclude=exclude, agent_versions=self._versions)
        for operation_id in found:
            if operation_id not in self.running and operation_id not in self._postponed_until:
                self._begin(operation_id)
        self._lease_end = math.inf if seconds is None else monotonic() + seconds

    async def _start_interrupted(self) -> None:
        """Start every operation that is to be interrupted and that no process runs, so that it ends."""
        self._ending &= self.running | self._postponed_until.keys()
        left_out = [*self.running, *self._ending]
        self._interrupts_asked = False
        try:
            for operation_id in await self._store.unattended_interrupts(self._agents, exclude=left_out):
                if operation_id not in self.running:
                    self._ending.add(operation_id)
                    self._begin(operation_id)
        except BaseException:
            self._interrupts_asked = True
            raise

    def _begin(self, operation_id: str) -> None:
        self.running.add(operation_id)
        self._start(operation_id)


class StoreEngine:
    """The default engine: a process runs what its store says that nobody runs.

    Whatever process serves the agent and looks first takes an operation. The lease of each process says whether it is
    alive. A `Worker` uses this engine unless it is given another.

    Args:
        store: The store that holds the operations.
        poll_seconds: Longest time, in seconds, between two queries for work. By default, a process queries when the
            store's `wakeups` wake it, when the lease of another process ends, and when it is time to try again.

    Raises:
        HookUsageError: If `poll_seconds` is not above 0.
    """

    def __init__(self, store: SqlStore, *, poll_seconds: float | None = None) -> None:
        if poll_seconds is not None and not poll_seconds > 0:
            raise HookUsageError(f"`poll_seconds` must be a number of seconds above 0; got {poll_seconds!r}.")
        self.store = store
        self._poll_seconds = poll_seconds
        self._watches: list[WorkWatch] = []

    async def begin(self, operation_id: str, *, agent_id: str, agent_version: str = "", queue: str = "") -> None:
        """Have a new operation run by the first process that takes it. There are no queues: `queue` means nothing."""
        await self.wake(operation_id)

    async def wake(self, operation_id: str, *, not_before: float | None = None) -> None:
        """Have an operation run again; see `Engine`. With `not_before`, other processes may do it earlier."""
        if not_before is not None and (seconds := not_before - time()) > 0:
            for watch in self._watches:
                watch.postpone(operation_id, seconds)
            return
        for watch in self._watches:
            watch.look(operation_id)
        self.store.wakeups.wake(WORK)

    def serve(
        self,
        agents: Collection[str],
        segment: Segment,
        *,
        concurrency: int,
        agent_versions: Collection[str] | None = None,
    ) -> AbstractAsyncContextManager[None]:
        """Run operations of the store in this process; see `Engine`."""
        return self._serve(agents, segment, concurrency, agent_versions)

    @asynccontextmanager
    async def _serve(
        self, agents: Collection[str], segment: Segment, concurrency: int, agent_versions: Collection[str] | None
    ) -> AsyncIterator[None]:
        limiter = anyio.CapacityLimiter(concurrency)
        stopping = False

        async def run(operation_id: str) -> None:
            try:
                async with limiter:
                    if not stopping:
                        await segment(operation_id)
            finally:
                watch.finish(operation_id)

        async with anyio.create_task_group() as group:
            watch = WorkWatch(
                self.store,
                agents,
                lambda operation_id: group.start_soon(run, operation_id),
                agent_versions=agent_versions,
                poll_seconds=self._poll_seconds,
            )
            self._watches.append(watch)
            try:
                await group.start(watch.run)
                yield
            finally:
                stopping = True
                self._watches.remove(watch)
                watch.stop()
