"""Pass the tool calls and handoffs of the OpenAI Agents SDK through the hooks of the run."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agents import Agent

from hookline.adapters.openai_agents._conversion import tool_identity
from hookline.adapters.openai_agents._patches import Substitute
from hookline.adapters.openai_agents._run_binding import OpenAIBinding, present_binding
from hookline.adapters.openai_agents._sub_agents import call_agent, hand_over

__all__ = ["wrap_execute_handoffs", "wrap_invoke_tool"]

Invoke = Callable[[Any, str], Awaitable[Any]]


def wrap_invoke_tool(invoke_tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that invokes a tool."""

    async def invoke(*, function_tool: Any, context: Any, **given: Any) -> Any:
        binding = present_binding()
        if binding is not None:
            function_tool = _hook_tool(binding, function_tool, context)
        return await invoke_tool(function_tool=function_tool, context=context, **given)

    return invoke


def wrap_execute_handoffs(execute_handoffs: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that lets another agent take over."""

    async def execute(*, run_handoffs: list[Any], **given: Any) -> Any:
        binding = present_binding()
        if binding is not None and run_handoffs:  # the SDK executes the first of several
            first, *others = run_handoffs
            run_handoffs = [replace(first, handoff=_hook_handoff(binding, first.handoff)), *others]
        return await execute_handoffs(run_handoffs=run_handoffs, **given)

    return execute


def _hook_tool(binding: OpenAIBinding, tool: Any, context: Any) -> Any:
    """Return a substitute for a tool, for one call, whose invoker runs the hooks."""
    invoker = tool.on_invoke_tool
    # The SDK's invoker converts an exception of the tool to text. Hooks run inside of it, so they see the exception.
    inner = getattr(invoker, "_invoke_tool_impl", None)
    if inner is None:
        call = _hooked_invoker(binding, tool, context, invoker)

        async def call_plainly(ctx, text):  # type: ignore[no-untyped-def]  # annotations tell the tool's context
            return await call(ctx, text)

        hooked: Any = functools.update_wrapper(call_plainly, invoker)
    else:
        hooked = object.__new__(type(invoker))
        vars(hooked).update(vars(invoker), _invoke_tool_impl=_hooked_invoker(binding, tool, context, inner))
    return Substitute(tool, on_invoke_tool=hooked)


def _hooked_invoker(binding: OpenAIBinding, tool: Any, context: Any, invoke: Invoke) -> Invoke:
    toolset, name = tool_identity(tool)
    callee = getattr(tool, "_agent_instance", None)
    if callee is not None:
        return functools.partial(call_agent, binding, name, callee, invoke)
    return functools.partial(binding.call_tool, toolset, name, invoke, context)


def _hook_handoff(binding: OpenAIBinding, handoff: Any) -> Any:
    """Return a substitute for a handoff, for one call, that hooks may deny."""
    invoke = handoff.on_invoke_handoff

    async def invoke_through_hooks(ctx: Any, text: str) -> Any:
        agent = await invoke(ctx, text)
        if isinstance(agent, Agent):
            await hand_over(binding, agent, text)
        return agent

    return Substitute(handoff, on_invoke_handoff=invoke_through_hooks)
