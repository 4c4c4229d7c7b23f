"""`Worker`: a process that goes on with the operations that nobody runs."""

from __future__ import annotations

import logging
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
from hookline.hooks import AnyHook, Hooks, hook_batch
from hookline.runtime import (
    Agent,
    Approve,
    OperationResult,
    Reject,
    hooks_of_child,
    let_go_when_cancelled,
    recover_agent,
    resume_agent,
)

if TYPE_CHECKING:
    from hookline.store._reading import StoredOperation
    from hookline.store._store import SqlStore

__all__ = ["Worker"]

logger = logging.getLogger("hookline")

LEFT_SECONDS = 60.0
"""For how long a worker leaves an operation to others that it could not go on with."""

HOOKS_SECONDS = 60.0
"""After how long a worker looks again at an operation that waits for hooks."""
DEEPEST = 100
"""Callers of a sub-agent that are looked at; whoever starts a run may name any operation as its parent."""


class Worker:
    """Goes on with operations of some agents: those whose process has died, and those that a person has decided about.

    Any number of workers may share a store; each operation is taken by one. `async with Worker(...)` works in the
    background until the block is left; operations that are under way then are ended first.

    An operation with interceptors that are missing here is left alone, with what was decided about it. The worker logs
    that at ERROR once, notes in the store what the operation waits for, and looks again after 60 seconds; a worker that
    has the hooks takes it at once.

    Args:
        store: Where the operations are kept.
        agents: The agents that this process can run.
        hooks: Hooks of every run, or a function of the tenant that gives them for each, such as `registry.hooks`. Each
            agent's own come first, and a sub-agent has those that the agents which called it hand on. Hooks that are
            data came with the operation.
        dispatcher: An open dispatcher to share; one of its own unless given.
        concurrency: Operations at a time.
        poll_seconds: How often it looks for work.
        allow_missing_hooks: Whether operations go on without interceptors that are missing, with a warning in the log.

    Raises:
        HookUsageError: If an argument makes no sense.
        HookDefinitionError: If a hook cannot work.
    """

    def __init__(
        self,
        store: SqlStore,
        agents: Iterable[Agent],
        *,
        hooks: Iterable[AnyHook] | Callable[[str], Iterable[AnyHook]] = (),
        dispatcher: HookDispatcher | None = None,
        concurrency: int = 8,
        poll_seconds: float = 0.5,
        allow_missing_hooks: bool = False,
    ) -> None:
        self._agents = _with_sub_agents(agents)
        if not self._agents or concurrency < 1 or not poll_seconds > 0:
            raise HookUsageError("A Worker has an agent, a `concurrency` from 1 and `poll_seconds` above 0.")
        self.store = store
        batch = () if callable(hooks) else hook_batch(hooks)
        self._hooks: Callable[[str], Iterable[AnyHook]] = hooks if callable(hooks) else lambda tenant_id: batch
        self._dispatcher = dispatcher
        self._limiter = anyio.CapacityLimiter(concurrency)
        self._poll_seconds = poll_seconds
        self._taken: set[str] = set()
        self._left: dict[str, float] = {}
        """What it could not go on with, and until when it leaves that to others."""
        self._allow_missing_hooks = allow_missing_hooks
        self._reported: set[str] = set()
        """Operations of which it has logged that their hooks are missing."""
        self._group: anyio.abc.TaskGroup | None = None
        self._stop = anyio.Event()

    async def __aenter__(self) -> Self:
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        group.start_soon(self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        self._stop.set()
        if error is not None:
            self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, error, trace)

    async def run(self) -> None:
        """Work until cancelled."""
        async with self:
            await anyio.sleep_forever()

    async def _look(self) -> None:
        """Look for work again and again."""
        failing = False
        while not self._stop.is_set():
            try:
                await self._take()
                failing = False
            except StoreUnavailableError as error:
                if not failing:
                    logger.error("A worker waits for its store: %s", error)
                failing = True
            except Exception:
                if not failing:
                    logger.exception("A worker could not look for work")
                failing = True
            with anyio.move_on_after(self._poll_seconds):
                await self._stop.wait()

    async def _take(self) -> None:
        """Take what nobody runs."""
        assert self._group is not None
        now = monotonic()
        self._left = {name: until for name, until in self._left.items() if until > now}
        exclude = [*self._taken, *self._left]
        for operation_id in await self.store.orphans(1000, agent_ids=list(self._agents), exclude=exclude):
            stored = await self.store.operation(operation_id)
            agent = self._agents.get(stored.agent_id) if stored is not None else None
            if agent is not None:
                self._begin(agent, operation_id, None)
        for state, found in await self.store.decided(list(self._agents), exclude=exclude):
            if state.operation_id not in self._taken and state.operation_id not in self._left:
                self._begin(self._agents[state.agent_id], state.operation_id, found)

    def _begin(self, agent: Agent, operation_id: str, found: Sequence[Approve | Reject] | None) -> None:
        assert self._group is not None
        self._taken.add(operation_id)
        self._group.start_soon(self._go_on, agent, operation_id, found)

    async def _go_on(self, agent: Agent, operation_id: str, found: Sequence[Approve | Reject] | None) -> None:
        """One operation."""
        try:
            async with self._limiter:
                if self._stop.is_set():
                    return
                let_go_when_cancelled.set(True)
                result = await self._segment(agent, operation_id, found)
                if result.error is not None:
                    # It may not have ended in the store. One that is back goes on at once with what it has.
                    lost = isinstance(result.error, StoreUnavailableError)
                    self._left[operation_id] = monotonic() + (self._poll_seconds if lost else LEFT_SECONDS)
                self._reported.discard(operation_id)
                if found is not None:
                    await self.store.forget_decisions(operation_id)
        except MissingHooksError as error:
            self._left[operation_id] = monotonic() + HOOKS_SECONDS
            if operation_id not in self._reported:
                self._reported.add(operation_id)
                logger.error("Operation %s waits for hooks: %s", operation_id, error)
        except OperationMismatchError as error:
            self._left[operation_id] = monotonic() + LEFT_SECONDS
            logger.info("A worker leaves operation %s alone for %g s: %s", operation_id, LEFT_SECONDS, error)
        except (OperationError, StoreUnavailableError) as error:
            logger.info("A worker leaves operation %s alone: %s", operation_id, error)  # another one was faster
        except Exception:
            self._left[operation_id] = monotonic() + LEFT_SECONDS
            logger.exception(
                "A worker cannot go on with operation %s, and leaves it to others for %g s", operation_id, LEFT_SECONDS
            )
        finally:
            self._taken.discard(operation_id)

    async def _segment(
        self, agent: Agent, operation_id: str, found: Sequence[Approve | Reject] | None
    ) -> OperationResult:
        stored = await self.store.operation(operation_id)
        if stored is None:
            raise OperationNotFoundError(operation_id)
        given = list(self._hooks(stored.tenant_id))
        hooks = [*(entry for entry in await self._inherited(stored, agent) if entry not in given), *given]
        try:
            if found is None:
                return await recover_agent(
                    agent,
                    operation_id,
                    store=self.store,
                    hooks=hooks,
                    dispatcher=self._dispatcher,
                    abandon=await self._was_given_up(operation_id),
                    allow_missing_hooks=self._allow_missing_hooks,
                )
            return await resume_agent(
                agent,
                operation_id,
                found,
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

    async def _inherited(self, stored: StoredOperation, agent: Agent) -> list[AnyHook]:
        """The hooks that the agents which called an operation as a sub-agent hand on to it."""
        callers: list[Agent] = []
        parent, callee = stored.parent_operation_id, agent
        while parent is not None and len(callers) < DEEPEST:
            calling = await self.store.operation(parent)
            caller = self._agents.get(calling.agent_id) if calling is not None else None
            if calling is None or caller is None or all(each.id != callee.id for each in caller.sub_agents):
                break  # who only named it as the parent hands on nothing
            callers.append(caller)
            parent, callee = calling.parent_operation_id, caller
        found: list[AnyHook] = []
        for caller in reversed(callers):
            found = [entry for entry in hooks_of_child(found, caller) if isinstance(entry, Hooks) and entry.inherit]
        return [entry for entry in found if entry not in agent.hooks]

    async def _was_given_up(self, operation_id: str) -> bool:
        """Whether it is a sub-agent whose caller has ended, and was told that it failed."""
        state = await self.store.load(operation_id)
        if state is None or state.parent_operation_id is None:
            return False
        parent = await self.store.operation(state.parent_operation_id)
        return parent is not None and parent.status != "running"


def _with_sub_agents(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Agents by their ids, those first that were given: a sub-agent may be left without the run that called it."""
    found: dict[str, Agent] = {}
    level = list(agents)
    while level:
        for agent in level:
            found.setdefault(agent.id, agent)
        level = [each for agent in level for each in agent.sub_agents if each.id not in found]
    return found
