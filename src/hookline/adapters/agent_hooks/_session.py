"""Build the policy contexts of one operation: a session, with one sequence of numbers across all its segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_hooks import AgentContextBuilder

from hookline.adapters._conversion import copy_json
from hookline.adapters.agent_hooks._wire import (
    to_wire_message,
    to_wire_response,
    to_wire_tools,
    to_wire_value,
    tool_name,
)
from hookline.calls import (
    Call,
    Message,
    ModelCall,
    ModelResponse,
    SubAgentCall,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from hookline.events import OnComplete
from hookline.instrumentation import SegmentInfo

__all__ = ["PolicySession", "PolicySessions"]

FRAMEWORK = "hookline"

SHUTDOWN_REASONS = {
    "done": "completed",
    "max_steps": "completed",
    "cost_limit": "completed",
    "interrupted": "cancelled",
}
"""`summary.reason` by the reason why a run ended; every other reason is an error."""


class PolicySession:
    """Builds the contexts of one operation while one of its segments runs.

    Args:
        operation_id: The operation's id.
        agent_id: The agent's id.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The operation that called this one as a sub-agent.
        resumed: Whether the operation waited for a person before this segment.
    """

    def __init__(
        self,
        operation_id: str,
        agent_id: str,
        *,
        user_id: str = "",
        tenant_id: str = "",
        parent_operation_id: str | None = None,
        resumed: bool = False,
    ) -> None:
        self.resumed = resumed
        self._builder = AgentContextBuilder(
            agent_id=agent_id or "agent", framework=FRAMEWORK, session_id=operation_id or "chain"
        )
        if tenant_id:
            self._builder.with_l2(tenant={"id": tenant_id})
        if user_id:
            self._builder.with_l2(actor={"id": user_id})
        if parent_operation_id:
            self._builder.with_l2(extensions={FRAMEWORK: {"parent_operation_id": parent_operation_id}})
        self.started = False
        """Whether `agent_startup` was emitted, in this segment or an earlier one."""
        self.blocked = False
        """Whether policies ended the run."""
        self.asking: dict[str, str] = {}
        """The questions to a person about calls of this segment, by tool call id."""
        self.notes: dict[str, Any] = {}
        """The part of the session that is stored across a pause."""
        self._agents_called = 0

    def load_notes(self, notes: dict[str, Any]) -> None:
        """Continue where an earlier segment, or an earlier input, stopped.

        Args:
            notes: The notes stored with the operation; edited in place.
        """
        notes["sequence"] = max(self.notes.get("sequence", 0), notes.get("sequence", 0))
        self.notes = notes

    def next_sequence(self) -> int:
        """Return the next number of the session's sequence."""
        at: int = self.notes.get("sequence", 0)
        self.notes["sequence"] = at + 1
        return at

    def startup(self, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """Build the context of `agent_startup`."""
        self.started = True
        return self.number(
            self._builder.agent_startup(tools_registered=[tool_name(spec.toolset, spec.name) for spec in tools])
        )

    def input(self, message: Message) -> dict[str, Any]:
        """Build the context of `input`."""
        return self.number(self._builder.input(content=message.content, role="user"))

    def before_model(self, call: ModelCall) -> dict[str, Any]:
        """Build the context of `pre_model_call`."""
        return self.number(
            self._builder.pre_model_call(
                model_id=call.model,
                messages=[to_wire_message(message) for message in call.messages],
                tools=to_wire_tools(call.tools),
            )
        )

    def after_model(self, call: ModelCall, response: ModelResponse) -> dict[str, Any]:
        """Build the context of `post_model_call`."""
        return self.number(
            self._builder.post_model_call(
                model_id=call.model,
                usage={
                    "prompt_tokens": response.usage.input_tokens,
                    "completion_tokens": response.usage.output_tokens,
                },
                **to_wire_response(response),
            )
        )

    def before_tool(self, call: ToolCall) -> dict[str, Any]:
        """Build the context of `pre_tool_call`."""
        return self._number_tool_context(
            call.toolset,
            self._builder.pre_tool_call(
                call_id=call.tool_call_id or "call",
                name=tool_name(call.toolset, call.tool_name),
                args=copy_json(call.args),
            ),
        )

    def after_tool(self, call: ToolCall, result: ToolResult) -> dict[str, Any]:
        """Build the context of `post_tool_call`."""
        return self._number_tool_context(
            call.toolset,
            self._builder.post_tool_call(
                call_id=call.tool_call_id or "call",
                name=tool_name(call.toolset, call.tool_name),
                args=copy_json(call.args),
                value=to_wire_value(result.content),
                is_error=not result.success or result.error_type is not None,
            ),
        )

    def before_agent(self, call: SubAgentCall) -> tuple[str, dict[str, Any]]:
        """Build the context of `pre_tool_call` for a sub-agent; return it after the id of the call."""
        self._agents_called += 1
        call_id = f"agent/{call.callee_id}-{self._agents_called}"
        context = self._builder.pre_tool_call(
            call_id=call_id, name=tool_name("agent", call.callee_id), args={"instruction": call.instruction}
        )
        return call_id, self._number_tool_context("agent", context)

    def after_agent(self, call: SubAgentCall, call_id: str, output: str, *, failed: bool) -> dict[str, Any]:
        """Build the context of `post_tool_call` for a sub-agent."""
        return self._number_tool_context(
            "agent",
            self._builder.post_tool_call(
                call_id=call_id,
                name=tool_name("agent", call.callee_id),
                args={"instruction": call.instruction},
                value=output,
                is_error=failed,
            ),
        )

    def output(self, text: str) -> dict[str, Any]:
        """Build the context of `output`."""
        return self.number(self._builder.output(content=text))

    def shutdown(self, event: OnComplete) -> dict[str, Any]:
        """Build the context of `agent_shutdown`."""
        return self.number(
            self._builder.agent_shutdown(
                reason="error" if self.blocked else SHUTDOWN_REASONS.get(event.reason, "error"),
                tool_calls=event.tool_calls,
                duration_seconds=event.duration_ms / 1e3,
            )
        )

    def _number_tool_context(self, toolset: str, context: dict[str, Any]) -> dict[str, Any]:
        if toolset != "local":
            extensions = context.get("extensions", {})
            own = {**extensions.get(FRAMEWORK, {}), "identifier": toolset}
            context["extensions"] = {**extensions, FRAMEWORK: own}
        return self.number(context)

    def number(self, context: dict[str, Any]) -> dict[str, Any]:
        """Give a context the next number of the sequence."""
        context["sequence"] = self.next_sequence()
        return context


class PolicySessions:
    """The sessions of the operations that are running."""

    def __init__(self) -> None:
        self._open: dict[str, PolicySession] = {}

    def open(self, segment: SegmentInfo) -> None:
        """Open the session of an operation's segment."""
        self._open[segment.operation_id] = PolicySession(
            segment.operation_id,
            segment.agent_id,
            user_id=segment.user_id,
            tenant_id=segment.tenant_id,
            parent_operation_id=segment.parent_operation_id,
            resumed=segment.resumed,
        )

    def close(self, operation_id: str) -> None:
        """Close the session of an operation."""
        self._open.pop(operation_id, None)

    def find(self, operation_id: str) -> PolicySession | None:
        """Return the session of an operation; `None` if no segment of it runs."""
        return self._open.get(operation_id)

    def session_of(self, call: Call) -> PolicySession:
        """Return the session that a call belongs to; a new one for a call outside of a run."""
        found = self._open.get(call.operation_id)
        return found or PolicySession(call.operation_id, call.agent_id, user_id=call.user_id, tenant_id=call.tenant_id)
