"""Law 9: an observer decides nothing by what it returns; before a tool, whoever returns a decision denies the call."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Awaitable, Coroutine
from typing import Annotated, Any, Union

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ids import without_address
from interceptors.calls import Tool
from interceptors.calls import run as run_chain
from runtime.scenes import Recorder, agent_of, call, calls, says, tool_texts

from hookline import (
    AfterToolCall,
    Ask,
    BeforeStep,
    BeforeToolCall,
    Continue,
    Deny,
    Hook,
    HookDispatcher,
    Hooks,
    Interceptor,
    Respond,
    ToolCall,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.errors import HookDefinitionError
from hookline.events import EVENTS
from tests.tables import for_each

from .samples import asked, recorded, step, turns

pytestmark = pytest.mark.anyio

DECISIONS = [Deny("no"), Deny("no", stop=True), Ask("may I?"), Respond("x"), Continue("x"), ToolResult(content="x")]
ANSWERS = ["", "text", {"content": "x"}, {}, ValueError("returned")]
MEANINGLESS = [0, 1, 2.5, True, False, [], [Deny("no")], object(), b"x", Deny, (Deny("no"),)]
SHAPES = ["plain", "at once", "later", "without limit"]
"""A sync handler, an async one that never waits, one that does, and one with no timeout."""


def handler_that_returns(value: object, shape: str) -> Any:
    async def at_once(event: object) -> Any:
        return value

    async def later(event: object) -> Any:
        await turns(2)
        return value

    return {"plain": lambda event: value, "at once": at_once, "later": later, "without limit": later}[shape]


def hook(handler: Any, shape: str = "plain", **changes: Any) -> Hook:
    timeout = math.inf if shape == "without limit" else None
    return Hook(**{"id": "the hook", "type": BeforeToolCall, "handler": handler, "timeout": timeout, **changes})


@for_each("shape", SHAPES)
@for_each("watched", [False, True], ids=["nobody listens", "somebody listens"])
@for_each("value", [*DECISIONS, *ANSWERS], ids=repr)
async def test_a_decision_or_an_answer_returned_before_a_tool_denies_the_call(
    value: object, shape: str, caplog: pytest.LogCaptureFixture, *, watched: bool
) -> None:
    later: list[bool] = []
    others = [hook(lambda event: later.append(event.mocked), id="later")]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(handler_that_returns(value, shape), shape), *others])
        event = asked()

        with recorded(dispatcher) if watched else contextlib.nullcontext([]) as records:
            result = await dispatcher.dispatch_before_tool_call(event)

    assert result is not None
    assert not result.success
    assert result.error_type is None
    assert result.content == "no" if isinstance(value, Deny) else "hooks.guard(ToolCall)" in result.content
    assert (event.mocked, event.answered_by, later) == (False, "the hook", [False])
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "'the hook' on beforeToolCall of operation op" in caplog.text
    assert "hooks.guard(ToolCall)" in caplog.text
    if watched:
        assert [(each.hook_id, each.status) for each in records] == [("the hook", "denied"), ("later", "ok")]
        assert "hooks.guard(ToolCall)" in str(records[0].error)


@for_each("shape", SHAPES)
@for_each("value", MEANINGLESS, ids=without_address)
async def test_every_other_value_returned_before_a_tool_means_nothing(
    value: object, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(handler_that_returns(value, shape), shape)])
        event = asked()

        assert await dispatcher.dispatch_before_tool_call(event) is None

    assert event.answered_by is None
    assert caplog.records == []


@for_each("shape", SHAPES)
@for_each("denies_first", [True, False])
async def test_a_denial_beats_every_mock(shape: str, *, denies_first: bool) -> None:
    taken: list[bool] = []

    def mock(event: BeforeToolCall) -> None:
        taken.append(event.mock("canned"))

    hooks = [hook(handler_that_returns(Deny("no"), shape), shape, id="denies"), hook(mock, id="mocks")]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", hooks if denies_first else hooks[::-1])
        event = asked()

        result = await dispatcher.dispatch_before_tool_call(event)

    assert result == ToolResult(content="no", success=False)
    assert (event.mocked, event.answered_by, taken) == (True, "denies", [True])


async def test_the_first_denial_stands() -> None:
    async with HookDispatcher() as dispatcher:
        hooks = [hook(handler_that_returns(Deny(word), "plain"), id=word) for word in ("one", "two")]
        dispatcher.register("op", hooks)
        event = asked()

        assert await dispatcher.dispatch_before_tool_call(event) == ToolResult(content="one", success=False)
        assert event.answered_by == "one"
        assert await dispatcher.dispatch_before_tool_call(event) == ToolResult(content="one", success=False)


async def test_a_handler_that_raises_denies_nothing() -> None:
    def refuse(event: BeforeToolCall) -> None:
        raise PermissionError("no")

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(refuse)])

        assert await dispatcher.dispatch_before_tool_call(asked()) is None


@for_each("shape", SHAPES)
@for_each("watched", [False, True], ids=["nobody listens", "somebody listens"])
@for_each("alone", [True, False], ids=["alone", "among others"])
@for_each("decision", DECISIONS, ids=repr)
async def test_a_decision_returned_after_any_other_event_is_an_error_of_that_handler(
    decision: object, shape: str, caplog: pytest.LogCaptureFixture, *, watched: bool, alone: bool
) -> None:
    seen: list[str] = []
    others = [] if alone else [hook(lambda event: seen.append("next"), type=BeforeStep, id="next")]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(handler_that_returns(decision, shape), shape, type=BeforeStep), *others])

        with recorded(dispatcher) if watched else contextlib.nullcontext([]) as records:
            dispatcher.dispatch(step())
            report = await dispatcher.unregister("op")

    assert seen == ([] if alone else ["next"])
    assert report.delivered == (0 if shape == "plain" else 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "hooks.guard(ToolCall)" in caplog.text
    if watched:
        assert sorted((each.hook_id, each.status) for each in records)[-1] == ("the hook", "error")


# --- in a run, and in a chain


@tool
def shell(command: str) -> str:
    """Run a command."""
    raise AssertionError(f"ran {command}")


@for_each("shape", SHAPES)
@for_each("value", [Deny("destructive"), "text", {"content": "x"}, Ask("may I?")], ids=repr)
async def test_a_refusal_returned_by_an_observer_keeps_the_tool_from_running(value: object, shape: str) -> None:
    hooks = Hooks("safety")
    hooks.on(BeforeToolCall, tool="shell", id="safety", timeout=math.inf if shape == "without limit" else None)(
        handler_that_returns(value, shape)
    )
    recorder = Recorder()
    agent = agent_of(calls(call("shell", command="rm -rf /")), says(), tools=[shell])

    result = await exec_agent(agent, "go", hooks=[hooks, recorder.hooks])

    assert result.reason == "done"
    (after,) = recorder.of(AfterToolCall)
    assert (after.success, after.mocked, after.answered_by) == (False, False, "safety")
    assert tool_texts(result) == [after.content]
    assert result.denied is None


async def test_a_refusal_by_an_observer_beats_an_answer_by_an_interceptor() -> None:
    hooks = Hooks("both")
    hooks.before(ToolCall, id="cache")(lambda call: Respond("cached"))
    hooks.on(BeforeToolCall, id="safety")(handler_that_returns(Deny("destructive"), "plain"))
    recorder = Recorder()
    agent = agent_of(calls(call("shell", command="ls")), says(), tools=[shell])

    result = await exec_agent(agent, "go", hooks=[hooks, recorder.hooks])

    assert tool_texts(result) == ["destructive"]
    assert [(each.success, each.mocked, each.answered_by) for each in recorder.of(AfterToolCall)] == [
        (False, False, "safety")
    ]


async def test_the_reason_of_an_interceptor_stands_before_that_of_an_observer() -> None:
    hooks = Hooks("both")
    hooks.guard(ToolCall, id="guard")(lambda call: Deny("by the guard"))
    hooks.on(BeforeToolCall, id="safety")(handler_that_returns(Deny("by the observer"), "plain"))
    agent = agent_of(calls(call("shell", command="ls")), says(), tools=[shell])

    result = await exec_agent(agent, "go", hooks=[hooks])

    assert tool_texts(result) == ["by the guard"]


@for_each("kind", ["before", "after"])
@for_each("is_async", [False, True], ids=["sync", "async"])
@for_each("decision", DECISIONS, ids=repr)
async def test_a_decision_of_a_hook_that_nobody_waits_for_is_its_error(
    kind: str, decision: object, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    async def decide_later(*args: Any) -> Any:
        await turns(1)
        return decision

    def decide(*args: Any) -> Any:
        return decision

    ran: list[str] = []

    @tool
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    unwaited = Interceptor(
        id="late", call=ToolCall, kind=kind, handler=decide_later if is_async else decide, wait=False
    )  # type: ignore[arg-type]
    with recorded() as records:
        result = await exec_agent(agent_of(calls(call("look")), says(), tools=[look]), "go", hooks=[unwaited])
        outcome = await run_chain([unwaited], terminal=Tool())

    assert (ran, tool_texts(result)) == (["look"], ["seen"])
    assert outcome.result.content == "result"
    assert [(each.hook_id, each.status) for each in records] == [("late", "error")] * 2
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    assert caplog.text.count("hooks.guard(ToolCall)") >= 2


# --- annotations


def named(annotation: Any) -> Any:
    def handler(event: object) -> None: ...

    handler.__annotations__["return"] = annotation
    return handler


class Callable_:
    def __call__(self, event: object) -> Deny | None:
        return None

    def method(self, event: object) -> Deny | None:
        return None


def resolved_later(event: object) -> Deny | None:  # a string, as annotations are postponed in this module
    return None


async def awaited(event: object) -> ToolResult | None:
    return None


def enclosed() -> Any:
    local = Deny

    def handler(event: object) -> local | None:  # type: ignore[valid-type]
        return local and None

    return handler


REFUSED = [
    *(named(each) for each in (Deny, Ask, Respond, Continue, ToolResult)),
    *(named(each) for each in ("Deny", "Ask | None", "Union[None, Respond]", "Awaitable[ToolResult | None]")),
    named(Deny | None),
    named(Union[Deny, None]),  # noqa: UP007
    named(Awaitable[Deny | None]),
    named(Coroutine[Any, Any, Ask]),
    named(Annotated[Deny | None, "why"]),
    resolved_later,
    awaited,
    enclosed(),
    Callable_(),
    Callable_().method,
    functools.partial(resolved_later),
]
ACCEPTED = [
    *(named(each) for each in (None, type(None), str, bool, Any, int | None, list[Deny], Annotated[int, Deny])),
    *(named(each) for each in ("None", "Unknown | Deny", "not python", "list[Deny]")),
    named(Awaitable[None]),
    lambda event: None,
    [].append,
]


@for_each("handler", REFUSED, ids=lambda each: str(getattr(each, "__annotations__", {}).get("return", each))[:40].split(" at ")[0])  # fmt: skip
def test_an_observer_that_is_annotated_to_decide_is_refused(handler: Any) -> None:
    for event in (BeforeToolCall, BeforeStep):
        hooks = Hooks("bundle")
        with pytest.raises(HookDefinitionError, match=r"hooks\.guard\(ToolCall\)"):
            hooks.on(event)(handler)
        assert hooks.observers == ()


@for_each("handler", ACCEPTED, ids=lambda each: str(getattr(each, "__annotations__", {}).get("return", "none"))[:40])  # fmt: skip
def test_an_observer_that_is_annotated_otherwise_is_accepted(handler: Any) -> None:
    hooks = Hooks("bundle")

    for event in (BeforeToolCall, BeforeStep):
        hooks.on(event)(handler)

    assert len(hooks.observers) == 2


async def test_a_plain_hook_that_is_annotated_to_decide_changes_nothing_in_its_batch() -> None:
    async with HookDispatcher() as dispatcher:
        with pytest.raises(HookDefinitionError, match=r"hooks\[1\].*Deny"):
            dispatcher.register("op", [hook(lambda event: None), hook(resolved_later)])

        assert list(dispatcher.operations) == []


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_hook_that_nobody_waits_for_may_not_be_annotated_to_decide(kind: str) -> None:
    def judge(*args: Any) -> Deny | None:
        return None

    hooks = Hooks("bundle")

    with pytest.raises(HookDefinitionError, match=r"wait=False.*hooks\.guard\(ToolCall\)"):
        getattr(hooks, kind)(ToolCall, wait=False)(judge)
    getattr(hooks, kind)(ToolCall)(judge)
    assert len(hooks.interceptors) == 1


# --- laws

RETURNED = st.sampled_from(["nothing", "number", "deny", "text", "mock", "raise"])


@given(
    plan=st.lists(st.tuples(RETURNED, st.sampled_from(["plain", "at once", "later"])), max_size=6),
    backend=st.sampled_from(["asyncio", "trio"]),
    watched=st.booleans(),
)
def test_what_a_call_comes_to_follows_from_what_its_observers_did(
    plan: list[tuple[str, str]], backend: str, *, watched: bool
) -> None:
    def act(word: str, number: int) -> Any:
        def handler(event: BeforeToolCall) -> Any:
            ran.append(number)
            if word == "raise":
                raise ValueError
            if word == "mock":
                return event.mock(f"mock {number}")
            return {"nothing": None, "number": number, "deny": Deny(f"deny {number}"), "text": "text"}[word]

        return handler

    def shaped(handler: Any, shape: str) -> Any:
        async def later(event: BeforeToolCall) -> Any:
            await turns(1 if shape == "later" else 0)
            return handler(event)

        return handler if shape == "plain" else later

    ran: list[int] = []
    hooks = [hook(shaped(act(word, number), shape), id=str(number)) for number, (word, shape) in enumerate(plan)]
    denials = [number for number, (word, _) in enumerate(plan) if word in ("deny", "text")]
    mocks = [number for number, (word, _) in enumerate(plan) if word == "mock"]

    async def main() -> None:
        async with HookDispatcher() as dispatcher:
            dispatcher.register("op", hooks)
            event = asked()
            with recorded(dispatcher) if watched else contextlib.nullcontext():
                result = await dispatcher.dispatch_before_tool_call(event)
            decider = (denials or mocks or [None])[0]
            assert ran == list(range(len(plan)))
            assert event.mocked is bool(mocks)
            assert event.answered_by == (None if decider is None else str(decider))
            if denials:
                assert result is not None
                assert not result.success
                assert plan[denials[0]][0] == "text" or result.content == f"deny {denials[0]}"
            else:
                assert result == (ToolResult(content=f"mock {mocks[0]}") if mocks else None)

    logging.disable(logging.CRITICAL)
    try:
        anyio.run(main, backend=backend)
    finally:
        logging.disable(logging.NOTSET)


def test_every_event_class_refuses_decisions_at_registration() -> None:
    for kind in EVENTS.values():
        with pytest.raises(HookDefinitionError, match="Deny"):
            Hooks("bundle").on(kind)(resolved_later)
