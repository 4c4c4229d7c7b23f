"""Hooks in runs of the OpenAI Agents SDK: `HooklineRunner` stands where `Runner` stood.

Agents, tools, models, sessions and states stay those that are given, and serve many runs at once. The functions of the
SDK in which hooks stand find their run in a context variable; see `_openai_seams`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Unpack

import anyio

from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError, MissingExtraError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import AdapterRun, Approve, OperationStore, Reject

try:
    from agents import Agent, RunResult, RunResultStreaming, RunState
    from agents.run import AgentRunner, RunOptions

    from hookline.adapters.openai_agents._attached import DRIVES, Attached, RunStopped, here
    from hookline.adapters.openai_agents._drive import Input, StreamFailed, drive, drive_stream, end_stream
    from hookline.adapters.openai_agents._items import call_id_of
    from hookline.adapters.openai_agents._models import model_name, resolving
    from hookline.adapters.openai_agents._seams import install, original
    from hookline.adapters.openai_agents._sessions import compacting
    from hookline.adapters.openai_agents._tools import handing_over, invoking
except ImportError as error:
    raise MissingExtraError("openai-agents", "The adapter of the OpenAI Agents SDK") from error

__all__ = ["DRIVES", "HooklineRunner", "RunStopped"]


class HooklineRunner(AgentRunner):
    """Runs agents as `Runner` does, each run with the hooks that are given here.

    `run`, `run_sync` and `run_streamed` take what those of `Runner` take, and give what they give; `hooks=` of the SDK
    keep their meaning. One runner may run many agents, many times at once.

    Args:
        hooks: Hooks of each run.
        operation_id: Id of the run, a fresh one unless given. Give it to a run that may wait for a person, and again to
            the one that goes on: both are then one operation.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        dispatcher: An open dispatcher to share; each run has one of its own unless given.
        store: Where an operation is kept while it waits for a person.
        drain_timeout: Seconds that queued observers may take at the end.
        best_effort: Whether hooks that the SDK cannot drive are only told of in the log.
        allow_missing_hooks: Whether an operation that waits for a person may go on without interceptors that it was
            given before, with a warning in the log.

    Raises:
        HookUsageError: If the SDK that is installed is not as this adapter knows it.
    """

    def __init__(
        self,
        hooks: Iterable[AnyHook] = (),
        *,
        operation_id: str | None = None,
        user_id: str = "",
        tenant_id: str = "",
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        drain_timeout: float = 5.0,
        best_effort: bool = False,
        allow_missing_hooks: bool = False,
    ) -> None:
        install(WRAPPERS)
        self._hooks = hook_batch(hooks)
        self._given: dict[str, Any] = {
            "operation_id": operation_id,
            "user_id": user_id,
            "tenant_id": tenant_id,
            "dispatcher": dispatcher,
            "store": store,
            "drain_timeout": drain_timeout,
            "best_effort": best_effort,
            "allow_missing_hooks": allow_missing_hooks,
        }

    async def run(self, starting_agent: Agent[Any], input: Input, **options: Unpack[RunOptions[Any]]) -> RunResult:  # noqa: A002
        """Run an agent, or go on with a state whose interruptions are decided; see `Runner.run`.

        Args:
            starting_agent: The agent; it stays untouched.
            input: What the user says, or the state, which the SDK brings up to date.
            options: Those of `Runner.run`.

        Returns:
            What `Runner.run` returns.

        Raises:
            RunStopped: If a hook ended the run.
            UnsupportedHookError: If a hook would never be called.
            Exception: What `Runner.run` raises.
        """
        attached = functools.partial(_attached, self._foreign(starting_agent, options))
        result: RunResult = await attached(self, starting_agent, input, options)
        return result

    async def resume(
        self,
        starting_agent: Agent[Any],
        state: RunState[Any],
        decisions: Sequence[Approve | Reject],
        **options: Unpack[RunOptions[Any]],
    ) -> RunResult:
        """Go on with a run that waits for a person. Other than the SDK, a `Reject` without `and_continue` ends it.

        Args:
            starting_agent: The agent that the run began with.
            state: Where it stopped; it takes the decisions.
            decisions: What was decided, by the id of the tool call.
            options: Those of `Runner.run`.

        Raises:
            RunStopped: If a person ended it.
            HookUsageError: If no call of that id waits.
        """
        waiting = {call_id_of(item): item for item in state.get_interruptions()}
        for decision in decisions:
            item = waiting.get(decision.tool_call_id)
            if item is None:
                raise HookUsageError(
                    f"No call {decision.tool_call_id!r} waits for a person; those that do: {sorted(waiting)}."
                )
            if isinstance(decision, Approve):
                state.approve(item)
            else:
                state.reject(item, rejection_message=decision.reason or None)
        ends = [each for each in decisions if isinstance(each, Reject) and not each.and_continue]
        if not ends:
            return await self.run(starting_agent, state, **options)
        async with self._foreign(starting_agent, options) as run:
            run.begin_step()
            run.decided(decisions)
            run.finish("interrupted")
        raise RunStopped(f"A person refused the call {ends[0].tool_call_id!r}: {ends[0].reason or 'no reason given'}")

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> RunResultStreaming:
        """Run an agent and stream its events; see `Runner.run_streamed`.

        The run goes on in a task of the SDK and ends with that: before `stream_events` is exhausted, if its result is
        cancelled, or by itself where nobody looks. `stream_events` raises what a hook ended it with, a `RunStopped`.

        Args:
            starting_agent: The agent; it stays untouched.
            input: What the user says, or the state, which the SDK brings up to date.
            options: Those of `Runner.run_streamed`.

        Raises:
            UnsupportedHookError: If a hook would never be called.
        """
        run = self._foreign(starting_agent, options)
        return _streamed(functools.partial(_stream_of_its_own, run), self, starting_agent, input, options)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> AsyncIterator[RunResultStreaming]:
        """Run an agent and stream its events; the run ends where the block is left, at the latest.

        Args:
            starting_agent: The agent; it stays untouched.
            input: What the user says, or the state.
            options: Those of `Runner.run_streamed`.

        Yields:
            What `Runner.run_streamed` returns.

        Raises:
            RunStopped: If a hook ended the run.
            Exception: What its `stream_events` raises.
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
        result._check_errors()  # type: ignore[no-untyped-call]  # too many turns fail the stream, not its task
        if result._stored_exception is not None:
            raise result._stored_exception

    def _foreign(self, agent: Agent[Any], options: Mapping[str, Any]) -> AdapterRun:
        return _foreign(self._hooks, agent, options, **self._given)


def _foreign(hooks: Iterable[AnyHook], agent: Agent[Any], options: Mapping[str, Any], **given: Any) -> AdapterRun:
    """A run of hookline for a run of the SDK; inside of another one it has its parent there."""
    outer, model = here(), model_name(agent, options.get("run_config"))
    parent = outer.run if outer is not None else None
    return AdapterRun(hooks, DRIVES, agent_id=agent.name, model=model, parent=parent, **given)


async def _attached(
    foreign: AdapterRun, runner: AgentRunner, agent: Agent[Any], given: Input, options: Mapping[str, Any]
) -> Any:
    """Run an agent in the SDK, as a run of hookline."""
    async with foreign as run:
        return await _driven(Attached(run), runner, agent, given, options)
    raise RunStopped("The run was interrupted.")


async def _driven(
    attached: Attached, runner: AgentRunner, agent: Agent[Any], given: Input, options: Mapping[str, Any]
) -> Any:
    async def start(put: Input) -> Any:
        return await original("run")(runner, agent, put, **options)

    return await drive(attached, agent, given, options, start)


Lead = Callable[..., Awaitable[None]]
"""Runs an agent in the task of a stream, given that stream and what runs it in the SDK."""

_leads: ContextVar[list[Lead]] = ContextVar("hookline_openai_agents_stream")
"""What leads the stream that begins; taken once, though every task that begins meanwhile has this context."""


def _streamed(
    lead: Lead, runner: AgentRunner, agent: Agent[Any], given: Input, options: Mapping[str, Any]
) -> RunResultStreaming:
    """Begin a stream of the SDK, whose task takes the context along as it is now."""
    token = _leads.set([functools.partial(lead, agent, given, options)])
    try:
        result: RunResultStreaming = original("run_streamed")(runner, agent, given, **options)
        return result
    finally:
        _leads.reset(token)


async def _stream_of_its_own(
    foreign: AdapterRun,
    agent: Agent[Any],
    given: Input,
    options: Mapping[str, Any],
    result: RunResultStreaming,
    start: Callable[..., Awaitable[Any]],
) -> None:
    """Run an agent in the task of a stream, as a run of hookline."""
    async with foreign as run:
        await drive_stream(Attached(run), agent, given, options, result, start)
        return
    raise RunStopped("The run was interrupted.")


def _starting(start_streaming: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that runs an agent in the task of a stream."""

    async def start(*given: Any, streamed_result: RunResultStreaming, **options: Any) -> Any:
        bare = functools.partial(start_streaming, *given, streamed_result=streamed_result, **options)
        leads = _leads.get([])
        if not leads:
            return await bare()
        try:
            await leads.pop()(streamed_result, bare)
        except StreamFailed:
            return None
        finally:
            end_stream(streamed_result)
        return None

    return start


def _running(run: Callable[..., Awaitable[RunResult]]) -> Callable[..., Awaitable[RunResult]]:
    """Wrap the SDK's `run`: inside of a run with hooks these go along, as they do where an agent is a tool."""

    async def nested(self: AgentRunner, starting_agent: Agent[Any], input: Input, **options: Any) -> RunResult:  # noqa: A002
        outer = here()
        if outer is None:
            return await run(self, starting_agent, input, **options)
        found: RunResult
        if outer.take_turn(starting_agent):
            found = await _driven(outer, self, starting_agent, input, options)
        else:
            found = await _attached(_foreign((), starting_agent, options), self, starting_agent, input, options)
        return found

    return nested


def _running_streamed(run_streamed: Callable[..., RunResultStreaming]) -> Callable[..., RunResultStreaming]:
    """Wrap the SDK's `run_streamed`: inside of a run with hooks these go along, as they do where an agent is a tool."""

    def nested(self: AgentRunner, starting_agent: Agent[Any], input: Input, **options: Any) -> RunResultStreaming:  # noqa: A002
        outer = here()
        if outer is None:
            return run_streamed(self, starting_agent, input, **options)
        lead: Lead
        if outer.take_turn(starting_agent):
            lead = functools.partial(drive_stream, outer)
        else:
            lead = functools.partial(_stream_of_its_own, _foreign((), starting_agent, options))
        return _streamed(lead, self, starting_agent, input, options)

    return nested


WRAPPERS: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "run": _running,
    "run_streamed": _running_streamed,
    "start_streaming": _starting,
    "get_model": resolving,
    "invoke_tool": invoking,
    "execute_handoffs": handing_over,
    "call_session": compacting,
}
"""What is put around each function of the SDK."""
