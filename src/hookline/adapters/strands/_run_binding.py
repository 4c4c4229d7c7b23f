"""Bind one run of a Strands agent to hookline's `AdapterRun`; callbacks find the present binding here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from strands import Agent

from hookline.adapters._conversion import rejection_text, split_input
from hookline.adapters._streams import must_hold_stream
from hookline.adapters.strands._conversion import (
    InterruptResponses,
    add_text,
    agent_name,
    agent_result,
    from_prompt,
    model_name,
    text_of,
    to_strands_message,
)
from hookline.calls import AgentCall, CompactCall, Message, ModelCall, SubAgentCall, ToolCall, ToolRequest
from hookline.events import CompletionReason, PendingTool, ToolOutcome
from hookline.execution import GeneratorBridge
from hookline.runtime import KINDS, AdapterRun, Approve, Capabilities, Reject

__all__ = [
    "DRIVES",
    "StrandsBinding",
    "binding_of",
    "current_binding",
    "new_sub_agent_run",
    "open_binding",
    "running_tool",
    "waiting_operations",
]

EmitEvent = Callable[[Any], Awaitable[None]]
DRIVES = Capabilities(
    framework="Strands",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
    adds_context=frozenset({ToolCall, AgentCall}),
    guides=True,
)
"""The hooks that the adapter supports."""

COMPLETION_REASONS: dict[str, CompletionReason] = {
    "cancelled": "interrupted",
    "limit_turns": "max_steps",
    "limit_total_tokens": "cost_limit",
    "limit_output_tokens": "cost_limit",
}
"""Why a run ended, by Strands' stop reason; every other stop reason means `"done"`."""


class StrandsBinding:
    """One run of one agent, and what the agent's callbacks need to know about it.

    Args:
        run: The run.
        agent: The agent, or a graph or a swarm.
        outer: The binding of the run around this one.
        answers: A person's responses to the interrupts of the paused run.
        by_call: Whether decisions are reported to hooks call by call, rather than once when the tools begin.
    """

    def __init__(
        self,
        run: AdapterRun,
        agent: Any,
        outer: StrandsBinding | None,
        answers: InterruptResponses | None = None,
        *,
        by_call: bool = False,
    ) -> None:
        self.run, self.agent, self.outer = run, agent, outer
        self.answers = answers or InterruptResponses({}, {}, frozenset())
        self.decisions = dict(self.answers.decisions)
        """A person's decisions since the run paused, by tool call."""
        self.unreported = {*self.answers.unjudged, *(self.decisions if by_call else ())}
        """Tool calls whose decision has not been reported to hooks yet."""
        self.resumption_reported = by_call or not self.answers.given
        """Whether the person's decisions have been reported to hooks, or there are none."""
        self.hooks_model_calls = run.leads(ModelCall)
        """Whether model calls must go through the hooks; for observers alone, events suffice."""
        self.model_pending = False
        """Whether the model call of the present step is still open."""
        self.projected_tokens = 0
        """Strands' estimate of the input tokens of the next model call."""
        self.error: Exception | None = None
        self.stop_reason = ""
        """Why the run ends after the present tool calls; `""` if it goes on."""
        self.pending: list[PendingTool] = []
        self.last_event: Mapping[str, Any] = {}
        """The stream's last event, which holds the result."""
        self.node_bridges: dict[str, GeneratorBridge[Any]] = {}
        """The hooks of each running node of a graph, by node id."""

    async def run_agent(self, prompt: Any, given: Mapping[str, Any], emit: EmitEvent | None) -> Any:
        """Run the agent through the hooks of `AgentCall`.

        Args:
            prompt: As the agent takes it.
            given: The agent's other arguments.
            emit: Receives the events of the stream; `None` if it is not streamed.

        Raises:
            RunStopped: If a hook or a person ended the run.
        """
        if AgentCall not in self.run.run.intercepted:
            own = await self._stream(prompt, given, emit)
            self.record_end(own)
        else:
            own = await self._run_with_hooks(prompt, given, emit)
        self.run.raise_if_stopped()
        if emit is not None:
            await emit({**self.last_event, "result": own})
        return own

    async def _stream(self, prompt: Any, given: Mapping[str, Any], emit: EmitEvent | None) -> Any:
        """Run the agent itself and return its result; the event with the result is not emitted yet."""
        result = None
        async for event in self.agent.stream_async(prompt, **given):
            if "result" in event:
                result, self.last_event = event["result"], event
            elif emit is not None:
                await emit(event)
        return result

    async def _run_with_hooks(self, prompt: Any, given: Mapping[str, Any], emit: EmitEvent | None) -> Any:
        own: Any = None
        held: list[Any] = []

        async def hold(event: Any) -> None:
            held.append(event)

        async def work(call: AgentCall) -> str:
            nonlocal own
            asked, added = split_input(call.input)
            final = prompt if asked == messages else self._prompt(asked)
            if added:
                final = add_text(final, added)
            own = await self._stream(
                final, given, hold if emit is not None and must_hold_stream(self.run, AgentCall) else emit
            )
            return self.record_end(own)

        instructions = getattr(self.agent, "system_prompt", "") or ""
        for _ in range(1 + self.run.run.agent.max_continues):
            messages = from_prompt(self.agent, prompt)
            done = await self.run.lead_run(messages, work, instructions=instructions)
            self.run.raise_if_stopped()
            if not done.continues:
                break
            prompt = "\n\n".join(done.continues)
        if emit is not None:
            for event in [{"data": done.output}] if done.changed else held:
                await emit(event)
        return agent_result(self.agent, own, done.output) if done.changed else own

    def _prompt(self, messages: list[Message]) -> Any:
        return (
            [to_strands_message(each) for each in messages]
            if isinstance(self.agent, Agent)
            else "\n\n".join(each.content for each in messages)
        )

    def record_end(self, result: Any) -> str:
        """Record how the agent's run ended.

        Returns:
            The last text of the agent.
        """
        reason = getattr(result, "stop_reason", None)
        waits = bool(getattr(result, "interrupts", None))
        waiting_operations[self.agent] = self.run.operation_id if waits else None
        if waits:
            self.run.pause([each for each in self.pending if each.tool_call_id not in self.run.step.asked])
            self.run.end_step(should_continue=False)
        elif reason in COMPLETION_REASONS:
            self.run.finish(COMPLETION_REASONS[reason])
        return str(result) if reason is None else text_of(result.message["content"])

    def decision_for(self, calling: ToolRequest, *, cancelled: str | None = None) -> Approve | Reject | None:
        """Return a person's decision about a call that Strands is about to run or has cancelled.

        Args:
            calling: The call.
            cancelled: Why Strands does not run it, if it does not.
        """
        name = calling.tool_call_id
        if name in self.unreported:
            self.unreported.discard(name)
            decision = Approve(name) if cancelled is None else Reject(name, and_continue=True)
            self.run.decided([self.decisions.setdefault(name, decision)])
        return self.decisions.get(name)

    def approved_request(self, calling: ToolRequest) -> ToolRequest:
        """Return an approved call with the arguments that the person saw."""
        shown = [each.args for each in self.run.run.pending if each.tool_call_id == calling.tool_call_id]
        return msgspec.structs.replace(calling, args=shown[0]) if shown else calling

    def record_refusal(self, calling: ToolRequest, decision: Reject, content: str | None = None) -> str:
        """Record a call that a person refused.

        Args:
            calling: The call.
            decision: The refusal.
            content: The tool result that Strands gives the model; one with the person's reason unless given.

        Returns:
            The tool result for the model.
        """
        step, content = self.run.step, rejection_text(decision) if content is None else content
        step.calling.append(calling)
        step.outcomes[calling.tool_call_id] = ToolOutcome(
            toolset=calling.toolset,
            tool_name=calling.tool_name,
            tool_call_id=calling.tool_call_id,
            content=content,
            success=False,
        )
        return content


def new_sub_agent_run(parent: StrandsBinding, agent: Any, operation_id: str) -> AdapterRun:
    """Create the run of a sub-agent."""
    return AdapterRun(
        (),
        DRIVES,
        agent_id=agent_name(agent),
        model=model_name(agent),
        operation_id=operation_id,
        parent=parent.run,
    )


current_binding: ContextVar[StrandsBinding | None] = ContextVar("hookline_strands", default=None)
running_tool: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("hookline_strands_tool", default=None)
"""The event loop of the run whose tool is running; `None` outside of tools."""
waiting_operations: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
"""Every agent with the adapter's callbacks, and the id of its operation that waits for a person."""


def open_binding() -> StrandsBinding | None:
    """Return the binding of the run that this code belongs to; skips runs that have ended.

    A task that a run started may outlive it.
    """
    binding = current_binding.get()
    while binding is not None and not binding.run.is_open:
        binding = binding.outer
    return binding


def binding_of(agent: object) -> StrandsBinding | None:
    """Return the binding of an agent's present run; `None` outside of hooked runs."""
    binding = open_binding()
    while binding is not None and binding.agent is not agent:
        binding = binding.outer
    return binding
