"""`LoopRun`: the run of an async loop."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

import anyio

from hookline.errors import HookUsageError, RunStopped
from hookline.events import PendingTool
from hookline.loop._binding import Decide
from hookline.loop._client import Exchange
from hookline.loop._run import RunBase
from hookline.loop._streams import OpenStream, watch_async
from hookline.runtime import AgentDone, Approve, Reject, Tool

__all__ = ["LoopRun"]

C = TypeVar("C")


class LoopRun(RunBase[C], Generic[C]):
    """The run of an async loop: `async with wrap(AsyncOpenAI(), ...) as run:`.

    Attributes:
        client: The client whose model calls go through the hooks. It is of the same class and shares the connections
            of the client that `wrap` was given, which is left as it is.
        operation_id: The run.
        tools: The schemas of the tools, as chat completions or Anthropic's messages take them.
        response_tools: The schemas of the tools, as OpenAI's responses take them.
        response: The last answer, as an object of the client's class; also of a stream that was read.
        messages: Of a run that goes on after it waited for a person: the conversation, in the client's own JSON.
        pending: Of such a run: the calls that wait.
    """

    async def __aenter__(self) -> LoopRun[C]:
        binding = self._begin(AsyncSurroundings())
        await self._adapter.__aenter__()
        self._open_client(binding.ask_model)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self._binding.end_streams()
        finally:
            self._end()
            swallowed = await self._adapter.__aexit__(kind, error, trace)
        if self._adapter.interrupted and (error is None or swallowed):
            raise RunStopped("The run was interrupted.")

    def __enter__(self) -> NoReturn:
        name = type(self._given_client).__name__
        raise HookUsageError(f"{name} is an async client: write `async with wrap({name}(), ...) as run:`.")

    def __exit__(self, *raised: object) -> None:
        """Never reached; without it Python's own error would come first."""

    async def call_tools(self, answer: Any = None) -> list[Any]:
        """Run the tool calls of an answer at the same time.

        Args:
            answer: What the client returned; the last answer unless given.

        Returns:
            What the conversation goes on with, in the model's order, as the client takes it: tool messages of chat
            completions, `function_call_output` items of responses, or one user message with `tool_result` blocks of
            Anthropic. What a tool raised, and why a call could not run, is told to the model there.

        Raises:
            RunStopped: If a hook or a person ended the run.
            RunPaused: If a person must decide, and `wrap` was given no `ask`.
            HookUsageError: If a call has run before, or the argument is no answer.
        """
        return await self._binding.call_tools(answer)

    async def call_tool(self, call: Any) -> Any:
        """Run one tool call of the last answer.

        Args:
            call: The call, as the client has it.

        Returns:
            What the model is to be told: a tool message, a `function_call_output` item, or a `tool_result` block.

        Raises:
            RunStopped: If a hook or a person ended the run.
            RunPaused: If a person must decide, and `wrap` was given no `ask`.
            HookUsageError: If the call has run before.
        """
        return await self._binding.call_tool(call)

    async def resume(self, decisions: Sequence[Approve | Reject]) -> list[Any]:
        """Apply what a person decided about the calls that wait.

        What was approved is what runs; guards judge it again. Calls that ran before the pause do not run again.

        Args:
            decisions: An `Approve` or a `Reject` for each call.

        Returns:
            What the conversation goes on with: the results of all calls of the paused step.

        Raises:
            RunStopped: If one was rejected to stop the run.
            RunPaused: If further calls wait for a decision.
            DecisionError: If a decision is about no call that waits.
            HookUsageError: If the run waits for nobody.
        """
        return await self._binding.resume(decisions)

    async def compact(
        self, messages: Sequence[Any], token_count: int, summarize: Callable[[list[Any]], Awaitable[str] | str]
    ) -> str | None:
        """Compact messages of the conversation, through the hooks of `CompactCall` and between its events.

        Args:
            messages: What the summary will replace, as the client takes it.
            token_count: The input tokens that made it necessary.
            summarize: Writes the summary of the messages that it is given.

        Returns:
            The summary; `None` if it failed or a hook denied it, and the conversation stays as it is.
        """

        async def work(entries: list[Any]) -> str:
            return str(await _await_if_needed(summarize(entries)))

        return await self._binding.compact(messages, token_count, work)

    async def call_agent(
        self, callee_id: str, instruction: str, work: Callable[[str, str], Awaitable[str]]
    ) -> AgentDone:
        """Call a sub-agent, through the hooks of `SubAgentCall` and between its events.

        Args:
            callee_id: The sub-agent.
            instruction: What it is asked to do.
            work: Runs it, with the final instruction and the operation id of its run:
                `wrap(client, operation_id=operation_id, parent=run, ...)`.
        """
        self._binding.check()
        return await self._adapter.call_agent(callee_id, instruction, work)


class AsyncSurroundings:
    """What is done in an async loop: everything in the task that asks for it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise HookUsageError(
                "This run was opened in the event loop of another thread, and cannot be used in this one. Open a run "
                "in each thread, with `async with wrap(...)`."
            )

    def reader(self) -> object:
        return anyio.get_current_task().id

    async def send(self, exchange: Exchange, body: Mapping[str, Any]) -> Any:
        return await exchange.send(body)

    async def read(self, http: Any) -> bytes:
        content: bytes = await http.aread()
        return content

    async def make_result(self, exchange: Exchange, answer: Mapping[str, Any]) -> Any:
        return await exchange.make_result(answer)

    async def run_tool(self, tool: Tool, args: Mapping[str, Any]) -> object:
        return await tool.run(args)

    async def decide(self, decide: Decide, pending: PendingTool) -> Approve | Reject:
        decision: Approve | Reject = await _await_if_needed(decide(pending))
        return decision

    def watch(self, stream: OpenStream, end: Callable[[OpenStream, BaseException | None], Awaitable[None]]) -> None:
        watch_async(stream, partial(end, stream))

    async def close(self, http: Any) -> None:
        await http.aclose()


async def _await_if_needed(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
