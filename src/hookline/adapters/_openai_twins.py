"""Twins of the agents, tools and models of the OpenAI Agents SDK: the same in everything, but hooks stand in their way.

What is a twin already stays as it is. Outside of a run with hooks a twin does what its original does.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, cast

from agents import Agent, FunctionTool, Handoff, RunContextWrapper, handoff

from hookline.adapters._openai_attached import present
from hookline.adapters._openai_items import named
from hookline.adapters._openai_models import alike, twin_model
from hookline.adapters._openai_sub_agents import call_agent, hand_over

__all__ = ["current", "twin"]

Invoke = Callable[[Any, str], Awaitable[Any]]


class Twin:
    """What the twin of an agent has, on top of its class."""

    tools: list[Any]

    def get_all_tools(self, run_context: RunContextWrapper[Any]) -> Awaitable[list[Any]]:
        """All tools, each of them a twin."""
        attached = present.get()
        if attached is not None and attached.undecided:
            attached.hear(run_context)
        for at, tool in enumerate(self.tools):  # hooks of the SDK may have added some
            self.tools[at] = twin_tool(tool)
        found: Awaitable[list[Any]] = super().get_all_tools(run_context)  # type: ignore[misc]
        return found

    async def get_mcp_tools(self, run_context: RunContextWrapper[Any]) -> list[Any]:
        """The tools of its MCP servers, each of them a twin."""
        return [twin_tool(tool) for tool in await super().get_mcp_tools(run_context)]  # type: ignore[misc]


@functools.cache
def _class_of(kind: type[Any]) -> type[Agent[Any]]:
    return type(kind.__name__, (Twin, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def twin(agent: Agent[Any], known: dict[int, Agent[Any]] | None = None) -> Agent[Any]:
    """The twin of an agent, and of all to which it hands over.

    Args:
        agent: The agent.
        known: Those that have their twin already, by the id of the object.
    """
    known = {} if known is None else known
    if isinstance(agent, Twin):
        return agent
    if id(agent) in known:
        return known[id(agent)]
    found: Agent[Any] = alike(agent, _class_of(cast(Any, type(agent))))
    vars(found)["_hookline"] = agent, _parts(agent)
    known[id(agent)] = found
    tools = [twin_tool(each, known) for each in agent.tools]
    handoffs = [_twin_handoff(each, known) for each in agent.handoffs]
    vars(found).update(tools=tools, model=twin_model(agent.model), handoffs=handoffs)
    return found


def _parts(agent: Agent[Any]) -> list[Any]:
    found = [*vars(agent).values(), *agent.tools, *agent.handoffs]
    for each in (*agent.tools, *agent.handoffs):
        if isinstance(each, FunctionTool | Handoff):  # of these the twin is a copy
            found.extend(vars(each).values())
    return found


def current(agent: Any, seen: set[int] | None = None) -> bool:
    """Whether this is a twin, and nobody has changed its original since, nor those of all that it calls."""
    seen = set() if seen is None else seen
    if id(agent) in seen:
        return True
    seen.add(id(agent))
    original, parts = vars(agent).get("_hookline", (None, []))
    if original is None:
        return False
    now = _parts(original)
    if len(now) != len(parts) or any(each is not before for each, before in zip(now, parts, strict=True)):
        return False
    references = [getattr(each, "_agent_ref", None) for each in agent.handoffs]
    called = [each() for each in references if each is not None]
    called += [getattr(each, "_agent_instance", None) for each in agent.tools]
    return all(current(each, seen) for each in called if each is not None)


def _twin_handoff(given: Agent[Any] | Handoff[Any, Any], known: dict[int, Agent[Any]]) -> Handoff[Any, Any]:
    found = alike(given) if isinstance(given, Handoff) else handoff(twin(given, known))
    invoke, reference = found.on_invoke_handoff, getattr(found, "_agent_ref", None)
    target = reference() if reference is not None else None
    if isinstance(target, Agent):
        found._agent_ref = weakref.ref(twin(target, known))

    async def hooked(ctx: RunContextWrapper[Any], text: str) -> Agent[Any]:
        agent = twin(await invoke(ctx, text), known)
        attached = present.get()
        if attached is not None:
            await hand_over(attached, agent, text)
        return agent

    found.on_invoke_handoff = hooked
    return found


def twin_tool(tool: Any, known: dict[int, Agent[Any]] | None = None) -> Any:
    """The twin of a function tool; others are the provider's, and run where no hook is."""
    if not isinstance(tool, FunctionTool) or "_hookline" in vars(tool):
        return tool
    found = alike(tool)
    found._hookline = True
    identifier, name = named(tool)
    callee = getattr(tool, "_agent_instance", None)
    if callee is not None:  # a state that waits inside of it names its agent by this
        callee = found._agent_instance = twin(callee, known)
    # The SDK's invoker turns what a tool raises into text. Hooks stand inside of it, so that they see the exception.
    inner = getattr(tool.on_invoke_tool, "_invoke_tool_impl", None)
    if inner is None:
        found.on_invoke_tool = _hooked(identifier, name, callee, tool.on_invoke_tool)
    else:
        found.on_invoke_tool = alike(tool.on_invoke_tool)
        found.on_invoke_tool._invoke_tool_impl = _hooked(identifier, name, callee, inner)
    return found


def _hooked(identifier: str, name: str, callee: Agent[Any] | None, invoke: Invoke) -> Invoke:
    async def hooked(ctx: Any, text: str) -> Any:
        attached = present.get()
        if attached is None:
            return await invoke(ctx, text)
        if callee is not None:
            return await call_agent(attached, name, callee, invoke, ctx, text)
        return await attached.call(identifier, name, invoke, ctx, text)

    # The SDK notes there how it parses arguments.
    vars(hooked).update(getattr(invoke, "__dict__", {}))
    return hooked
