"""Bind one run of a Microsoft Agent Framework agent to hookline's `AdapterRun`; middleware shares the binding."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextvars import ContextVar
from typing import Any

import msgspec
from agent_framework import AgentContext, ChatContext, Content, Message, MiddlewareTermination

from hookline.adapters._conversion import rejection_text
from hookline.adapters.agent_framework import _conversion as convert
from hookline.calls import AgentCall, CompactCall, ModelCall, SubAgentCall, ToolCall, ToolRequest, ToolResult
from hookline.errors import UnknownToolError
from hookline.events import PendingTool, ToolOutcome
from hookline.runtime import KINDS, AdapterRun, Approve, Capabilities, Reject

__all__ = ["DRIVES", "AgentFrameworkBinding", "Next", "SubAgentStart", "call_until_terminated", "starting_sub_agent"]

Next = Callable[[], Awaitable[None]]
DRIVES = Capabilities(
    framework="Microsoft Agent Framework",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
    adds_context=frozenset({ToolCall, AgentCall}),
    guides=True,
)
"""The hooks that the adapter supports."""


class AgentFrameworkBinding:
    """One run of one agent, and what the middleware of its calls needs to know about it.

    Args:
        run: The run.
        context: The framework's context of the run.
        decisions: A person's decisions since the run paused, by tool call.
        reworded: The refused calls whose tool result hookline words; the framework words the others.
        operation_key: Key under which its approval requests name the operation that waits.
    """

    def __init__(
        self,
        run: AdapterRun,
        context: AgentContext,
        decisions: Mapping[str, Approve | Reject],
        reworded: Set[str],
        operation_key: str,
    ) -> None:
        self.run, self.context, self.operation_key = run, context, operation_key
        self.decisions = dict(decisions)
        self.model_pending = False
        """Whether the model call of the present step is still open."""
        self.terminations: list[MiddlewareTermination] = []
        """The errors by which other middleware ended the agent with a result."""
        self.toolsets: dict[str, str] = {}
        """The toolset of each tool, by tool name."""
        self.rejected = (
            {call: each for call, each in decisions.items() if isinstance(each, Reject)} if decisions else {}
        )
        """Rejections whose tool result the model has not seen yet."""
        self._reworded = reworded

    def begin_step(self, context: ChatContext) -> None:
        """Begin a step; a retry of the model call belongs to the same step."""
        rejected = self.rejected
        for content in [each for message in context.messages for each in message.contents] if rejected else ():
            decision = self.rejected.get(content.call_id or "") if content.type == "function_result" else None
            if decision is None:
                continue
            if decision.tool_call_id in self._reworded:
                _replace_result(content, rejection_text(decision))  # in place, because the run's response holds it too
            elif self.run.run.step_index is not None:
                self._set_outcome_text(decision.tool_call_id, convert.text_of(content.result))
        self.rejected = {}
        if not self.model_pending:
            self.run.begin_step()
            self.model_pending = True

    async def report_unknown_tools(self, messages: Sequence[Message]) -> None:
        """Run hooks for calls of unknown tools in the open step, which the framework itself has answered.

        Args:
            messages: The messages for the model, which has answered in that step.
        """
        step = self.run.step
        open_calls = {each.tool_call_id: each for each in step.calling if each.tool_call_id not in step.outcomes}
        contents = [each for message in messages for each in message.contents] if open_calls else []
        for content in contents:
            request = open_calls.get(content.call_id or "")
            failed = content.type == "function_result" and content.exception is not None
            if failed and request is not None and request.tool_name not in self.toolsets:
                await self._report_unknown_tool(request, content)

    async def _report_unknown_tool(self, request: ToolRequest, content: Content) -> None:
        async def work(_: Mapping[str, Any]) -> ToolResult:
            raise UnknownToolError(request.tool_name, sorted(self.toolsets))

        done = await self.run.call_tool(request, work)
        self.run.step.asked.pop(request.tool_call_id, None)
        if done.changed and done.asked is None:
            _replace_result(content, done.result.content)
            content.exception = None if done.result.success else content.exception

    def resume(self) -> str:
        """Resume a paused run, in a step of its own.

        Returns:
            Why the run ends, if a person stopped it; else `""`.
        """
        run, decisions = self.run, list(self.decisions.values())
        run.begin_step()
        run.step.type = "call_tool"
        run.decided(decisions)
        for pending in run.run.pending:
            decision = self.decisions.get(pending.tool_call_id)
            if isinstance(decision, Reject):
                self._record_refusal(pending, rejection_text(decision))
        stops = [each for each in decisions if isinstance(each, Reject) and not each.and_continue]
        return rejection_text(stops[0]) if stops else ""

    def open_questions(self, messages: Sequence[Message]) -> list[Content]:
        """Return approval requests for calls that hooks ask about and the person has not decided yet.

        Args:
            messages: The messages for the model. A call without a result must not be among them.
        """
        contents = [each for message in messages for each in message.contents]
        answered_ids = {each.call_id for each in contents if each.type == "function_result"}
        calls = {
            each.call_id: each for each in contents if each.type == "function_call" and each.call_id not in answered_ids
        }
        return [
            convert.approval_request(calls[name].id or name, name, each.tool_name, each.args)
            for each in self.run.run.pending
            if (name := each.tool_call_id) in calls
        ]

    def _record_refusal(self, pending: PendingTool, text: str) -> None:
        step, name = self.run.step, pending.tool_call_id
        where = {"toolset": pending.toolset, "tool_name": pending.tool_name, "tool_call_id": name}
        step.calling.append(ToolRequest(**where, args=pending.args))
        step.outcomes[name] = ToolOutcome(**where, content=text, success=False)

    def _set_outcome_text(self, name: str, text: str) -> None:
        """Record the tool result that the framework gave the model for a refused call."""
        outcomes = self.run.step.outcomes
        if name in outcomes:
            outcomes[name] = msgspec.structs.replace(outcomes[name], content=text)

    def record_toolsets(self, context: ChatContext) -> None:
        """Record the toolsets of the tools that the model is offered."""
        offered = (context.options or {}).get("tools") or ()
        for tool in offered if isinstance(offered, list | tuple) else [offered]:
            name = getattr(tool, "name", None)
            if name is not None and name not in self.toolsets:
                self.toolsets[name] = convert.toolset_of(tool)


def _replace_result(content: Content, text: str) -> None:
    content.result = text
    content.items = [Content.from_text(text)]


async def call_until_terminated(context: Any, call_next: Next, terminations: list[MiddlewareTermination]) -> None:
    """Make a call and catch its `MiddlewareTermination`, so that hooks see the result before it is raised again.

    Args:
        context: The framework's context of the call.
        call_next: Makes the call.
        terminations: The error is added to this list, if other middleware ended the call with a result.
    """
    try:
        await call_next()
    except MiddlewareTermination as error:
        if context.result is None:
            raise
        terminations.append(error)


class SubAgentStart:
    """A sub-agent that a tool call is about to run.

    Args:
        agent: The sub-agent.
        parent: The run that calls it.
        operation_id: The operation id for its run.
    """

    def __init__(self, agent: Any, parent: AdapterRun, operation_id: str) -> None:
        self.agent, self.parent, self.operation_id = agent, parent, operation_id
        self.error: Exception | None = None


running_tool: ContextVar[AdapterRun | None] = ContextVar("hookline_agent_framework_tool", default=None)
"""The run whose tool is running; `None` outside of tools."""
starting_sub_agent: ContextVar[SubAgentStart | None] = ContextVar("hookline_agent_framework", default=None)
"""The sub-agent that the present tool call starts."""
