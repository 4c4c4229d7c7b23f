"""One operation in the contract's words: a session, whose contexts carry one sequence over all its segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_hooks import AgentContextBuilder

from hookline.adapters.agent_hooks._wire import message_shown, plain, response_shown, tool_name, tools_shown, value_of
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

__all__ = ["Session", "Sessions"]

FRAMEWORK = "hookline"

ENDED = {"done": "completed", "max_steps": "completed", "cost_limit": "completed", "interrupted": "cancelled"}
"""`summary.reason` by the reason why a run ended; any other one is an error."""


class Session:
    """Builds the contexts of one operation, while a segment of it runs.

    Args:
        operation_id: The operation.
        agent_id: The agent that runs.
        user_id: For whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The operation that called it as a sub-agent.
        resumed: Whether it waited for a person before this segment.
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
        """Whether `agent_startup` was reached, in this segment or an earlier one."""
        self.blocked = False
        """Whether policies ended the run."""
        self.asking: dict[str, str] = {}
        """What a person is asked about calls of this segment, by tool call id."""
        self.notes: dict[str, Any] = {}
        """What is kept of the session over a pause."""
        self._agents_called = 0

    def take_up(self, notes: dict[str, Any]) -> None:
        """Go on where an earlier segment, or an earlier input, has stopped.

        Args:
            notes: What is stored with the operation; edited in place.
        """
        notes["sequence"] = max(self.notes.get("sequence", 0), notes.get("sequence", 0))
        self.notes = notes

    def next(self) -> int:
        """The next number of the session's sequence."""
        at: int = self.notes.get("sequence", 0)
        self.notes["sequence"] = at + 1
        return at

    def startup(self, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """`agent_startup`."""
        self.started = True
        return self._numbered(
            self._builder.agent_startup(tools_registered=[tool_name(spec.toolset, spec.name) for spec in tools])
        )

    def input(self, message: Message) -> dict[str, Any]:
        """`input`."""
        return self._numbered(self._builder.input(content=message.content, role="user"))

    def before_model(self, call: ModelCall) -> dict[str, Any]:
        """`pre_model_call`."""
        return self._numbered(
            self._builder.pre_model_call(
                model_id=call.model,
                messages=[message_shown(message) for message in call.messages],
                tools=tools_shown(call.tools),
            )
        )

    def after_model(self, call: ModelCall, response: ModelResponse) -> dict[str, Any]:
        """`post_model_call`."""
        return self._numbered(
            self._builder.post_model_call(
                model_id=call.model,
                usage={
                    "prompt_tokens": response.usage.input_tokens,
                    "completion_tokens": response.usage.output_tokens,
                },
                **response_shown(response),
            )
        )

    def before_tool(self, call: ToolCall) -> dict[str, Any]:
        """`pre_tool_call`."""
        return self._of_tool(
            call.toolset,
            self._builder.pre_tool_call(
                call_id=call.tool_call_id or "call",
                name=tool_name(call.toolset, call.tool_name),
                args=plain(call.args),
            ),
        )

    def after_tool(self, call: ToolCall, result: ToolResult) -> dict[str, Any]:
        """`post_tool_call`."""
        return self._of_tool(
            call.toolset,
            self._builder.post_tool_call(
                call_id=call.tool_call_id or "call",
                name=tool_name(call.toolset, call.tool_name),
                args=plain(call.args),
                value=value_of(result.content),
                is_error=not result.success or result.error_type is not None,
            ),
        )

    def before_agent(self, call: SubAgentCall) -> tuple[str, dict[str, Any]]:
        """`pre_tool_call` of a sub-agent, with the id that stands for the call."""
        self._agents_called += 1
        call_id = f"agent/{call.callee_id}-{self._agents_called}"
        context = self._builder.pre_tool_call(
            call_id=call_id, name=tool_name("agent", call.callee_id), args={"instruction": call.instruction}
        )
        return call_id, self._of_tool("agent", context)

    def after_agent(self, call: SubAgentCall, call_id: str, output: str, *, failed: bool) -> dict[str, Any]:
        """`post_tool_call` of a sub-agent."""
        return self._of_tool(
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
        """`output`."""
        return self._numbered(self._builder.output(content=text))

    def shutdown(self, event: OnComplete) -> dict[str, Any]:
        """`agent_shutdown`."""
        return self._numbered(
            self._builder.agent_shutdown(
                reason="error" if self.blocked else ENDED.get(event.reason, "error"),
                tool_calls=event.tool_calls,
                duration_seconds=event.duration_ms / 1e3,
            )
        )

    def again(self, context: dict[str, Any]) -> dict[str, Any]:
        """A context that was judged before, as the next of the sequence."""
        return self._numbered(context)

    def _of_tool(self, toolset: str, context: dict[str, Any]) -> dict[str, Any]:
        if toolset != "local":
            extensions = context.get("extensions", {})
            own = {**extensions.get(FRAMEWORK, {}), "identifier": toolset}
            context["extensions"] = {**extensions, FRAMEWORK: own}
        return self._numbered(context)

    def _numbered(self, context: dict[str, Any]) -> dict[str, Any]:
        context["sequence"] = self.next()
        return context


class Sessions:
    """The sessions of the operations that run at this moment."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def open(self, segment: SegmentInfo) -> None:
        """A segment of an operation begins."""
        self._open[segment.operation_id] = Session(
            segment.operation_id,
            segment.agent_id,
            user_id=segment.user_id,
            tenant_id=segment.tenant_id,
            parent_operation_id=segment.parent_operation_id,
            resumed=segment.resumed,
        )

    def close(self, operation_id: str) -> None:
        """It has ended."""
        self._open.pop(operation_id, None)

    def find(self, operation_id: str) -> Session | None:
        """The session of an operation, if a segment of it runs."""
        return self._open.get(operation_id)

    def of(self, call: Call) -> Session:
        """The session that a call belongs to; one of its own for a call outside of a run."""
        found = self._open.get(call.operation_id)
        return found or Session(call.operation_id, call.agent_id, user_id=call.user_id, tenant_id=call.tenant_id)
