"""`SyncLoopRun`: the run of a sync loop, whose hooks run in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

import anyio

from hookline._deadlines import new_scope
from hookline.errors import HookUsageError, RunStopped
from hookline.events import PendingTool
from hookline.execution import (
    EndedPortalError,
    LoopPortal,
    TasklessCall,
    calling_thread,
    is_async_handler,
    return_portal,
    run_in_caller,
    take_portal,
)
from hookline.loop._binding import Decide, LastAnswer, LoopBinding, ToolCalls
from hookline.loop._client import Exchange
from hookline.loop._judged_streams import JudgedStream, Take, judge_sync
from hookline.loop._run import RunBase
from hookline.loop._streams import End, OpenStream, watch_sync
from hookline.runtime import AgentDone, Approve, PlainFunction, Reject, Tool

__all__ = ["SyncLoopRun"]

C = TypeVar("C")
T = TypeVar("T")


class SyncLoopRun(RunBase[C], Generic[C]):
    """The run of a sync loop: `with wrap(OpenAI(), ...) as run:`.

    Requests, plain tools and plain `ask` functions run in the thread of the caller. Hooks run in an event loop of the
    run, which the caller's thread runs while it waits for them; a thread of its own runs it for async observers that
    are left, and where the caller's thread runs an event loop already. Several runs may be open at once, in several
    threads.

    Attributes:
        client: A copy of your client whose model calls go through the hooks. It has the same class and shares the
            connections.
        operation_id: The id of the run.
        tools: The JSON Schemas of the tools, for chat completions or Anthropic's messages.
        response_tools: The JSON Schemas of the tools, for OpenAI's Responses API.
        response: The last answer of the model as an object of the client; also after a stream was read.
        messages: In a resumed run, the conversation so far in the client's own JSON.
        pending: In a resumed run, the calls that wait for a decision.
    """

    def __enter__(self) -> SyncLoopRun[C]:
        portal = take_portal()
        try:
            surroundings = SyncSurroundings(portal)
            binding = self._begin(surroundings)
            self._surroundings = surroundings
            open_run = portal.run_at_once if self._adapter._opens_at_once else portal.run
            open_run(self._open_adapter)
            self._adapter.run.scope = surroundings  # type: ignore[assignment]  # the loop belongs to its own thread
            self._open_client(partial(surroundings.ask_model, binding))
        except BaseException:
            return_portal(portal, cancel=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_open:
            return  # it was left before, and its event loop may be another run's by now
        portal, failed = self._surroundings.portal, True
        try:
            self._end()
            try:
                if self._binding.has_streams:
                    portal.run(self._binding.end_streams)
            finally:
                at_once = error is None and self._adapter._closes_at_once
                (portal.run_at_once if at_once else portal.run)(self._adapter.close, error)
            failed = False
        finally:
            return_portal(portal, cancel=failed)
        if self._adapter.interrupted and error is None:
            raise RunStopped("The run was interrupted.")

    async def _open_adapter(self) -> None:
        await self._adapter.open()  # its result would keep the run alive, which knows the task that has opened it

    async def __aenter__(self) -> NoReturn:
        name = type(self._given_client).__name__
        raise HookUsageError(f"{name} is a sync client: write `with wrap({name}(), ...) as run:`.")

    async def __aexit__(self, *raised: object) -> None:
        """Do nothing; without this method Python would raise an error of its own before the helpful one."""

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return self._surroundings.run(self._binding, function, *args)

    def _call(
        self, read: Callable[[Any], ToolCalls], given: Any, function: Callable[[ToolCalls], Coroutine[Any, Any, T]]
    ) -> T:
        """Run the tool calls that a function reads from what the user has given."""
        surroundings, binding = self._surroundings, self._binding
        surroundings.portal.check_process()
        calls = read(given)
        if binding.calls_at_once(calls, surroundings.is_plain):
            return surroundings.run_without_task(binding, function, calls)
        return surroundings.run(binding, function, calls)

    def call_tools(self, answer: Any = None) -> list[Any]:
        """Run the tool calls of an answer: plain functions in sequence, async tools concurrently.

        Args:
            answer: The answer that the client returned; the last one unless given.

        Returns:
            The messages to add to the conversation, in the model's order: tool messages for chat completions,
            `function_call_output` items for the Responses API, or one user message with `tool_result` blocks for
            Anthropic. If a tool raised or a call could not run, they tell the model why.

        Raises:
            RunStopped: If a hook or a person ended the run.
            RunPaused: If a person must decide and there is no `ask`.
            HookUsageError: If a call has already run, `answer` is not an answer of the client, or the last answer is a
                stream that was not read to its end.
        """
        return self._call(self._binding.read_calls, answer, self._binding.call_tools)

    def call_tool(self, call: Any) -> Any:
        """Run one tool call of the last answer.

        Args:
            call: The call, as it is in the client's answer.

        Returns:
            The result for the model: a tool message, a `function_call_output` item, or a `tool_result` block.

        Raises:
            RunStopped: If a hook or a person ended the run.
            RunPaused: If a person must decide and there is no `ask`.
            HookUsageError: If the call has already run.
        """
        return self._call(self._binding.read_call, call, self._binding.call_tool)

    def resume(self, decisions: Sequence[Approve | Reject]) -> list[Any]:
        """Continue a run that waits for a person, with the decisions about its calls.

        Approved calls run with the arguments that the person saw, and guards check them again. Calls that ran before
        the pause do not run again.

        Args:
            decisions: An `Approve` or a `Reject` for each waiting call.

        Returns:
            The messages to add to the conversation: the results of all calls of the paused step.

        Raises:
            RunStopped: If a `Reject` without `and_continue`, or a hook, ends the run.
            RunPaused: If other calls still wait for a decision.
            DecisionError: If a decision is about a call that does not wait.
            HookUsageError: If the run does not wait for a person.
        """
        return self._run(self._binding.resume, decisions)

    def compact(self, messages: Sequence[Any], token_count: int, summarize: Callable[[list[Any]], str]) -> str | None:
        """Compact messages through the hooks of `CompactCall`, with its events before and after.

        Args:
            messages: The messages that the summary will replace, in the client's own form.
            token_count: The number of input tokens that made the compaction necessary.
            summarize: Takes the messages and returns their summary.

        Returns:
            The summary; `None` if it failed or a hook denied it: keep the conversation as it is.
        """

        async def work(entries: list[Any]) -> str:
            return await run_in_caller(lambda: summarize(entries))

        return self._run(self._binding.compact, messages, token_count, work)

    def call_agent(self, callee_id: str, instruction: str, work: Callable[[str, str], str]) -> AgentDone:
        """Call a sub-agent through the hooks of `SubAgentCall`, with its events before and after.

        Args:
            callee_id: The id of the sub-agent.
            instruction: The sub-agent's task.
            work: Runs the sub-agent with the final instruction and the operation id for its run:
                `wrap(client, operation_id=operation_id, parent=run, ...)`.
        """

        async def run(final: str, operation_id: str) -> str:
            return await run_in_caller(lambda: work(final, operation_id))

        return self._run(self._adapter.call_agent, callee_id, instruction, run)


class SyncSurroundings:
    """The operations of a sync loop: requests and plain functions run in the caller's thread.

    It also replaces the cancel scope of the run.

    Args:
        portal: The event loop of the hooks.

    Attributes:
        portal: The event loop of the hooks.
        cancel_called: Whether the run was interrupted.
        thread: `None`, because any thread may use a sync run.
    """

    thread = None

    def __init__(self, portal: LoopPortal) -> None:
        self.portal = portal
        self.cancel_called = False
        self._scopes: set[anyio.CancelScope | TasklessCall] = set()

    def run(self, binding: LoopBinding, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function of a run for the present thread."""
        if not binding.run.is_open:
            binding.check()
        try:
            result: T = self.portal.run(self._run, function, args)
        except (EndedPortalError, asyncio.CancelledError):
            self._check_left(binding)
            raise
        return result

    def _check_left(self, binding: LoopBinding) -> None:
        """Raise the error that helps if another thread has left the block of the run meanwhile."""
        if not binding.run.is_open:
            binding.check()

    async def _run(self, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
        with new_scope(on_asyncio=True) as scope:
            self._scopes.add(scope)
            try:
                return await function(*args)
            finally:
                self._scopes.discard(scope)
        raise RunStopped("The run was interrupted.")

    def run_without_task(self, binding: LoopBinding, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an async function of a run for the present thread; it waits for nothing but functions of that thread."""
        call = TasklessCall(self.portal)
        self._scopes.add(call)
        try:
            return call.run(function, *args)
        except (EndedPortalError, asyncio.CancelledError):
            if not call.is_cancelled:
                self._check_left(binding)
                raise
        finally:
            self._scopes.discard(call)
        raise RunStopped("The run was interrupted.")

    def ask_model(self, binding: LoopBinding, exchange: Exchange) -> Any:
        """Make a model call for the present thread."""
        try:
            body = self.portal.call(binding.begin_direct_call, exchange)
            if body is None:
                return self.run(binding, binding.ask_model, exchange)
            answered: LastAnswer | None = None
            try:
                result = exchange.send(body)
                http = exchange.http_response(result)
                answer = result if http is None else exchange.decode_answer(http.read())
                answered = LastAnswer(exchange=exchange, body=body, answer=answer)
            finally:
                self.portal.call_outside(binding.end_direct_call, answered)
        except (EndedPortalError, asyncio.CancelledError):
            self._check_left(binding)
            raise
        return result

    def cancel(self) -> None:
        """Cancel the hooks. A request or a tool that is running in a thread runs to its end."""
        self.cancel_called = True
        for scope in list(self._scopes):
            if isinstance(scope, TasklessCall):
                scope.cancel()
            else:  # a tool that interrupts its run is not called in the event loop
                self.portal.call_soon(scope.cancel)

    def reader(self) -> object:
        return calling_thread()

    async def send(self, exchange: Exchange, body: Mapping[str, Any]) -> Any:
        return await run_in_caller(lambda: exchange.send(body))

    async def read(self, http: Any) -> bytes:
        content: bytes = await run_in_caller(http.read)
        return content

    async def make_result(self, exchange: Exchange, answer: Mapping[str, Any]) -> Any:
        return await run_in_caller(lambda: exchange.make_result(answer))

    async def run_tool(self, tool: Tool, args: Mapping[str, Any]) -> object:
        run = tool.run
        if isinstance(run, PlainFunction) and not run.is_async:
            return await run_in_caller(partial(run.call, args))
        return await run(args)

    def is_plain(self, tool: Tool) -> bool:
        """Return whether a tool is a plain function, which runs in the caller's thread."""
        return isinstance(tool.run, PlainFunction) and not tool.run.is_async

    async def decide(self, decide: Decide, pending: PendingTool) -> Approve | Reject:
        decision: Any
        if is_async_handler(decide):
            decision = decide(pending)
        else:
            decision = await run_in_caller(lambda: decide(pending))
        decided: Approve | Reject = await decision if inspect.isawaitable(decision) else decision
        return decided

    def watch(self, stream: OpenStream, end: End) -> None:
        watch_sync(stream, partial(self._end_here, stream, end))

    def judge(self, stream: JudgedStream, take: Take, end: End) -> None:
        judge_sync(stream, take, self.portal.run, partial(self._end_here, stream, end))

    def _end_here(self, stream: OpenStream, end: End, error: BaseException | None) -> None:
        if stream.ended:
            return
        # The garbage collector closes a stream that was thrown away, in any thread.
        if self.portal.is_own_thread:
            self.portal.start(end, stream, error)
        else:
            self.portal.run(end, stream, error)

    async def close(self, http: Any) -> None:
        await run_in_caller(http.close)
