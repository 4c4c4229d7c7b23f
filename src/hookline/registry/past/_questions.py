"""`PastQuestions`: rebuild the model calls and the `AgentCall` of a stored operation from its conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from hookline._readonly import NO_LIST, NotStored, ReadOnlyList
from hookline.calls import (
    AgentCall,
    AgentResult,
    Message,
    ModelCall,
    ModelResponse,
    Usage,
    context_message,
    is_from_hooks,
    is_from_user,
)
from hookline.errors import EventDecodeError
from hookline.events import EventFields, HookType, OnComplete
from hookline.registry.past._items import PastCall, PastItem, StepEnd, UnjudgedCalls, decode_step_end, ids_of
from hookline.store import PastConversation, PastEvents, PastModelCall

__all__ = ["MissingFields", "PastQuestions"]

COMPACTED = "A summary has replaced the messages of the time."
CONTINUED = "Hooks have continued the run, and the store does not have where its inputs begin."
DISCARDED = "A hook had the model asked again, and the answer that it discarded is not stored."
FOREIGN = "Another framework keeps the conversation of the run."
MISMATCH = "The stored conversation does not fit the stored steps."
NO_INPUT = "The store does not have where the input of the run begins."
NOT_ASKED = "The run was stopped in the step, and whether the model was to be asked is not stored."
NOT_ENDED = "The step had not ended when it was stored."
STOPPED = "The run was stopped before its end, and what hooks saw of its end is not stored."
WITHHELD = "A hook has withheld the answer, which is not stored."


class MissingFields:
    """Stands for the fields of calls and results that no store keeps, and notes which of them hooks use.

    Attributes:
        reads: The fields that hooks have used since it was cleared.
    """

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.model = self._make("ModelCall.model")
        self.model_tools, self.model_settings = self._make("ModelCall.tools"), self._make("ModelCall.settings")
        self.of_response: dict[str, Any] = {
            name: self._make(f"ModelResponse.{name}") for name in ("finish_reason", "model", "response_id")
        }
        self.usage, self.cost_known = self._make("ModelResponse.usage"), self._make("ModelResponse.cost_known")
        self.agent_tools, self.instructions = self._make("AgentCall.tools"), self._make("AgentCall.instructions")
        self.compacted = self._make("CompactCall.messages")

    def _make(self, name: str) -> Any:
        return NotStored(name, self.reads)


class _StepOutline(msgspec.Struct, gc=False):
    """A step of an operation, without its content.

    Attributes:
        number: The number of its `beforeStep`.
        is_resumed: Whether it applied a person's decisions, and asked no model.
        is_closed: Whether it has ended.
    """

    number: int
    is_resumed: bool = False
    is_closed: bool = False


class _Place(NamedTuple):
    """Where in the conversation a step asked the model.

    Attributes:
        conversation: In which conversation, from 0; each compaction begins another one.
        messages: Number of messages that stood when the step was asked for the last time.
        is_answered: Whether the message that follows is the answer.
        problem: Why the place is not known; `""` if it is.
    """

    conversation: int = 0
    messages: int = 0
    is_answered: bool = False
    problem: str = ""


class PastQuestions:
    """Rebuilds what models were asked in one operation, from the conversation that is stored now.

    Each step that asked a model has added one message of the model, so that these are paired from the end. What stood
    before it is what the model was asked. The messages are decoded once; a call gets a list of those that stood.

    Args:
        part: The first part of the operation, with its conversation.
        missing: The fields that are not stored.
        results: Whether calls are to have their results.
        only_ends: Whether hooks see runs at their ends only. If people had decided about calls of a run, its last part
            has only the newest message of the user as its input.
    """

    def __init__(self, part: PastEvents, missing: MissingFields, *, results: bool, only_ends: bool) -> None:
        self._results = results
        self._only_ends = only_ends
        self._was_resumed = False
        conversation = part.conversation
        assert conversation is not None
        self._conversation = conversation
        self._missing = missing
        self._messages = _freeze(conversation.messages)
        self._conversations: list[Sequence[Message] | None] = [
            each and _freeze(each) for each in conversation.compacted
        ]
        self._conversations.append(self._messages)
        self._answering: tuple[PastCall, Message] | None = None
        self._calls: dict[int, list[PastModelCall]] = {}
        for each in conversation.model_calls:
            self._calls.setdefault(each.step_index, []).append(each)
        self._model: Any = conversation.model_calls[0].model if conversation.model_calls else missing.model
        self._last_step: StepEnd | None = None
        self._last_content = ""
        self._place = _Place()
        self._context = _find_context(conversation)
        self._problem = conversation.problem
        self._is_compacted = False
        self._places: dict[int, _Place] = {}
        if conversation.state is None:
            return
        if conversation.state.framework:
            self._problem = FOREIGN
            return
        outline = part.outline or [(number, kind) for _, number, kind, _ in part.events]
        last_step = part.last_step
        if last_step is None:
            closed = (wire for _, _, kind, wire in reversed(part.events) if kind == HookType.AFTER_STEP)
            last_step = next(closed, None)
        self._places = self._find_places(outline, last_step)

    def with_messages(self, past: PastCall) -> ModelCall:
        """Return a past model call with the messages that stood."""
        call = past.call
        assert isinstance(call, ModelCall)
        if call.messages is NO_LIST:
            messages = self._conversations[past.conversation]
            assert messages is not None  # else the call could not be judged
            msgspec.structs.force_setattr(call, "messages", ReadOnlyList(messages[: past.messages]))
        return call

    # Steps and their model calls.

    def begin_step(self, event: EventFields, number: int, step_index: int) -> list[PastItem]:
        """Begin a step, and return the calls of models that it made, in order.

        Args:
            event: Its `beforeStep`.
            number: The number of that event.
            step_index: The step.
        """
        self._answering = None
        place = self._place = self._places.get(number, _Place(problem=self._problem))
        made = self._calls.get(step_index, [])
        if place.problem:
            return [UnjudgedCalls(place.problem, max(1, len(made)))]
        if number not in self._places:
            return []  # it applied a person's decisions
        messages = self._conversations[place.conversation] or ()
        guided = _count_guides(messages, place.messages, self._context)
        asked = self._count_asked(place, len(made), guided)
        if not asked:
            assert self._conversation.state is not None
            return [UnjudgedCalls(NOT_ENDED if self._conversation.state.status == "running" else NOT_ASKED)]
        items: list[PastItem] = []
        discarded = max(0, asked - 1)
        if discarded > guided:  # feedback that is empty has left no message
            items.append(UnjudgedCalls(DISCARDED, discarded))
            discarded = 0
        at = event.time_unix_nano / 1e9
        for left in range(discarded, -1, -1):
            call = ModelCall(
                messages=NO_LIST,
                model=made[0].model if made else self._model,
                tools=self._missing.model_tools,
                settings=self._missing.model_settings,
                step_index=step_index,
                operation_id=event.operation_id,
                agent_id=event.agent_id,
                user_id=event.user_id,
                tenant_id=event.tenant_id,
                parent_operation_id=event.parent_operation_id,
                tags=event.tags,
                metadata={},
            )
            past = PastCall(
                call=call, number=number, at=at, messages=place.messages - left, conversation=place.conversation
            )
            past.lost = DISCARDED if left else ""
            index = max(asked, len(made)) - 1 - left
            past.made = made[index] if index < len(made) else None
            items.append(past)
        if place.is_answered:
            past.lost = NOT_ENDED
            self._answering = past, messages[place.messages]
        elif len(made) >= asked and made[-1].error_type is None:
            past.lost = WITHHELD
        return items

    def end_step(self, event: StepEnd) -> None:
        """End a step: its event has what the messages do not have of the answer."""
        answering, self._answering = self._answering, None
        self._last_step = event
        if self._place.is_answered:
            self._last_content = event.content
        if answering is None:
            return
        past, message = answering
        if [each.tool_call_id for each in event.tools_calling] != [each.tool_call_id for each in message.tool_calls]:
            past.problem = MISMATCH
        elif message.content and not event.content:
            past.lost = WITHHELD
        else:
            past.lost = ""
            if self._results:
                past.result = self._build_response(event, message)

    @property
    def unfinished(self) -> PastCall | None:
        """The model call whose step has not ended."""
        return self._answering[0] if self._answering is not None else None

    def _count_asked(self, place: _Place, made: int, guided: int) -> int:
        """Return how often a step asked the model; 0 if that is not known.

        Args:
            place: Where it did.
            made: Number of its model calls that are stored; those that a hook denied or answered are not.
            guided: Number of messages with which hooks had the model asked again.
        """
        if place.is_answered:
            return max(made, guided + 1 if made >= guided else 1)
        state = self._conversation.state
        was_denied = state is not None and state.steering is not None and state.steering.denied is not None
        if made and (not was_denied or made > guided):
            return made
        return made + 1 if was_denied else 0

    def _build_response(self, event: StepEnd, message: Message) -> ModelResponse:
        made = self._calls.get(event.step_index)
        usage: Any = self._missing.usage
        cost_known: Any = self._missing.cost_known
        if made:
            last = made[-1]
            usage = Usage(input_tokens=last.input_tokens, output_tokens=last.output_tokens, cost_usd=last.cost_usd)
            cost_known = True if last.cost_usd else cost_known
        return ModelResponse(
            content=event.content,
            tool_calls=message.tool_calls,
            reasoning=event.reasoning,
            usage=usage,
            details=message.details,
            cost_known=cost_known,
            **self._missing.of_response,
        )

    def _find_places(self, outline: Sequence[tuple[int, str]], last_step: bytes | None) -> dict[int, _Place]:
        """Find where in the conversation each step asked the model, by the number of its `beforeStep`."""
        steps: list[_StepOutline] = []
        begins: list[int] = []
        for number, kind in outline:
            if kind == HookType.BEFORE_STEP:
                steps.append(_StepOutline(number))
            elif not steps:
                continue
            elif kind == HookType.AFTER_HUMAN_INTERVENTION:
                steps[-1].is_resumed = self._was_resumed = True
            elif kind == HookType.AFTER_STEP:
                steps[-1].is_closed = True
            elif kind == HookType.AFTER_COMPACT:
                begins.append(len(steps) - 1)
        self._is_compacted = bool(begins)
        if len(self._conversations) != len(begins) + 1:  # a version of hookline that deleted the messages wrote some
            self._conversations = [*([None] * len(begins)), self._messages]
        bounds = [0, *begins, len(steps)]
        places: dict[int, _Place] = {}
        for nth, messages in enumerate(self._conversations):
            asking = [each for each in steps[bounds[nth] : bounds[nth + 1]] if not each.is_resumed]
            answered = len(asking)
            if asking and asking[-1] is steps[-1] and not self._is_answered(asking[-1], last_step):
                answered -= 1
            places.update(_place_steps(asking, answered, nth, messages))
        return places

    def _is_answered(self, step: _StepOutline, last_step: bytes | None) -> bool:
        """Return whether the conversation has the answer to the last step."""
        if not step.is_closed or last_step is None:
            return self._conversation.is_open
        try:
            end = decode_step_end(last_step)
        except EventDecodeError:
            return self._conversation.is_open
        if end.content or end.tools_calling:
            return True
        last = self._messages[-1] if self._messages else None
        return last is not None and last.role == "assistant" and not last.tool_calls

    # The whole run.

    def build_agent_call(self, event: EventFields, number: int) -> PastItem:
        """Return the `AgentCall` of the operation, without its result.

        Args:
            event: An event of the operation.
            number: The number of that event.
        """
        state = self._conversation.state
        steering = state.steering if state is not None else None
        problem = self._problem
        if not problem and self._is_compacted:
            problem = COMPACTED
        elif not problem and steering is not None and steering.continues:
            problem = CONTINUED
        elif not problem and (steering is None or steering.input_from is UNSET or steering.said_from is None):
            problem = NO_INPUT
        if problem:
            return UnjudgedCalls(problem)
        assert steering is not None
        assert steering.input_from is not UNSET
        given, before = self._messages[steering.input_from : steering.said_from], self._messages[: steering.input_from]
        instructions: Any = steering.instructions
        if instructions is None:
            is_first = bool(before) and before[0].role == "system"
            instructions = before[0].content if is_first else ""
            if not is_first and any(each.role == "system" for each in given):
                instructions = self._missing.instructions
        if self._only_ends and self._was_resumed:
            given = [each for each in given if is_from_user(each)][-1:]
        call = AgentCall(input=given, instructions=instructions, tools=self._missing.agent_tools, **ids_of(event))
        return PastCall(call=call, number=number, at=event.time_unix_nano / 1e9)

    def end_run(self, past: PastCall, event: OnComplete) -> None:
        """Complete the `AgentCall` with its result.

        Args:
            past: The call.
            event: The last event of the run.
        """
        last, state = self._last_step, self._conversation.state
        reason = event.reason
        if reason in ("error", "waiting_for_human") or last is None:
            return  # hooks see no result
        if reason == "interrupted":
            was_denied = state is not None and state.steering is not None and state.steering.denied is not None
            ended = self._place.is_answered and last.content and not last.tools_calling and not last.should_continue
            if not (was_denied and ended):
                past.lost = STOPPED
                return
            reason = "done"  # a hook has withheld the result of the run
        past.result = AgentResult(output=self._last_content, reason=reason)


def _place_steps(
    asking: Sequence[_StepOutline], answered: int, conversation: int, messages: Sequence[Message] | None
) -> Iterator[tuple[int, _Place]]:
    """Find where in a conversation its steps asked the model, by the number of the `beforeStep` of each.

    Args:
        asking: The steps that asked a model.
        answered: How many of them, from the first, have an answer in the conversation.
        conversation: Which conversation, from 0.
        messages: Its messages; `None` if they are not stored.
    """
    said = [at for at, message in enumerate(messages or ()) if message.role == "assistant"]
    first = len(said) - answered
    for nth, step in enumerate(asking):
        if messages is None:
            yield step.number, _Place(problem=COMPACTED)
        elif nth >= answered:
            yield step.number, _Place(conversation, len(messages))
        elif first + nth < 0:
            yield step.number, _Place(problem=MISMATCH)
        else:
            yield step.number, _Place(conversation, said[first + nth], is_answered=True)


def _freeze(messages: Sequence[Message]) -> list[Message]:
    """Make the calls of messages read-only, as those that live hooks see."""
    for message in messages:
        calls: object = message.tool_calls
        if calls.__class__ is not ReadOnlyList:
            msgspec.structs.force_setattr(message, "tool_calls", ReadOnlyList(message.tool_calls))
    return list(messages)


def _find_context(conversation: PastConversation) -> Message | None:
    """Return the message with the texts that hooks have added after the input of a run, if there is one."""
    steering = conversation.state.steering if conversation.state is not None else None
    return context_message(steering.context) if steering is not None and steering.context is not UNSET else None


def _count_guides(messages: Sequence[Message], end: int, context: Message | None) -> int:
    """Return how many messages of hooks stand right before a place in a conversation, without the added context."""
    count = 0
    while count < end and is_from_hooks(messages[end - count - 1]) and messages[end - count - 1] != context:
        count += 1
    return count
