"""Begin an operation on an engine, and wait for it wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hookline._checks import quote
from hookline.errors import HookUsageError, OperationExistsError, StaleStateError
from hookline.hooks import AnyHook, Hook, Hooks, hooks_for_store, select_hooks
from hookline.runtime._agent import Agent
from hookline.runtime._engine import Engine
from hookline.runtime._hooks_at_resume import all_interceptor_keys
from hookline.runtime._recovery import stored_result
from hookline.runtime._run import find_hearers
from hookline.runtime._state import DurableStore, OperationResult, OperationState, OperationStore

__all__ = ["check_engine_arguments", "exec_on_engine"]


def check_engine_arguments(engine: object, store: OperationStore | None, **here: object) -> None:
    """Refuse what an operation that may run in another process cannot have.

    Args:
        engine: The engine.
        store: The store of the operation.
        here: Arguments that only a run of this process can have, by name.

    Raises:
        HookUsageError: For the first such argument.
    """
    if not isinstance(engine, Engine):
        raise HookUsageError(
            f"`engine` must have `begin`, `wake` and `serve`, as StoreEngine has; got {quote(engine)}."
        )
    if not isinstance(store, DurableStore):
        raise HookUsageError(
            f"A run with an `engine` needs a durable store, such as SqlStore, in `store=`; got {quote(store)}."
        )
    for name, value in here.items():
        if value is not None:
            raise HookUsageError(
                f"`{name}` cannot be given with an `engine`, since another process may run the operation. Leave it "
                "out, or leave `engine` out to run the operation here."
            )


async def exec_on_engine(
    agent: Agent, state: OperationState, hooks: Sequence[AnyHook], store: DurableStore, engine: Engine, queue: str
) -> OperationResult:
    """Store the first state of an operation, have an engine run it, and wait until it ends or pauses.

    Args:
        agent: The agent.
        state: The first state.
        hooks: Hooks that are data; they travel with the state.
        store: The store.
        engine: The engine.
        queue: The queue of the engine.

    Returns:
        The result, as far as the store knows it.
    """
    hooks = hooks_for_store(hooks, store)
    for entry in hooks:
        if isinstance(entry, Hooks) and entry.hearer and not entry.interceptors:
            continue
        if not isinstance(entry, Hook) or entry.handler is not None:
            raise HookUsageError(
                f"{quote(entry)} cannot be given with an `engine`, since functions do not travel to the process that "
                "runs the operation. Give it to the Worker or to the agent; only remote observers and a Hook with a "
                "webhook alone can be given here."
            )
    data = [data for entry in hooks if isinstance(entry, Hook) and (data := entry.data()) is not None]
    first = msgspec.structs.replace(
        state,
        hooks=data,
        interceptors=all_interceptor_keys(state, agent.hooks),
        hearers=find_hearers(state, select_hooks(hooks, state.operation_id, [state.agent_id], state.tags or ()))
        or msgspec.UNSET,
    )
    try:
        await store.commit(first, expected_version=None, entries=())
    except StaleStateError:
        raise OperationExistsError(first.operation_id) from None
    # If this process dies here, its lease ends, and whoever serves the agent finds the operation in the store.
    await store.release(first.operation_id)
    await engine.begin(first.operation_id, agent_id=first.agent_id, agent_version=first.agent_version, queue=queue)
    stopped = await store.wait_until_stopped(first.operation_id)
    assert stopped.status != "running"
    return stored_result(stopped, stopped.status)
