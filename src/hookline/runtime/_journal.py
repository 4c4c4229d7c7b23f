"""What happened in a run since it was written last, for a store that keeps that too."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec

from hookline.calls import ModelResponse, SubAgentCall, ToolCall, ToolRequest
from hookline.errors import EventEncodeError
from hookline.events import BeforeToolCall, Event, encode
from hookline.runtime._agent import AGENT_IDENTIFIER, jsonable
from hookline.runtime._state import BegunCall, Decision, JournalEntry, OpenStep, OperationState, Step

__all__ = ["Journal", "storable", "storable_text"]


class Journal:
    """The events of a run that are not written yet, and what was under way when they happened.

    Args:
        state: What is known of the operation so far.
        recovered: Whether the process that ran it has died, so that what it left is to be gone on with.
    """

    def __init__(self, state: OperationState, *, recovered: bool) -> None:
        self.entries: list[JournalEntry] = []
        self.numbered = state.events
        self.begun: dict[str, BegunCall] = dict(state.begun)
        self.step: Step | None = None
        """The step that hooks were told of and that has not ended."""
        self.entered = False
        """Whether the hooks of the step's `StepCall` have let it begin."""
        self.recovered = recovered and state.steps > 0
        """Whether the next step goes on with what the last process left."""
        self.left: OpenStep | None = state.open_step if recovered else None
        """The step that it left, until that goes on."""
        self.taking: list[Decision] = list(state.taking) if recovered else []
        """What a person has decided and hooks were not told of yet."""
        self.lost = False
        """Whether the store was lost, so that what else is under way is to be let go of."""
        self.lock = anyio.Lock()
        self.wanted = 0
        self.written = 0

    def note(self, event: Event) -> None:
        """An event happens."""
        self.numbered += 1
        self.entries.append(
            JournalEntry(
                number=self.numbered,
                type=event.hook_type,
                time_unix_nano=event.time_unix_nano,
                wire=_encoded(event),
            )
        )

    def forget(self, events: int) -> None:
        """The events that were noted last are not going to happen."""
        del self.entries[len(self.entries) - events :]
        self.numbered -= events

    def wrote(self, events: int) -> None:
        """The events up to a number are written."""
        if self.entries:
            del self.entries[: max(0, events - self.entries[0].number + 1)]

    def open_step(self) -> OpenStep | None:
        """The step that is under way, as it is kept."""
        step = self.step
        if step is None:
            return self.left
        return OpenStep(
            index=step.index,
            entered=self.entered,
            content=step.content,
            reasoning=step.reasoning,
            cost_usd=step.cost_usd,
        )

    def begin(self, call: ToolCall | BeforeToolCall) -> None:
        """A tool is about to be run, answered or denied."""
        self.begun[call.tool_call_id] = BegunCall(
            call=ToolRequest(
                toolset=call.toolset,
                tool_name=call.tool_name,
                args=jsonable(call.args),
                tool_call_id=call.tool_call_id,
            ),
            call_index=call.call_index,
        )

    def begin_agent(self, call: SubAgentCall, tool_call_id: str, child: str) -> None:
        """A sub-agent is about to be called."""
        calling = ToolRequest(
            toolset=AGENT_IDENTIFIER,
            tool_name=call.callee_id,
            args={"instruction": call.instruction},
            tool_call_id=tool_call_id,
        )
        self.begun[tool_call_id] = BegunCall(call=calling, child=child)

    def end(self, tool_call_id: str) -> None:
        """Hooks are told of its end."""
        begun = self.begun.get(tool_call_id)
        if begun is not None:
            self.begun[tool_call_id] = msgspec.structs.replace(begun, ended=True)

    def keep(self, tool_call_id: str) -> None:
        """Its outcome is noted."""
        self.begun.pop(tool_call_id, None)


def _encoded(event: Event) -> bytes:
    try:
        return encode(event)
    except EventEncodeError:  # what JSON cannot carry is left out, or escaped, rather than the event
        given = {name: jsonable(getattr(event, name)) for name in ("args", "metadata") if hasattr(event, name)}
        return msgspec.json.encode(_escaped(msgspec.to_builtins(msgspec.structs.replace(event, **given))))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(str(key)): _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list) else value


def storable_text(text: str) -> str:
    """Text that every store keeps: half of a surrogate pair is none."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def storable(response: ModelResponse) -> ModelResponse:
    """A model's answer that every store keeps."""
    content, reasoning = storable_text(response.content), storable_text(response.reasoning)
    if content is response.content and reasoning is response.reasoning:
        return response
    return msgspec.structs.replace(response, content=content, reasoning=reasoning)
