"""Law 7: hooks that nobody waits for run beside the call, change nothing, and have ended when the run has."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from time import perf_counter
from typing import Any

import anyio
import pytest

from hookline.calls import AgentCall, Ask, Continue, Deny, Respond, ToolCall, ToolResult
from hookline.hooks import Hooks
from tests.tables import for_each

from .calls import (
    CALLS,
    SECOND,
    Tool,
    after,
    around,
    before,
    guard,
    hook,
    keep_busy,
    recorded,
    replace,
    run,
    statuses,
    tool_call,
    turns,
    with_args,
)

pytestmark = pytest.mark.anyio

KINDS = pytest.mark.parametrize("kind", ["before", "after"])


async def hang(*args: Any) -> None:
    await anyio.sleep_forever()


@KINDS
async def test_the_call_does_not_wait_for_a_background_hook_but_the_run_does(kind: str) -> None:
    log: list[str] = []
    may_end = anyio.Event()

    async def slow(*args: Any) -> None:
        log.append("started")
        if kind == "before":
            await may_end.wait()
        await turns()
        log.append("ended")

    async def terminal(call: Any) -> ToolResult:
        await turns()
        log.append("terminal")
        may_end.set()
        return ToolResult(content="x")

    await run([hook(kind, slow, wait=False)], terminal=terminal)

    assert log == (["started", "terminal", "ended"] if kind == "before" else ["terminal", "started", "ended"])


async def test_background_hooks_start_after_all_waiting_hooks_with_the_final_call_and_result() -> None:
    log: list[Any] = []
    tool = Tool(seconds=0.01)  # on trio, who goes first of two that can is left to chance

    async def wrapped(call: Any, call_next: Any) -> Any:
        result = await call_next(with_args(call, around=1))
        log.append("around out")
        return replace(result, content="changed")

    hooks = [
        before(lambda call: log.append(("before", call)), wait=False, priority=0),
        after(lambda call, result: log.append(("after", call, result)), wait=False, priority=1000),
        around(wrapped, priority=1),
        before(lambda call: log.append("waiting before") or with_args(call, before=1), priority=2),
        guard(lambda call: log.append("guard")),
        after(lambda call, result: log.append("waiting after"), priority=1),
    ]
    outcome = await run(hooks, terminal=tool)

    final = tool.calls[0]
    assert final.args == {"q": "x", "around": 1, "before": 1}
    assert log == [
        *("waiting before", "guard", ("before", final), "waiting after", "around out"),
        ("after", final, outcome.result),
    ]
    assert outcome.result.content == "changed"


@KINDS
@for_each("on_error", ["open", "closed"])
@for_each("is_async", [False, True], ids=["sync", "async"])
async def test_the_failure_of_a_background_hook_is_only_recorded(
    kind: str, on_error: str, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    async def later(*args: Any) -> None:
        await turns(2)
        raise ValueError("bad luck")

    def at_once(*args: Any) -> None:
        raise ValueError("bad luck")

    tool = Tool()
    outcome = await run(
        [hook(kind, later if is_async else at_once, wait=False, on_error=on_error, id="bg")], terminal=tool
    )

    assert outcome.result is tool.answer
    assert outcome.denied is None
    assert statuses(outcome) == [("bg", "error")]
    assert "bad luck" in str(outcome.executions[0].error)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@KINDS
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_cancelled_future_in_a_background_hook_is_only_recorded(kind: str, *, is_async: bool) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()

    async def awaiting(*args: Any) -> None:
        await future

    tool = Tool()
    handler = awaiting if is_async else lambda *args: future.result()
    outcome = await run([hook(kind, handler, wait=False, id="bg")], terminal=tool)

    assert outcome.result is tool.answer
    assert statuses(outcome) == [("bg", "error")]


@for_each("value", [Deny("no"), Ask("?"), Respond("x"), ToolResult(content="other"), Continue("x"), "junk"], ids=lambda value: type(value).__name__)  # fmt: skip
@KINDS
async def test_what_a_background_hook_returns_changes_nothing(kind: str, value: Any) -> None:
    tool = Tool()

    outcome = await run([hook(kind, lambda *args: value, wait=False)], terminal=tool)

    assert outcome.result is tool.answer
    assert (outcome.denied, outcome.asked, outcome.continues) == (None, None, [])


async def test_a_background_before_cannot_rewrite_what_runs() -> None:
    tool = Tool()

    outcome = await run([before(lambda call: with_args(call, q="sneaked in"), wait=False)], terminal=tool)

    assert [call.args for call in tool.calls] == [{"q": "x"}]
    assert outcome.call.args == {"q": "x"}


async def test_a_background_after_gives_no_continue() -> None:
    call, result = CALLS[0]

    outcome = await run([after(lambda call, result: Continue("more"), call=AgentCall, wait=False)], call, Tool(result))

    assert outcome.continues == []


@for_each("refusal", ["before", "guard", "around", "failure"])
@for_each("value", [Deny("no"), Ask("?")], ids=["deny", "ask"])
async def test_no_background_hook_starts_if_the_call_is_denied(refusal: str, value: Any) -> None:
    log: list[str] = []

    def judge(*args: Any) -> Any:
        if refusal == "failure":
            raise ValueError
        return value

    hooks = [
        before(lambda call: log.append("before"), wait=False),
        after(lambda call, result: log.append("after"), wait=False),
        hook("guard" if refusal == "failure" else refusal, judge),
    ]
    outcome = await run(hooks)

    assert outcome.denied is not None
    assert log == []


async def test_no_background_after_starts_if_the_result_is_withheld() -> None:
    log: list[str] = []

    await run(
        [
            after(lambda call, result: log.append("after"), wait=False),
            after(lambda call, result: Deny("no"), priority=0),
        ]
    )

    assert log == []


async def test_no_background_after_starts_if_the_terminal_raises() -> None:
    log: list[str] = []
    error = ValueError("tool")
    hooks = [
        before(lambda call: log.append("before"), wait=False),
        after(lambda call, result: log.append("after"), wait=False),
    ]

    with pytest.raises(ValueError, match="tool") as caught:
        await run(hooks, terminal=Tool(error=error))

    assert caught.value is error
    assert log == ["before"]


@pytest.mark.parametrize("answering", ["before", "around"])
async def test_an_answered_call_starts_only_the_background_afters(answering: str) -> None:
    log: list[Any] = []
    hooks = [
        before(lambda call: log.append("before"), wait=False),
        after(lambda call, result: log.append(result.content), wait=False),
        hook(answering, lambda *args: Respond("42")),
    ]

    await run(hooks)

    assert log == ["42"]


@KINDS
async def test_the_hooks_of_one_bundle_run_one_at_a_time(kind: str) -> None:
    running = 0
    most = 0
    bundle = Hooks("bundle")

    async def work(*args: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await turns()
        running -= 1

    async def work_after(call: Any, result: Any) -> None:
        await work()

    for _ in range(5):
        getattr(bundle, kind)(ToolCall, wait=False)(work if kind == "before" else work_after)
    outcome = await run([bundle])

    assert most == 1
    assert [status for _, status in statuses(outcome)] == ["ok"] * 5


@KINDS
async def test_a_slow_bundle_holds_back_only_itself(kind: str) -> None:
    log: list[str] = []
    go = anyio.Event()
    slow, quick = Hooks("slow"), Hooks("quick")

    async def waits(*args: Any) -> None:
        await go.wait()
        log.append("slow")

    async def sets(*args: Any) -> None:
        log.append("quick")
        go.set()

    if kind == "before":
        slow.before(ToolCall, wait=False)(waits)
        quick.before(ToolCall, wait=False)(sets)
    else:
        slow.after(ToolCall, wait=False)(waits)
        quick.after(ToolCall, wait=False)(sets)
    await run([slow, quick])

    assert log == ["quick", "slow"]


async def test_background_befores_run_in_order_and_afters_in_reverse() -> None:
    log: list[str] = []
    hooks = [hook(kind, lambda *args, kind=kind, n=n: log.append(f"{kind} {n}"), wait=False, priority=n) for n in (2, 1, 3) for kind in ("before", "after")]  # fmt: skip

    await run(hooks)

    assert log == ["before 1", "before 2", "before 3", "after 3", "after 2", "after 1"]


@KINDS
async def test_a_background_hook_has_a_timeout_too(kind: str) -> None:
    log: list[str] = []
    started = perf_counter()

    async def hung(*args: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    tool = Tool()
    own = await run([hook(kind, hung, wait=False, timeout=0.01)], terminal=tool)
    chains = await run([hook(kind, hung, wait=False)], hook_timeout=0.01)

    assert log == ["cancelled"] * 2
    assert statuses(own) == statuses(chains) == [(kind, "timeout")]
    assert own.result is tool.answer
    assert perf_counter() - started < 4


@KINDS
async def test_a_background_hook_that_swallows_its_timeout_has_timed_out_all_the_same(kind: str) -> None:
    async def stubborn(*args: Any) -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass

    outcome = await run([hook(kind, stubborn, wait=False, timeout=0.01)])

    assert statuses(outcome) == [(kind, "timeout")]


@KINDS
async def test_a_plain_background_hook_that_blocks_too_long_is_recorded_as_a_timeout(kind: str) -> None:
    outcome = await run([hook(kind, lambda *args: keep_busy(0.02), wait=False, timeout=0.005)])

    assert statuses(outcome) == [(kind, "timeout")]


@KINDS
async def test_a_hung_background_hook_holds_back_only_its_lane(kind: str) -> None:
    log: list[str] = []
    hung, other = Hooks("hung"), Hooks("other")
    getattr(hung, kind)(ToolCall, wait=False, timeout=0.01)(hang if kind == "before" else hang_after)
    getattr(hung, kind)(ToolCall, wait=False)(lambda *args: log.append("next of the lane"))
    getattr(other, kind)(ToolCall, wait=False)(lambda *args: log.append("other"))

    outcome = await run([hung, other])

    assert sorted(log) == ["next of the lane", "other"]
    assert sorted(status for _, status in statuses(outcome)) == ["ok", "ok", "timeout"]


async def hang_after(call: Any, result: Any) -> None:
    await anyio.sleep_forever()


@KINDS
async def test_a_plain_background_hook_that_returns_an_awaitable_is_a_recorded_mistake(kind: str) -> None:
    outcome = await run([hook(kind, lambda *args: hang(), wait=False)])

    assert statuses(outcome) == [(kind, "error")]
    assert outcome.denied is None


async def test_background_hooks_filter_by_the_tool_that_really_ran() -> None:
    log: list[str] = []
    hooks = [
        before(lambda call: log.append("before bash"), wait=False, tool="*/bash"),
        after(lambda call, result: log.append("after bash"), wait=False, tool="*/bash"),
        before(lambda call: log.append("before ls"), wait=False, tool="*/ls"),
        before(lambda call: replace(call, tool_name="bash")),
    ]

    await run(hooks, tool_call(tool_name="ls"))

    assert log == ["before bash", "after bash"]


async def test_background_hooks_of_another_tenant_do_not_run() -> None:
    log: list[str] = []
    hooks = [before(lambda call, t=t: log.append(t), wait=False, tenant_id=t) for t in ("acme", "other", "")]

    await run(hooks, tool_call(tenant_id="acme"))

    assert sorted(log) == ["", "acme"]


@KINDS
async def test_a_background_hook_sees_the_context_of_the_call(kind: str) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    async def look(*args: Any) -> None:
        await turns(2)
        seen.append(variable.get())

    token = variable.set("set")
    await run([hook(kind, look, wait=False)])
    variable.reset(token)

    assert seen == ["set"]


async def test_background_hooks_do_not_share_a_limit_or_a_cancellation_with_the_call() -> None:
    ended: list[str] = []

    async def slow(call: Any) -> None:
        await anyio.sleep(0.03)
        ended.append("slow")

    hooks = [before(slow, wait=False, timeout=5), before(hang, timeout=0.01, on_error="open", id="hung")]
    outcome = await run(hooks)

    assert ended == ["slow"]
    assert statuses(outcome) == [("hung", "timeout"), ("before", "ok")]


async def test_a_background_hook_is_recorded_with_its_own_duration() -> None:
    async def slow(call: Any) -> None:
        await anyio.sleep(0.02)

    with recorded() as records:
        outcome = await run([before(slow, wait=False, id="bg"), around(lambda call, call_next: call_next(call))])

    (bg,) = [each for each in outcome.executions if each.hook_id == "bg"]
    assert 15 < bg.duration_ms <= outcome.duration_ms
    assert bg in records


@KINDS
@for_each("listening", [False, True])
@for_each("is_async", [False, True])
async def test_the_record_of_a_background_hook_says_when_it_began_and_how_long_it_ran(
    kind: str, *, is_async: bool, listening: bool
) -> None:
    ran: list[float] = []
    began_by: list[int] = []

    def work(*args: Any) -> None:
        began = perf_counter()
        began_by.append(time.time_ns())
        keep_busy(0.01)
        ran.append(perf_counter() - began)

    async def later(*args: Any) -> None:
        work()

    began, wall = perf_counter(), time.time_ns()
    with recorded() if listening else contextlib.nullcontext():
        outcome = await run([hook(kind, later if is_async else work, wait=False)])

    (execution,) = outcome.executions
    assert ran[0] * 1e3 <= execution.duration_ms <= (perf_counter() - began) * 1e3
    assert wall - SECOND <= execution.time_unix_nano <= began_by[0] + SECOND


async def test_the_record_of_a_slow_background_hook_has_the_time_of_its_begin_and_not_of_its_end() -> None:
    ended: list[int] = []

    async def slow(call: Any) -> None:
        await anyio.sleep(0.1)
        ended.append(time.time_ns())

    outcome = await run([before(slow, wait=False)])

    assert outcome.executions[0].time_unix_nano < ended[0]


async def test_a_background_hook_that_edits_in_place_reaches_nobody() -> None:
    tool = Tool()

    outcome = await run([before(lambda call: call.args.update(q="edited"), wait=False)], terminal=tool)

    assert tool.calls[0].args == {"q": "x"}
    assert statuses(outcome) == [("before", "error")]
