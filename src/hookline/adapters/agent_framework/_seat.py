"""One run of one agent of Microsoft Agent Framework, as the middleware of its calls finds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextvars import ContextVar
from typing import Any

import msgspec
from agent_framework import AgentContext, ChatContext, Content, Message, MiddlewareTermination

from hookline.adapters.agent_framework import _words as words
from hookline.calls import AgentCall, CompactCall, ModelCall, SubAgentCall, ToolCall, ToolRequest, ToolResult
from hookline.errors import UnknownToolError
from hookline.events import PendingTool, ToolOutcome
from hookline.runtime import KINDS, AdapterRun, Approve, Capabilities, Reject

__all__ = ["DRIVES", "Called", "Next", "Seat", "called", "ending"]

Next = Callable[[], Awaitable[None]]
DRIVES = Capabilities(
    framework="Microsoft Agent Framework",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
)
"""What the adapter can drive."""


class Seat:
    """One run of one agent.

    Args:
        run: The run.
        context: The framework's own context of it.
        decisions: What a person has decided since it paused, by tool call.
        reworded: The refused calls of which the model is to be told in our words; of others in the framework's.
        mark: Where its requests for approval say which operation waits.
    """

    def __init__(
        self,
        run: AdapterRun,
        context: AgentContext,
        decisions: Mapping[str, Approve | Reject],
        reworded: Set[str],
        mark: str,
    ) -> None:
        self.run, self.context, self.mark = run, context, mark
        self.decisions = dict(decisions)
        self.asking = False
        """Whether the model of the present step has not answered yet."""
        self.servers: dict[str, str] = {}
        """Where its tools come from, by name."""
        self.rejected = {call: each for call, each in decisions.items() if isinstance(each, Reject)}
        """Rejections that the model has not been told of yet."""
        self._reworded = reworded

    def begin(self, context: ChatContext) -> None:
        """A step begins; another attempt at the same model call belongs to the same step."""
        for content in (each for message in context.messages for each in message.contents if self.rejected):
            decision = self.rejected.get(content.call_id or "") if content.type == "function_result" else None
            if decision is None:
                continue
            if decision.tool_call_id in self._reworded:
                _replace(content, words.rejection(decision))  # in place: what the run gives back holds it too
            elif self.run.run.step_index is not None:
                self._reword(decision.tool_call_id, words.text_of(content.result))
        self.rejected = {}
        if not self.asking:
            self.run.begin_step()
            self.asking = True

    async def tell_unknown(self, messages: Sequence[Message]) -> None:
        """Tell of calls of tools that do not exist, to which the framework itself has answered.

        Args:
            messages: What the model is about to see.
        """
        if self.asking or self.run.run.step_index is None:
            return
        step = self.run.step
        open_calls = {each.tool_call_id: each for each in step.calling if each.tool_call_id not in step.outcomes}
        contents = [each for message in messages for each in message.contents] if open_calls else []
        for content in contents:
            calling = open_calls.get(content.call_id or "")
            failed = content.type == "function_result" and content.exception is not None
            if failed and calling is not None and calling.tool_name not in self.servers:
                await self._unknown(calling, content)

    async def _unknown(self, calling: ToolRequest, told: Content) -> None:
        async def work(_: Mapping[str, Any]) -> ToolResult:
            raise UnknownToolError(calling.tool_name, sorted(self.servers))

        done = await self.run.call_tool(calling, work)
        self.run.step.asked.pop(calling.tool_call_id, None)
        if done.changed and done.asked is None:
            _replace(told, done.result.content)
            told.exception = None if done.result.success else told.exception

    def resume(self) -> str:
        """A run that waited goes on, in a step of its own.

        Returns:
            Why it ends, if a person has stopped it.
        """
        run, decided = self.run, list(self.decisions.values())
        run.begin_step()
        run.step.type = "call_tool"
        run.decided(decided)
        for pending in run.run.pending:
            decision = self.decisions.get(pending.tool_call_id)
            if isinstance(decision, Reject):
                self._refused(pending, words.rejection(decision))
        stops = [each for each in decided if isinstance(each, Reject) and not each.and_continue]
        return words.rejection(stops[0]) if stops else ""

    def undecided(self, messages: Sequence[Message]) -> list[Content]:
        """Requests for calls about which hooks have asked, and the person has not answered yet.

        Args:
            messages: What the model is about to see. A call without a result must not be shown to it.
        """
        if not self.decisions:
            return []
        contents = [each for message in messages for each in message.contents]
        over = {each.call_id for each in contents if each.type == "function_result"}
        calls = {each.call_id: each for each in contents if each.type == "function_call" and each.call_id not in over}
        return [
            words.request(calls[name].id or name, name, each.tool_name, each.args)
            for each in self.run.run.pending
            if (name := each.tool_call_id) in calls
        ]

    def _refused(self, pending: PendingTool, told: str) -> None:
        step, name = self.run.step, pending.tool_call_id
        where = {"toolset": pending.toolset, "tool_name": pending.tool_name, "tool_call_id": name}
        step.calling.append(ToolRequest(**where, args=pending.args))
        step.outcomes[name] = ToolOutcome(**where, content=told, success=False)

    def _reword(self, name: str, told: str) -> None:
        """Note what the framework has told the model of a call that a person refused."""
        outcomes = self.run.step.outcomes
        if name in outcomes:
            outcomes[name] = msgspec.structs.replace(outcomes[name], content=told)

    def learn(self, context: ChatContext) -> None:
        """Where the tools come from that the model is offered."""
        offered = (context.options or {}).get("tools") or ()
        for tool in offered if isinstance(offered, list | tuple) else [offered]:
            name = getattr(tool, "name", None)
            if name is not None and name not in self.servers:
                self.servers[name] = words.server_of(tool)


def _replace(told: Content, text: str) -> None:
    told.result = text
    told.items = [Content.from_text(text)]


async def ending(context: Any, call_next: Next, ended: list[MiddlewareTermination]) -> None:
    """What other middleware ends with a result has that result; what ended it is raised again once hooks have seen it.

    Args:
        context: The framework's context of what is called.
        call_next: Calls it.
        ended: Takes what ended it.
    """
    try:
        await call_next()
    except MiddlewareTermination as error:
        if context.result is None:
            raise
        ended.append(error)


class Called:
    """A sub-agent that is being called.

    Args:
        agent: The sub-agent.
        parent: The run that calls it.
        operation_id: The operation that its run is to be.
    """

    def __init__(self, agent: Any, parent: AdapterRun, operation_id: str) -> None:
        self.agent, self.parent, self.operation_id = agent, parent, operation_id
        self.error: Exception | None = None


called: ContextVar[Called | None] = ContextVar("hookline_agent_framework", default=None)
"""The sub-agent that the present tool call calls."""
