"""What the tests of the runtime arrange with: answers of a model, a recorder of events, and the laws of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio

from hookline import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    Agent,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnStopByHumanIntervention,
    OnToolCallError,
    OperationResult,
    ScriptedModel,
    ToolRequest,
    Usage,
)
from hookline.events import EVENTS
from hookline.runtime import ModelRetry

AT_ONCE = ModelRetry(first_wait=0.0)


def call(name: str, call_id: str = "t1", /, toolset: str = "local", **args: Any) -> ToolRequest:
    return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call_id)


def raw_call(name: str, text: Any, call_id: str = "t1") -> ToolRequest:
    return ToolRequest(tool_name=name, args=text, tool_call_id=call_id)


def ask(agent_id: str, call_id: str = "t1", instruction: str = "go") -> ToolRequest:
    return call(agent_id, call_id, toolset="agent", instruction=instruction)


def calls(*callings: ToolRequest, content: str = "", tokens: int = 0, cost: float = 0.0) -> ModelResponse:
    return ModelResponse(content=content, tool_calls=list(callings), usage=Usage(input_tokens=tokens, cost_usd=cost))


def says(content: str = "done", tokens: int = 0, cost: float = 0.0) -> ModelResponse:
    return ModelResponse(content=content, usage=Usage(input_tokens=tokens, cost_usd=cost))


def agent_of(*turns: Any, id: str = "tester", **parts: Any) -> Agent:  # noqa: A002
    """An agent whose model plays these turns."""
    return Agent(id=id, model=ScriptedModel(turns), retry=parts.pop("retry", AT_ONCE), **parts)


class Recorder:
    """Writes down every event that its hooks are shown, in order."""

    def __init__(self, *, inherit: bool = True) -> None:
        self.events: list[Event] = []
        self.hooks = Hooks("recorder", inherit=inherit)
        self.reactions: list[Callable[[Event], object]] = []
        for kind in EVENTS.values():
            self.hooks.on(kind)(self.record)

    def record(self, event: Event) -> None:
        self.events.append(event)
        for reaction in self.reactions:
            reaction(event)

    def of(self, kind: type[Any], operation_id: str | None = None) -> list[Any]:
        return [
            event
            for event in self.events
            if isinstance(event, kind) and (operation_id is None or event.operation_id == operation_id)
        ]

    def names(self, operation_id: str | None = None) -> list[str]:
        return [
            str(event.hook_type) for event in self.events if operation_id is None or event.operation_id == operation_id
        ]

    def by_operation(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.operation_id, []).append(event)
        return found

    @property
    def completion(self) -> OnComplete:
        (event,) = self.of(OnComplete)
        return event


def tool_texts(result: OperationResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


def told(messages: Sequence[Message]) -> dict[str | None, str]:
    return {message.tool_call_id: message.content for message in messages if message.role == "tool"}


def assert_consistent(messages: Sequence[Message], pending: Iterable[str] = ()) -> None:
    """Every call of an assistant message has exactly one tool message, in order, right behind it; pending ones none."""
    pending = set(pending)
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        assert message.role != "tool", f"a tool message that answers nothing: {message}"
        if message.role == "assistant":
            last = at + len(message.tool_calls) >= len(messages)
            for calling in message.tool_calls:
                if calling.tool_call_id in pending and last:
                    continue
                assert at < len(messages), f"call {calling.tool_call_id!r} has no answer"
                assert messages[at].role == "tool", f"call {calling.tool_call_id!r} has no answer"
                assert messages[at].tool_call_id == calling.tool_call_id
                at += 1


def assert_order(events: Sequence[Event], *, resumed: bool = False) -> None:
    """The events of ONE segment of ONE operation keep the order of the contract, each exactly once."""
    left = list(events)
    assert left, "a segment without events"

    def peek(*kinds: type[Any]) -> bool:
        return bool(left) and isinstance(left[0], kinds)

    def take(kind: type[Any]) -> Any:
        assert left, f"expected {kind.__name__}, but nothing followed"
        assert isinstance(left[0], kind), f"expected {kind.__name__}, got {left[0]!r}"
        return left.pop(0)

    first, index, goes_on = True, None, True
    while peek(BeforeStep):
        assert goes_on, "a step after should_continue=False"
        before = take(BeforeStep)
        assert index is None or before.step_index == index + 1
        index = before.step_index
        _take_human(peek, take, allowed=resumed and first)
        if peek(BeforeCompact):
            assert not (resumed and first), "a resumed step has no model call to compact for"
            compact = take(BeforeCompact)
            ended = take(AfterCompact) if peek(AfterCompact) else take(OnCompactError)
            assert compact.step_index == ended.step_index == index
        _take_calls(peek, take, index)
        if peek(BeforeHumanIntervention):
            assert take(BeforeHumanIntervention).step_index == index
        after = take(AfterStep)
        assert after.step_index == index
        goes_on = after.should_continue
        first = False
    end = take(OnComplete)
    assert not (goes_on and index is not None) or end.reason in ("interrupted", "error")
    assert (end.reason == "error") == (end.error_type is not None) == (end.error_message is not None)
    if end.reason == "error":
        error = take(OnError)
        assert (error.error_type, error.error_message) == (end.error_type, end.error_message)
    assert not left, f"events after the end: {left}"


def _take_human(peek: Any, take: Any, *, allowed: bool) -> None:
    seen = Counter()
    stops = False
    while peek(AfterHumanIntervention):
        assert allowed, "a decision outside of the first step of a resumed segment"
        decision = take(AfterHumanIntervention)
        seen[decision.tool_call_id] += 1
        stops = stops or decision.action == "reject"
    assert all(count == 1 for count in seen.values())
    if stops:
        take(OnStopByHumanIntervention)
    assert not peek(OnStopByHumanIntervention)


def _take_calls(peek: Any, take: Any, index: int) -> None:
    tools: dict[str, BeforeToolCall] = {}
    finished: set[str] = set()
    agents: Counter[str] = Counter()
    while True:
        if peek(BeforeToolCall):
            event = take(BeforeToolCall)
            assert event.tool_call_id not in tools, "beforeToolCall twice"
            assert event.step_index == index
            tools[event.tool_call_id] = event
        elif peek(AfterToolCall) or peek(OnToolCallError):
            event = take(AfterToolCall) if peek(AfterToolCall) else take(OnToolCallError)
            assert event.tool_call_id in tools, "the second event of a pair without the first"
            assert event.tool_call_id not in finished, "the second event of a pair twice"
            finished.add(event.tool_call_id)
            before = tools[event.tool_call_id]
            for field in ("toolset", "tool_name", "args", "call_index", "step_index"):
                assert getattr(before, field) == getattr(event, field)
        elif peek(BeforeCallAgent):
            agents[take(BeforeCallAgent).callee_id] += 1
        elif peek(AfterCallAgent) or peek(OnCallAgentError):
            event = take(AfterCallAgent) if peek(AfterCallAgent) else take(OnCallAgentError)
            agents[event.callee_id] -= 1
            assert agents[event.callee_id] >= 0
        else:
            break
    assert finished == set(tools), "a beforeToolCall without its second event"
    assert not any(agents.values()), "a beforeCallAgent without its second event"


class Hanging:
    """Something that begins and then never ends by itself."""

    def __init__(self) -> None:
        self.begun = anyio.Event()

    async def forever(self) -> None:
        self.begun.set()
        await anyio.sleep_forever()


class HangingModel:
    """A model that never answers."""

    name = "hanging"
    provider = "tests"

    def __init__(self) -> None:
        self.hanging = Hanging()

    async def respond(self, call: ModelCall) -> ModelResponse:
        await self.hanging.forever()
        raise AssertionError
