"""Hooks in runs of the OpenAI Agents SDK: `HooklineRunner` stands where `Runner` stood.

Every run works on twins of its agents, whose tools, models and handoffs lead through the run's hooks. They find that
run in a context variable; the agents themselves stay untouched, and serve many runs at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Unpack

from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError, MissingExtraError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import Approve, ForeignRun, OperationStore, Reject

try:
    from agents import Agent, RunResult, RunResultStreaming, RunState
    from agents.run import AgentRunner, RunOptions, get_default_agent_runner, set_default_agent_runner

    from hookline.adapters._openai_attached import DRIVES, Attached, RunStopped, masked, present
    from hookline.adapters._openai_drive import Input, Start, drive, hooked_options, stream_ended, unhooked_stream
    from hookline.adapters._openai_items import call_id_of
    from hookline.adapters._openai_models import model_name
except ImportError as error:
    raise MissingExtraError("openai-agents", "The adapter of the OpenAI Agents SDK") from error

__all__ = ["DRIVES", "HooklineRunner", "RunStopped"]


class HooklineRunner(AgentRunner):
    """Runs agents as `Runner` does, each run with the hooks that are given here.

    `run` and `run_sync` take what `Runner.run` takes; its own `hooks=` keep their meaning. `stream` stands for
    `Runner.run_streamed`. One runner may run many agents, many times at once.

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
            input: What the user says, or the state.
            options: Those of `Runner.run`.

        Returns:
            What `Runner.run` returns. Its agents are twins of those given.

        Raises:
            RunStopped: If a hook ended the run.
            UnsupportedHookError: If a hook would never be called.
            Exception: What `Runner.run` raises.
        """
        result: RunResult = await self._attached(starting_agent, input, dict(options), super().run)
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

    @contextlib.asynccontextmanager
    async def stream(
        self,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> AsyncIterator[RunResultStreaming]:
        """Run an agent and stream its events; the run ends where the block is left.

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
        ready: asyncio.Future[RunResultStreaming] = asyncio.get_running_loop().create_future()
        left = asyncio.Event()

        async def start(agent: Agent[Any], given: Input, **options: Unpack[RunOptions[Any]]) -> RunResultStreaming:
            result = super(HooklineRunner, self).run_streamed(agent, given, **options)
            ready.set_result(result)
            try:
                await left.wait()
            finally:
                early = await stream_ended(result)
            if early:
                raise LeftEarly("The stream was left before its end.")
            return result

        work = asyncio.ensure_future(self._attached(starting_agent, input, dict(options), start, ready))
        try:
            await asyncio.wait([work, ready], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                work.result()
            yield ready.result()
        finally:
            left.set()
            work.add_done_callback(_seen)
            if not ready.done():
                work.cancel()
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                work.cancel()
                await asyncio.wait([work])
                raise
        with contextlib.suppress(LeftEarly):
            work.result()

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> RunResultStreaming:
        """Refuse to stream: hooks end with a block, which this has not.

        Raises:
            HookUsageError: Always.
        """
        raise unhooked_stream()

    def _foreign(self, agent: Agent[Any], options: Mapping[str, Any]) -> ForeignRun:
        outer = present.get()
        return ForeignRun(
            self._hooks,
            DRIVES,
            agent_id=agent.name,
            model=model_name(agent, options.get("run_config")),
            parent=outer.run if outer is not None else None,
            **self._given,
        )

    async def _attached(
        self,
        agent: Agent[Any],
        given: Input,
        options: dict[str, Any],
        start: Start,
        stream: asyncio.Future[RunResultStreaming] | None = None,
    ) -> Any:
        if not isinstance(get_default_agent_runner(), _NestedRunner):
            set_default_agent_runner(_NestedRunner(get_default_agent_runner()))
        async with self._foreign(agent, options) as run:
            result = await drive(Attached(run), agent, given, options, start)
            if stream is not None and not stream.done():
                raise HookUsageError("A hook answered in place of the run, and an answer is no stream; use `run`.")
            return result
        raise RunStopped("The run was interrupted.")


class LeftEarly(RunStopped):
    """Nobody consumes the stream any more."""


def _seen(work: asyncio.Future[Any]) -> None:
    """Look at what it raised, or asyncio would complain where the block raises something else."""
    if not work.cancelled():
        work.exception()


class _NestedRunner(AgentRunner):
    """The SDK's default runner, which takes the hooks along into runs that begin inside of a run with hooks.

    `Agent.as_tool` runs its agent through the default runner; there is no other seam.

    Args:
        inner: The default runner so far.
    """

    def __init__(self, inner: AgentRunner) -> None:
        self._inner = inner

    async def run(self, starting_agent: Agent[Any], input: Input, **options: Unpack[RunOptions[Any]]) -> RunResult:  # noqa: A002
        outer = present.get()
        if outer is None or outer.loop is not asyncio.get_running_loop():
            with masked():
                return await self._inner.run(starting_agent, input, **options)
        agent = outer.take_turn()
        if agent is not None:
            result: RunResult = await drive(outer, agent, input, dict(options), self._inner.run)
            return result
        return await HooklineRunner().run(starting_agent, input, **options)

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> RunResultStreaming:
        outer = present.get()
        agent = outer.take_turn() if outer is not None else None
        if outer is None or agent is None:
            if outer is not None and outer.run.inherited:
                raise unhooked_stream()
            with masked():  # the task of the streamed run takes the context along as it is now
                return self._inner.run_streamed(starting_agent, input, **options)
        if isinstance(input, RunState):
            outer.go_on(input)
        hooked, _ = hooked_options(dict(options))
        outer.config = hooked["run_config"]
        outer.streamed = self._inner.run_streamed(agent, input, **hooked)
        return outer.streamed
