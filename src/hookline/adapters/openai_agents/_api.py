"""Hooks in runs of the OpenAI Agents SDK: `HooklineRunner` takes the place of `Runner`.

Agents, tools, models, sessions and states are not changed and may be shared by concurrent runs. The patched functions
of the SDK find their run in a context variable; see `_patches`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Unpack

import anyio

from hookline.adapters._attaching import (
    decisions_by_call,
    mark_paused,
    needs_operation,
    operations_are_watched,
    paused_operation,
)
from hookline.dispatcher import HookDispatcher
from hookline.errors import MissingExtraError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import AdapterRun, Approve, OperationStore, Reject

try:
    from agents import Agent, RunResult, RunResultStreaming, RunState
    from agents.run import AgentRunner, RunOptions

    from hookline.adapters.openai_agents._conversion import call_id_of
    from hookline.adapters.openai_agents._models import model_name, wrap_get_model
    from hookline.adapters.openai_agents._patches import install, original
    from hookline.adapters.openai_agents._run_binding import (
        DRIVES,
        OpenAIBinding,
        OpenAIRunStopped,
        mark_stopping,
        present_binding,
    )
    from hookline.adapters.openai_agents._runs import Input, StreamFailedError, end_stream, run_agent, stream_agent
    from hookline.adapters.openai_agents._sessions import wrap_call_session
    from hookline.adapters.openai_agents._tools import wrap_execute_handoffs, wrap_invoke_tool
except ImportError as error:
    raise MissingExtraError("openai-agents", "The adapter of the OpenAI Agents SDK") from error

__all__ = ["DRIVES", "HooklineRunner", "OpenAIRunStopped", "answers"]


class HooklineRunner(AgentRunner):
    """Replaces the SDK's `Runner`: runs agents with hooks in each run.

    `run`, `run_sync` and `run_streamed` take and return what the methods of `Runner` do; the SDK's own `hooks=` still
    work. One runner may run many agents concurrently. A run without hooks is not an operation, unless others could
    notice it.

    Args:
        hooks: The hooks of each run.
        operation_id: Id of the run; a new one unless given. Pass the same id to a run that pauses for a person and to
            the run that resumes it, so that both are one operation.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        tags: The tags of the operation, in addition to those of the run that calls it; see `exec_agent`.
        dispatcher: An open dispatcher to share; each run has one of its own unless given.
        store: Where an operation is kept while it waits for a person.
        drain_timeout: Seconds that queued observers may take at the end.
        best_effort: Whether hooks that the SDK does not support are only logged, instead of refused.
        allow_missing_hooks: Whether a paused operation may be resumed without interceptors that it had before; a
            warning is logged.

    Raises:
        HookUsageError: If the installed SDK differs from what this adapter supports.
    """

    def __init__(
        self,
        hooks: Iterable[AnyHook] = (),
        *,
        operation_id: str | None = None,
        user_id: str = "",
        tenant_id: str = "",
        tags: Collection[str] = (),
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        drain_timeout: float = 5.0,
        best_effort: bool = False,
        allow_missing_hooks: bool = False,
    ) -> None:
        install(WRAPPERS)
        self._hooks = hook_batch(hooks)
        self._options: dict[str, Any] = {
            "operation_id": operation_id,
            "user_id": user_id,
            "tenant_id": tenant_id,
            "tags": tags,
            "dispatcher": dispatcher,
            "store": store,
            "drain_timeout": drain_timeout,
            "best_effort": best_effort,
            "allow_missing_hooks": allow_missing_hooks,
        }
        self._needs_operation = bool(self._hooks) or needs_operation(self._hooks, self._options)

    def __repr__(self) -> str:
        return f"HooklineRunner({list(self._hooks)!r})"

    async def run(self, starting_agent: Agent[Any], input: Input, **options: Unpack[RunOptions[Any]]) -> RunResult:  # noqa: A002
        """Run an agent, or resume a run whose interruptions are decided; see `Runner.run`.

        Args:
            starting_agent: The agent; it is not changed.
            input: The user's input, or a state, which the SDK updates.
            options: Options of `Runner.run`.

        Returns:
            What `Runner.run` returns.

        Raises:
            OpenAIRunStopped: If a hook, a person or `interrupt` ended the run; it is a `RunStopped`.
            UnsupportedHookError: If a hook would never be called.
            Exception: What `Runner.run` raises.
        """
        if not (self._needs_operation or self._opens_operation(input)):
            bare_result: RunResult = await original("run")(self, starting_agent, input, **options)
            return bare_result
        async with self._new_run(starting_agent, input, options) as run:
            result: RunResult = await _run_in_sdk(OpenAIBinding(run), self, starting_agent, input, options)
            return result
        raise OpenAIRunStopped("The run was interrupted.")

    async def resume(
        self,
        starting_agent: Agent[Any],
        result: RunResult | RunResultStreaming | RunState[Any],
        decisions: Iterable[Approve | Reject],
        **options: Unpack[RunOptions[Any]],
    ) -> RunResult:
        """Continue a run that waits for a person, as the same operation.

        Unlike in the SDK, a `Reject` without `and_continue` ends the run.

        Args:
            starting_agent: The agent that the run started with.
            result: The result of the paused run, or its state.
            decisions: The decisions, each with the id of its tool call.
            options: Options of `Runner.run`.

        Raises:
            OpenAIRunStopped: If a `Reject` without `and_continue`, a hook or `interrupt` ends the run; it is a
                `RunStopped`.
            HookUsageError: If a decision is about a call that does not wait.
        """
        return await self.run(starting_agent, answers(result, decisions), **options)

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> RunResultStreaming:
        """Run an agent and stream its events; see `Runner.run_streamed`.

        The run continues in a task of the SDK and ends with that task: before `stream_events` is exhausted, when the
        result is cancelled, or by itself if nobody reads the events. If a hook ends the run, `stream_events` raises
        `OpenAIRunStopped`.

        Args:
            starting_agent: The agent; it is not changed.
            input: The user's input, or a state, which the SDK updates.
            options: Options of `Runner.run_streamed`.

        Raises:
            UnsupportedHookError: If a hook would never be called.
        """
        if not (self._needs_operation or self._opens_operation(input)):
            result: RunResultStreaming = original("run_streamed")(self, starting_agent, input, **options)
            return result
        run = self._new_run(starting_agent, input, options)
        return _start_stream(functools.partial(_stream_as_operation, run), self, starting_agent, input, options)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> AsyncIterator[RunResultStreaming]:
        """Run an agent and stream its events; the run ends when the block does, at the latest.

        Args:
            starting_agent: The agent; it is not changed.
            input: The user's input, or a state.
            options: Options of `Runner.run_streamed`.

        Yields:
            What `Runner.run_streamed` returns.

        Raises:
            OpenAIRunStopped: If a hook, a person or `interrupt` ended the run; it is a `RunStopped`.
            Exception: What `stream_events` raises.
        """
        result = self.run_streamed(starting_agent, input, **options)
        task = result.run_loop_task
        try:
            yield result
        finally:
            if not result.is_complete:
                result.cancel()
            if task is not None:
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError:
                    task.cancel()
                    with anyio.CancelScope(shield=True):
                        await asyncio.wait([task])
                    raise
        result._check_errors()  # type: ignore[no-untyped-call]  # exceeding `max_turns` fails the stream, not its task
        if result._stored_exception is not None:
            raise result._stored_exception

    def _opens_operation(self, given: Input) -> bool:
        """Return whether a run without hooks is an operation, because others could notice it."""
        return isinstance(given, RunState) or present_binding() is not None or operations_are_watched()

    def _new_run(self, agent: Agent[Any], given: Input, options: Mapping[str, Any]) -> AdapterRun:
        known = self._options
        if isinstance(given, RunState) and known["operation_id"] is None:
            known = {**known, "operation_id": paused_operation(given)}
        return _new_run(self._hooks, agent, options, **known)


def answers(
    result: RunResult | RunResultStreaming | RunState[Any], decisions: Iterable[Approve | Reject]
) -> RunState[Any]:
    """Convert a person's decisions into the state with which the runner resumes a paused run.

    Args:
        result: The result of the paused run, or its state, to which the decisions are applied.
        decisions: The decisions, each with the id of its tool call. Unlike in the SDK, a `Reject` without
            `and_continue` ends the run.

    Raises:
        HookUsageError: If a decision is about a call that does not wait.
    """
    state = result if isinstance(result, RunState) else result.to_state()
    operation_id = paused_operation(result)
    if operation_id is not None:
        mark_paused(state, operation_id)
    waiting = {call_id_of(item): item for item in state.get_interruptions()}
    for name, decision in decisions_by_call(decisions, waiting).items():
        if isinstance(decision, Approve):
            state.approve(waiting[name])
        else:
            state.reject(waiting[name], rejection_message=decision.reason or None)
            if not decision.and_continue:
                mark_stopping(state, decision)
    return state


def _new_run(hooks: Iterable[AnyHook], agent: Agent[Any], options: Mapping[str, Any], **given: Any) -> AdapterRun:
    """Create the run of hookline for a run of the SDK; inside a hooked run, that run is its parent."""
    outer, model = present_binding(), model_name(agent, options.get("run_config"))
    parent = outer.run if outer is not None else None
    return AdapterRun(hooks, DRIVES, agent_id=agent.name, model=model, parent=parent, **given)


def _run_in_sdk(
    binding: OpenAIBinding, runner: AgentRunner, agent: Agent[Any], given: Input, options: Mapping[str, Any]
) -> Awaitable[Any]:
    """Run an agent in the SDK, with the hooks of its run."""
    return run_agent(binding, agent, given, options, functools.partial(original("run"), runner, agent, **options))


RunStream = Callable[..., Awaitable[None]]
"""Runs an agent in the task of a stream; takes the stream and the SDK's function that runs the agent."""

_next_stream: ContextVar[list[RunStream]] = ContextVar("hookline_openai_agents_stream")
"""Holds the function that runs the stream being started; it is removed once, as other tasks may copy this context."""


def _start_stream(
    run_stream: RunStream, runner: AgentRunner, agent: Agent[Any], given: Input, options: Mapping[str, Any]
) -> RunResultStreaming:
    """Start a stream of the SDK, whose task copies the present context."""
    token = _next_stream.set([functools.partial(run_stream, agent, given, options)])
    try:
        result: RunResultStreaming = original("run_streamed")(runner, agent, given, **options)
        return result
    finally:
        _next_stream.reset(token)


async def _stream_as_operation(
    new_run: AdapterRun,
    agent: Agent[Any],
    given: Input,
    options: Mapping[str, Any],
    result: RunResultStreaming,
    start: Callable[..., Awaitable[Any]],
) -> None:
    """Run an agent in the task of a stream, as an operation."""
    async with new_run as run:
        await stream_agent(OpenAIBinding(run), agent, given, options, result, start)
        return
    raise OpenAIRunStopped("The run was interrupted.")


def _wrap_start_streaming(start_streaming: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that runs an agent in the task of a stream."""

    async def start(*given: Any, streamed_result: RunResultStreaming, **options: Any) -> Any:
        bare = functools.partial(start_streaming, *given, streamed_result=streamed_result, **options)
        streams = _next_stream.get([])
        if not streams:
            return await bare()
        try:
            await streams.pop()(streamed_result, bare)
        except StreamFailedError:
            return None
        finally:
            end_stream(streamed_result)
        return None

    return start


def _wrap_run(run: Callable[..., Awaitable[RunResult]]) -> Callable[..., Awaitable[RunResult]]:
    """Wrap the SDK's `run`, so that a run inside a hooked run inherits its hooks, for example an agent as a tool."""

    async def nested(self: AgentRunner, starting_agent: Agent[Any], input: Input, **options: Any) -> RunResult:  # noqa: A002
        outer = present_binding()
        if outer is None:
            return await run(self, starting_agent, input, **options)
        result: RunResult
        if outer.claim_run(starting_agent):
            result = await _run_in_sdk(outer, self, starting_agent, input, options)
            return result
        async with _new_run((), starting_agent, options) as opened:
            result = await _run_in_sdk(OpenAIBinding(opened), self, starting_agent, input, options)
            return result
        raise OpenAIRunStopped("The run was interrupted.")

    return nested


def _wrap_run_streamed(run_streamed: Callable[..., RunResultStreaming]) -> Callable[..., RunResultStreaming]:
    """Wrap the SDK's `run_streamed`, so that a run inside a hooked run inherits its hooks."""

    def nested(self: AgentRunner, starting_agent: Agent[Any], input: Input, **options: Any) -> RunResultStreaming:  # noqa: A002
        outer = present_binding()
        if outer is None:
            return run_streamed(self, starting_agent, input, **options)
        run_stream: RunStream
        if outer.claim_run(starting_agent):
            run_stream = functools.partial(stream_agent, outer)
        else:
            run_stream = functools.partial(_stream_as_operation, _new_run((), starting_agent, options))
        return _start_stream(run_stream, self, starting_agent, input, options)

    return nested


WRAPPERS: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "run": _wrap_run,
    "run_streamed": _wrap_run_streamed,
    "start_streaming": _wrap_start_streaming,
    "get_model": wrap_get_model,
    "invoke_tool": wrap_invoke_tool,
    "execute_handoffs": wrap_execute_handoffs,
    "call_session": wrap_call_session,
}
"""The wrapper of each patched function."""
