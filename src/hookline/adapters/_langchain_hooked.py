"""Runs of a LangChain agent, each with hooks of its own."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio.from_thread
import anyio.to_thread
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.config import ensure_config
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from hookline.adapters._langchain_attached import DRIVES, Attached, RunStopped, local, present, whole
from hookline.adapters._langchain_messages import decisions_of, message_of, pending_of, put, shown
from hookline.adapters._langchain_streams import without_held
from hookline.calls import AgentCall
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import Approve, ForeignRun, Reject

__all__ = ["HookedAgent", "HookedToolNode", "RunStopped", "answers", "hooked"]

MARK = "hookline_middleware"
"""A private part of the state of agents that have the middleware."""

OPERATION = "hookline_operation_id"
"""In the metadata of a checkpoint: the operation whose run made it."""

Play = Callable[[Any, Any], Awaitable[Any]]
"""Runs the graph with an input and a config; what it gives, or `None` where nobody knows."""


class HookedToolNode(ToolNode):
    """The node of a graph that calls the tools through the hooks of the run."""


def _heard(graph: Any) -> bool:
    """Whether a graph, or one within it, tells hooks of anything."""
    nodes = [each.bound for each in getattr(graph, "nodes", {}).values() if hasattr(each, "bound")]
    return MARK in getattr(graph, "channels", ()) or any(isinstance(x, HookedToolNode) or _heard(x) for x in nodes)


def hooked(agent: Any, *, hooks: Iterable[AnyHook], agent_id: str = "", **options: Any) -> HookedAgent:
    """Give an agent the hooks of one run.

    Args:
        agent: What `create_agent` gave, with a `HooklineMiddleware`; it stays untouched.
        hooks: Hooks of the run.
        agent_id: What events call the agent; its own name unless given.
        options: What a `ForeignRun` takes: `operation_id`, `user_id`, `tenant_id`, `model`, `provider`, `dispatcher`,
            `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Raises:
        HookUsageError: If the agent was built without the middleware.
    """
    return HookedAgent(agent, hooks, agent_id, options)


def answers(result: Mapping[str, Any], decided: Sequence[Approve | Reject]) -> Command[Any]:
    """What goes on with a run that waits for a person.

    Args:
        result: What the run gave, with its `__interrupt__`.
        decided: What was decided, by the id of the tool call; of an interrupt that is about no tool, by its own id.
            Other than LangChain has it, a `Reject` without `and_continue` ends the run.

    Raises:
        HookUsageError: If nothing was decided, or not all about which one interrupt asks.
    """
    by_call = {each.tool_call_id: each for each in decided}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    pending = pending_of(result["__interrupt__"], shown(result), local)
    begun = {interrupt.id for interrupt, call in pending if call.tool_call_id in by_call}
    for interrupt, call in pending:
        decision = by_call.get(call.tool_call_id)
        if decision is None and begun and interrupt.id not in begun:
            continue  # it goes on waiting
        if decision is None:
            raise HookUsageError(f"LangChain also waits for {call.tool_call_id!r}. Give a decision about it too.")
        answer: dict[str, Any] = {"type": "approve"}
        if isinstance(decision, Reject):
            answer = {"type": "reject", "message": decision.reason, "ends_the_run": not decision.and_continue}
        found.setdefault(interrupt.id, {"decisions": []})["decisions"].append(answer)
    return Command(resume=found)


class HookedAgent:
    """An agent with the hooks of one run: run it as the agent is run."""

    def __init__(self, agent: Any, hooks: Iterable[AnyHook], agent_id: str, options: Mapping[str, Any]) -> None:
        if not _heard(agent):
            raise HookUsageError(
                "The agent was built without a HooklineMiddleware, so that no hook would ever be called. "
                "Build it with create_agent(..., middleware=[HooklineMiddleware(), ...]); a graph of your own with its "
                "`model` and its `tool_node`."
            )
        self._agent, self._hooks, self._options = agent, hook_batch(hooks), dict(options)
        name = getattr(agent, "name", "")
        self._agent_id = agent_id or ("agent" if name == "LangGraph" else name)

    async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run it; see `ainvoke` of the agent.

        Raises:
            RunStopped: If somebody has interrupted it.
            Exception: What the agent raises.
        """

        async def play(put: Any, config: Any) -> Any:
            return await self._agent.ainvoke(put, config, **options)

        return await self._drive(input, config, play, self._agent.aget_state)

    def invoke(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run it from code that is not async; its hooks have a loop of their own in a thread.

        Raises:
            RunStopped: If somebody has interrupted it.
            Exception: What the agent raises.
        """

        async def play(put: Any, config: Any) -> Any:
            return await anyio.to_thread.run_sync(lambda: self._agent.invoke(put, config, **options))

        with self._portal() as portal:
            return portal.call(self._drive, input, config, play, self._get_state)

    def astream(self, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run it and stream; see `astream` of the agent. A stream that is closed early ends the run."""
        return self._streamed(input, config, lambda put, config: self._agent.astream(put, config, **options))

    def astream_events(self, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run it and stream LangChain's events; see `astream_events` of the agent, and `astream` here."""
        begin = self._agent.astream_events
        return self._streamed(input, config, lambda put, config: without_held(begin(put, config, **options)))

    async def _streamed(self, given: Any, config: Any, start: Callable[[Any, Any], Any]) -> AsyncIterator[Any]:
        chunks: asyncio.Queue[Any] = asyncio.Queue(1)

        async def play(put: Any, config: Any) -> None:
            async with aclosing(start(put, config)) as stream:  # else what it runs goes on without it
                async for chunk in stream:
                    await chunks.put(chunk)

        work = asyncio.ensure_future(self._drive(given, config, play, self._agent.aget_state))
        try:
            while not work.done() or not chunks.empty():
                waiting = asyncio.ensure_future(chunks.get())
                try:
                    await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
                    if waiting.done():
                        yield waiting.result()
                finally:
                    waiting.cancel()
            work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def stream(self, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        """Run it and stream from code that is not async. A stream that is closed early ends the run."""
        chunks: queue.Queue[Any] = queue.Queue(1)
        over, left = object(), False

        def consume(put: Any, config: Any) -> None:
            for chunk in self._agent.stream(put, config, **options):
                chunks.put(chunk)
                if left:
                    return

        async def play(put: Any, config: Any) -> None:
            await anyio.to_thread.run_sync(consume, put, config)
            if left:
                raise asyncio.CancelledError

        async def drive() -> None:
            try:
                await self._drive(input, config, play, self._get_state)
            finally:
                await anyio.to_thread.run_sync(chunks.put, over)

        with self._portal() as portal:
            work = portal.start_task_soon(drive)
            try:
                while (chunk := chunks.get()) is not over:
                    yield chunk
                work.result()
            finally:
                if not work.done():
                    left = True
                    while chunks.get() is not over:
                        pass

    def _portal(self) -> Any:
        if self._options.get("dispatcher") is not None:
            raise HookUsageError(
                "A run that is not async has a loop of its own, which the dispatcher of another cannot serve. "
                "Give it none, or use `ainvoke` or `astream`."
            )
        return anyio.from_thread.start_blocking_portal("asyncio")

    async def _get_state(self, config: Any) -> Any:
        return await anyio.to_thread.run_sync(self._agent.get_state, config)

    # One run.

    async def _drive(self, given: Any, config: Any, play: Play, get_state: Callable[[Any], Awaitable[Any]]) -> Any:
        kept = self._agent.checkpointer not in (None, False)
        waiting = await get_state(config) if kept and isinstance(given, Command) else None
        options = dict(self._options)
        if waiting is not None and options.get("operation_id") is None:
            options["operation_id"] = (waiting.metadata or {}).get(OPERATION)
        outer = present.get()
        parent = outer.run if outer is not None and outer.loop is asyncio.get_running_loop() else None
        async with ForeignRun(self._hooks, DRIVES, agent_id=self._agent_id, parent=parent, **options) as run:
            attached = Attached(run)
            if waiting is not None and self._ended(run, given, waiting):
                return waiting.values
            if kept:
                config = ensure_config(config)
                config["metadata"] = {**config.get("metadata", {}), OPERATION: run.operation_id}
            if AgentCall in run.run.intercepted:
                return await self._led(attached, given, config, play, get_state)
            return await self._played(attached, given, config, play, get_state)
        raise RunStopped("The run was interrupted.")

    def _ended(self, run: ForeignRun, given: Command[Any], waiting: Any) -> bool:
        """Tell what a person has decided, and whether that ends the run."""
        decisions = decisions_of(given, pending_of(waiting.interrupts, shown(waiting.values), local))
        run.begin_step()
        run.step.type = "call_tool"
        run.decided(decisions)
        ends = any(isinstance(each, Reject) and not each.and_continue for each in decisions)
        if ends:
            run.finish("interrupted")
        return ends

    async def _played(
        self, attached: Attached, given: Any, config: Any, play: Play, get_state: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        run = attached.run
        with attached.standing():
            result = await whole(play(given, config))
        state = result
        if isinstance(result, Mapping):
            interrupts = result.get("__interrupt__", ())
        elif self._agent.checkpointer not in (None, False):
            found = await get_state(config)
            interrupts, state = found.interrupts, found.values
        else:
            interrupts = ()
        if interrupts:
            pending = [call for _, call in pending_of(interrupts, shown(state), attached.named)]
            run.pause([call for call in pending if call.tool_call_id not in run.step.asked])
            run.end_step(should_continue=False)
        elif run.denied is not None:
            run.finish("interrupted")
        else:
            run.finish("done", attached.said(result))
        return result

    async def _led(
        self, attached: Attached, given: Any, config: Any, play: Play, get_state: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """The run, through the hooks of `AgentCall`, as often as they continue it."""
        run, results = attached.run, list[Any]()
        asked = [] if isinstance(given, Command) else shown(given)
        prompt = [message_of(each, local) for each in asked]
        following = given

        async def work(call: AgentCall) -> str:
            final = following
            if call.input != prompt and following is given:
                left = list(zip(prompt, asked, strict=True))
                changed = [next((old for each, old in left if each == one), None) or put(one, {}) for one in call.input]
                final = {**given, "messages": changed}
            attached.instructions = call.instructions or None
            results.append(await self._played(attached, final, config, play, get_state))
            return attached.said(results[-1])

        done = await run.lead_run(prompt, work)
        while done.continues and results[-1] is not None and run.run.continues < run.run.agent.max_continues:
            run.run.continues += 1
            following = {"messages": [*shown(results[-1]), HumanMessage("\n\n".join(done.continues))]}
            done = await run.lead_run(prompt, work)
        if done.denied is not None:
            return {"messages": asked}
        if not results:
            run.finish("done", done.output)
            return {"messages": [*asked, AIMessage(done.output)]}
        if done.changed and isinstance(results[-1], Mapping):
            *before, last = shown(results[-1])
            return {**results[-1], "messages": [*before, last.model_copy(update={"content": done.output})]}
        return results[-1]
