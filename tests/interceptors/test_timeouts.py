"""Law 5: a timeout counts a hook's own time and nobody else's, and stops for real whoever exceeds it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from time import perf_counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

from hookline.calls import Deny, ToolCall, ToolResult
from hookline.errors import HookDenied, HookExecutionError, HookTimeoutError, HookUsageError
from hookline.interceptors import Chain, PastChain
from tests.tables import for_each

from .calls import (
    Tool,
    after,
    around,
    before,
    guard,
    hook,
    keep_busy,
    lead,
    recorded,
    replace,
    run,
    statuses,
    tool_call,
    turns,
    with_args,
)

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
KINDS = ["before", "guard", "around", "after"]


async def hang(*args: Any) -> None:
    await anyio.sleep_forever()


async def through(call: Any, call_next: Any) -> Any:
    return await call_next(call)


# --- stopping for real


@for_each("kind", KINDS)
@for_each("record", [True, False])
async def test_a_hook_that_hangs_is_cancelled_for_real_and_denies_the_call(kind: str, *, record: bool) -> None:
    log: list[str] = []

    async def hung(*args: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    tool = Tool()
    outcome = await run([hook(kind, hung, id="hung", timeout=0.01)], terminal=tool, record=record)

    assert log == ["cancelled"]
    assert len(tool.calls) == (kind == "after")
    assert outcome.result is None
    assert outcome.denied is not None
    assert outcome.denied.hook_id == "hung"
    assert outcome.denied.reason.startswith("the hook failed, and it fails closed: ")
    assert statuses(outcome) == ([("hung", "timeout")] if record else [])
    with pytest.raises(HookDenied) as caught:
        outcome.unwrap()
    cause = caught.value.__cause__
    assert isinstance(cause, HookExecutionError)
    assert isinstance(cause.__cause__, HookTimeoutError)
    assert (cause.__cause__.hook_id, cause.__cause__.point, cause.__cause__.timeout) == ("hung", "ToolCall", 0.01)


@for_each("kind", KINDS)
async def test_a_hook_that_hangs_and_fails_open_is_as_good_as_absent(kind: str) -> None:
    tool = Tool()

    outcome = await run([hook(kind, hang, timeout=0.01, on_error="open")], terminal=tool)

    assert outcome.result is tool.answer
    assert len(tool.calls) == 1
    assert statuses(outcome) == [(kind, "timeout")]


@for_each("kind", KINDS)
async def test_the_default_timeout_is_the_chains(kind: str) -> None:
    outcome = await run([hook(kind, hang)], hook_timeout=0.01)

    assert statuses(outcome) == [(kind, "timeout")]


def test_a_hook_has_30_seconds_where_nobody_says_otherwise() -> None:
    limits: list[float] = []

    async def judge() -> None:
        outcome = await Chain([before(hang)]).run(tool_call(), Tool())
        assert outcome.refusal is not None
        assert outcome.refusal.__cause__ is not None
        cause = outcome.refusal.__cause__.__cause__
        assert isinstance(cause, HookTimeoutError)
        limits.append(cause.timeout)
        verdict = await PastChain([before(hang)]).judge(tool_call(), ToolResult(content="x"))
        assert verdict is not None
        assert "30 s" in str(verdict.executions[0].error)

    trio.run(judge, clock=trio.testing.MockClock(autojump_threshold=0))

    assert limits == [30.0]


@for_each("timeout", [math.inf, 60, 1e300])
@for_each("kind", KINDS)
async def test_the_timeout_of_a_hook_beats_the_chains(kind: str, timeout: float) -> None:
    async def slow(*args: Any) -> Any:
        await anyio.sleep(0.02)
        return await args[1](args[0]) if kind == "around" else None

    outcome = await run([hook(kind, slow, timeout=timeout)], hook_timeout=0.005)

    assert statuses(outcome) == [(kind, "ok")]


async def test_a_guard_that_times_out_is_no_permit() -> None:
    tool = Tool()

    outcome = await run([guard(hang, timeout=0.01)], terminal=tool)

    assert outcome.denied is not None
    assert tool.calls == []


async def test_the_text_of_a_timeout_is_never_empty() -> None:
    outcome = await run([before(hang, timeout=0.01, id="the slow one")])

    assert outcome.denied is not None
    for text in (outcome.denied.reason, outcome.executions[0].error):
        assert text is not None
        assert "the slow one" in text
        assert "0.01" in text


async def test_a_timeout_error_of_the_hooks_own_is_an_error_and_not_a_timeout() -> None:
    async def impatient(call: Any) -> None:
        with anyio.fail_after(0.01):
            await anyio.sleep_forever()

    outcome = await run([before(impatient, timeout=5)])

    assert statuses(outcome) == [("before", "error")]


async def test_timeouts_inside_of_a_hook_are_its_own_affair() -> None:
    async def careful(*args: Any) -> Any:
        with anyio.move_on_after(0.005):
            await anyio.sleep_forever()
        with contextlib.suppress(TimeoutError):
            with anyio.fail_after(0.005):
                await anyio.sleep_forever()
        return await args[1](args[0]) if len(args) == 2 and callable(args[1]) else None

    outcome = await run([hook(kind, careful, timeout=5) for kind in KINDS])

    assert [status for _, status in statuses(outcome)] == ["ok"] * 4


async def test_no_timeout_of_one_hook_is_left_for_the_next() -> None:
    def sleeping(seconds: float) -> Any:
        async def handler(call: Any) -> None:
            await anyio.sleep(seconds)

        return handler

    hooks = [
        before(sleeping(0), timeout=0.25, id="quick"),
        before(sleeping(0.3), timeout=5, id="slow"),
        before(sleeping(60), timeout=0.01, id="late", on_error="open"),
        before(sleeping(0.03), timeout=math.inf, id="free"),
        before(sleeping(60), timeout=0.01, id="late too", on_error="open"),
        before(sleeping(0), timeout=0.25, id="quick too"),
    ]
    chain = Chain(hooks)
    for _ in range(2):
        outcome = await lead(chain, terminal=Tool(seconds=0.3))
        assert [status for _, status in statuses(outcome)] == ["ok", "ok", "timeout", "ok", "timeout", "ok"]
        assert outcome.denied is None


@ASYNCIO
@pytest.mark.parametrize("kind", KINDS)
async def test_a_timeout_leaves_no_cancellation_in_the_callers_task(kind: str) -> None:
    task = asyncio.current_task()
    assert task is not None

    await Chain([hook(kind, hang, timeout=0.01, on_error="open"), around(through)]).run(tool_call(), Tool())

    assert task.cancelling() == 0
    await asyncio.sleep(0.02)


@for_each("kind", KINDS)
async def test_a_hook_that_hangs_in_a_task_of_its_own_is_cancelled_with_it(kind: str) -> None:
    log: list[str] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    async def hung(*args: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child)

    outcome = await run([hook(kind, hung, timeout=0.01)])

    assert log == ["cancelled"]
    assert statuses(outcome) == [(kind, "timeout")]


@for_each("kind", KINDS)
@for_each("on_error", ["open", "closed"])
@for_each("says", ["nothing", "something", "an error"])
async def test_a_hook_that_swallows_its_timeout_has_timed_out_all_the_same(kind: str, on_error: str, says: str) -> None:
    async def stubborn(*args: Any) -> Any:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if says == "an error":
                raise ValueError from None
            if says == "something":
                return ToolResult(content="late") if kind in ("after", "around") else Deny("late")
        return None

    tool = Tool()
    outcome = await run([hook(kind, stubborn, timeout=0.01, on_error=on_error)], terminal=tool)

    assert statuses(outcome) == [(kind, "timeout")]
    if on_error == "open":
        assert outcome.result is tool.answer
    else:
        assert outcome.denied is not None
        assert outcome.denied.reason.startswith("the hook failed")


@for_each("kind", KINDS)
async def test_a_hook_that_swallows_its_timeout_and_hangs_again_does_not_hang_the_call(kind: str) -> None:
    async def stubborn(*args: Any) -> None:
        with contextlib.suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        await anyio.sleep_forever()

    tool = Tool()
    with anyio.fail_after(5):
        outcome = await Chain([hook(kind, stubborn, timeout=0.01, on_error="open")]).run(tool_call(), tool)

    assert outcome.result is tool.answer
    assert statuses(outcome) == [(kind, "timeout")]


async def test_a_late_answer_of_a_hook_that_was_timed_out_is_discarded() -> None:
    async def late(call: ToolCall) -> ToolCall:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.03)
        return with_args(call, q="late")

    tool = Tool()
    await run([before(late, timeout=0.01, on_error="open")], terminal=tool)

    assert tool.calls[0].args == {"q": "x"}


# --- plain handlers


@for_each("kind", KINDS)
@for_each("on_error", ["open", "closed"])
async def test_a_plain_handler_that_blocks_too_long_is_recorded_as_a_timeout(kind: str, on_error: str) -> None:
    def block(*args: Any) -> Any:
        keep_busy(0.02)
        return args[1](args[0]) if kind == "around" else None

    tool = Tool()
    outcome = await run([hook(kind, block, timeout=0.005, on_error=on_error)], terminal=tool)

    assert statuses(outcome) == [(kind, "timeout")]
    assert (outcome.denied is None) == (on_error == "open")
    assert len(tool.calls) == (on_error == "open" or kind == "after")


@for_each("kind", KINDS)
async def test_an_async_handler_that_blocks_too_long_without_waiting_is_a_timeout(kind: str) -> None:
    async def block(*args: Any) -> Any:
        keep_busy(0.02)
        return await args[1](args[0]) if kind == "around" else None

    outcome = await run([hook(kind, block, timeout=0.005)], record=True)

    assert statuses(outcome) == [(kind, "timeout")]
    assert outcome.denied is not None


async def test_what_a_plain_handler_said_too_late_does_not_count_when_it_fails_open() -> None:
    def late(call: ToolCall) -> ToolCall:
        keep_busy(0.02)
        return with_args(call, q="late")

    tool = Tool()
    outcome = await run([before(late, timeout=0.005, on_error="open")], terminal=tool)

    assert tool.calls[0].args == outcome.call.args == {"q": "x"}


async def test_a_plain_handler_without_a_limit_may_block() -> None:
    outcome = await run([before(lambda call: keep_busy(0.02), timeout=math.inf)], hook_timeout=0.001)

    assert statuses(outcome) == [("before", "ok")]


# --- own time


async def test_the_work_inside_of_call_next_is_not_an_arounds_own_time() -> None:
    hooks = [around(through, timeout=0.5, priority=n, id=f"{n}") for n in range(5)]

    outcome = await run(hooks, terminal=Tool(seconds=0.6))

    assert statuses(outcome) == [(f"{n}", "ok") for n in range(5)]
    assert all(each.duration_ms < 500 for each in outcome.executions)


async def test_other_hooks_inside_of_call_next_are_not_an_arounds_own_time() -> None:
    async def slow(*args: Any) -> None:
        await anyio.sleep(0.2)

    inner = [before(slow, timeout=5), guard(slow, timeout=5), after(slow, timeout=5)]
    outcome = await run([around(through, timeout=0.5), *inner])

    assert outcome.denied is None
    assert [status for _, status in statuses(outcome)] == ["ok"] * 4


async def test_the_terminal_is_on_nobodys_clock() -> None:
    hooks = [hook(kind, through if kind == "around" else lambda *args: None) for kind in KINDS]

    outcome = await run(hooks, terminal=Tool(seconds=0.6), hook_timeout=0.5, budget=0.5)

    assert [status for _, status in statuses(outcome)] == ["ok"] * 4


@for_each("outer", [1, 5])
@for_each("on_error", ["open", "closed"])
async def test_an_inner_hang_is_not_blamed_on_outer_hooks(outer: int, on_error: str) -> None:
    starts: list[str] = []

    async def hung(*args: Any) -> None:
        starts.append("hung")
        await anyio.sleep_forever()

    hooks = [around(through, priority=n, id=f"outer {n}", on_error="open") for n in range(outer)]
    tool = Tool()
    outcome = await run(
        [*hooks, around(hung, priority=900, id="hung", on_error=on_error)], terminal=tool, hook_timeout=0.25
    )

    assert starts == ["hung"]
    assert statuses(outcome) == [*((f"outer {n}", "ok") for n in range(outer)), ("hung", "timeout")]
    assert len(tool.calls) == (on_error == "open")
    if on_error == "closed":
        assert outcome.denied is not None
        assert outcome.denied.hook_id == "hung"


async def test_own_times_do_not_nest() -> None:
    async def slow(call: Any, call_next: Any) -> Any:
        await anyio.sleep(0.01)
        result = await call_next(call)
        await anyio.sleep(0.01)
        return result

    outcome = await run([around(slow, priority=n) for n in range(4)], terminal=Tool(seconds=0.02))

    own = [each.duration_ms for each in outcome.executions]
    assert all(each > 15 for each in own)
    assert sum(own) + 15 < outcome.duration_ms  # the terminal's time is nobody's


async def test_an_arounds_time_before_and_after_call_next_counts_together() -> None:
    async def twice_slow(call: Any, call_next: Any) -> Any:
        await anyio.sleep(0.05)
        result = await call_next(call)
        await anyio.sleep(0.4)
        return result

    tool = Tool(seconds=0.01)
    outcome = await run([around(twice_slow, timeout=0.42)], terminal=tool)

    assert statuses(outcome) == [("around", "timeout")]
    assert len(tool.calls) == 1


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_a_hang_after_call_next_keeps_or_fails_but_never_runs_downstream_again(on_error: str) -> None:
    async def late(call: Any, call_next: Any) -> None:
        await call_next(call)
        await anyio.sleep_forever()

    tool = Tool()
    outcome = await run([around(late, timeout=0.25, on_error=on_error)], terminal=tool)

    assert len(tool.calls) == 1
    assert statuses(outcome) == [("around", "timeout")]
    assert outcome.result is (tool.answer if on_error == "open" else None)


async def test_a_timeout_that_a_hook_sets_around_call_next_stops_what_is_inside_and_blames_nobody() -> None:
    log: list[str] = []

    async def terminal(call: Any) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("terminal cancelled")

    async def impatient(call: Any, call_next: Any) -> Any:
        with anyio.move_on_after(0.01):
            return await call_next(call)
        return ToolResult(content="too slow")

    outcome = await run(
        [around(impatient, id="impatient"), around(through, id="inner", priority=200)], terminal=terminal
    )

    assert outcome.result == ToolResult(content="too slow")
    assert log == ["terminal cancelled"]
    assert statuses(outcome)[0] == ("impatient", "ok")
    assert outcome.denied is None


@for_each("how", ["returns none", "raises and fails open"])
@for_each("where", ["terminal", "inner hook"])
async def test_work_that_a_hook_cancelled_does_not_come_out_as_a_cancellation_of_the_caller(
    how: str, where: str
) -> None:
    async def impatient(call: Any, call_next: Any) -> Any:
        if how == "returns none":
            with anyio.move_on_after(0.01):
                return await call_next(call)
            return None
        with anyio.fail_after(0.01):
            return await call_next(call)

    ended = False
    with anyio.CancelScope():
        with contextlib.suppress(Exception):
            await run(
                [around(impatient, on_error="open"), *([] if where == "terminal" else [before(hang)])],
                terminal=hang if where == "terminal" else Tool(),
            )
        ended = True

    assert ended


async def test_a_hook_that_another_hook_cancelled_leaves_a_record() -> None:
    async def impatient(call: Any, call_next: Any) -> Any:
        with anyio.move_on_after(0.01):
            return await call_next(call)
        return ToolResult(content="too slow")

    outcome = await run([around(impatient, id="impatient"), around(through, id="between"), before(hang, id="hung")])

    assert outcome.result == ToolResult(content="too slow")
    assert statuses(outcome)[0] == ("impatient", "ok")
    assert statuses(outcome)[2] == ("hung", "dropped")
    assert len(outcome.executions) == 3


@for_each("on_error", ["open", "closed"])
@for_each("options", [{}, {"record": False, "hook_timeout": math.inf}], ids=["timed", "bare"])
async def test_a_hook_that_gave_up_on_call_next_cannot_try_again(on_error: str, options: Any) -> None:
    errors: list[Exception] = []
    calls: list[Any] = []

    async def terminal(call: Any) -> Any:
        calls.append(call)
        await anyio.sleep_forever()

    async def retrying(call: Any, call_next: Any) -> Any:
        with anyio.move_on_after(0.01):
            return await call_next(call)
        try:
            return await call_next(call)
        except Exception as error:
            errors.append(error)
            raise

    outcome = await run([around(retrying, on_error=on_error)], terminal=terminal, **options)

    assert len(calls) == 1
    assert len(errors) == 1
    assert outcome.denied is not None
    assert outcome.denied.hook_id == "around"


# --- chains in chains


@pytest.mark.parametrize("where", ["hook", "terminal"])
async def test_a_hang_in_a_chain_inside_of_a_chain_is_blamed_in_that_one(where: str) -> None:
    inner = Chain([around(through, id="inner outer"), before(hang, id="inner hung", timeout=0.01, on_error="open")])
    outcomes: list[Any] = []

    async def work(call: Any) -> Any:
        outcomes.append(await inner.run(call, Tool(seconds=0.005)))
        return outcomes[0].result if where == "terminal" else None

    hooks = [around(through, id="outer"), *([before(work, id="runs", timeout=2)] if where == "hook" else [])]
    outcome = await run(hooks, terminal=work if where == "terminal" else Tool())

    assert statuses(outcomes[0]) == [("inner outer", "ok"), ("inner hung", "timeout")]
    assert {status for _, status in statuses(outcome)} == {"ok"}
    assert outcome.result.content == "result"


@for_each("kind", KINDS)
async def test_a_hook_that_hangs_in_a_chain_of_its_own_is_stopped_with_it(kind: str) -> None:
    inner = Chain([around(through), before(hang, timeout=60)])

    async def consult(*args: Any) -> None:
        await inner.run(tool_call(), Tool())

    with recorded() as records:
        outcome = await run([hook(kind, consult, id="consults", timeout=0.01)], record=True)

    assert statuses(outcome) == [("consults", "timeout")]
    assert ("before", "dropped") in [(each.hook_id, each.status) for each in records]


@for_each("kind", KINDS)
async def test_the_time_that_a_hook_spends_in_a_chain_of_its_own_is_its_own_time(kind: str) -> None:
    inner = Chain([before(lambda call: None)])

    async def consult(*args: Any) -> None:
        await inner.run(tool_call(), Tool(seconds=60))

    outcome = await run([hook(kind, consult, timeout=0.01, on_error="open")])

    assert statuses(outcome) == [(kind, "timeout")]
    assert outcome.denied is None


# --- call_next at a wrong time


@pytest.mark.parametrize("says", ["the error", "a result"])
async def test_call_next_after_the_timeout_of_a_hook_runs_nothing(says: str) -> None:
    async def late(call: Any, call_next: Any) -> Any:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if says == "the error":
                return await call_next(call)
            with pytest.raises(HookTimeoutError):
                await call_next(call)
        return ToolResult(content="late")

    tool = Tool()
    outcome = await run([around(late, timeout=0.01)], terminal=tool)

    assert tool.calls == []
    assert statuses(outcome) == [("around", "timeout")]
    assert outcome.denied is not None


async def test_an_around_that_blocked_too_long_cannot_call_next_any_more() -> None:
    seen: list[str] = []
    tool = Tool()

    async def late(call: Any, call_next: Any) -> Any:
        keep_busy(0.02)
        with pytest.raises(HookTimeoutError):
            await call_next(call)
        return ToolResult(content="late")

    outcome = await run([around(late, timeout=0.005), guard(lambda call: seen.append("guard"))], terminal=tool)

    assert (tool.calls, seen) == ([], [])
    assert statuses(outcome) == [("around", "timeout")]


async def test_the_change_of_an_around_that_was_too_late_is_not_seen() -> None:
    seen: list[Any] = []

    def late(call: Any, call_next: Any) -> Any:
        keep_busy(0.02)
        return call_next(with_args(call, q="late"))

    tool = Tool()
    hooks = [after(lambda call, result: seen.append(call), priority=0), around(late, timeout=0.005, on_error="open")]
    outcome = await run(hooks, terminal=tool)

    assert [call.args for call in tool.calls] == [{"q": "x"}]
    assert outcome.call.args == {"q": "x"}
    assert [call.args for call in seen] == [{"q": "x"}]


async def test_call_next_after_the_hook_returned_says_so() -> None:
    kept: list[Any] = []

    async def leak(call: Any, call_next: Any) -> ToolResult:
        kept.append((call, call_next))
        return ToolResult(content="answer")

    tool = Tool()
    outcome = await run([around(leak, id="leaky")], terminal=tool)
    (call, call_next) = kept[0]
    with pytest.raises(HookUsageError, match="leaky"):
        await call_next(call)

    assert outcome.result.content == "answer"
    assert tool.calls == []


@for_each("end", ["deny", "raise", "wrong value", "none", "timeout", "blocked"])
@for_each("options", [{}, {"record": False, "hook_timeout": math.inf}], ids=["timed", "bare"])
async def test_a_leaked_call_next_never_runs_a_call_that_was_denied(end: str, options: Any) -> None:
    kept: list[Any] = []

    async def leak(call: Any, call_next: Any) -> Any:
        kept.append((call, call_next))
        if end == "raise":
            raise ValueError
        if end == "timeout":
            await anyio.sleep_forever()
        if end == "blocked":
            keep_busy(0.02)
        return {"deny": Deny("no"), "wrong value": "x"}.get(end)

    tool = Tool()
    timeout = 0.01 if end in ("timeout", "blocked") else None
    outcome = await run([around(leak, timeout=timeout), guard(lambda call: None)], terminal=tool, **options)
    assert outcome.denied is not None
    call, call_next = kept[0]
    with contextlib.suppress(Exception):
        await call_next(call)

    assert tool.calls == []


async def test_a_leaked_call_next_of_a_cancelled_run_runs_nothing() -> None:
    kept: list[Any] = []

    async def leak(call: Any, call_next: Any) -> Any:
        kept.append((call, call_next))
        await anyio.sleep_forever()

    tool = Tool()
    with anyio.move_on_after(0.01):
        await Chain([around(leak)]).run(tool_call(), tool)
    call, call_next = kept[0]
    with contextlib.suppress(Exception):
        await call_next(call)

    assert tool.calls == []


# --- the rest of the chain in another task


async def beside(call: Any, call_next: Any) -> Any:
    """`call_next` in a task of its own."""
    results: list[Any] = []

    async def work() -> None:
        try:
            results.append(await call_next(call))
        except Exception as error:
            results.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


async def waiting_for(call: Any, call_next: Any) -> Any:
    return await asyncio.wait_for(call_next(call), 5)


async def gathering(call: Any, call_next: Any) -> Any:
    return (await asyncio.gather(call_next(call)))[0]


ELSEWHERE = pytest.mark.parametrize(
    ("anyio_backend", "elsewhere"),
    [("asyncio", beside), ("trio", beside), ("asyncio", waiting_for), ("asyncio", gathering)],
    ids=["asyncio group", "trio group", "wait_for", "gather"],
)


@ELSEWHERE
async def test_call_next_in_another_task_is_like_any_other(elsewhere: Any) -> None:
    tool = Tool(seconds=0.3)
    inner = [before(lambda call: with_args(call, n=1)), guard(lambda call: None), after(lambda call, result: None)]

    outcome = await run([around(elsewhere, timeout=0.25), *inner], terminal=tool)

    assert outcome.result is tool.answer
    assert [status for _, status in statuses(outcome)] == ["ok"] * 4


@ELSEWHERE
@for_each("on_error", ["open", "closed"])
@for_each("kind", KINDS)
async def test_a_hang_in_another_task_is_blamed_on_who_hangs(elsewhere: Any, kind: str, on_error: str) -> None:
    tool = Tool()

    hooks = [around(elsewhere, id="outer", priority=1), around(elsewhere, id="middle", priority=2)]
    outcome = await run([*hooks, hook(kind, hang, id="hung", timeout=0.01, on_error=on_error)], terminal=tool)

    assert sorted(statuses(outcome)) == [("hung", "timeout"), ("middle", "ok"), ("outer", "ok")]
    if on_error == "open":
        assert outcome.result is tool.answer
    else:
        assert outcome.denied is not None
        assert outcome.denied.hook_id == "hung"


@ELSEWHERE
async def test_a_hang_after_call_next_in_another_task_is_still_stopped(elsewhere: Any) -> None:
    async def late(call: Any, call_next: Any) -> Any:
        await elsewhere(call, call_next)
        await anyio.sleep_forever()

    tool = Tool(seconds=0.01)
    outcome = await run([around(late, timeout=0.25)], terminal=tool)

    assert statuses(outcome) == [("around", "timeout")]
    assert len(tool.calls) == 1


@for_each("on_error", ["open", "closed"])
@for_each("kind", KINDS)
async def test_a_hook_with_a_heartbeat_is_not_cancelled_for_an_inner_hang(kind: str, on_error: str) -> None:
    tool = Tool()

    async def heartbeat(call: Any, call_next: Any) -> Any:
        results: list[Any] = []

        async def work() -> None:
            try:
                results.append(await call_next(call))
            except Exception as error:
                results.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            while not results:
                await anyio.sleep(0.002)
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    hung = hook(kind, hang, id="hung", timeout=0.03, on_error=on_error)
    outcome = await run([around(heartbeat, id="heartbeat", timeout=2, priority=1), hung], terminal=tool)

    assert sorted(statuses(outcome)) == [("heartbeat", "ok"), ("hung", "timeout")]
    assert (outcome.denied is None) == (on_error == "open")


async def test_a_hook_with_a_heartbeat_beside_the_terminal_is_not_timed_out() -> None:
    async def heartbeat(call: Any, call_next: Any) -> Any:
        results: list[Any] = []

        async def work() -> None:
            results.append(await call_next(call))

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            while not results:
                await anyio.sleep(0.002)
        return results[0]

    outcome = await run([around(heartbeat, timeout=0.5)], terminal=Tool(seconds=0.6))

    assert statuses(outcome) == [("around", "ok")]


# --- records of it


async def test_a_hook_that_was_stopped_leaves_a_record_on_the_signal() -> None:
    with recorded() as records:
        await run([around(through, id="outer"), before(hang, id="hung", timeout=0.01)], record=False)

    assert [(each.hook_id, each.status) for each in records] == [("hung", "timeout"), ("outer", "ok")]


async def test_a_chain_is_not_held_up_by_timers_of_hooks_that_have_ended() -> None:
    started = perf_counter()

    async def short(call: Any) -> None:
        await turns(2)

    for _ in range(20):
        await run([before(short, timeout=60), after(lambda call, result: replace(result, content="x"))])

    assert perf_counter() - started < 4


async def test_what_the_outermost_hook_does_after_call_next_is_its_own_time_too() -> None:
    async def blocking_late(call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        time.sleep(0.02)
        return result

    outcome = await Chain([around(blocking_late), around(blocking_late, priority=200)]).run(tool_call(), Tool())

    assert [execution.duration_ms >= 20 for execution in outcome.executions] == [True, True]


async def test_an_inner_hook_that_blocks_and_raises_is_not_blamed_on_the_outer_one() -> None:
    async def blocking(call: Any, call_next: Any) -> Any:
        time.sleep(0.3)
        raise ValueError

    async def outer(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    hooks = [around(outer, timeout=0.25, id="outer"), around(blocking, priority=200, on_error="open", id="inner")]
    outcome = await Chain(hooks).run(tool_call(), Tool())

    assert outcome.denied is None
    assert [execution.status for execution in outcome.executions] == ["ok", "error"]


async def test_a_hook_that_blocked_too_long_cannot_start_the_hooks_inside() -> None:
    ran: list[str] = []

    async def slow(call: ToolCall, call_next: Any) -> Any:
        keep_busy(0.03)
        return await call_next(call)

    async def inner(call: ToolCall, call_next: Any) -> Any:
        ran.append("inner")
        return await call_next(call)

    outcome = await run([around(slow, id="slow", timeout=0.01, priority=1), around(inner, id="inner", priority=2)])

    assert ran == []
    assert outcome.denied is not None
    assert outcome.denied.hook_id == "slow"


@for_each("inside", [None, before(lambda call: None), around(through, id="inner")], ids=["tool", "before", "around"])
async def test_a_hook_that_calls_call_next_too_late_is_told_so(inside: Any) -> None:
    told: list[HookTimeoutError] = []

    async def slow(call: Any, call_next: Any) -> Any:
        keep_busy(0.02)
        try:
            return await call_next(call)
        except HookTimeoutError as error:
            told.append(error)
            raise

    tool = Tool()
    hooks = [around(slow, id="slow", timeout=0.01, priority=1), *([] if inside is None else [inside])]
    outcome = await run(hooks, terminal=tool)

    assert [(each.hook_id, each.point, each.timeout) for each in told] == [("slow", "ToolCall", 0.01)]
    assert statuses(outcome) == [("slow", "timeout")]
    assert tool.calls == []


@pytest.mark.parametrize("options", [{}, {"budget": 5.0}], ids=["no budget", "budget"])
async def test_a_hook_is_not_blamed_because_one_inside_of_it_was_stopped(options: Any) -> None:
    async def outer(call: ToolCall, call_next: Any) -> Any:
        result = await call_next(call)
        await anyio.lowlevel.checkpoint()
        return result

    async def hangs(call: ToolCall, call_next: Any) -> Any:
        await anyio.sleep(60)

    hooks = [
        around(outer, id="outer", priority=1),
        around(hangs, id="hangs", priority=2, timeout=0.01, on_error="open"),
    ]
    outcome = await run(hooks, **options)

    assert statuses(outcome) == [("outer", "ok"), ("hangs", "timeout")]
    assert outcome.result == ToolResult(content="result")


@ASYNCIO
async def test_a_cancellation_from_outside_survives_the_second_timeout_of_a_call() -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None

        async def hangs(call: ToolCall) -> None:
            await asyncio.sleep(60)

        async def hangs_while_somebody_cancels(call: ToolCall) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                task.cancel()
                raise

        options: Any = {"timeout": 0.01, "on_error": "open"}
        await Chain(
            [before(hangs, id="first", **options), before(hangs_while_somebody_cancels, id="second", **options)]
        ).run(tool_call(), Tool())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
