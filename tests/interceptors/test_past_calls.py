"""Hooks judge stored calls as those of a run, in which nothing happens but the judging."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import anyio
import pytest

from hookline._readonly import NotStored
from hookline.calls import (
    AgentCall,
    AgentResult,
    Ask,
    Continue,
    Deny,
    Message,
    ModelCall,
    ModelResponse,
    Respond,
    ToolCall,
    ToolResult,
)
from hookline.interceptors import Chain, Interceptor, PastChain, PastVerdict
from tests.tables import for_each

from .calls import (
    CALLS,
    Tool,
    after,
    around,
    before,
    guard,
    hook,
    keep_busy,
    recorded,
    replace,
    tool_call,
    turns,
    until,
    with_args,
)

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]
RESULT = ToolResult(content="result")


async def judge(*hooks: Interceptor, call: Any = None, outcome: object = RESULT, **options: Any) -> PastVerdict | None:
    """Judge one stored call, without patience for hooks that hang."""
    with anyio.fail_after(5):
        return await PastChain(hooks, **options).judge(tool_call() if call is None else call, outcome)


def statuses(verdict: PastVerdict | None) -> list[tuple[str, str, str]]:
    """Who ran, how it ended, and what it decided; empty if all let the call be."""
    assert verdict is not None
    return [(each.hook_id, each.status, each.decision) for each in verdict.executions]


def saying(value: Any, *, is_async: bool) -> Any:
    async def later(*args: Any) -> Any:
        await turns(2)
        return value

    return later if is_async else lambda *args: value


DECISIONS: list[tuple[str, Any, str, str]] = [
    *((kind, Deny("no"), "denied", "denied") for kind in KINDS),
    *((kind, Ask("may it?"), "denied", "asked") for kind in KINDS[:3]),
    ("before", Respond("mine"), "mocked", "mocked"),
    ("before", tool_call(args={"q": "other"}), "ok", "changed"),
    ("after", ToolResult(content="other"), "ok", "changed"),
    ("around", ToolResult(content="other"), "mocked", "mocked"),
    *((kind, 42, "error", "denied") for kind in KINDS),
]


@for_each("is_async", [False, True])
@for_each(("kind", "value", "status", "decision"), DECISIONS, ids=lambda value: str(value)[:20])
async def test_a_verdict_has_the_record_that_a_run_would_have(
    kind: str, value: Any, status: str, decision: str, *, is_async: bool
) -> None:
    deciding = hook(kind, saying(value, is_async=is_async), id="it")

    verdict = await judge(deciding)
    live = await Chain([deciding]).run(tool_call(), Tool())

    assert statuses(verdict) == [("it", status, decision)]
    assert verdict is not None
    assert [(each.error, each.reason) for each in verdict.executions] == [
        (each.error, each.reason) for each in live.executions
    ]


@for_each("is_async", [False, True])
@for_each("kind", KINDS[:2] + KINDS[3:])
async def test_a_call_that_all_hooks_let_be_has_a_verdict_without_records(kind: str, *, is_async: bool) -> None:
    verdict = await judge(hook(kind, saying(None, is_async=is_async)))

    assert statuses(verdict) == []


@for_each(("call", "result"), CALLS, ids=lambda value: type(value).__name__)
async def test_a_call_for_no_hook_has_no_verdict(call: Any, result: Any) -> None:
    other, _ = CALLS[(CALLS.index((call, result)) + 1) % len(CALLS)]

    assert await judge(guard(lambda call: Deny("no"), call=type(other)), call=call, outcome=result) is None
    assert await judge(call=call, outcome=result) is None
    assert await judge(guard(lambda call: Deny("no"), call=type(call)), call=call, outcome=result) is not None


async def test_a_call_that_the_filters_of_all_hooks_let_pass_has_no_verdict() -> None:
    assert await judge(guard(lambda call: Deny("no"), tool="*/other"), before(lambda call: None, tool="x/*")) is None


async def test_hooks_judge_in_their_order_and_what_others_made_of_the_call_and_the_result() -> None:
    seen: list[Any] = []

    async def wrapping(call: Any, call_next: Any) -> Any:
        result = await call_next(with_args(call, n=2))
        seen.append(result.content)
        return result

    hooks = [
        guard(lambda call: seen.append(call.args["n"]), id="guard", priority=0),
        around(wrapping, id="around", priority=2),
        before(lambda call: with_args(call, n=1), id="before", priority=1),
        after(lambda call, result: replace(result, content=result.content + "!"), id="inner", priority=3),
        after(lambda call, result: replace(result, content=result.content + "?"), id="outer", priority=0),
    ]
    verdict = await judge(*hooks)

    assert seen == [2, "result!"]
    assert statuses(verdict) == [
        ("before", "ok", "changed"),
        ("around", "ok", "changed"),
        ("guard", "ok", ""),
        ("inner", "ok", "changed"),
        ("outer", "ok", "changed"),
    ]


async def test_an_around_that_only_passes_on_another_call_has_a_record() -> None:
    async def rewriting(call: Any, call_next: Any) -> Any:
        return await call_next(with_args(call, q="other"))

    assert statuses(await judge(around(rewriting))) == [("around", "ok", "changed")]


@for_each("is_async", [False, True])
async def test_of_a_call_that_raised_no_after_is_asked(*, is_async: bool) -> None:
    caught: list[Exception] = []
    failed = ValueError("the tool failed")

    async def wrapping(call: Any, call_next: Any) -> Any:
        if is_async:
            await turns(2)
        try:
            return await call_next(call)
        except ValueError as error:
            caught.append(error)
            raise

    hooks = [after(lambda call, result: Deny("no")), around(wrapping)]

    assert statuses(await judge(*hooks, outcome=failed)) == []
    assert caught == [failed]
    assert await judge(*hooks[:1], outcome=failed) is None


async def test_a_hook_may_answer_with_an_exception() -> None:
    answering = before(lambda call: Respond(KeyError("gone")), call=ModelCall)

    assert statuses(await judge(answering, call=ModelCall(messages=[]))) == [("before", "mocked", "mocked")]


async def test_a_continue_is_only_recorded() -> None:
    call = AgentCall(input=[Message(role="user", content="hi")])
    going_on = after(lambda call, result: Continue("more"), call=AgentCall)

    verdict = await judge(going_on, call=call, outcome=AgentResult(output="done"))

    assert statuses(verdict) == [("after", "ok", "continued")]


async def test_fields_that_are_not_stored_are_no_wrong_fields_of_what_a_hook_changes() -> None:
    reads: list[str] = []
    missing: Any = NotStored("the field", reads)
    call = replace(ModelCall(messages=[]), tools=missing, settings=missing, model=missing)
    result = replace(ModelResponse(content="x"), reasoning=missing, usage=missing, finish_reason=missing)
    hooks = [
        before(lambda call: replace(call, messages=[Message(role="user", content="hi")]), call=ModelCall),
        after(lambda call, result: replace(result, content="y"), call=ModelCall),
    ]

    verdict = await judge(*hooks, call=call, outcome=result)

    assert statuses(verdict) == [("before", "ok", "changed"), ("after", "ok", "changed")]
    assert reads == []

    wrong = after(lambda call, result: replace(result, finish_reason=3), call=ModelCall)
    assert statuses(await judge(wrong, call=call, outcome=result)) == [("after", "error", "denied")]


@for_each("on_error", ["open", "closed"])
@for_each("kind", KINDS)
async def test_a_hook_that_fails_has_a_record_and_is_neither_logged_nor_announced(
    kind: str, on_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise ValueError("broken")

    with recorded() as sent:
        verdict = await judge(hook(kind, broken, on_error=on_error))

    assert statuses(verdict) == [(kind, "error", "denied" if on_error == "closed" else "")]
    assert (sent, [each for each in caplog.records if each.levelno >= logging.WARNING]) == ([], [])


@for_each("kind", KINDS)
async def test_a_hook_that_hangs_is_stopped_after_its_timeout_or_the_one_of_the_chain(kind: str) -> None:
    ended: list[str] = []

    async def hanging(*args: Any) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("stopped")

    own = await judge(hook(kind, hanging, timeout=0.01))
    chains = await judge(hook(kind, hanging), hook_timeout=0.02)

    assert ended == ["stopped"] * 2
    assert statuses(own) == statuses(chains) == [(kind, "timeout", "denied")]
    assert own is not None
    assert chains is not None
    assert "0.01" in str(own.executions[0].error)
    assert "0.02" in str(chains.executions[0].error)


async def test_the_time_of_a_verdict_is_the_own_time_of_the_hooks_in_milliseconds() -> None:
    took: list[float] = []

    def work(*args: Any) -> None:
        began = time.perf_counter()
        keep_busy(0.01)
        took.append(time.perf_counter() - began)

    async def wrapping(call: Any, call_next: Any) -> Any:
        work()
        await turns(2)
        return await call_next(call)

    began = time.perf_counter()
    verdict = await judge(before(work), around(wrapping), guard(work), after(work))
    whole = time.perf_counter() - began

    assert verdict is not None
    assert len(took) == 4
    assert sum(took) * 1e3 <= verdict.duration_ms <= whole * 1e3


@for_each("kind", KINDS)
async def test_a_cancellation_goes_through_a_judgement(kind: str) -> None:
    log: list[str] = []

    async def hanging(*args: Any) -> Any:
        log.append("in")
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    async def work() -> None:
        await PastChain([hook(kind, hanging, on_error="open")]).judge(tool_call(), RESULT)
        log.append("came back")

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await until(lambda: log)
        group.cancel_scope.cancel()

    assert log == ["in", "cancelled"]


@for_each("error", [SystemExit(), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
async def test_what_is_no_exception_ends_the_judging(error: BaseException) -> None:
    def fatal(call: Any) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await judge(guard(fatal, on_error="open"))

    assert caught.value is error


@for_each("kind", KINDS)
async def test_a_text_for_the_model_reaches_nobody_and_is_no_failure(kind: str) -> None:
    async def adding(call: ToolCall, *rest: Any) -> Any:
        call.add_context("note")
        return await rest[0](call) if kind == "around" else None

    assert statuses(await judge(hook(kind, adding))) == []


async def test_one_chain_judges_call_after_call_and_each_anew() -> None:
    chain = PastChain([guard(lambda call: Deny("no") if call.args["n"] % 2 else None)])

    verdicts = [await chain.judge(tool_call(args={"n": n}), RESULT) for n in range(4)]

    assert [bool(statuses(verdict)) for verdict in verdicts] == [False, True, False, True]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_judging_leaves_no_cancellation_in_the_callers_task() -> None:
    task = asyncio.current_task()
    assert task is not None

    async def hanging(call: Any) -> None:
        await asyncio.sleep(60)

    await judge(before(hanging, timeout=0.01, on_error="open"), guard(hanging, timeout=0.01))

    assert task.cancelling() == 0
