"""Middleware that passes tool calls and sub-agent calls of Microsoft Agent Framework through hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from agent_framework import Content, FunctionInvocationContext, FunctionMiddleware, MiddlewareTermination

from hookline.adapters.agent_framework import _conversion as convert
from hookline.adapters.agent_framework._run_binding import (
    AgentFrameworkBinding,
    Next,
    SubAgentStart,
    call_until_terminated,
    running_tool,
    starting_sub_agent,
)
from hookline.calls import ToolRequest, ToolResult
from hookline.runtime import Approve

__all__ = ["ToolCallMiddleware"]


class ToolCallMiddleware(FunctionMiddleware):
    """Passes the tool calls of a run through its hooks.

    Args:
        binding: The binding of the run.
        follow: Makes a sub-agent's runs operations under the runs that call it.
    """

    def __init__(self, binding: AgentFrameworkBinding, follow: Callable[[Any], None]) -> None:
        self._binding, self._follow = binding, follow

    async def process(self, context: FunctionInvocationContext, call_next: Next) -> None:
        """Pass a call of a tool or of a sub-agent through the hooks."""
        agent = convert.agent_of(context.function)
        if agent is not None:
            await self._call_agent(agent, context, call_next)
            return
        run, given, name = self._binding.run, _args(context), context.function.name
        request = ToolRequest(
            toolset=self._binding.toolsets.get(name) or convert.toolset_of(context.function),
            tool_name=name,
            args=given,
            tool_call_id=context.metadata.get("call_id", ""),
        )
        terminations: list[MiddlewareTermination] = []

        async def work(args: Mapping[str, Any]) -> ToolResult:
            if args != given:
                context.arguments = deepcopy(dict(args))
            token = running_tool.set(run)
            try:
                await call_until_terminated(context, call_next, terminations)
            finally:
                running_tool.reset(token)
            return ToolResult(content=convert.text_of(context.result))

        approved = isinstance(self._binding.decisions.get(request.tool_call_id), Approve)
        done = await run.call_tool(request, work, approved=approved)
        if done.asked is not None:
            context.result = self._request(context, done.asked.args)
            return
        if done.error is not None:
            raise done.error
        if done.changed:
            context.result = convert.add_text(context.result, done) if done.added else done.result.content
        if done.stop is not None:
            raise MiddlewareTermination(done.stop.reason)
        if terminations:
            raise terminations[0]

    def _request(self, context: FunctionInvocationContext, args: Mapping[str, Any]) -> Content:
        """Return the request for a person's approval of a call."""
        call_id = context.metadata["call_id"]
        occurrence = context.metadata.get("function_call_occurrence_id") or call_id
        return convert.approval_request(occurrence, call_id, context.function.name, args)

    async def _call_agent(self, agent: Any, context: FunctionInvocationContext, call_next: Next) -> None:
        run, given = self._binding.run, _args(context)
        name = next(iter(given), "task")
        outer, terminations = starting_sub_agent.get(), list[MiddlewareTermination]()
        self._follow(agent)

        async def work(instruction: str, operation_id: str) -> str:
            if instruction != given.get(name):
                context.arguments = {**given, name: instruction}
            child = SubAgentStart(agent, run, operation_id)
            starting_sub_agent.set(child)
            try:
                await call_until_terminated(context, call_next, terminations)
            finally:
                starting_sub_agent.set(outer)
            return convert.text_of(context.result)

        done = await run.call_agent(context.function.name, str(given.get(name, "")), work)
        if done.changed:
            context.result = done.output
        if done.denied is not None and run.denied is not None:
            raise MiddlewareTermination(run.denied.reason)
        if terminations:
            raise terminations[0]


def _args(context: FunctionInvocationContext) -> dict[str, Any]:
    arguments: Any = context.arguments
    return dict(arguments) if isinstance(arguments, dict | Mapping) else dict(arguments.model_dump())
