"""LangChain agents whose runs have hooks: `hooked` and `HookedAgent`."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import Command, GraphOutput

from hookline.adapters._attaching import check_hooked, decisions_by_call
from hookline.adapters._streams import wait_for_end
from hookline.adapters.langchain._conversion import messages_in, to_pending_tools
from hookline.adapters.langchain._run_binding import DRIVES, HELD_TAG, drop_held_output, identify_as_local
from hookline.adapters.langchain._runs import GraphRunner
from hookline.adapters.langchain._sync import SyncRun
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

__all__ = ["HookedAgent", "HookedToolNode", "answers", "hooked"]

MIDDLEWARE_CHANNEL, WITHOUT_TOOLS_CHANNEL = "hookline_middleware", "hookline_without_tools"
"""State channels that mark agents with the middleware, and agents whose middleware does not wrap tool calls."""


class HookedToolNode(ToolNode):
    """A `ToolNode` that calls the tools through the hooks of the run."""


def _graphs_of(graph: Any) -> Iterator[Any]:
    """Yield a graph and the graphs that are nodes within it."""
    yield graph
    for each in getattr(graph, "nodes", {}).values():
        if isinstance(bound := getattr(each, "bound", None), Pregel):
            yield from _graphs_of(bound)


_checked_agents: WeakSet[Any] = WeakSet()
"""Agents that `_check_middleware` accepted; searching their graphs again for each run would cost more than hooks."""


def _check_middleware(agent: Any) -> None:
    """Raise for an agent whose hooks would never be called, or not for its tools."""
    if isinstance(agent, Pregel) and agent in _checked_agents:
        return
    graphs = list(_graphs_of(agent))
    if not any(
        MIDDLEWARE_CHANNEL in graph.channels
        or any(isinstance(each.bound, HookedToolNode) for each in graph.nodes.values())
        for graph in graphs
        if isinstance(graph, Pregel)
    ):
        raise HookUsageError(
            "The agent was built without a HooklineMiddleware, so no hook would ever be called. Build it with "
            "create_agent(..., middleware=[HooklineMiddleware(), ...]), or build your own graph with the middleware's "
            "`model` and `tool_node`."
        )
    if any(WITHOUT_TOOLS_CHANNEL in graph.channels and "tools" in graph.nodes for graph in graphs):
        raise HookUsageError(
            "The agent has tools, but its HooklineMiddleware(tools=False) does not wrap tool calls, so no guard would "
            "ever check one. Build the agent with HooklineMiddleware()."
        )
    _checked_agents.add(agent)


def hooked(agent: Any, hooks: Iterable[AnyHook] = (), *, agent_id: str = "", **options: Any) -> HookedAgent:
    """Wrap an agent so that each of its runs uses these hooks.

    Args:
        agent: An agent of `create_agent` with a `HooklineMiddleware`; it is not changed. An agent that `hooked`
            returned keeps its hooks and gets these as well.
        hooks: The hooks of each run.
        agent_id: The agent's id in events; its own name unless given.
        options: Options of `AdapterRun`: `operation_id`, `user_id`, `tenant_id`, `tags`, `model`, `provider`,
            `dispatcher`, `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If the agent was built without the middleware, or if an option is unknown.
    """
    batch = check_hooked(hooks, DRIVES, options, also=("conversation_id", "model", "provider", "parent"))
    if isinstance(agent, HookedAgent):
        known = agent._runner
        merged = {**known.options, **options}
        return _new_hooked_agent(
            GraphRunner(
                agent=known.agent, hooks=[*known.hooks, *batch], agent_id=agent_id or known.agent_id, options=merged
            )
        )
    _check_middleware(agent)
    name = "agent" if agent.name == "LangGraph" else agent.name
    return _new_hooked_agent(GraphRunner(agent=agent, hooks=batch, agent_id=agent_id or name, options=options))


def answers(result: Mapping[str, Any] | GraphOutput[Any], decisions: Iterable[Approve | Reject]) -> Command[Any]:
    """Convert a person's decisions into the command that resumes a paused run.

    Args:
        result: The result of the paused run, with its `__interrupt__`.
        decisions: The decisions, each with the id of its tool call, or of the interrupt if that is not about a tool.
            Unlike in LangChain, a `Reject` without `and_continue` ends the run.

    Raises:
        HookUsageError: If a decision is about a call that does not wait, if there is no decision, or if decisions on
            one interrupt are incomplete.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    interrupts, state = (
        (result.interrupts, result.value)
        if isinstance(result, GraphOutput)
        else (result.get("__interrupt__", ()), result)
    )
    pending = to_pending_tools(interrupts, messages_in(state), identify_as_local)
    by_call = decisions_by_call(decisions, [call.tool_call_id for _, call in pending])
    begun = {interrupt.id for interrupt, call in pending if call.tool_call_id in by_call}
    for interrupt, call in pending:
        decision = by_call.get(call.tool_call_id)
        if decision is None and begun and interrupt.id not in begun:
            continue  # it keeps waiting
        if decision is None:
            raise HookUsageError(
                f"LangChain also waits for a decision on {call.tool_call_id!r}. Pass a decision for that call too."
            )
        answer: dict[str, Any] = {"type": "approve"}
        if isinstance(decision, Reject):
            answer = {"type": "reject", "message": decision.reason, "ends_the_run": not decision.and_continue}
        found.setdefault(interrupt.id, {"decisions": []})["decisions"].append(answer)
    return Command(resume=found)


class HookedAgent(Pregel[Any, Any, Any, Any]):
    """A LangChain agent whose runs have hooks; created by `hooked`. Run, stream and compose it like the agent.

    A run without hooks is not an operation, unless others could notice it.

    It is an instance of the agent's class, and shares the agent's attributes.
    """

    __slots__ = ("_runner",)
    _runner: GraphRunner

    async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run the agent; see the agent's `ainvoke`.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
            Exception: What the agent raises.
        """
        agent = self._runner.agent
        if not self._runner.opens_operation(input, config):
            return await agent.ainvoke(input, config, **options)

        def run_graph(given: Any, config: Any) -> Awaitable[Any]:
            return agent.ainvoke(given, config, **options)

        return _to_output_version(options, await self._runner.run(input, config, run_graph, agent.aget_state))

    async def resume(
        self, result: Any, decisions: Iterable[Approve | Reject], config: Any = None, **options: Any
    ) -> Any:
        """Continue a run that waits for a person, as the same operation.

        Args:
            result: The result of the paused run, with its interrupts.
            decisions: The decisions, each with the id of its tool call.
            config: The config of the paused run, with its `thread_id`.
            options: Other arguments of `ainvoke`.

        Raises:
            RunStopped: If a `Reject` without `and_continue` ends the run.
            HookUsageError: If a decision is about a call that does not wait.
        """
        return await self.ainvoke(answers(result, decisions), config, **options)

    def invoke(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run the agent from sync code; its hooks run in an event loop of another thread.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
            Exception: What the agent raises.
        """
        if not self._runner.opens_operation(input, config):
            return self._runner.agent.invoke(input, config, **options)
        with self._sync_run(input, config) as run:
            for call in run:
                with call:
                    call.result = call.make(self._runner.agent.invoke, **options)
            return _to_output_version(options, run.result)

    async def astream(self, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run the agent and stream; see the agent's `astream`. Closing the stream early ends the run."""
        agent = self._runner.agent
        if not self._runner.opens_operation(input, config):
            bare: Any = agent.astream(input, config, **options)
            async with aclosing(bare):
                async for chunk in bare:
                    yield chunk
            return
        chunks: asyncio.Queue[Any] = asyncio.Queue(1)
        wanted = asyncio.Event()
        wanted.set()

        async def run_graph(given: Any, config: Any) -> None:
            stream: Any = agent.astream(given, config, **options)
            async with aclosing(stream):  # otherwise its tasks would continue
                async for chunk in stream:
                    wanted.clear()
                    chunks.put_nowait(chunk)
                    await wanted.wait()  # a graph continues only when its reader asks for more

        work = asyncio.ensure_future(self._runner.run(input, config, run_graph, agent.aget_state))
        _open_streams.add(work)
        work.add_done_callback(_open_streams.discard)
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
                await wait_for_end(work)

    def stream(self, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        """Run the agent and stream from sync code. Closing the stream early ends the run."""
        if not self._runner.opens_operation(input, config):
            yield from self._runner.agent.stream(input, config, **options)
            return
        with self._sync_run(input, config) as run:
            for call in run:
                with call:
                    yield from call.stream(self._runner.agent.stream, **options)
            run.result  # noqa: B018  # raises the error of the run

    def astream_events(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run the agent and stream LangChain's events; see the agent's `astream_events`, and `astream`."""
        events = super().astream_events(input, config, **options)
        return events if inspect.isawaitable(events) else drop_held_output(events)

    def astream_log(self, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        """Run the agent and stream LangChain's log; see the agent's `astream_log`, and `astream`."""
        options["exclude_tags"] = [*(options.get("exclude_tags") or ()), HELD_TAG]
        return super().astream_log(input, config, **options)

    def copy(self, update: dict[str, Any] | None = None) -> HookedAgent:
        """Copy the agent with other attributes, as `with_config` does; the copy has the same hooks."""
        runner = self._runner
        return _new_hooked_agent(replace(runner, agent=runner.agent.copy(update)))

    def _sync_run(self, given: Any, config: Any) -> SyncRun:
        if self._runner.options.get("dispatcher") is not None:
            raise HookUsageError(
                "A sync run has an event loop of its own, which a dispatcher of another loop cannot serve. "
                "Leave out `dispatcher`, or use `ainvoke` or `astream`."
            )
        return SyncRun(self._runner, given, config)


_open_streams: set[asyncio.Future[Any]] = set()
"""Streamed runs. An event loop references tasks weakly, so a run collected with its stream would never end."""


@functools.cache
def _hooked_class(kind: type[Any]) -> type[HookedAgent]:
    """Return a subclass of `HookedAgent` and of this class, so that `isinstance` and its own methods hold for both."""
    return type(HookedAgent.__name__, (HookedAgent, kind), {"__slots__": (), "__module__": HookedAgent.__module__})


def _new_hooked_agent(runner: GraphRunner) -> HookedAgent:
    agent = runner.agent
    made: HookedAgent = object.__new__(_hooked_class(type(agent)))
    made.__dict__ = agent.__dict__
    made._runner = runner
    return made


def _to_output_version(options: Mapping[str, Any], result: Any) -> Any:
    """Return the result of a run in the output version that was asked for, if hooks built it."""
    if options.get("version") != "v2" or not isinstance(result, Mapping):
        return result
    return GraphOutput(value=result)
