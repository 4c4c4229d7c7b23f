"""Calls of tools and of sub-agents in Microsoft Agent Framework, led through the hooks of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from agent_framework import Content, FunctionInvocationContext, FunctionMiddleware, MiddlewareTermination

from hookline.adapters.agent_framework import _words as words
from hookline.adapters.agent_framework._seat import Called, Next, Seat, called, ending
from hookline.calls import ToolRequest, ToolResult
from hookline.runtime import Approve

__all__ = ["Tools"]


class Tools(FunctionMiddleware):
    """Leads the tool calls of a run through its hooks.

    Args:
        seat: The run.
        follow: Has a sub-agent's runs follow those that call it.
    """

    def __init__(self, seat: Seat, follow: Callable[[Any], None]) -> None:
        self._seat, self._follow = seat, follow

    async def process(self, context: FunctionInvocationContext, call_next: Next) -> None:
        """One call of a tool or of a sub-agent."""
        agent = words.agent_of(context.function)
        if agent is not None:
            await self._call_agent(agent, context, call_next)
            return
        run, given, name = self._seat.run, _args(context), context.function.name
        calling = ToolRequest(
            toolset=self._seat.servers.get(name) or words.server_of(context.function),
            tool_name=name,
            args=given,
            tool_call_id=context.metadata.get("call_id", ""),
        )
        ended = list[MiddlewareTermination]()

        async def work(args: Mapping[str, Any]) -> ToolResult:
            if args != given:
                context.arguments = deepcopy(dict(args))
            await ending(context, call_next, ended)
            return ToolResult(content=words.text_of(context.result))

        approved = isinstance(self._seat.decisions.get(calling.tool_call_id), Approve)
        done = await run.call_tool(calling, work, approved=approved)
        if done.asked is not None:
            context.result = self._request(context, done.asked.args)
            return
        if done.error is not None:
            raise done.error
        if done.changed:
            context.result = done.result.content
        if done.stop is not None:
            raise MiddlewareTermination(done.stop.reason)
        if ended:
            raise ended[0]

    def _request(self, context: FunctionInvocationContext, args: Mapping[str, Any]) -> Content:
        """The call, as a request for a person's approval."""
        call_id = context.metadata["call_id"]
        occurrence = context.metadata.get("function_call_occurrence_id") or call_id
        return words.request(occurrence, call_id, context.function.name, args)

    async def _call_agent(self, agent: Any, context: FunctionInvocationContext, call_next: Next) -> None:
        run, given = self._seat.run, _args(context)
        name = next(iter(given), "task")
        outer, ended = called.get(), list[MiddlewareTermination]()
        self._follow(agent)

        async def work(instruction: str, operation_id: str) -> str:
            if instruction != given.get(name):
                context.arguments = {**given, name: instruction}
            child = Called(agent, run, operation_id)
            called.set(child)
            try:
                await ending(context, call_next, ended)
            finally:
                called.set(outer)
            return words.text_of(context.result)

        done = await run.call_agent(context.function.name, str(given.get(name, "")), work)
        if done.changed:
            context.result = done.output
        if done.denied is not None and run.denied is not None:
            raise MiddlewareTermination(run.denied.reason)
        if ended:
            raise ended[0]


def _args(context: FunctionInvocationContext) -> dict[str, Any]:
    arguments: Any = context.arguments
    return dict(arguments) if isinstance(arguments, Mapping) else dict(arguments.model_dump())
