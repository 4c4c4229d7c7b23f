"""Laws 3, 6 and 12: what a failing hook does to the call, and that nobody is blamed for what another did."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline.calls import Deny, ToolCall, ToolResult
from hookline.errors import HookDenied, HookExecutionError
from tests.tables import for_each

from .calls import Tool, after, around, before, guard, hook, replace, run, statuses, tool_call, turns, with_args

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]


class Silent(Exception):
    def __str__(self) -> str:
        return ""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Fatal(BaseException):
    """Something that nobody may swallow."""


def raising(error: BaseException, *, is_async: bool = True, suspends: int = 0) -> Any:
    async def later(*args: Any) -> Any:
        await turns(suspends)
        raise error

    def at_once(*args: Any) -> Any:
        raise error

    return later if is_async else at_once


# --- closed


@for_each("kind", KINDS)
@for_each("how", ["sync", "async", "async later"])
async def test_a_hook_that_raises_denies_the_call_by_default(kind: str, how: str) -> None:
    broken = ValueError("bad luck")
    tool = Tool()
    handler = raising(broken, is_async=how != "sync", suspends=2 if how == "async later" else 0)

    outcome = await run([hook(kind, handler, id="broken")], terminal=tool)

    assert len(tool.calls) == (kind == "after")
    assert outcome.result is None
    assert outcome.denied is not None
    assert outcome.denied.hook_id == "broken"
    assert outcome.denied.reason.startswith("the hook failed, and it fails closed: ")
    assert "bad luck" in outcome.denied.reason
    assert statuses(outcome) == [("broken", "error")]
    assert "bad luck" in str(outcome.executions[0].error)
    with pytest.raises(HookDenied) as caught:
        outcome.unwrap()
    cause = caught.value.__cause__
    assert isinstance(cause, HookExecutionError)
    assert (cause.hook_id, cause.point) == ("broken", "ToolCall")
    assert cause.__cause__ is broken
    assert broken.__traceback__ is not None


ODD = [Silent(), Unprintable(), StopIteration(), StopAsyncIteration(), TimeoutError(), KeyError("x"), RecursionError()]


@for_each("error", ODD, ids=lambda error: type(error).__name__)
@for_each("is_async", [False, True], ids=["sync", "async"])
@for_each("kind", KINDS)
async def test_no_exception_is_too_odd_to_deny(kind: str, error: Exception, *, is_async: bool) -> None:
    outcome = await run([hook(kind, raising(error, is_async=is_async))])

    assert outcome.denied is not None
    assert len(outcome.denied.reason) > len("the hook failed, and it fails closed: ")
    assert statuses(outcome) == [(kind, "error")]
    assert outcome.executions[0].error


async def test_a_denial_that_a_hook_raises_by_itself_is_a_failure_of_that_hook() -> None:
    outcome = await run([before(raising(HookDenied("somebody else", "no")))])
    assert outcome.denied is not None
    assert outcome.denied.hook_id == "before"
    assert statuses(outcome) == [("before", "error")]

    outcome = await run([before(raising(HookDenied("somebody else", "no")), on_error="open")])
    assert outcome.denied is None


async def test_after_a_closed_failure_nothing_further_in_runs() -> None:
    seen: list[str] = []
    tool = Tool()

    await run(
        [
            before(raising(ValueError()), priority=1),
            before(lambda call: seen.append("before"), priority=2),
            guard(lambda call: seen.append("guard")),
            after(lambda call, result: seen.append("after"), priority=0),
        ],
        terminal=tool,
    )

    assert (seen, tool.calls) == ([], [])


async def test_a_failing_guard_that_fails_closed_is_no_permit_for_an_outer_hook() -> None:
    async def overrule(call: Any, call_next: Any) -> ToolResult:
        with pytest.raises(HookDenied):
            await call_next(call)
        return ToolResult(content="overruled")

    tool = Tool()
    outcome = await run([around(overrule), guard(raising(ValueError()))], terminal=tool)

    assert outcome.denied is not None
    assert outcome.result is None
    assert tool.calls == []


# --- open


@for_each("kind", KINDS)
@for_each("is_async", [False, True], ids=["sync", "async"])
async def test_a_hook_that_fails_open_is_recorded_and_the_call_goes_on(
    kind: str, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    tool = Tool()

    outcome = await run(
        [hook(kind, raising(ValueError("bad luck"), is_async=is_async), on_error="open")], terminal=tool
    )

    assert outcome.result is tool.answer
    assert len(tool.calls) == 1
    assert statuses(outcome) == [(kind, "error")]
    assert "bad luck" in str(outcome.executions[0].error)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("hookline", logging.ERROR)
    for word in (kind, "ToolCall", "op", "bad luck"):
        assert word in record.getMessage()


@for_each("kind", KINDS)
async def test_the_call_goes_on_as_if_the_failed_hook_were_absent(kind: str) -> None:
    def others() -> list[Any]:
        return [
            before(lambda call: with_args(call, a=1), priority=1),
            after(lambda call, result: replace(result, content=result.content + "!"), priority=2),
            before(lambda call: with_args(call, b=1), priority=900),
            after(lambda call, result: replace(result, content=result.content + "?"), priority=901),
            guard(lambda call: None),
        ]

    broken = hook(kind, raising(ValueError()), on_error="open", priority=500, id="broken")
    with_it, without_it = Tool(), Tool()
    outcome = await run([*others(), broken], terminal=with_it)
    expected = await run(others(), terminal=without_it)

    assert outcome.result == expected.result
    assert outcome.call == expected.call
    assert with_it.calls == without_it.calls
    assert [each for each in statuses(outcome) if each[0] != "broken"] == statuses(expected)


async def test_an_around_that_fails_open_before_call_next_is_skipped_with_its_change() -> None:
    async def broken(call: Any, call_next: Any) -> Any:
        with_args(call, half="made")
        await turns(1)
        raise ValueError

    tool = Tool()
    outcome = await run([around(broken, on_error="open")], terminal=tool)

    assert [call.args for call in tool.calls] == [{"q": "x"}]
    assert outcome.call.args == {"q": "x"}


# --- late failures: after call_next


@for_each("on_error", ["open", "closed"])
@for_each("how", ["raises", "wrong value", "wrong answer"])
async def test_a_late_failure_never_runs_downstream_twice(on_error: str, how: str) -> None:
    inner: list[str] = []

    async def late(call: Any, call_next: Any) -> Any:
        await call_next(with_args(call, changed=1))
        if how == "raises":
            raise ValueError("late")
        return "text" if how == "wrong value" else call

    tool = Tool()
    hooks = [
        around(late, on_error=on_error, id="late"),
        before(lambda call: inner.append("before")),
        after(lambda call, result: inner.append("after")),
        guard(lambda call: inner.append("guard")),
    ]
    outcome = await run(hooks, terminal=tool)

    assert len(tool.calls) == 1
    assert inner == ["before", "guard", "after"]
    assert statuses(outcome)[0] == ("late", "error")
    if on_error == "open":
        assert outcome.result is tool.answer
        assert outcome.call.args == {"q": "x", "changed": 1}
    else:
        assert outcome.result is None
        assert outcome.denied is not None
        assert outcome.denied.hook_id == "late"


async def test_an_after_hook_that_fails_open_keeps_the_result_of_a_side_effect() -> None:
    tool = Tool()
    hooks = [
        after(raising(ValueError()), on_error="open", priority=2),
        after(lambda call, result: replace(result, content="seen"), priority=1),
    ]

    outcome = await run(hooks, terminal=tool)

    assert outcome.result.content == "seen"
    assert len(tool.calls) == 1


async def test_a_late_open_failure_keeps_what_inner_hooks_made_of_the_result() -> None:
    async def late(call: Any, call_next: Any) -> Any:
        await call_next(call)
        raise ValueError

    hooks = [around(late, on_error="open"), after(lambda call, result: replace(result, content="changed"))]

    assert (await run(hooks)).result.content == "changed"


async def test_many_late_open_failures_still_run_the_terminal_once() -> None:
    async def late(call: Any, call_next: Any) -> Any:
        await call_next(call)
        raise ValueError

    tool = Tool()
    outcome = await run([around(late, on_error="open", priority=n) for n in range(20)], terminal=tool)

    assert len(tool.calls) == 1
    assert outcome.result is tool.answer
    assert statuses(outcome) == [("around", "error")] * 20


# --- the terminal's own exceptions


@for_each("on_error", ["open", "closed"])
@for_each("error", [ValueError("tool"), TimeoutError(), Silent(), HookDenied("x", "y"), StopAsyncIteration(), Fatal()], ids=lambda error: type(error).__name__)  # fmt: skip
async def test_exceptions_of_the_terminal_pass_through_hooks_unchanged(
    error: BaseException, on_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def transparent(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    async def forgetful(call: Any, call_next: Any) -> None:
        try:
            await call_next(call)
        finally:
            await anyio.lowlevel.checkpoint()

    caught: list[BaseException] = []

    async def catching(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except BaseException as raised:
            caught.append(raised)
            raise raised

    tool = Tool(error=error)
    arounds = (transparent, forgetful, catching, lambda call, call_next: call_next(call))
    hooks = [around(handler, on_error=on_error) for handler in arounds]
    with pytest.raises(type(error)) as came_out:
        await run([*hooks, after(lambda call, result: Deny("never"), on_error=on_error)], terminal=tool)

    assert came_out.value is error
    assert caught == [error]
    assert len(tool.calls) == 1
    assert caplog.records == []


async def test_hooks_around_a_terminal_that_raised_are_not_recorded_as_failed() -> None:
    from .calls import recorded

    async def transparent(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    with recorded() as records, pytest.raises(ValueError, match="tool"):
        await run([around(transparent), before(lambda call: None)], terminal=Tool(error=ValueError("tool")))

    assert sorted((each.hook_id, each.status) for each in records) == [("around", "ok"), ("before", "ok")]


async def test_no_after_hook_runs_when_the_terminal_raised() -> None:
    seen: list[Any] = []

    with pytest.raises(ValueError, match="tool"):
        await run([after(lambda call, result: seen.append(result))], terminal=Tool(error=ValueError("tool")))

    assert seen == []


async def test_a_hook_may_catch_what_the_terminal_raised_and_answer() -> None:
    async def fall_back(call: Any, call_next: Any) -> ToolResult:
        try:
            return await call_next(call)
        except ValueError:
            return ToolResult(content="fallback")

    seen: list[str] = []
    tool = Tool(error=ValueError())
    outer = after(lambda call, result: seen.append(result.content), priority=0)
    outcome = await run([outer, around(fall_back, id="fallback")], terminal=tool)

    assert outcome.result.content == "fallback"
    assert seen == ["fallback"]
    assert statuses(outcome) == [("fallback", "ok"), ("after", "ok")]


@for_each("is_async", [False, True], ids=["sync", "async"])
async def test_an_after_that_raises_what_the_terminal_raised_although_a_hook_has_answered_has_failed(
    *, is_async: bool
) -> None:
    broken = ValueError("tool")

    async def mending(call: Any, call_next: Any) -> ToolResult:
        with pytest.raises(ValueError, match="tool"):
            await call_next(call)
        return ToolResult(content="mended")

    hooks = [after(raising(broken, is_async=is_async), id="outer", priority=1), around(mending, id="mending")]
    closed = await run(hooks, terminal=Tool(error=broken))
    opened = await run([replace(hooks[0], on_error="open"), hooks[1]], terminal=Tool(error=broken))

    assert closed.denied is not None
    assert closed.denied.hook_id == "outer"
    assert statuses(closed) == statuses(opened) == [("mending", "ok"), ("outer", "error")]
    assert opened.result == ToolResult(content="mended")


async def test_catching_what_the_terminal_raised_and_returning_none_changes_nothing() -> None:
    broken = ValueError("tool")

    async def swallow(call: Any, call_next: Any) -> None:
        with pytest.raises(ValueError, match="tool"):
            await call_next(call)

    tool = Tool(error=broken)
    with pytest.raises(ValueError, match="tool") as caught:
        await run([around(swallow)], terminal=tool)

    assert caught.value is broken
    assert len(tool.calls) == 1


async def test_an_exception_that_a_hook_makes_of_the_terminals_is_its_own_failure() -> None:
    broken = ValueError("tool")

    async def wrap(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except ValueError as error:
            raise RuntimeError("wrapped") from error

    outcome = await run([around(wrap)], terminal=Tool(error=broken))
    assert outcome.denied is not None
    assert statuses(outcome) == [("around", "error")]

    tool = Tool(error=broken)
    with pytest.raises(ValueError, match="tool") as caught:
        await run([around(wrap, on_error="open")], terminal=tool)
    assert caught.value is broken
    assert len(tool.calls) == 1


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_the_terminals_exception_is_not_blamed_on_a_hook_that_has_a_task_group(on_error: str) -> None:
    broken = ValueError("tool")

    async def with_heartbeat(call: Any, call_next: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            result = await call_next(call)
            group.cancel_scope.cancel()
        return result

    with pytest.raises(ValueError, match="tool") as caught:
        await run([around(with_heartbeat, on_error=on_error)], terminal=Tool(error=broken))

    assert caught.value is broken


async def test_a_denial_is_not_turned_into_a_failure_by_a_hook_that_has_a_task_group() -> None:
    async def with_heartbeat(call: Any, call_next: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            result = await call_next(call)
            group.cancel_scope.cancel()
        return result

    outcome = await run([around(with_heartbeat), guard(lambda call: Deny("no"))])

    assert outcome.denied is not None
    assert (outcome.denied.hook_id, outcome.denied.reason) == ("guard", "no")


async def test_the_terminal_that_is_no_async_function_is_not_blamed_on_a_hook() -> None:
    async def transparent(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    def plain(call: Any) -> Any:
        return ToolResult(content="x")

    with pytest.raises(TypeError):
        await run([around(transparent)], terminal=plain)


# --- BaseExceptions


@for_each("kind", KINDS)
@for_each("error", [Fatal(), KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__)
@for_each("is_async", [False, True], ids=["sync", "async"])
@for_each("on_error", ["open", "closed"])
async def test_base_exceptions_of_a_hook_are_never_swallowed(
    kind: str, error: BaseException, on_error: str, *, is_async: bool
) -> None:
    seen: list[str] = []
    outer = after(lambda call, result: seen.append("after"), priority=0)

    with pytest.raises(type(error)) as caught:
        await run([outer, hook(kind, raising(error, is_async=is_async), on_error=on_error)])

    assert caught.value is error
    assert seen == []


@for_each("error", [Fatal(), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@for_each("background", [False, True], ids=["alone", "with a background hook"])
async def test_base_exceptions_of_the_terminal_come_out_unchanged(error: BaseException, *, background: bool) -> None:
    hooks = [before(lambda call: None), guard(lambda call: None)]
    if background:
        hooks.append(before(lambda call: None, wait=False))

    with pytest.raises(BaseException) as caught:
        await run(hooks, terminal=Tool(error=error))

    assert caught.value is error


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("on_error", ["open", "closed"])
@pytest.mark.parametrize("record", [True, False])
async def test_a_cancelled_error_of_the_terminals_own_is_not_blamed_on_a_hook(on_error: str, *, record: bool) -> None:
    error = asyncio.CancelledError()

    async def terminal(call: Any) -> Any:
        raise error

    async def transparent(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    from hookline.interceptors import Chain

    hooks = [around(transparent, on_error=on_error), around(transparent, on_error=on_error)]
    with pytest.raises(asyncio.CancelledError) as caught:
        await Chain(hooks, record=record).run(tool_call(), terminal)

    assert caught.value is error


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@for_each("kind", KINDS)
@for_each("is_async", [False, True], ids=["sync", "async"])
@for_each("options", [{}, {"record": False, "hook_timeout": float("inf")}], ids=["timed", "bare"])
async def test_a_cancelled_future_that_a_hook_awaits_is_that_hooks_failure(
    kind: str, options: Any, *, is_async: bool
) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()

    async def awaiting(*args: Any) -> None:
        await future

    def asking(*args: Any) -> None:
        future.result()

    outcome = await run([hook(kind, awaiting if is_async else asking)], **options)

    assert outcome.denied is not None
    assert outcome.denied.hook_id == kind


# --- half-made changes


async def test_metadata_is_kept_after_a_failed_hook() -> None:
    async def noting(call: ToolCall) -> None:
        call.metadata["noted"] = True
        await turns(1)
        raise ValueError

    seen: list[Any] = []
    hooks = [before(noting, on_error="open"), after(lambda call, result: seen.append(call.metadata["noted"]))]
    outcome = await run(hooks)

    assert seen == [True]
    assert outcome.call.metadata == {"noted": True}


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_an_exception_after_a_denial_changes_nothing(on_error: str) -> None:
    async def upset(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except HookDenied:
            raise ValueError("upset") from None

    outcome = await run([around(upset, id="upset", on_error=on_error), guard(lambda call: Deny("no"), id="judge")])

    assert outcome.denied is not None
    assert (outcome.denied.hook_id, outcome.denied.reason) == ("judge", "no")
    with pytest.raises(HookDenied) as caught:
        outcome.unwrap()
    assert caught.value.hook_id == "judge"
    assert caught.value.__cause__ is None
    assert statuses(outcome) == [("upset", "error"), ("judge", "denied")]
