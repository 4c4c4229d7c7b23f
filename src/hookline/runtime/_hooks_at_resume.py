"""Compare the interceptors that a resume gives with those that its operation was started with."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from hookline.calls import ToolRequest
from hookline.errors import MissingHooksError
from hookline.hooks import AnyHook, Hooks, Interceptor
from hookline.runtime._agent import AGENT_IDENTIFIER, Agent
from hookline.runtime._inherited_hooks import hooks_of_child
from hookline.runtime._state import InterceptorKey, OperationState, OperationStore

__all__ = [
    "all_interceptor_keys",
    "check_hooks",
    "check_interceptors",
    "interceptor_keys",
]

logger = logging.getLogger("hookline")


def interceptor_keys(hooks: Iterable[AnyHook], tenant_id: str) -> list[InterceptorKey]:
    """List the interceptors that judge the calls of a run, in the order in which they were given.

    Hooks of stored definitions are left out: those in force at a resume hold. So are interceptors of other tenants,
    which never run, shadow hooks, which decide nothing, and hooks that are data, which travel with the state.

    Args:
        hooks: What the run was given.
        tenant_id: For whom it runs.
    """
    keys: list[InterceptorKey] = []
    for entry in hooks:
        if isinstance(entry, Interceptor):
            keys += _keys_of((entry,), tenant_id)
        elif isinstance(entry, Hooks) and entry.interceptors and not entry.from_definition:
            # Kept with the bundle, as its chain is: a run lists them before its first step.
            kept = entry._keys
            if kept is None or kept[0] is not entry.interceptors or kept[1] != tenant_id:
                kept = entry._keys = (entry.interceptors, tenant_id, _keys_of(entry.interceptors, tenant_id))
            keys += kept[2]
    return keys


def _keys_of(interceptors: Iterable[Interceptor], tenant_id: str) -> list[InterceptorKey]:
    return [
        InterceptorKey(hook.id, hook.kind, hook.call.__name__)
        for hook in interceptors
        if hook.tenant_id in ("", tenant_id) and not hook.shadow
    ]


def all_interceptor_keys(state: OperationState, hooks: Iterable[AnyHook]) -> list[InterceptorKey]:
    """List the interceptors that belong to an operation from now on: those that it had, and those given now.

    Args:
        state: The operation as it is stored.
        hooks: What its next segment is given. A hook that is missing there stays in the list.
    """
    given = interceptor_keys(hooks, state.tenant_id)
    if not state.interceptors:
        return given
    added = Counter(given) - Counter(state.interceptors)
    return [*state.interceptors, *added.elements()]


def check_interceptors(state: OperationState, hooks: Iterable[AnyHook], *, allow_missing: bool) -> None:
    """Refuse to continue an operation without interceptors that it was started with.

    Args:
        state: The operation as it is stored.
        hooks: What its next segment is given.
        allow_missing: Go on without them, with a warning in the log.

    Raises:
        MissingHooksError: If one is missing; two of one id, kind and call are two.
    """
    if state.interceptors is None:
        logger.warning(
            "Operation %s was stored by a version of hookline that did not list its interceptors. It continues, but "
            "missing interceptors are not detected.",
            state.operation_id,
        )
        return
    missing = Counter(state.interceptors) - Counter(interceptor_keys(hooks, state.tenant_id))
    if not missing:
        return
    error = MissingHooksError(state.operation_id, list(missing.elements()))
    if allow_missing is not True:  # such as the text "false" of a configuration
        raise error
    logger.warning(
        "Operation %s continues without interceptors that it was started with, since allow_missing_hooks=True: %s",
        state.operation_id,
        error.names,
    )


async def check_hooks(
    agent: Agent, state: OperationState, hooks: Sequence[AnyHook], store: OperationStore, *, allow_missing: bool
) -> None:
    """Check an operation like `check_interceptors`, and its sub-agents that continue with it.

    Args:
        agent: The agent that continues it.
        state: The operation as it is stored.
        hooks: What its next segment is given.
        store: Where its sub-agents are kept.
        allow_missing: Go on without missing ones, with a warning in the log.

    Raises:
        MissingHooksError: If an interceptor of it, or of a sub-agent that is under way, is missing.
    """
    check_interceptors(state, hooks, allow_missing=allow_missing)
    for begun in state.begun.values():
        child = None if begun.child is None else await store.load(begun.child)
        if child is None or child.status != "running":
            continue
        callee = agent.find(ToolRequest(toolset=AGENT_IDENTIFIER, tool_name=begun.call.tool_name, tool_call_id=""))
        if isinstance(callee, Agent):
            await check_hooks(callee, child, hooks_of_child(hooks, callee), store, allow_missing=allow_missing)
