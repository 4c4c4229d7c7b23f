"""`Worker`: resume operations whose process has died, and paused operations that a person has decided about."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.abc

from hookline.dispatcher import HookDispatcher
from hookline.errors import (
    HookUsageError,
    MissingHooksError,
    OperationError,
    OperationMismatchError,
    OperationNotFoundError,
    StoreUnavailableError,
)
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import (
    Agent,
    Approve,
    OperationResult,
    Reject,
    hooks_of_child,
    inherited_hooks,
    let_go_when_cancelled,
    recover_agent,
    resume_agent,
)
from hookline.store._topics import INTERRUPTS, WORK

if TYPE_CHECKING:
    from hookline.store._reading import StoredOperation
    from hookline.store._store import SqlStore

__all__ = ["Worker"]

logger = logging.getLogger("hookline")

RETRY_SECONDS = 60.0
"""Seconds until a worker tries again to resume an operation that it could not resume; others may try meanwhile."""

HOOKS_SECONDS = 60.0
"""Seconds until a worker tries again to resume an operation that waits for hooks."""
AGAIN_SECONDS = 0.5
"""Seconds until a worker tries again what failed because of the database, or since another one was faster."""
LEASE_MARGIN = 0.05
"""Seconds after the end of a lease after which a worker looks, since the two clocks do not run exactly alike."""
MOST_CALLERS = 100
"""Ancestors of a sub-agent that are looked at, at most: a run may name any operation as its parent, even in a loop."""


class Worker:
    """Resumes operations whose process has died, and paused operations that a person has decided about.

    Any number of workers may share a store; each operation is taken by one of them. `async with Worker(...)` works in
    the background until the block is left, and then waits for the operations that are running.

    An operation whose interceptors are missing here is left alone, and its decisions are kept. The worker logs this
    once, at ERROR, records in the store which hooks the operation waits for, and tries again after 60 seconds; a worker
    that has the hooks takes the operation at once.

    Args:
        store: The store that holds the operations.
        agents: The agents that this process can run.
        hooks: Hooks of every run, or a function that returns them for a tenant, such as `registry.hooks`. Each agent's
            own hooks come first, and a sub-agent inherits the hooks that its callers pass on. Hooks that are data are
            stored with the operation.
        dispatcher: An open dispatcher to share; one for each run by default.
        concurrency: Number of operations that run at a time.
        poll_seconds: Longest time, in seconds, between two queries for work. By default, a worker queries when the
            store's `wakeups` wake it, when the lease of another process ends, and when it is time to try again.
        allow_missing_hooks: Whether to resume operations without their missing interceptors, with a warning in the log.

    Raises:
        HookUsageError: If an argument is invalid.
        HookDefinitionError: If a hook is invalid.
    """

    def __init__(
        self,
        store: SqlStore,
        agents: Iterable[Agent],
        *,
        hooks: Iterable[AnyHook] | Callable[[str], Iterable[AnyHook]] = (),
        dispatcher: HookDispatcher | None = None,
        concurrency: int = 8,
        poll_seconds: float | None = None,
        allow_missing_hooks: bool = False,
    ) -> None:
        self._agents = _collect_agents(agents)
        if not self._agents or concurrency < 1 or (poll_seconds is not None and not poll_seconds > 0):
            raise HookUsageError(
                "A Worker needs at least one agent, a `concurrency` of 1 or more, and `poll_seconds` above 0."
            )
        self.store = store
        batch = () if callable(hooks) else hook_batch(hooks)
        self._hooks: Callable[[str], Iterable[AnyHook]] = hooks if callable(hooks) else lambda tenant_id: batch
        self._dispatcher = dispatcher
        self._limiter = anyio.CapacityLimiter(concurrency)
        self._poll_seconds = poll_seconds
        self._woken = anyio.Event()
        self._lease_end = math.inf
        """When (by `monotonic`) the first lease of another process ends, unless it is renewed before."""
        self._running: set[str] = set()
        self._postponed_until: dict[str, float] = {}
        """Operations that could not be resumed, and when (by `monotonic`) to try again."""
        self._allow_missing_hooks = allow_missing_hooks
        self._reported: set[str] = set()
        """Operations whose missing hooks were logged already."""
        self._interrupts_asked = True
        """Whether somebody may have asked for the interruption of operations since the last query for them."""
        self._group: anyio.abc.TaskGroup | None = None
        self._stop = anyio.Event()

    async def __aenter__(self) -> Self:
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        await group.start(self._poll)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        self._stop.set()
        self._woken.set()
        if error is not None:
            self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, error, trace)

    async def run(self) -> None:
        """Resume operations until cancelled."""
        async with self:
            await anyio.sleep_forever()

    async def _poll(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Look for operations to resume whenever there may be some, until stopped."""
        failing = False
        wakeups = self.store.wakeups
        async with wakeups.woken(WORK, self._look), wakeups.woken(INTERRUPTS, self._look_for_interrupts):
            task_status.started()
            while not self._stop.is_set():
                self._woken = anyio.Event()
                try:
                    await self._start_available()
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

    def _look(self) -> None:
        """Look for operations now."""
        self._woken.set()

    def _look_for_interrupts(self) -> None:
        """Look for operations that are to be interrupted, now."""
        self._interrupts_asked = True
        self._woken.set()

    def _find_pause(self) -> float:
        """Return the seconds until the next look, if nothing wakes the worker before."""
        ends = min((self._lease_end + LEASE_MARGIN, *self._postponed_until.values()))
        return max(0.0, min(ends - monotonic(), math.inf if self._poll_seconds is None else self._poll_seconds))

    async def _start_available(self) -> None:
        """Start every operation that can be resumed now."""
        assert self._group is not None
        now = monotonic()
        again = {name for name, until in self._postponed_until.items() if until <= now}
        self._postponed_until = {name: until for name, until in self._postponed_until.items() if until > now}
        exclude = [*self._running, *self._postponed_until]
        if self._interrupts_asked:
            await self._start_interrupted()
        for state, decisions in await self.store.decided(list(self._agents), exclude=exclude):
            if state.operation_id not in self._running and state.operation_id not in self._postponed_until:
                self._start(self._agents[state.agent_id], state.operation_id, decisions)
        for operation_id in await self.store.orphans(1000, agent_ids=list(self._agents), exclude=exclude):
            stored = await self.store.operation(operation_id)
            agent = self._agents.get(stored.agent_id) if stored is not None else None
            if agent is not None and operation_id not in self._running:
                self._start(agent, operation_id, None)
        self._reported -= again - self._running  # somebody else has continued them
        seconds = await self.store.next_lease_end()
        self._lease_end = math.inf if seconds is None else monotonic() + seconds

    async def _start_interrupted(self) -> None:
        """End every operation that is to be interrupted and that no process runs."""
        # An operation that waits for hooks can be ended without them.
        left_out = [*self._running, *(each for each in self._postponed_until if each not in self._reported)]
        self._interrupts_asked = False
        try:
            found = await self.store.unattended_interrupts(list(self._agents), exclude=left_out)
            for operation_id in found:
                stored = await self.store.operation(operation_id)
                agent = self._agents.get(stored.agent_id) if stored is not None else None
                if agent is not None and operation_id not in self._running:
                    self._reported.discard(operation_id)
                    self._start(agent, operation_id, None)
        except BaseException:
            self._interrupts_asked = True
            raise

    def _start(self, agent: Agent, operation_id: str, decisions: Sequence[Approve | Reject] | None) -> None:
        assert self._group is not None
        self._running.add(operation_id)
        self._group.start_soon(self._continue_operation, agent, operation_id, decisions)

    async def _continue_operation(
        self, agent: Agent, operation_id: str, decisions: Sequence[Approve | Reject] | None
    ) -> None:
        """Resume one operation, and decide what its failure means."""
        try:
            async with self._limiter:
                if self._stop.is_set():
                    return
                let_go_when_cancelled.set(True)
                result = await self._run_segment(agent, operation_id, decisions)
                if result.error is not None:
                    # The operation may not have ended in the store. After an outage, try again soon.
                    lost = isinstance(result.error, StoreUnavailableError)
                    self._postponed_until[operation_id] = monotonic() + (AGAIN_SECONDS if lost else RETRY_SECONDS)
                self._reported.discard(operation_id)
                if decisions is not None:
                    await self.store.forget_decisions(operation_id)
        except MissingHooksError as error:
            self._postponed_until[operation_id] = monotonic() + HOOKS_SECONDS
            if operation_id not in self._reported:
                self._reported.add(operation_id)
                logger.error("Operation %s waits for hooks: %s", operation_id, error)
        except OperationMismatchError as error:
            self._postponed_until[operation_id] = monotonic() + RETRY_SECONDS
            logger.info("A worker will retry operation %s in %g s: %s", operation_id, RETRY_SECONDS, error)
        except (OperationError, StoreUnavailableError) as error:
            self._postponed_until[operation_id] = monotonic() + AGAIN_SECONDS
            logger.info("A worker skips operation %s: %s", operation_id, error)  # another worker was faster
        except Exception:
            self._postponed_until[operation_id] = monotonic() + RETRY_SECONDS
            logger.exception(
                "A worker could not resume operation %s and will retry in %g s; other workers may resume it sooner",
                operation_id,
                RETRY_SECONDS,
            )
        finally:
            self._running.discard(operation_id)
            self._interrupts_asked = True
            self._look()  # it may have been decided, or released a sub-agent's operation, while it was left out

    async def _run_segment(
        self, agent: Agent, operation_id: str, decisions: Sequence[Approve | Reject] | None
    ) -> OperationResult:
        stored = await self.store.operation(operation_id)
        if stored is None:
            raise OperationNotFoundError(operation_id)
        given = list(self._hooks(stored.tenant_id))
        hooks = [*(entry for entry in await self._find_inherited_hooks(stored, agent) if entry not in given), *given]
        try:
            if decisions is None:
                return await recover_agent(
                    agent,
                    operation_id,
                    store=self.store,
                    hooks=hooks,
                    dispatcher=self._dispatcher,
                    abandon=stored.interrupt_asked_at is not None or await self._is_abandoned_child(stored),
                    allow_missing_hooks=self._allow_missing_hooks,
                )
            return await resume_agent(
                agent,
                operation_id,
                decisions,
                store=self.store,
                hooks=hooks,
                dispatcher=self._dispatcher,
                allow_missing_hooks=self._allow_missing_hooks,
            )
        except MissingHooksError as error:
            ids = [hook_id for hook_id, _, _ in error.missing]
            if ids != stored.missing_hooks:
                await self.store.note_missing_hooks(operation_id, ids, version=stored.version)
            raise

    async def _find_inherited_hooks(self, stored: StoredOperation, agent: Agent) -> list[AnyHook]:
        """Find the hooks that a sub-agent's operation inherits from the agents that called it."""
        callers: list[Agent] = []
        parent, callee = stored.parent_operation_id, agent
        while parent is not None and len(callers) < MOST_CALLERS:
            calling = await self.store.operation(parent)
            caller = self._agents.get(calling.agent_id) if calling is not None else None
            if calling is None or caller is None or all(each.id != callee.id for each in caller.sub_agents):
                break  # the operation merely named it as its parent, and inherits nothing from it
            callers.append(caller)
            parent, callee = calling.parent_operation_id, caller
        found: list[AnyHook] = []
        for caller in reversed(callers):
            found = inherited_hooks(hooks_of_child(found, caller))
        return [entry for entry in found if entry not in agent.hooks]

    async def _is_abandoned_child(self, stored: StoredOperation) -> bool:
        """Return whether an operation is a sub-agent's whose parent has ended without it."""
        if stored.parent_operation_id is None:
            return False
        parent = await self.store.operation(stored.parent_operation_id)
        return parent is not None and parent.status != "running"


def _collect_agents(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Collect agents and their sub-agents by id, since a sub-agent's operation may have lost its parent run."""
    found: dict[str, Agent] = {}
    level = list(agents)
    while level:
        for agent in level:
            found.setdefault(agent.id, agent)
        level = [each for agent in level for each in agent.sub_agents if each.id not in found]
    return found
