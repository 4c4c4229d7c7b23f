"""Agents of LangChain whose runs have hooks."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import Command, GraphOutput

from hookline.adapters.langchain._attached import HELD, RunStopped, local, without_held
from hookline.adapters.langchain._messages import pending_of, shown
from hookline.adapters.langchain._runs import Driver
from hookline.adapters.langchain._sync import SyncRun
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import Approve, Reject

__all__ = ["HookedAgent", "HookedToolNode", "RunStopped", "answers", "hooked"]

MARK, WITHOUT_TOOLS = "hookline_middleware", "hookline_without_tools"
"""Private parts of the state of agents that have the middleware, and of those whose middleware hears of no tools."""


class HookedToolNode(ToolNode):
    """The node of a graph that calls the tools through the hooks of the run."""


def _graphs_of(graph: Any) -> Iterator[Any]:
    """A graph, and those that are nodes within it."""
    yield graph
    for each in getattr(graph, "nodes", {}).values():
        if isinstance(bound := getattr(each, "bound", None), Pregel):
            yield from _graphs_of(bound)


_checked: WeakSet[Any] = WeakSet()
"""Agents that `_check_middleware` let pass: to look through their graphs for each run would cost more than hooks."""


def _check_middleware(agent: Any) -> None:
    """Refuse an agent whose hooks would never be called, or not for its tools."""
    if isinstance(agent, Pregel) and agent in _checked:
        return
    graphs = list(_graphs_of(agent))
    if not any(
        MARK in graph.channels or any(isinstance(each.bound, HookedToolNode) for each in graph.nodes.values())
        for graph in graphs
        if isinstance(graph, Pregel)
    ):
        raise HookUsageError(
            "The agent was built without a HooklineMiddleware, so that no hook would ever be called. "
            "Build it with create_agent(..., middleware=[HooklineMiddleware(), ...]); a graph of your own with its "
            "`model` and its `tool_node`."
        )
    if any(WITHOUT_TOOLS in graph.channels and "tools" in graph.nodes for graph in graphs):
        raise HookUsageError(
            "The agent has tools, and its HooklineMiddleware(tools=False) hears of none of their calls, so that no "
            "guard would ever judge one. Build it with HooklineMiddleware()."
        )
    _checked.add(agent)


def hooked(agent: Any, *, hooks: Iterable[AnyHook], agent_id: str = "", **options: Any) -> HookedAgent:
    """Give the runs of an agent hooks.

    Args:
        agent: What `create_agent` gave, with a `HooklineMiddleware`; it stays untouched. One that `hooked` gave gets
            these hooks as well.
        hooks: Hooks of each run.
        agent_id: What events call the agent; its own name unless given.
        options: What a `AdapterRun` takes: `operation_id`, `user_id`, `tenant_id`, `model`, `provider`, `dispatcher`,
            `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Raises:
        HookUsageError: If the agent was built without the middleware.
    """
    batch = hook_batch(hooks)
    if isinstance(agent, HookedAgent):
        known = agent._driver
        merged = {**known.options, **options}
        return _hook(
            Driver(agent=known.agent, hooks=[*known.hooks, *batch], agent_id=agent_id or known.agent_id, options=merged)
        )
    _check_middleware(agent)
    name = "agent" if agent.name == "LangGraph" else agent.name
    return _hook(Driver(agent=agent, hooks=batch, agent_id=agent_id or name, options=options))


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


class HookedAgent(Pregel[Any, Any, Any, Any]):
    """An agent whose every run has hooks: the same graph, to be run, streamed, read and composed as the agent is.

    Its class is also that of the agent, and it shares the attributes of the agent.
    """

    __slots__ = ("_driver",)
    _driver: Driver

    async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run it; see `ainvoke` of the agent.

        Raises:
            RunStopped: If somebody has interrupted it.
            Exception: What the agent raises.
        """
        agent = self._driver.agent

        async def play(given: Any, config: Any) -> Any:
            return await agent.ainvoke(given, config, **options)

        return _in_version(options, await self._driver.drive(input, config, play, agent.aget_state))

    def invoke(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run it from code that is not async; its hooks have a loop of their own in a thread.

        Raises:
            RunStopped: If somebody has interrupted it.
            Exception: What the agent raises.
        """
        with self._sync_run(input, config) as run:
            for call in run:
                with call:
                    call.result = call.make(self._driver.agent.invoke, **options)
            return _in_version(options, run.result)

    async def astream(self, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run it and stream; see `astream` of the agent. A stream that is closed early ends the run."""
        agent = self._driver.agent
        chunks: asyncio.Queue[Any] = asyncio.Queue(1)
        wanted = asyncio.Event()
        wanted.set()

        async def play(given: Any, config: Any) -> None:
            stream: Any = agent.astream(given, config, **options)
            async with aclosing(stream):  # else its tasks go on without it
                async for chunk in stream:
                    wanted.clear()
                    chunks.put_nowait(chunk)
                    await wanted.wait()  # a graph goes on when its reader asks for more

        work = asyncio.ensure_future(self._driver.drive(input, config, play, agent.aget_state))
        _streaming.add(work)
        work.add_done_callback(_streaming.discard)
        try:
            while not work.done() or not chunks.empty():
                waiting = asyncio.ensure_future(chunks.get())
                try:
                    await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
                    if waiting.done():
                        yield waiting.result()
                        wanted.set()
                finally:
                    waiting.cancel()
            work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def stream(self, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        """Run it and stream from code that is not async. A stream that is closed early ends the run."""
        with self._sync_run(input, config) as run:
            for call in run:
                with call:
                    yield from call.stream(self._driver.agent.stream, **options)
            run.result  # noqa: B018  # raises what the run raised

    def astream_events(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run it and stream LangChain's events; see `astream_events` of the agent, and `astream` here."""
        events = super().astream_events(input, config, **options)
        return events if inspect.isawaitable(events) else without_held(events)

    def astream_log(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run it and stream LangChain's log; see `astream_log` of the agent, and `astream` here."""
        options["exclude_tags"] = [*(options.get("exclude_tags") or ()), HELD]
        return super().astream_log(input, config, **options)

    def copy(self, update: dict[str, Any] | None = None) -> HookedAgent:
        """Copy it with other attributes, as `with_config` does; the copy has the same hooks."""
        driver = self._driver
        return _hook(replace(driver, agent=driver.agent.copy(update)))

    def _sync_run(self, given: Any, config: Any) -> SyncRun:
        if self._driver.options.get("dispatcher") is not None:
            raise HookUsageError(
                "A run that is not async has a loop of its own, which the dispatcher of another cannot serve. "
                "Give it none, or use `ainvoke` or `astream`."
            )
        return SyncRun(self._driver, given, config)


_streaming: set[asyncio.Future[Any]] = set()
"""Runs that are streamed. A loop holds its tasks weakly: collected together with its stream, a run would never end."""


@functools.cache
def _hooked_class(kind: type[Any]) -> type[HookedAgent]:
    """The class of agents of this class with hooks, so that `isinstance` and own methods hold for both."""
    return type(HookedAgent.__name__, (HookedAgent, kind), {"__slots__": (), "__module__": HookedAgent.__module__})


def _hook(driver: Driver) -> HookedAgent:
    agent = driver.agent
    made: HookedAgent = object.__new__(_hooked_class(type(agent)))
    made.__dict__ = agent.__dict__
    made._driver = driver
    return made


def _in_version(options: Mapping[str, Any], result: Any) -> Any:
    """What a run gave in the form that was asked for, where it was made of what hooks said."""
    if options.get("version") != "v2" or not isinstance(result, Mapping):
        return result
    return GraphOutput(value=result)
