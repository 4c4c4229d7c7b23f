"""The run of one agent in a session of a coding agent, and the calls of it that are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hookline._readonly import writable
from hookline.calls import AgentCall, Message, ModelResponse, ToolRequest, Usage
from hookline.errors import HookDenied
from hookline.hosts._reading import SessionEvent
from hookline.hosts._suspended import SuspendedCall
from hookline.hosts._transcripts import ReportedCall
from hookline.runtime import AdapterRun, AgentDone, ModelCallRecord

__all__ = ["AgentRun", "NotRun", "StartedAgent", "UnfinishedCall", "plain_args"]

INSTRUCTIONS = ("prompt", "message", "instruction", "task", "description")
CALLEES = ("subagent_type", "agent_name", "agent_type", "agent")
"""Arguments of the tools that start a sub-agent."""
KEPT_TIMES = 1000
INTERRUPTED = "Somebody interrupted it in hookline."


class NotRun(Exception):
    """A coding agent did not make a call that hooks let happen."""


class UnfinishedCall(SuspendedCall):
    """A tool call between its two events.

    Attributes:
        event: The event that announced it.
    """

    def __init__(self, event: SessionEvent) -> None:
        super().__init__()
        self.event = event


class StartedAgent(UnfinishedCall):
    """The call that starts a sub-agent.

    Attributes:
        callee: The kind of the sub-agent.
        field: The argument that holds its task.
        agent: The sub-agent, once hooks let it start.
        agent_id: The host's id of the sub-agent, once it is known.
        detached: Whether the agent that started it goes on meanwhile.
        stopped: Whether it has ended.
    """

    def __init__(self, event: SessionEvent) -> None:
        super().__init__(event)
        args = event.args
        self.callee = next((str(args[name]) for name in CALLEES if args.get(name)), "agent")
        self.field = next((name for name in INSTRUCTIONS if isinstance(args.get(name), str)), "prompt")
        self.agent: AgentRun | None = None
        self.agent_id = ""
        self.detached = self.stopped = False


class AgentRun:
    """The run of one agent: the session's own, or a sub-agent's.

    Args:
        run: The open run.
        opened_at: When the agent was given its task, in unix seconds.

    Attributes:
        calls: Its calls of tools between their two events.
        turn: The call of the agent, while a turn is under way.
        compaction: The compaction that is under way.
        continues: How often hooks made it go on in this turn.
        stopped: Why a person ended it.
        added: What hooks added to the prompt.
        task: The prompt of a sub-agent, as hooks left it.
        output: What is read in place of the agent's last answer, if hooks changed or withheld it.
        continuation: The input with which hooks made it go on.
        writing: Held while its state is written, since two writes at once exclude each other.
    """

    def __init__(self, run: AdapterRun, opened_at: float) -> None:
        self.run = run
        self.calls: list[UnfinishedCall] = []
        self.turn: SuspendedCall | None = None
        self.compaction: SuspendedCall | None = None
        self.continues = 0
        self.stopped = self.added = self.task = self.continuation = ""
        self.output: str | None = None
        self.writing = asyncio.Lock()
        self._messages: list[Message] = []
        self._step_has_calls = False
        self._has_step = False
        self._steps: list[tuple[float, int]] = []
        """When each step was noticed, in unix seconds: just after the model call of it."""
        self._informed_at = [opened_at]
        """When the model was told something, in unix seconds: just before a model call."""
        self._uncounted: list[tuple[float, int]] = []
        """Steps whose model call no transcript has told of yet."""
        self._told = 0

    @property
    def stop_reason(self) -> str | None:
        """Why a hook or a person ended the run; `None` if nobody did."""
        if self.run.denied is not None:
            return self.run.denied.reason
        return self.stopped or (INTERRUPTED if self.run.interrupted else None)

    @property
    def is_open(self) -> bool:
        """Whether its operation has not ended."""
        return self.run.is_open

    # Steps and messages.

    def begin_step(self, at: float) -> None:
        """Begin a step, unless the call belongs to the one that runs: hosts make parallel calls one by one.

        Args:
            at: When its call was announced, in unix seconds.
        """
        if self._has_step and (self.calls or not self._step_has_calls):
            return
        index = self.run.begin_step()
        self._steps = [*self._steps[-KEPT_TIMES:], (at, index)]
        self._uncounted.append((at, index))
        self._has_step, self._step_has_calls = True, False

    def note_call(self, request: ToolRequest) -> None:
        """Add a call to the conversation."""
        self._step_has_calls = True
        self.note(Message(role="assistant", content="", tool_calls=[request]))

    def note(self, message: Message) -> None:
        """Add a message to the conversation, as far as events tell it."""
        self._messages.append(message)
        run = self.run.run
        run.messages = run.journal.storable_messages(self._messages)

    def note_informed(self, at: float) -> None:
        """Note that the model has been told something, such as the result of a tool."""
        self._informed_at = [*self._informed_at[-KEPT_TIMES:], at]

    # Calls.

    def find_call(self, event: SessionEvent) -> UnfinishedCall | None:
        """Return the open call that an event is about, and take it out: by its id, else by its arguments."""
        same = [call for call in self.calls if call.event.tool == event.tool]
        if event.call_id:
            found = next((call for call in same if call.event.call_id == event.call_id), None)
        else:
            exact = (call for call in same if event.args in (call.event.args, plain_args(call.given)))
            found = next(exact, same[0] if same else None)
        if found is not None:
            self.calls.remove(found)
        return found

    async def end_calls(self, reason: str) -> None:
        """End the calls whose end nobody told."""
        calls, self.calls = self.calls, []
        for call in calls:
            await call.end(error=NotRun(reason))
        await self.end_compaction(error=NotRun(reason))

    async def compact(self, at: float) -> bool:
        """Run the hooks of a compaction up to it; return whether it may happen."""
        await self.end_compaction(error=NotRun("Another compaction followed."))
        self.begin_step(at)
        compaction = SuspendedCall()
        if not await compaction.begin(self.run.compact(self._messages, 0, compaction.work)):
            return False
        self.compaction = compaction
        return True

    async def end_compaction(self, summary: str = "", error: Exception | None = None) -> None:
        """End the compaction that is under way, if there is one."""
        compaction, self.compaction = self.compaction, None
        if compaction is not None:
            await compaction.end(summary, error)

    # Turns.

    async def begin_turn(self, text: str, at: float, *, can_change: bool = False) -> AgentDone | None:
        """Run the hooks of `AgentCall` up to the agent; return their answer if they let it not run.

        What they add to the prompt is in `added`, and what they made of it in `task`.

        Args:
            text: The prompt.
            at: When it was given, in unix seconds.
            can_change: Whether the agent can be given another prompt; otherwise a changed one is refused.
        """
        self.added, self.task, self.output = "", text, None
        await self.end_turn_unasked()
        prompt = Message(role="user", content=text)
        self.note(prompt)
        self.note_informed(at)
        turn = SuspendedCall()
        if await turn.begin(self.run.lead_run([prompt], turn.work)):
            changed, self.added = split_input(turn.given, prompt)
            if changed is not None and can_change:
                self.task = changed
            elif changed is not None:
                await turn.end(error=HookDenied("The prompt was changed.", ""))
                return AgentDone(output=f"A hook wants the prompt changed. Send it as: {changed}", ran=False)
            self.turn = turn
            return None
        done: AgentDone = turn.result
        return done

    def take_added(self) -> str:
        """Return what hooks added to the prompt, once: some hosts have two events at which the agent could read it."""
        added, self.added = self.added, ""
        return added

    async def end_turn_unasked(self) -> None:
        """End a turn that the host broke off without a word."""
        if self.turn is not None:
            turn, self.turn = self.turn, None
            await turn.end(error=NotRun("The turn was broken off."))

    async def end_turn(self, text: str, at: float) -> AgentDone | None:
        """Record the last answer of a turn, and run the hooks after the agent."""
        await self.end_calls("The coding agent did not make this call.")
        self.begin_step(at)
        self.run.answered(ModelResponse(content=text))
        self.note(Message(role="assistant", content=text))
        self.run.end_step(should_continue=False)
        self._has_step = False
        turn, self.turn = self.turn, None
        if turn is None:
            return None
        done: AgentDone | None = await turn.end(text)
        if done is not None and done.changed:
            self.output = done.denied.reason if done.denied is not None else done.output
        return done

    # Model calls, which only transcripts tell of.

    def count_calls(self, calls: Sequence[ReportedCall], provider: str) -> None:
        """Record model calls that a transcript has told of, each in the step that it led to."""
        for call in calls:
            if not self.is_open:
                return
            led_to = next(
                (step for step in self._steps if step[0] >= call.at), self._steps[-1] if self._steps else None
            )
            self._told += 1
            if led_to in self._uncounted:
                self._uncounted.remove(led_to)
            began = max((each for each in self._informed_at if each <= call.at), default=call.at)
            self.run.report_model_call(
                ModelCallRecord(
                    step_index=led_to[1] if led_to is not None else 0,
                    provider=provider,
                    model=call.model,
                    start_unix_nano=int(began * 1e9),
                    duration_ms=(call.at - began) * 1e3,
                    input_tokens=call.tokens.get("input_tokens", 0),
                    output_tokens=call.tokens.get("output_tokens", 0),
                    cost_usd=call.cost_usd,
                )
            )

    def count_untold_calls(self, provider: str, model: str) -> None:
        """Count one model call, without tokens, for each step that is more than transcripts have told of."""
        uncounted, self._uncounted = self._uncounted, []
        if not self.is_open:
            return
        missing = max(self.run.run.steps - self._told, 0)
        self._told += missing
        for at, index in uncounted[len(uncounted) - min(missing, len(uncounted)) :]:
            began = max((each for each in self._informed_at if each <= at), default=at)
            self.run.report_model_call(
                ModelCallRecord(
                    step_index=index,
                    provider=provider,
                    model=model,
                    start_unix_nano=int(began * 1e9),
                    duration_ms=(at - began) * 1e3,
                )
            )

    def add_cost(self, cost_usd: float) -> None:
        """Add cost that no model call is known for."""
        if self.is_open:
            self.run.add_usage(Usage(cost_usd=cost_usd))

    # Its end.

    async def write(self) -> None:
        """Write its state to a durable store."""
        async with self.writing:
            if self.is_open:
                await self.run.checkpoint()

    async def close(self, *, done: bool) -> None:
        """End the run.

        Args:
            done: Whether the agent came to its end.
        """
        await self.end_calls("The session ended before the call did.")
        await self.end_turn_unasked()
        async with self.writing:
            if self.is_open:
                if not done or self.stopped:
                    self.run.finish("interrupted")
                await self.run.close()


def split_input(call: AgentCall, prompt: Message) -> tuple[str | None, str]:
    """Split the input that hooks left: the prompt, if they changed it, and the text that they added to it."""
    added = [each for each in call.input if "hookline.hooks" in each.details]
    rest = [each for each in call.input if each not in added]
    changed = None if rest == [prompt] else "\n\n".join(each.content for each in rest)
    return changed, "\n\n".join(each.content for each in added)


def plain_args(given: Any) -> Any:
    """Return arguments as a dictionary of their own; anything else as it is."""
    return dict(writable(given)) if isinstance(given, Mapping) else given
