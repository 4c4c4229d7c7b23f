"""The journal of a run: the events and calls that a durable store takes along with the next write."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from time import perf_counter_ns, time_ns
from typing import Any

import anyio
import msgspec
from msgspec import UNSET

from hookline._readonly import keep_jsonable
from hookline.calls import Message, ModelResponse, SubAgentCall, ToolRequest, ToolResult, Usage
from hookline.dispatcher import HookDispatcher
from hookline.errors import EventEncodeError
from hookline.events import AfterToolCall, BeforeToolCall, Event, OnToolCallError, ToolOutcome, encode
from hookline.runtime._agent import AGENT_IDENTIFIER
from hookline.runtime._state import (
    BegunCall,
    Decision,
    JournalEntry,
    ModelCallRecord,
    OpenStep,
    OperationState,
    Step,
)

__all__ = ["NO_JOURNAL", "Journal", "NullJournal", "storable_text"]

_TOOL_ENDS = (AfterToolCall, OnToolCallError)


class Journal:
    """The events of a run that its durable store does not have yet, and the calls that were under way at that moment.

    Args:
        state: The operation as it is stored.
        dispatcher: Who calls the observers of its events.
        stored: Whether the store has that state, so that the first write adds to it.
        recovered: Whether the process that ran it has died, so that this one continues the step that it left.

    Attributes:
        written: The state that the store has; `None` before the first write of a new operation.
        entries: The events that are not written yet.
        model_calls: The model calls that ended and are not written yet.
        attempted_model_calls: How many of them the last write was given.
        numbered: How many events the operation has had.
        begun: Calls of tools and sub-agents whose outcome is not in the conversation yet, by tool call id.
        orphaned: Whether the process that ran it has died.
        recovered: Whether the next step continues what the last process left.
        left: The step that the last process left, until it is continued.
        taking: The decisions of a person that observers have not been notified of yet.
        lost: Whether the run cannot continue in this process, so that its sub-agents are released too.
    """

    durable = True
    """Whether the store keeps events, so that the run is written before each model call and tool, not between steps."""

    def __init__(self, state: OperationState, dispatcher: HookDispatcher, *, stored: bool, recovered: bool) -> None:
        self._dispatcher = dispatcher
        self.written: OperationState | None = state if stored else None
        self.entries: list[JournalEntry] = []
        self.model_calls: list[ModelCallRecord] = []
        self.attempted_model_calls = 0
        self._asked: AskedModel | None = None
        self.numbered = state.events
        self.begun: dict[str, BegunCall] = dict(state.begun)
        self.orphaned = recovered
        self.recovered = recovered and state.steps > 0
        self.left: OpenStep | None = state.open_step if recovered else None
        self.taking: list[Decision] = list(state.taking) if recovered else []
        self.lost = False
        self._unheard: deque[tuple[int, Event, Context]] = deque()
        """The events whose observers wait for the commit: number, event, and the context in which it happened."""
        self._lock = anyio.Lock()
        self._wanted = 0
        self._written = 0

    # Events.

    def emit(self, event: Event) -> None:
        """Note an event, then dispatch it."""
        self.note(event)
        if isinstance(event, _TOOL_ENDS):
            self.end_call(event.tool_call_id)
        self._dispatcher._dispatch_at_once(event)

    def ask_observers(self, event: BeforeToolCall) -> Awaitable[ToolResult | None]:
        """Note that a tool call begins, then ask the observers whether one of them answers it."""
        self.begun[event.tool_call_id] = BegunCall(
            call=ToolRequest(
                toolset=event.toolset,
                tool_name=event.tool_name,
                args=keep_jsonable(event.args),
                tool_call_id=event.tool_call_id,
            ),
            call_index=event.call_index,
        )
        self.note(event)
        return self._dispatcher._ask_at_once(event)

    def note(self, event: Event) -> None:
        """Add an event to those that the next write takes along."""
        self.numbered += 1
        self.entries.append(
            JournalEntry(
                number=self.numbered,
                type=event.hook_type,
                time_unix_nano=event.time_unix_nano,
                wire=_encode_storable(event),
            )
        )
        if self._dispatcher._waits_for_commit(event):
            self._unheard.append((self.numbered, event, copy_context()))

    def drop(self, events: int) -> None:
        """Remove the newest events, which will not happen."""
        del self.entries[len(self.entries) - events :]
        self.numbered -= events
        while self._unheard and self._unheard[-1][0] > self.numbered:
            self._unheard.pop()

    # Calls under way.

    def begin_agent(self, call: SubAgentCall, tool_call_id: str, child: str) -> None:
        """Note that a sub-agent is about to be called, and which operation it will be."""
        request = ToolRequest(
            toolset=AGENT_IDENTIFIER,
            tool_name=call.callee_id,
            args={"instruction": call.instruction},
            tool_call_id=tool_call_id,
        )
        self.begun[tool_call_id] = BegunCall(call=request, child=child)

    def end_call(self, tool_call_id: str) -> None:
        """Note that observers have been notified of a call's end."""
        begun = self.begun.get(tool_call_id)
        if begun is not None:
            self.begun[tool_call_id] = msgspec.structs.replace(begun, ended=True)

    def close_call(self, outcome: ToolOutcome) -> ToolOutcome:
        """Forget a call whose outcome is known.

        Returns:
            The outcome, as every store keeps it.
        """
        self.begun.pop(outcome.tool_call_id, None)
        content = storable_text(outcome.content)
        return outcome if content is outcome.content else msgspec.structs.replace(outcome, content=content)

    # Model calls.

    def begin_model_call(self, step_index: int, model: object) -> None:
        """Note that a model is asked."""
        if self._asked is None:
            name, provider = getattr(model, "name", ""), getattr(model, "provider", "")
            self._asked = AskedModel(step_index, storable_text(str(provider)), storable_text(str(name)))

    def end_model_call(self, usage: Usage, error_type: str | None = None) -> None:
        """Note that the model has answered, or failed; nothing if it was not asked."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self.model_calls.append(asked.to_record(usage, error_type))

    def add_model_call(self, call: ModelCallRecord) -> None:
        """Note a model call that ended earlier."""
        self.model_calls.append(
            msgspec.structs.replace(call, provider=storable_text(call.provider), model=storable_text(call.model))
        )

    # Decisions of a person.

    def take_decisions(self, decisions: Sequence[Decision]) -> None:
        """Record the decisions that start a segment, for the process that continues if this one dies."""
        self.taking = list(decisions)

    def settle_decisions(self) -> None:
        """Forget the decisions: observers have been notified of them, or the segment was given back."""
        self.taking = []

    # Writing.

    def complete(self, state: OperationState, step: Step | None) -> OperationState:
        """Return a state with what the journal knows.

        Args:
            state: What the run knows.
            step: The step that is under way.
        """
        return msgspec.structs.replace(
            state,
            taking=list(self.taking),
            begun=dict(self.begun),
            open_step=self.left if step is None else _open_step(step),
            events=self.numbered,
        )

    def note_written(self, state: OperationState) -> None:
        """Note that the store has a state, with the events and model calls that were to be written with it.

        Observers that wait for the commit of these events are called.
        """
        self.written = state
        del self.model_calls[: self.attempted_model_calls]
        self.attempted_model_calls = 0
        if self.entries:
            del self.entries[: max(0, state.events - self.entries[0].number + 1)]
        while self._unheard and self._unheard[0][0] <= state.events:
            _, event, context = self._unheard.popleft()
            context.run(self._dispatcher._dispatch_committed, event)

    async def checkpoint(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write what happened so far; parallel calls share a write.

        One that comes while another is under way is part of the next.

        Args:
            write: Writes it.
        """
        self._wanted += 1
        mine = self._wanted
        async with self._lock:
            if self._written < mine:
                latest = self._wanted
                await write()
                self._written = latest

    def clear(self) -> None:
        """Forget everything that is not written, because it can never be."""
        self.drop(len(self.entries))
        self.begun, self.taking, self.left = {}, [], None
        self.model_calls = []

    # What every store keeps.

    def storable(self, response: ModelResponse) -> ModelResponse:
        """Return a model's answer as every store keeps it."""
        content, reasoning = storable_text(response.content), storable_text(response.reasoning)
        if content is response.content and reasoning is response.reasoning:
            return response
        return msgspec.structs.replace(response, content=content, reasoning=reasoning)

    def storable_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as every store keeps them."""
        return [
            message
            if message.content.isascii()
            else msgspec.structs.replace(message, content=storable_text(message.content))
            for message in messages
        ]


class NullJournal(Journal):
    """The journal of a run whose store keeps no events: it notes nothing. All such runs share one."""

    durable = False

    def __init__(self) -> None:
        self.written, self.model_calls = None, []
        self.entries, self.numbered, self.begun, self.taking = [], 0, {}, []
        self.orphaned, self.recovered, self.left, self.lost = False, False, None, False

    def note(self, event: Event) -> None:
        pass

    def drop(self, events: int) -> None:
        pass

    def begin_agent(self, call: SubAgentCall, tool_call_id: str, child: str) -> None:
        pass

    def end_call(self, tool_call_id: str) -> None:
        pass

    def close_call(self, outcome: ToolOutcome) -> ToolOutcome:
        return outcome

    def take_decisions(self, decisions: Sequence[Decision]) -> None:
        pass

    def settle_decisions(self) -> None:
        pass

    def complete(self, state: OperationState, step: Step | None) -> OperationState:
        return state

    def begin_model_call(self, step_index: int, model: object) -> None:
        pass

    def end_model_call(self, usage: Usage, error_type: str | None = None) -> None:
        pass

    def add_model_call(self, call: ModelCallRecord) -> None:
        pass

    def note_written(self, state: OperationState) -> None:
        pass

    async def checkpoint(self, write: Callable[[], Awaitable[None]]) -> None:
        pass

    def clear(self) -> None:
        pass

    def storable(self, response: ModelResponse) -> ModelResponse:
        return response

    def storable_messages(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)


NO_JOURNAL = NullJournal()


class AskedModel:
    """A model call that is under way."""

    def __init__(self, step_index: int, provider: str, model: str) -> None:
        self.step_index = step_index
        self.provider = provider
        self.model = model
        self.start_unix_nano = time_ns()
        self.started = perf_counter_ns()

    def to_record(self, usage: Usage, error_type: str | None) -> ModelCallRecord:
        """Return the record of the call, which ends now."""
        return ModelCallRecord(
            step_index=self.step_index,
            provider=self.provider,
            model=self.model,
            start_unix_nano=self.start_unix_nano,
            duration_ms=(perf_counter_ns() - self.started) / 1e6,
            input_tokens=int(usage.input_tokens),
            output_tokens=int(usage.output_tokens),
            cost_usd=float(usage.cost_usd),
            error_type=error_type,
        )


def _open_step(step: Step) -> OpenStep:
    return OpenStep(
        index=step.index,
        entered=step.entered,
        content=step.content,
        reasoning=step.reasoning,
        cost_usd=step.cost_usd,
        guides=step.guides or UNSET,
    )


def _encode_storable(event: Event) -> bytes:
    try:
        return encode(event)
    except EventEncodeError:  # what JSON cannot carry is left out, or escaped, rather than the event
        given = {name: keep_jsonable(getattr(event, name)) for name in ("args", "metadata") if hasattr(event, name)}
        return msgspec.json.encode(_escape(msgspec.to_builtins(msgspec.structs.replace(event, **given))))


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(str(key)): _escape(each) for key, each in value.items()}
    return [_escape(each) for each in value] if isinstance(value, list) else value


def storable_text(text: str) -> str:
    """Return text as every store keeps it: half of a surrogate pair is escaped."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
