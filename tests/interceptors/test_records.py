"""Law 10 and the records: one per hook that ran, in order of start, own time each; and on the signal, from the chain."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import anyio
import pytest

from hookline.calls import Ask, Deny, Respond, ToolResult
from hookline.errors import HookDenied
from hookline.interceptors import Chain, Outcome
from hookline.signals import HookExecution, hook_executed
from tests.tables import for_each

from .calls import (
    SECOND,
    Tool,
    after,
    around,
    before,
    guard,
    hook,
    keep_busy,
    lead,
    recorded,
    run,
    statuses,
    tool_call,
)

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]


async def through(call: Any, call_next: Any) -> Any:
    return await call_next(call)


def saying(value: Any) -> Any:
    async def handler(*args: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return handler


async def test_executions_list_every_hook_that_ran_in_the_order_of_its_start() -> None:
    hooks = [
        after(lambda call, result: None, id="after outer", priority=1),
        around(through, id="around outer", priority=2),
        before(lambda call: None, id="before", priority=3),
        around(through, id="around inner", priority=4),
        after(lambda call, result: None, id="after inner", priority=5),
        guard(lambda call: None, id="guard"),
        before(lambda call: None, id="before bg", wait=False),
        after(lambda call, result: None, id="after bg", wait=False),
    ]

    outcome = await run(hooks)

    started = [each.hook_id for each in outcome.executions]
    assert [each for each in started if "bg" not in each] == [
        *("around outer", "before", "around inner", "guard", "after inner", "after outer"),
    ]
    assert started.index("before bg") > started.index("guard")
    assert started[-1] == "after bg"


async def test_a_hook_that_never_ran_has_no_record() -> None:
    hooks = [
        before(lambda call: None, id="other tool", tool="*/other"),
        before(lambda call: None, id="other tenant", tenant_id="other"),
        before(lambda call: Deny("no"), id="judge"),
        before(lambda call: None, id="too late", priority=999),
        guard(lambda call: None, id="guard"),
        after(lambda call, result: None, id="after"),
    ]

    outcome = await run(hooks)

    assert statuses(outcome) == [("judge", "denied")]


STATUSES: list[tuple[str, Any, str]] = [
    *((kind, None, "ok") for kind in ("before", "guard", "after")),
    *((kind, Deny("no"), "denied") for kind in KINDS),
    *((kind, Ask("?"), "denied") for kind in ("before", "guard", "around")),
    *((kind, Respond("x"), "mocked") for kind in ("before", "around")),
    ("around", ToolResult(content="x"), "mocked"),
    ("around", None, "error"),
    ("after", ToolResult(content="x"), "ok"),
    ("before", tool_call(), "ok"),
    *((kind, "wrong", "error") for kind in KINDS),
    *((kind, ValueError("x"), "error") for kind in KINDS),
]


@for_each(("kind", "value", "status"), STATUSES, ids=lambda value: str(value)[:20])
async def test_a_record_says_how_a_hook_ended(kind: str, value: Any, status: str) -> None:
    with recorded() as records:
        outcome = await run([hook(kind, saying(value), id="it")])

    (execution,) = outcome.executions
    assert execution.status == status
    assert (execution.hook_id, execution.hook_type, execution.operation_id) == ("it", "ToolCall", "op")
    assert execution.duration_ms >= 0
    assert bool(execution.error) == (status in ("error", "denied"))
    assert records == outcome.executions


async def test_a_wrong_value_after_a_denial_is_recorded_as_an_error() -> None:
    async def confused(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookDenied):
            await call_next(call)
        return 42

    outcome = await run([around(confused, id="confused"), guard(lambda call: Deny("no"), id="judge")])

    assert statuses(outcome) == [("confused", "error"), ("judge", "denied")]
    assert outcome.executions[0].error == "returned 42 after a denial"


AFTER_A_DENIAL: list[tuple[Any, str]] = [
    (None, "ok"),
    (ToolResult(content="mine"), "ok"),
    (Respond("mine"), "ok"),
    (Deny("mine"), "denied"),
    (Ask("mine?"), "denied"),
]


@for_each(("value", "status"), AFTER_A_DENIAL, ids=lambda value: str(value)[:20])
async def test_a_value_that_a_hook_may_return_has_no_effect_after_a_denial_and_is_no_error(
    value: Any, status: str
) -> None:
    async def overruling(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookDenied):
            await call_next(call)
        return value

    tool = Tool()
    outcome = await run([around(overruling, id="outer"), guard(lambda call: Deny("no"), id="judge")], terminal=tool)

    assert statuses(outcome) == [("outer", status), ("judge", "denied")]
    assert outcome.executions[0].error is None
    assert outcome.denied is not None
    assert (outcome.denied.hook_id, outcome.denied.reason, outcome.asked, outcome.result) == ("judge", "no", None, None)
    assert tool.calls == []


@for_each("value", [None, Deny("no"), ValueError("x")], ids=["ok", "denied", "error"])
async def test_without_record_executions_are_empty(value: Any) -> None:
    outcome = await run([before(saying(value)), around(through), before(lambda call: None, wait=False)], record=False)

    assert outcome.executions == []


async def test_without_record_executions_are_empty_even_while_somebody_listens() -> None:
    with recorded() as records:
        outcome = await run([before(lambda call: None), around(through)], record=False)

    assert outcome.executions == []
    assert len(records) == 2


async def test_own_times_are_those_of_each_hook_alone() -> None:
    async def slow(call: Any, call_next: Any) -> Any:
        await anyio.sleep(0.02)
        return await call_next(call)

    hooks = [around(through, id="quick", priority=1), around(slow, id="slow", priority=2), before(lambda call: keep_busy(0.01), id="busy")]  # fmt: skip
    outcome = await run(hooks, terminal=Tool(seconds=0.03))

    own = {each.hook_id: each.duration_ms for each in outcome.executions}
    assert own["quick"] < 15 < own["slow"]
    assert own["busy"] >= 9
    assert sum(own.values()) < outcome.duration_ms


@pytest.mark.parametrize("listening", [False, True])
async def test_a_record_says_when_its_hook_began(listening: bool) -> None:
    with recorded() if listening else contextlib.nullcontext():
        outcome = await run([before(lambda call: None), around(through)])

    first, second = outcome.executions
    assert abs(first.time_unix_nano - time.time_ns()) < 60e9
    assert first.time_unix_nano <= second.time_unix_nano


@pytest.mark.parametrize("listening", [False, True])
async def test_no_record_says_that_its_hook_began_before_the_call_or_after_it_ran(listening: bool) -> None:
    began_by: list[int] = []
    slack = SECOND if listening else round(time.get_clock_info("time").resolution * SECOND)

    async def look(call: Any, call_next: Any) -> Any:
        began_by.append(time.time_ns())
        return await call_next(call)

    wall = time.time_ns()
    with recorded() if listening else contextlib.nullcontext():
        outcome = await run([around(look, priority=n) for n in range(3)])

    assert len(outcome.executions) == 3
    for execution, by in zip(outcome.executions, began_by, strict=True):
        assert wall - SECOND <= execution.time_unix_nano <= by + slack


@for_each("hooks", [[], [around(through)], [before(lambda call: None)]], ids=["none", "around", "before"])
async def test_the_duration_of_an_outcome_is_that_of_hooks_and_call_in_milliseconds(hooks: list[Any]) -> None:
    took: list[float] = []

    async def terminal(call: Any) -> ToolResult:
        began = time.perf_counter()
        keep_busy(0.05)
        took.append(time.perf_counter() - began)
        return ToolResult(content="x")

    chain, call = Chain(hooks), tool_call()
    began = time.perf_counter()
    outcome = await chain.run(call, terminal)
    whole = time.perf_counter() - began

    assert took[0] * 1e3 <= outcome.duration_ms <= whole * 1e3


def test_an_outcome_that_somebody_makes_says_nothing_but_the_call_and_the_result() -> None:
    call, result = tool_call(), ToolResult(content="x")

    outcome = Outcome(call=call, result=result)

    assert outcome.unwrap() is result
    assert (outcome.denied, outcome.asked, outcome.stop, outcome.refusal) == (None, None, False, None)
    assert (outcome.continues, outcome.guides, outcome.context, outcome.executions) == ([], [], [], [])
    assert outcome.duration_ms == 0


async def test_records_are_sent_with_the_chain_as_sender() -> None:
    chain, other = Chain([around(through, id="it")]), Chain([around(through, id="other")])

    with recorded(sender=chain) as records:
        await lead(chain)
        await lead(other)

    assert [each.hook_id for each in records] == ["it"]


async def test_records_of_background_hooks_are_sent_with_the_chain_as_sender() -> None:
    senders: list[Any] = []

    def receive(sender: object, execution: HookExecution) -> None:
        senders.append(sender)

    chain = Chain([before(lambda call: None, wait=False), guard(lambda call: None)])
    hook_executed.connect(receive)
    try:
        await lead(chain)
    finally:
        hook_executed.disconnect(receive)

    assert senders == [chain, chain]


async def test_a_receiver_that_raises_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(sender: object, execution: HookExecution) -> None:
        raise ValueError("receiver")

    hook_executed.connect(broken)
    try:
        with recorded() as records:
            outcome = await run([before(lambda call: None), around(through)])
    finally:
        hook_executed.disconnect(broken)

    assert outcome.unwrap().content == "result"
    assert [status for _, status in statuses(outcome)] == ["ok", "ok"]
    assert len(records) == 2
    assert all(record.levelno == logging.ERROR for record in caplog.records)


async def test_a_receiver_that_comes_or_goes_in_the_middle_of_a_call_harms_nobody() -> None:
    seen: list[str] = []

    def receive(sender: object, execution: HookExecution) -> None:
        seen.append(execution.hook_id)

    hooks = [
        around(through, id="outer"),
        before(lambda call: hook_executed.connect(receive) and None, id="connects"),
        before(lambda call: hook_executed.disconnect(receive), id="disconnects", priority=200),
    ]
    for options in ({}, {"record": False}):
        outcome = await run(hooks, **options)
        assert outcome.denied is None

    assert "outer" not in seen


async def test_the_records_of_one_outcome_are_not_those_of_the_next() -> None:
    chain = Chain([before(lambda call: None)])

    first = await lead(chain, tool_call(operation_id="first"))
    second = await lead(chain, tool_call(operation_id="second"))

    assert [each.operation_id for each in first.executions] == ["first"]
    assert [each.operation_id for each in second.executions] == ["second"]


BUSY = 0.1


@for_each("fails", [False, True])
@for_each("kind", ["before", "around"])
async def test_the_duration_of_a_record_is_the_own_time_in_milliseconds(kind: str, *, fails: bool) -> None:
    took: list[float] = []

    def work() -> None:
        started = time.perf_counter()
        keep_busy(BUSY)
        took.append(time.perf_counter() - started)
        if fails:
            raise ValueError("broken")

    async def wrap(call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        work()
        return result

    handler: Any = wrap if kind == "around" else lambda *args: work()
    began = time.perf_counter()
    outcome = await run([hook(kind, handler, on_error="open")], terminal=Tool(seconds=0.1))
    whole = time.perf_counter() - began

    (execution,) = outcome.executions
    assert execution.status == ("error" if fails else "ok")
    assert took[0] * 1e3 <= execution.duration_ms <= (whole - 0.1) * 1e3


@pytest.mark.parametrize("fails", [False, True])
async def test_the_records_of_a_chain_say_that_they_are_in_it(*, fails: bool) -> None:
    def handler(call: Any) -> None:
        if fails:
            raise ValueError("broken")

    with recorded() as sent:
        outcome = await run([before(handler, on_error="open")])

    assert [each.in_chain for each in outcome.executions] == [True]
    assert [each.in_chain for each in sent] == [True]
