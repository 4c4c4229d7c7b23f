"""`wrap`: add hooks to a loop of your own."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook
from hookline.loop._async import LoopRun
from hookline.loop._binding import DRIVES, Decide
from hookline.loop._client import check_client
from hookline.loop._names import AnyTools, collect_tools
from hookline.loop._run import RunBase
from hookline.loop._sync import SyncLoopRun
from hookline.runtime import AdapterRun, OperationStore

__all__ = ["wrap"]


class WrapOptions(TypedDict, total=False):
    """The keyword arguments of `wrap`."""

    hooks: Iterable[AnyHook]
    tools: AnyTools
    ask: Decide | None
    agent_id: str
    operation_id: str | None
    user_id: str
    tenant_id: str
    tags: Collection[str]
    parent: RunBase[Any] | AdapterRun | None
    conversation_id: str | None
    dispatcher: HookDispatcher | None
    store: OperationStore | None
    drain_timeout: float
    best_effort: bool
    allow_missing_hooks: bool


class AsyncClient(Protocol):
    """An async client, as a type checker knows it."""

    def close(self) -> Coroutine[Any, Any, None]: ...


class SyncClient(Protocol):
    """A sync client, as a type checker knows it."""

    def close(self) -> None: ...


A = TypeVar("A", bound=AsyncClient)
S = TypeVar("S", bound=SyncClient)


@overload
def wrap(client: A, **options: Unpack[WrapOptions]) -> LoopRun[A]: ...
@overload
def wrap(client: S, **options: Unpack[WrapOptions]) -> SyncLoopRun[S]: ...
def wrap(
    client: Any,
    *,
    hooks: Iterable[AnyHook] = (),
    tools: AnyTools = (),
    ask: Decide | None = None,
    agent_id: str = "agent",
    operation_id: str | None = None,
    user_id: str = "",
    tenant_id: str = "",
    tags: Collection[str] = (),
    parent: RunBase[Any] | AdapterRun | None = None,
    conversation_id: str | None = None,
    dispatcher: HookDispatcher | None = None,
    store: OperationStore | None = None,
    drain_timeout: float = 5.0,
    best_effort: bool = False,
    allow_missing_hooks: bool = False,
) -> Any:
    """Add hooks to a loop of your own on a client of OpenAI or Anthropic.

    The block around the loop is the run: `async with wrap(AsyncOpenAI(), hooks=[hooks], tools=[search]) as run:`, or
    `with` for a sync client. In the block, call the model with `run.client`, and its tools with `run.call_tools`.

    Args:
        client: The client, such as `AsyncOpenAI()` or `Anthropic()`. It is not changed.
        hooks: The hooks of this run.
        tools: The tools that the model may call: functions and `Tool`s, or a mapping from names to them. In a sync run
            plain functions run in the caller's thread.
        ask: Asks a person about a tool call that needs one: a function, plain or async, that takes the `PendingTool`
            and returns an `Approve` or a `Reject`. Without it, such a call pauses the run and raises `RunPaused`.
        agent_id: The agent's name in events.
        operation_id: Id of the run; a new one unless given. An operation that waits for a person is resumed.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        tags: The tags of the operation, in addition to those of the `parent`; see `exec_agent`.
        parent: The run that called this one as a sub-agent.
        conversation_id: The session that the run belongs to.
        dispatcher: An open dispatcher to share; the parent's, or a new one, unless given.
        store: Where the operation is kept while it waits for a person.
        drain_timeout: Seconds that queued observers may take at the end.
        best_effort: Whether hooks of `AgentCall`, which a loop does not support, are only logged, instead of refused.
        allow_missing_hooks: Whether a paused operation may be resumed without interceptors that it had before.

    Returns:
        The run, to be used in a `with` or `async with` block.

    Raises:
        HookUsageError: If the client or the tools cannot be wrapped.
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
    """
    kind = check_client(client)
    names = collect_tools(tools)
    if ask is not None and not callable(ask):
        raise HookUsageError(
            f"`ask` is a function that takes a PendingTool and returns an Approve or a Reject; got {ask!r}."
        )
    adapter = AdapterRun(
        hooks,
        DRIVES,
        agent_id=agent_id,
        provider=kind.provider,
        operation_id=operation_id,
        user_id=user_id,
        tenant_id=tenant_id,
        tags=tags,
        parent=parent._adapter if isinstance(parent, RunBase) else parent,
        conversation_id=conversation_id,
        dispatcher=dispatcher,
        store=store,
        drain_timeout=drain_timeout,
        best_effort=best_effort,
        allow_missing_hooks=allow_missing_hooks,
    )
    made = LoopRun if kind.is_async else SyncLoopRun
    return made(client, adapter, names, ask)
