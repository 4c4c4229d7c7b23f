"""`Worker`: resume operations whose process has died, and paused operations that a person has decided about."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from time import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from hookline._checks import quote
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
    Engine,
    OperationResult,
    Reject,
    hooks_of_child,
    inherited_hooks,
    let_go_when_cancelled,
    recover_agent,
    resume_agent,
)
from hookline.store._engine import StoreEngine
from hookline.store._reading import LIVE

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
MOST_REPORTED = 10_000
"""Operations of which a worker remembers that it logged their missing hooks; then it forgets all."""
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
        engine: Says which process runs an operation, and when; by default a `StoreEngine` of the store.
        agent_versions: The versions of the agents that this process can run. An operation that was begun with another
            `agent_version` is left to other workers; one without a version is run by all. `None` for all versions.

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
        engine: Engine | None = None,
        agent_versions: Iterable[str] | None = None,
    ) -> None:
        self._agents = _collect_agents(agents)
        if not self._agents or concurrency < 1 or (poll_seconds is not None and not poll_seconds > 0):
            raise HookUsageError(
                "A Worker needs at least one agent, a `concurrency` of 1 or more, and `poll_seconds` above 0."
            )
        if engine is not None and not isinstance(engine, Engine):
            raise HookUsageError(
                f"`engine` must have `begin`, `wake` and `serve`, as StoreEngine has; got {quote(engine)}."
            )
        if engine is not None and poll_seconds is not None:
            raise HookUsageError("`poll_seconds` is for the default engine: give it to the engine, not to the Worker.")
        self._agent_versions = None if agent_versions is None else _check_versions(agent_versions)
        self.store = store
        batch = () if callable(hooks) else hook_batch(hooks)
        self._hooks: Callable[[str], Iterable[AnyHook]] = hooks if callable(hooks) else lambda tenant_id: batch
        self._dispatcher = dispatcher
        self._concurrency = concurrency
        self._engine: Engine = StoreEngine(store, poll_seconds=poll_seconds) if engine is None else engine
        self._allow_missing_hooks = allow_missing_hooks
        self._reported: dict[str, int] = {}
        """Operations whose missing hooks were logged, and the version of their state at that time."""
        self._serving: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Self:
        self._serving = self._engine.serve(
            list(self._agents),
            self._continue_operation,
            concurrency=self._concurrency,
            agent_versions=self._agent_versions,
        )
        await self._serving.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._serving is not None
        return await self._serving.__aexit__(kind, error, trace)

    async def run(self) -> None:
        """Resume operations until cancelled."""
        async with self:
            await anyio.sleep_forever()

    async def _continue_operation(self, operation_id: str) -> None:
        """Run a segment of an operation, and decide what its failure means."""
        let_go_when_cancelled.set(True)
        again: float | None = None
        try:
            result = await self._run_segment(operation_id)
            if result is not None and result.error is not None:
                # The operation may not have ended in the store. After an outage, try again soon.
                again = AGAIN_SECONDS if isinstance(result.error, StoreUnavailableError) else RETRY_SECONDS
            self._reported.pop(operation_id, None)
        except MissingHooksError:
            again = HOOKS_SECONDS  # it was logged
        except OperationMismatchError as error:
            again = RETRY_SECONDS
            logger.info("A worker will retry operation %s in %g s: %s", operation_id, RETRY_SECONDS, error)
        except (OperationError, StoreUnavailableError) as error:
            again = AGAIN_SECONDS
            logger.info("A worker skips operation %s: %s", operation_id, error)  # another worker was faster
        except Exception:
            again = RETRY_SECONDS
            logger.exception(
                "A worker could not resume operation %s and will retry in %g s; other workers may resume it sooner",
                operation_id,
                RETRY_SECONDS,
            )
        if again is not None:
            await self._engine.wake(operation_id, not_before=time() + again)

    async def _run_segment(self, operation_id: str) -> OperationResult | None:
        """Run what an operation needs now: the rest after a pause, the rest of a dead process, or its end.

        Returns:
            The result; `None` if it has ended, or waits for decisions.
        """
        stored = await self.store.operation(operation_id)
        if stored is None:
            raise OperationNotFoundError(operation_id)
        agent = self._agents.get(stored.agent_id)
        if agent is None or not self._serves_version(stored.agent_version):
            return None  # an engine has called it although this process does not serve it; another one will run it
        if stored.status not in LIVE:
            return None
        interrupted = stored.interrupt_asked_at is not None
        decisions: Sequence[Approve | Reject] | None = None
        if stored.status == "waiting_for_human" and not interrupted:
            decisions = await self.store.ready_decisions(operation_id)
            if not decisions:
                return None
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
                    abandon=interrupted or await self._is_abandoned_child(stored),
                    allow_missing_hooks=self._allow_missing_hooks,
                )
            result = await resume_agent(
                agent,
                operation_id,
                decisions,
                store=self.store,
                hooks=hooks,
                dispatcher=self._dispatcher,
                allow_missing_hooks=self._allow_missing_hooks,
            )
            await self.store.forget_decisions(operation_id)
            return result
        except MissingHooksError as error:
            await self._report_missing_hooks(stored, error)
            raise

    async def _report_missing_hooks(self, stored: StoredOperation, error: MissingHooksError) -> None:
        """Log once which hooks an operation waits for, and record it in the store."""
        ids = [hook_id for hook_id, _, _ in error.missing]
        if ids != stored.missing_hooks:
            await self.store.note_missing_hooks(stored.operation_id, ids, version=stored.version)
        if self._reported.get(stored.operation_id) != stored.version:
            if len(self._reported) >= MOST_REPORTED:
                self._reported.clear()
            self._reported[stored.operation_id] = stored.version
            logger.error("Operation %s waits for hooks: %s", stored.operation_id, error)

    def _serves_version(self, version: str) -> bool:
        """Return whether this process can run an operation with this version of its agent."""
        return not version or self._agent_versions is None or version in self._agent_versions

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


def _check_versions(versions: Iterable[str]) -> list[str]:
    """Return the versions of agents that a worker was given, as a list."""
    found = [] if isinstance(versions, str) else list(versions)
    if isinstance(versions, str) or not all(isinstance(each, str) for each in found):
        raise HookUsageError(f"`agent_versions` is a list of strings, or None for all; got {quote(versions)}.")
    return found


def _collect_agents(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Collect agents and their sub-agents by id, since a sub-agent's operation may have lost its parent run."""
    found: dict[str, Agent] = {}
    level = list(agents)
    while level:
        for agent in level:
            found.setdefault(agent.id, agent)
        level = [each for agent in level for each in agent.sub_agents if each.id not in found]
    return found
