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
from hookline.loop._judged_streams import JudgedStream, Take, judge_async
from hookline.loop._run import RunBase
from hookline.loop._streams import End, OpenStream, watch_async
from hookline.runtime import AgentDone, Approve, Reject, Tool

__all__ = ["LoopRun"]

C = TypeVar("C")


class LoopRun(RunBase[C], Generic[C]):
    """The run of an async loop: `async with wrap(AsyncOpenAI(), ...) as run:`.

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
        """Do nothing; without this method Python would raise an error of its own before the helpful one."""

    async def call_tools(self, answer: Any = None) -> list[Any]:
        """Run the tool calls of an answer concurrently.

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
        return await self._binding.call_tools(self._binding.read_calls(answer))

    async def call_tool(self, call: Any) -> Any:
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
        return await self._binding.call_tool(self._binding.read_call(call))

    async def resume(self, decisions: Sequence[Approve | Reject]) -> list[Any]:
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
        return await self._binding.resume(decisions)

    async def compact(
        self, messages: Sequence[Any], token_count: int, summarize: Callable[[list[Any]], Awaitable[str] | str]
    ) -> str | None:
        """Compact messages through the hooks of `CompactCall`, with its events before and after.

        Args:
            messages: The messages that the summary will replace, in the client's own form.
            token_count: The number of input tokens that made the compaction necessary.
            summarize: Takes the messages and returns their summary.

        Returns:
            The summary; `None` if it failed or a hook denied it: keep the conversation as it is.
        """

        async def work(entries: list[Any]) -> str:
            return str(await _await_if_needed(summarize(entries)))

        return await self._binding.compact(messages, token_count, work)

    async def call_agent(
        self, callee_id: str, instruction: str, work: Callable[[str, str], Awaitable[str]]
    ) -> AgentDone:
        """Call a sub-agent through the hooks of `SubAgentCall`, with its events before and after.

        Args:
            callee_id: The id of the sub-agent.
            instruction: The sub-agent's task.
            work: Runs the sub-agent with the final instruction and the operation id for its run:
                `wrap(client, operation_id=operation_id, parent=run, ...)`.
        """
        self._binding.check()
        return await self._adapter.call_agent(callee_id, instruction, work)


class AsyncSurroundings:
    """The operations of an async loop; all run in the caller's task.

    Attributes:
        thread: The thread whose event loop the run belongs to.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()

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

    def watch(self, stream: OpenStream, end: End) -> None:
        watch_async(stream, partial(end, stream))

    def judge(self, stream: JudgedStream, take: Take, end: End) -> None:
        judge_async(stream, take, partial(end, stream))

    async def close(self, http: Any) -> None:
        await http.aclose()


async def _await_if_needed(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
