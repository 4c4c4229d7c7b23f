"""One run of one agent of Strands, as the agent's callbacks find it; and coroutines inside of its generators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from strands import Agent

from hookline.adapters._held_streams import must_hold_stream
from hookline.adapters._stepping import GeneratorBridge
from hookline.adapters.strands._words import (
    Answers,
    agent_name,
    answered,
    model_name,
    prompt_of,
    rejection,
    said,
    text_of,
)
from hookline.calls import AgentCall, CompactCall, Message, ModelCall, SubAgentCall, ToolCall, ToolRequest
from hookline.errors import HookDenied
from hookline.events import CompletionReason, PendingTool, ToolOutcome
from hookline.runtime import KINDS, AdapterRun, Approve, Capabilities, Reject

__all__ = ["DRIVES", "Seat", "present", "present_seat", "seat_of", "sub_run", "waiting"]

Tell = Callable[[Any], Awaitable[None]]
DRIVES = Capabilities(
    framework="Strands",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
)
"""What the adapter can drive."""

ENDS: dict[str, CompletionReason] = {
    "cancelled": "interrupted",
    "limit_turns": "max_steps",
    "limit_total_tokens": "cost_limit",
    "limit_output_tokens": "cost_limit",
}
"""What a stop reason of Strands says of the end; with any other it is done."""


class Seat:
    """One run of one agent.

    Args:
        run: The run.
        agent: The agent, or a graph or a swarm.
        outer: The run around it.
        answers: What a person has answered since it paused.
        told: Whether the hooks need not be told of that when its tools begin, but call by call.
    """

    def __init__(
        self, run: AdapterRun, agent: Any, outer: Seat | None, answers: Answers | None = None, *, told: bool = False
    ) -> None:
        self.run, self.agent, self.outer = run, agent, outer
        self.answers = answers or Answers({}, {}, frozenset())
        self.decisions = dict(self.answers.decisions)
        """What a person has decided since it paused, by tool call."""
        self.untold = {*self.answers.unjudged, *(self.decisions if told else ())}
        """Calls of which the hooks are still to be told what a person decided."""
        self.told = told or not self.answers.given
        """Whether the run has gone on with what a person answered."""
        self.leads_models = ModelCall in run.run.intercepted or ModelCall in run.run.enclosing
        """Whether hooks or telemetry stand around its model calls; observers do not."""
        self.asking = False
        """Whether the model of the present step has not answered yet."""
        self.tokens = 0
        """What Strands expects the next model call to read."""
        self.error: Exception | None = None
        self.stop = ""
        """Why the run ends after the tool calls under way."""
        self.pending: list[PendingTool] = []
        self.last_event: Mapping[str, Any] = {}
        """That of the stream which has the result."""
        self.nodes: dict[str, GeneratorBridge[Any]] = {}
        """The nodes of a graph that are running."""

    async def play(self, prompt: Any, given: Mapping[str, Any], tell: Tell | None) -> Any:
        """The whole run, led through the hooks of `AgentCall`.

        Args:
            prompt: As the agent takes it.
            given: What else the agent takes.
            tell: Takes the events of the stream.

        Raises:
            HookDenied: If a hook denied it.
        """
        if AgentCall not in self.run.run.intercepted:
            own = await self._stream(prompt, given, tell)
            self.conclude(own)
        else:
            own = await self._led(prompt, given, tell)
        if tell is not None:
            await tell({**self.last_event, "result": own})
        return own

    async def _stream(self, prompt: Any, given: Mapping[str, Any], tell: Tell | None) -> Any:
        """The agent's own run; its result is held back."""
        result = None
        async for event in self.agent.stream_async(prompt, **given):
            if "result" in event:
                result, self.last_event = event["result"], event
            elif tell is not None:
                await tell(event)
        return result

    async def _led(self, prompt: Any, given: Mapping[str, Any], tell: Tell | None) -> Any:
        own: Any = None
        held: list[Any] = []

        async def hold(event: Any) -> None:
            held.append(event)

        async def work(call: AgentCall) -> str:
            nonlocal own
            final = prompt if call.input == messages else self._prompt(call.input)
            own = await self._stream(
                final, given, hold if tell is not None and must_hold_stream(self.run, AgentCall) else tell
            )
            return self.conclude(own)

        instructions = getattr(self.agent, "system_prompt", "") or ""
        for _ in range(1 + self.run.run.agent.max_continues):
            messages = prompt_of(self.agent, prompt)
            done = await self.run.lead_run(messages, work, instructions=instructions)
            if done.denied is not None:
                raise HookDenied(done.denied.hook_id, done.denied.reason)
            if not done.continues:
                break
            prompt = "\n\n".join(done.continues)
        if tell is not None:
            for event in [{"data": done.output}] if done.changed else held:
                await tell(event)
        return answered(self.agent, own, done.output) if done.changed else own

    def _prompt(self, messages: list[Message]) -> Any:
        return [said(each) for each in messages] if isinstance(self.agent, Agent) else messages[-1].content

    def conclude(self, result: Any) -> str:
        """Note how the agent ended.

        Returns:
            What it said last.
        """
        reason = getattr(result, "stop_reason", None)
        waits = bool(getattr(result, "interrupts", None))
        waiting[self.agent] = self.run.operation_id if waits else None
        if waits:
            self.run.pause([each for each in self.pending if each.tool_call_id not in self.run.step.asked])
            self.run.end_step(should_continue=False)
        elif reason in ENDS:
            self.run.finish(ENDS[reason])
        return str(result) if reason is None else text_of(result.message["content"])

    def decide(self, calling: ToolRequest, *, refused: str | None = None) -> Approve | Reject | None:
        """What a person has decided about a call that has come.

        Args:
            calling: The call.
            refused: Why Strands does not run it, if it does not.
        """
        name = calling.tool_call_id
        if name in self.untold:
            self.untold.discard(name)
            judged = Approve(name) if refused is None else Reject(name, and_continue=True)
            self.run.decided([self.decisions.setdefault(name, judged)])
        return self.decisions.get(name)

    def approved(self, calling: ToolRequest) -> ToolRequest:
        """A call that a person has let through, as that person has seen it."""
        shown = [each.args for each in self.run.run.pending if each.tool_call_id == calling.tool_call_id]
        return msgspec.structs.replace(calling, args=shown[0]) if shown else calling

    def refused(self, calling: ToolRequest, decision: Reject, told: str | None = None) -> str:
        """Note a call that a person has refused.

        Args:
            calling: The call.
            decision: The refusal.
            told: What Strands has told the model of it.

        Returns:
            What the model is told.
        """
        step, told = self.run.step, rejection(decision) if told is None else told
        step.calling.append(calling)
        step.outcomes[calling.tool_call_id] = ToolOutcome(
            toolset=calling.toolset,
            tool_name=calling.tool_name,
            tool_call_id=calling.tool_call_id,
            content=told,
            success=False,
        )
        return told


def sub_run(parent: Seat, agent: Any, operation_id: str) -> AdapterRun:
    """The run of an agent that another one calls."""
    return AdapterRun(
        (),
        DRIVES,
        agent_id=agent_name(agent),
        model=model_name(agent),
        operation_id=operation_id,
        parent=parent.run,
    )


present: ContextVar[Seat | None] = ContextVar("hookline_strands", default=None)
waiting: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
"""The agents that have the adapter's callbacks, each with its operation that waits for a person."""


def present_seat() -> Seat | None:
    """The run that this code runs in; one that is over is none, and what was started in it may go on."""
    seat = present.get()
    while seat is not None and not seat.run.is_open:
        seat = seat.outer
    return seat


def seat_of(agent: object) -> Seat | None:
    """The present run of an agent."""
    seat = present_seat()
    while seat is not None and seat.agent is not agent:
        seat = seat.outer
    return seat
