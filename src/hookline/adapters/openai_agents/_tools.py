"""Tools and handoffs of the OpenAI Agents SDK, called through the hooks of the run that calls them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agents import Agent

from hookline.adapters.openai_agents._attached import Attached, here
from hookline.adapters.openai_agents._items import named
from hookline.adapters.openai_agents._seams import StandIn
from hookline.adapters.openai_agents._sub_agents import call_agent, hand_over

__all__ = ["handing_over", "invoking"]

Invoke = Callable[[Any, str], Awaitable[Any]]


def invoking(invoke_tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that invokes a tool."""

    async def invoke(*, function_tool: Any, context: Any, **given: Any) -> Any:
        attached = here()
        if attached is not None:
            function_tool = _led_tool(attached, function_tool, context)
        return await invoke_tool(function_tool=function_tool, context=context, **given)

    return invoke


def handing_over(execute_handoffs: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that lets another agent take over."""

    async def execute(*, run_handoffs: list[Any], **given: Any) -> Any:
        attached = here()
        if attached is not None and run_handoffs:  # of several the SDK takes the first
            first, *others = run_handoffs
            run_handoffs = [replace(first, handoff=_led_handoff(attached, first.handoff)), *others]
        return await execute_handoffs(run_handoffs=run_handoffs, **given)

    return execute


def _led_tool(attached: Attached, tool: Any, context: Any) -> Any:
    """The tool for one call, whose invoker leads through the hooks."""
    invoker = tool.on_invoke_tool
    # The SDK's invoker turns what a tool raises into text. Hooks stand inside of it, so that they see the exception.
    inner = getattr(invoker, "_invoke_tool_impl", None)
    if inner is None:
        led: Any = _led(attached, tool, context, invoker)
        del led.__annotations__  # by these the SDK decides which context the tool is given
        functools.update_wrapper(led, invoker)
    else:
        led = object.__new__(type(invoker))
        vars(led).update(vars(invoker), _invoke_tool_impl=_led(attached, tool, context, inner))
    return StandIn(tool, on_invoke_tool=led)


def _led(attached: Attached, tool: Any, context: Any, invoke: Invoke) -> Invoke:
    toolset, name = named(tool)
    callee = getattr(tool, "_agent_instance", None)

    async def led(ctx: Any, text: str) -> Any:
        if callee is not None:
            return await call_agent(attached, name, callee, invoke, ctx, text)
        return await attached.call(toolset, name, invoke, context, ctx, text)

    return led


def _led_handoff(attached: Attached, handoff: Any) -> Any:
    """The handoff for one call, which hooks may stand in the way of."""
    invoke = handoff.on_invoke_handoff

    async def led(ctx: Any, text: str) -> Any:
        agent = await invoke(ctx, text)
        if isinstance(agent, Agent):
            await hand_over(attached, agent, text)
        return agent

    return StandIn(handoff, on_invoke_handoff=led)
