"""Hooks that raise, hang, or return nonsense, at every point: closed denies, open goes on, and nothing falls apart."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import msgspec
import pytest

from hookline import (
    AgentCall,
    AgentResult,
    CompactResult,
    Continue,
    Deny,
    HookDispatcher,
    MemoryCall,
    MemoryResult,
    Message,
    ModelResponse,
    Respond,
    StepResult,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.events import decode, encode
from hookline.runtime import OperationState
from tests.tables import for_each

from .interception import (
    POINTS,
    JsonStore,
    World,
    after,
    around,
    before,
    contents,
    guard,
    pay,
    paying,
    replace,
    session_of,
)
from .scenes import Recorder, agent_of, assert_consistent, assert_order, calls, says, told

pytestmark = pytest.mark.anyio

ENDS = {"AgentCall", "StepCall", "ModelCall"}
"""Points whose denial ends the run."""


async def play(world: World, *hooks: Any) -> tuple[Any, Any]:
    """A task in a session; its events, its messages and its session hold, whatever the hooks do."""
    recorder = Recorder(inherit=False)
    async with session_of(world.agent, hooks=[recorder.hooks]) as session:
        result = await session.run("go", hooks=hooks)
        assert session.phase == "idle"
        assert all(isinstance(message, Message) for message in session.history)
    assert_order(recorder.events)
    assert_consistent(result.messages)
    return result, recorder


def broken(*given: Any) -> Any:
    raise KeyError("broken")


async def broken_later(*given: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    raise KeyError("broken")


async def broken_after_next(made: Any, call_next: Any) -> Any:
    await call_next(made)
    raise KeyError("broken")


BROKEN: dict[str, tuple[Any, Any]] = {
    "before": (before, broken),
    "async before": (before, broken_later),
    "guard": (guard, broken),
    "async guard": (guard, broken_later),
    "after": (after, broken),
    "async after": (after, broken_later),
    "around": (around, broken_later),
    "around afterwards": (around, broken_after_next),
}


@for_each("how", BROKEN)
@for_each("point", POINTS)
async def test_a_hook_that_raises_and_fails_open_is_as_if_it_were_absent(point: str, how: str) -> None:
    make, handler = BROKEN[how]
    world, plain = World(children=0), World(children=0)
    expected, without = await play(plain)

    result, recorder = await play(world, make(POINTS[point], handler, on_error="open"))

    assert (result.reason, result.output, result.messages) == (expected.reason, expected.output, expected.messages)
    assert recorder.names() == without.names()
    assert world.ran == plain.ran


@for_each("how", BROKEN)
@for_each("point", POINTS)
async def test_a_hook_that_raises_and_fails_closed_denies_its_call_and_nothing_else(point: str, how: str) -> None:
    make, handler = BROKEN[how]
    world = World()

    result, _ = await play(world, make(POINTS[point], handler, id="broken-hook"))

    assert result.error is None
    if point in ENDS:
        assert result.reason == "interrupted"
        assert result.denied.hook_id == "broken-hook"
        assert "broken" in result.denied.reason
    else:
        assert result.reason == "done"
        assert result.output == "all done"
    happened = {"ToolCall": "tool", "SubAgentCall": "child", "CompactCall": "summary", "ModelCall": "model"}
    if point in happened:
        assert (happened[point] in world.ran) == ("after" in how), "a tool ran although its guard had failed"
        assert world.ran.count(happened[point]) <= 2


async def hanging(*given: Any) -> Any:
    await anyio.sleep_forever()


async def hanging_after_next(made: Any, call_next: Any) -> Any:
    await call_next(made)
    await anyio.sleep_forever()


HANGING: dict[str, tuple[Any, Any]] = {
    "before": (before, hanging),
    "guard": (guard, hanging),
    "after": (after, hanging),
    "around": (around, hanging),
    "around afterwards": (around, hanging_after_next),
}


@for_each("on_error", ["closed", "open"])
@for_each("how", list(HANGING))
@for_each("point", list(POINTS))
async def test_a_hook_that_hangs_is_stopped_by_its_timeout_and_is_no_permit(
    point: str, how: str, on_error: str
) -> None:
    """tailored-ai#570: a guard that timed out counted as an allow."""
    make, handler = HANGING[how]
    world = World()

    result, _ = await play(world, make(POINTS[point], handler, timeout=0.005, on_error=on_error))

    if on_error == "closed" and point in ENDS:
        assert result.reason == "interrupted"
        assert "0.005" in result.denied.reason
    else:
        assert result.reason == "done"
    if on_error == "closed" and point == "ToolCall" and "after" not in how:
        assert "tool" not in world.ran


async def test_the_time_of_a_tool_is_not_the_time_of_the_hooks_around_it() -> None:
    """AGENT-33 F1: the timeout of a hook wrapped what it surrounded."""

    async def patient(made: ToolCall, call_next: Any) -> Any:
        return await call_next(made)

    @tool
    async def slow() -> str:
        await anyio.sleep(0.6)
        return "slow"

    agent = agent_of(calls(ToolRequest(tool_name="slow", tool_call_id="t1")), says(), tools=[slow])

    result = await exec_agent(agent, "go", hooks=[around(ToolCall, patient, timeout=0.5)])

    assert told(result.messages) == {"t1": "slow"}


@for_each("junk", [True, False, 0, "yes", {}, {"allow": True}, [], object(), Message(role="user", content="x")])
@for_each("kind", ["before", "guard", "after", "around"])
async def test_anything_that_is_no_answer_denies(kind: str, junk: Any) -> None:
    """philschmid 6 and 16: `{}` blocked, `undefined` allowed, a wrong word meant something."""
    paid: list[Any] = []

    async def odd(made: ToolCall, call_next: Any) -> Any:
        return junk

    hook = {
        "before": before(ToolCall, lambda c: junk),
        "guard": guard(ToolCall, lambda c: junk),
        "after": after(ToolCall, lambda c, r: junk),
        "around": around(ToolCall, odd),
    }[kind]

    result = await exec_agent(paying(paid, calls(pay()), says()), "go", hooks=[hook])

    assert result.reason == "done"
    assert paid == ([5] if kind == "after" else [])
    assert "paid 5" not in told(result.messages)["p1"]


@for_each("point", list(POINTS))
@for_each("kind", ["before", "guard", "after", "around"])
async def test_a_wrong_answer_denies_at_every_point(point: str, kind: str) -> None:
    async def odd(made: Any, call_next: Any) -> Any:
        await call_next(made)
        return 42

    hook = {
        "before": before(POINTS[point], lambda c: 42),
        "guard": guard(POINTS[point], lambda c: replace(c)),
        "after": after(POINTS[point], lambda c, r: 42),
        "around": around(POINTS[point], odd),
    }[kind]

    result, _ = await play(World(), hook)

    assert result.reason == ("interrupted" if point in ENDS else "done")
    assert result.error is None


async def test_an_around_that_forgets_to_call_next_and_returns_nothing_denies() -> None:
    """AGENT-33 F6: returning without `call_next` silently skipped the guards."""
    paid: list[Any] = []

    async def forgetful(made: ToolCall, call_next: Any) -> None:
        return None

    result = await exec_agent(paying(paid, calls(pay()), says()), "go", hooks=[around(ToolCall, forgetful)])

    assert paid == []
    assert "call_next" in told(result.messages)["p1"]


async def test_an_around_that_fails_late_never_runs_its_tool_twice() -> None:
    """AGENT-33 F2: a failure after `call_next` ran downstream twice."""
    for on_error in ("open", "closed"):
        paid: list[Any] = []
        await exec_agent(
            paying(paid, calls(pay()), says()), "go", hooks=[around(ToolCall, broken_after_next, on_error=on_error)]
        )
        assert paid == [5]


async def test_an_around_that_calls_next_twice_runs_the_tool_and_the_model_once() -> None:
    """AGENT-33 F8."""
    paid: list[Any] = []

    async def twice(made: Any, call_next: Any) -> Any:
        await call_next(made)
        return await call_next(made)

    result = await exec_agent(
        paying(paid, calls(pay()), says()), "go", hooks=[around(point, twice) for point in POINTS.values()]
    )

    assert paid == [5]
    assert (result.steps, result.tool_calls) == (2, 1)


# Results whose fields are not what their names say.

ODD_RESULTS: dict[str, list[Any]] = {
    "AgentCall": [AgentResult(output=None), AgentResult(output=7)],  # type: ignore[arg-type]
    "StepCall": [StepResult(should_continue=False, content=None)],  # type: ignore[arg-type]
    "ModelCall": [
        ModelResponse(content=None),  # type: ignore[arg-type]
        ModelResponse(tool_calls="pay"),  # type: ignore[arg-type]
        ModelResponse(tool_calls=[{"tool_name": "pay"}]),  # type: ignore[list-item]
        ModelResponse(usage=None),  # type: ignore[arg-type]
    ],
    "ToolCall": [ToolResult(content=None), ToolResult(content=b"x"), ToolResult(content="x", success="yes")],  # type: ignore[arg-type]
    "SubAgentCall": [AgentResult(output=None)],  # type: ignore[arg-type]
    "CompactCall": [CompactResult(summary=None)],  # type: ignore[arg-type]
}


@for_each("how", ["after", "respond"])
@for_each(
    ("point", "odd"),
    [(point, odd) for point, results in ODD_RESULTS.items() for odd in results],
    ids=lambda v: str(v)[:50],
)
async def test_a_result_with_fields_of_a_wrong_type_gets_into_no_conversation_event_or_store(
    point: str, odd: Any, how: str
) -> None:
    """The same answers of a model are refused (`ModelAnswerError`); a hook's must not get further."""
    recorder, store = Recorder(inherit=False), JsonStore()
    hook = after(POINTS[point], lambda c, r: odd) if how == "after" else before(POINTS[point], lambda c: Respond(odd))

    with anyio.fail_after(5):
        result = await exec_agent(World().agent, "go", hooks=[recorder.hooks, hook], store=store, operation_id="op")

    assert isinstance(result.output, str)
    assert all(isinstance(message.content, str) for message in result.messages)
    assert_consistent(result.messages)
    for event in recorder.events:
        assert decode(encode(event)).hook_type == event.hook_type
    msgspec.json.decode(store.kept["op"], type=OperationState)


@for_each("value", ["redacted", None, 7, [1, 2], {"role": "user"}, [{"role": "user", "content": "x"}]])
async def test_a_memory_hook_that_writes_nonsense_gets_nothing_but_messages_into_the_next_task(value: Any) -> None:
    async with session_of(agent_of(says("one"), says("two"))) as session:
        await session.run("go", hooks=[before(MemoryCall, lambda c: replace(c, value=value))])
        assert session.phase == "idle"
        assert all(isinstance(message, Message) for message in session.history)
        result = await session.run("next")

    assert result.reason == "done"
    assert all(isinstance(message, Message) for message in result.messages)


@for_each("given", [["text"], [None], [Message(role="user", content=7)]])  # type: ignore[arg-type]
async def test_an_input_that_holds_no_messages_is_a_wrong_change(given: Any) -> None:
    recorder = Recorder()

    result = await exec_agent(
        agent_of(says()), "go", hooks=[before(AgentCall, lambda c: replace(c, input=given)), recorder.hooks]
    )

    assert result.reason in ("interrupted", "error")
    assert all(isinstance(message, Message) and isinstance(message.content, str) for message in result.messages)


# Huge things.


async def test_a_huge_call_with_many_hooks_is_led_through_in_a_moment() -> None:
    blob = "x" * 5_000_000
    got: list[int] = []

    @tool
    async def take(text: str, rows: list[dict[str, int]]) -> str:
        got.append(len(text) + len(rows))
        return text

    rows = [{"n": n} for n in range(20_000)]
    hooks = [before(ToolCall, lambda c: None) for _ in range(50)] + [guard(ToolCall, lambda c: None) for _ in range(50)]
    agent = agent_of(
        calls(ToolRequest(tool_name="take", args={"text": blob, "rows": rows}, tool_call_id="t")), says(), tools=[take]
    )

    with anyio.fail_after(5):
        result = await exec_agent(agent, "go", hooks=hooks)

    assert got == [5_020_000]
    assert len(told(result.messages)["t"]) == 5_000_000


async def test_a_thousand_hooks_on_every_point_run_without_ado() -> None:
    count = [0]

    def note(*given: Any) -> None:
        count[0] += 1

    hooks = [make(point, note) for point in POINTS.values() for make in (before, after, guard) for _ in range(300)]

    with anyio.fail_after(10):
        result = await exec_agent(World().agent, "go", hooks=hooks)

    assert result.reason == "done"
    assert count[0] == 900 * 8


async def test_many_nested_arounds_are_no_recursion_error() -> None:
    async def through(made: Any, call_next: Any) -> Any:
        return await call_next(made)

    hooks = [around(ToolCall, through) for _ in range(100)]
    paid: list[Any] = []

    result = await exec_agent(paying(paid, calls(pay()), says()), "go", hooks=hooks)

    assert paid == [5]
    assert result.reason == "done"


async def test_a_reason_of_any_size_and_script_reaches_the_model_as_it_is() -> None:
    reason = "nein ☠ " * 50_000

    result = await exec_agent(
        paying([], calls(pay()), says()), "go", hooks=[guard(ToolCall, lambda c: Deny(reason))], store=JsonStore()
    )

    assert told(result.messages)["p1"] == reason


@pytest.mark.parametrize("word", [Continue(7), Respond(object())])  # type: ignore[arg-type]
async def test_words_that_carry_nonsense_are_wrong_answers(word: Any) -> None:
    result = await exec_agent(agent_of(says("one")), "go", hooks=[after(AgentCall, lambda c, r: word)])

    assert result.reason == "interrupted"
    assert result.denied is not None


async def test_a_memory_result_that_is_no_such_thing_is_refused() -> None:
    async with session_of(agent_of(says("one"), says("two"))) as session:
        result = await session.run("go", hooks=[after(MemoryCall, lambda c, r: MemoryResult(stored="perhaps"))])  # type: ignore[arg-type]

    assert result.reason == "done"


async def test_a_hook_that_raises_a_cancellation_of_its_own_is_a_hook_that_failed() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return  # trio lets nobody make a Cancelled
    paid: list[Any] = []

    async def cancelling(made: ToolCall) -> None:
        raise asyncio.CancelledError

    async with HookDispatcher() as dispatcher:
        result = await exec_agent(
            paying(paid, calls(pay()), says()), "go", hooks=[guard(ToolCall, cancelling)], dispatcher=dispatcher
        )

    assert result.reason == "done"
    assert paid == []
    assert contents(result.messages)[-1] == "done"
