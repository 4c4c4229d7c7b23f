"""What went wrong in Kibana's Agent Builder, and does not here."""

from __future__ import annotations

import math
import sys
import traceback
from typing import Any

import anyio
import pytest
from interceptors.calls import Tool, before, recorded, replace, run, statuses, tool_call, turns
from runtime.interception import JsonStore, pay, paying
from runtime.scenes import Recorder, calls, says, tool_texts
from runtime.scenes import call as asks

from hookline import (
    AfterStep,
    Approve,
    Ask,
    BeforeStep,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    Respond,
    ToolCall,
    exec_agent,
    interrupt,
    resume_agent,
)
from hookline.errors import HookDefinitionError
from hookline.interceptors import Chain
from tests.tables import for_each

pytestmark = pytest.mark.anyio


async def test_a_timed_out_hook_does_not_keep_running() -> None:
    """Kibana 1: a handler that timed out ran on, with live references."""
    go_on = anyio.Event()
    log: list[str] = []

    async def slow(call: ToolCall) -> None:
        try:
            await go_on.wait()
            log.append("ran on")
        finally:
            log.append("stopped")

    outcome = await run([before(slow, timeout=0.01, on_error="open")])
    go_on.set()
    await turns()

    assert log == ["stopped"]
    assert statuses(outcome) == [("before", "timeout")]


@for_each("hangs", [True, False])
@for_each("kind", ["before", "guard", "after"])
async def test_an_abort_does_not_wait_for_a_hook_and_nothing_starts_after_it(kind: str, hangs: bool) -> None:
    """Kibana 2: an abort was looked at between hooks only, and background hooks started after it."""
    started: list[str] = []
    hooks = Hooks("h")

    @getattr(hooks, kind)(ToolCall)
    async def aborts(call: ToolCall, *result: Any) -> None:
        started.clear()
        assert interrupt(call.operation_id)
        if hangs:
            await anyio.sleep_forever()

    hooks.guard(ToolCall)(lambda call: started.append("guard"))
    beside = hooks.after if kind == "after" else hooks.before
    beside(ToolCall, wait=False)(lambda *given: started.append("background"))
    with anyio.fail_after(5):
        result = await exec_agent(paying([], calls(pay()), says()), "go", hooks=[hooks])

    assert (result.reason, started) == ("interrupted", [])


async def test_an_edit_in_place_reaches_neither_the_caller_nor_later_or_background_hooks() -> None:
    """Kibana 3: contexts were handed out mutable."""
    seen: list[Any] = []
    given = {"q": "x", "deep": [{"n": 1}]}

    def edits(call: ToolCall) -> None:
        call.args["deep"][0]["n"] = 2

    async def later(call: ToolCall) -> None:
        seen.append(call.args)

    tool = Tool()
    call = tool_call(args=given)
    hooks = [before(edits, on_error="open"), before(later), before(later, wait=False, id="background")]
    await run(hooks, call, tool)

    assert [*seen, call.args, tool.calls[0].args, given] == [{"q": "x", "deep": [{"n": 1}]}] * 5


async def test_background_hooks_have_a_timeout_and_a_cap_and_are_over_when_the_run_returns() -> None:
    """Kibana 4: background hooks had no timeout, no cap, no drain, and no way to await them."""
    hooks = Hooks("h")

    @hooks.before(ToolCall, wait=False, timeout=0.01)
    async def hangs(call: ToolCall) -> None:
        await anyio.sleep_forever()

    agent = paying([], calls(*(pay(call_id=f"p{n}") for n in range(4))), says())
    with recorded() as records:
        async with HookDispatcher(max_queued=1) as dispatcher:
            await exec_agent(agent, "go", hooks=[hooks], dispatcher=dispatcher)
            ended = [record.status for record in records]

    assert len(ended) == 4
    assert set(ended) == {"timeout", "dropped"}


async def test_a_refusal_or_a_substitute_result_does_not_abort_the_run() -> None:
    """Kibana 5: the only refusal was a throw, which aborted the whole run."""
    ran: list[Any] = []
    hooks = Hooks("h")

    @hooks.before(ToolCall)
    def decide(call: ToolCall) -> Any:
        return Deny("no more money") if call.tool_name == "pay" else Respond("seen already")

    agent = paying(ran, calls(pay(), asks("look", "l1")), says("fine"))
    result = await exec_agent(agent, "go", hooks=[hooks])

    assert (result.reason, result.output, ran) == ("done", "fine", [])
    assert tool_texts(result) == ["no more money", "seen already"]


async def test_a_batch_with_a_mistake_does_not_leave_its_first_half_registered() -> None:
    """Kibana 6: the registration of a bundle was not atomic."""
    good: Any = Hooks("good")
    good.on(BeforeStep)(print)

    async with HookDispatcher() as dispatcher:
        with pytest.raises(HookDefinitionError, match=r"hooks\[1\]"):
            dispatcher.register("op", [good, "bad"])

        assert not dispatcher.operations
        assert not dispatcher.has_hooks("op", BeforeStep)


async def test_no_call_filters_or_sorts_the_hooks_of_other_calls() -> None:
    """Kibana 7: hooks were filtered and sorted twice per run, even with none to run."""
    steps: list[str] = []

    def trace(frame: Any, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        steps.extend([event] if "hookline" in frame.f_code.co_filename else [])
        return trace

    async def steps_of(chain: Chain) -> list[str]:
        steps.clear()
        before_us = sys.gettrace()
        sys.settrace(trace)
        await chain.run(call, answers)
        sys.settrace(before_us)
        return steps.copy()

    call, many = tool_call(), [replace(before(print), call=ModelCall, priority=n) for n in range(200)]
    assert await steps_of(Chain(many)) == await steps_of(Chain([])) != []


async def answers(call: ToolCall) -> Any:
    return Tool().answer


@for_each("priority", [math.nan, math.inf, "1", -1, 1001, 0.5, True, [1]])
async def test_a_priority_that_is_no_place_is_refused_and_a_missing_one_is_not_zero(priority: Any) -> None:
    """Kibana 8: an undefined priority was silently 0; NaN and text were not checked."""
    hooks = Hooks("h")
    for name, place in {"behind": 101, "none": None, "before": 99}.items():
        hooks.before(ToolCall, id=name, priority=place)(lambda call: None)

    with pytest.raises(HookDefinitionError, match="priority"):
        hooks.before(ToolCall, priority=priority)(lambda call: None)
    with pytest.raises(HookDefinitionError, match="priority"):
        Hooks("other", priority=priority)

    assert Chain([hooks]).order(ToolCall) == ["before", "none", "behind"]


@for_each("timeout", [0, -1, math.nan, -math.inf, "1", True])
async def test_a_timeout_that_is_no_time_is_refused_and_a_huge_one_does_not_pass_at_once(timeout: Any) -> None:
    """Kibana 9: `timeout` was not checked: 0, negative, NaN, beyond 2³¹ milliseconds."""
    hooks = Hooks("h")
    for huge in (2.0**31, 2.0**63, 1e300, math.inf):
        hooks.before(ToolCall, timeout=huge)(waits_a_moment)

    with pytest.raises(HookDefinitionError, match="timeout"):
        hooks.before(ToolCall, timeout=timeout)(waits_a_moment)

    assert [status for _, status in statuses(await run([hooks]))] == ["ok"] * 4


async def waits_a_moment(call: ToolCall) -> None:
    await anyio.sleep(0.001)


async def test_the_cause_and_the_stack_of_a_failed_hook_are_not_dropped() -> None:
    """Kibana 10: an error was wrapped with its message only."""
    error = KeyError("no such setting")

    def reads_the_settings(call: ToolCall) -> None:
        raise error

    outcome = await run([before(reads_the_settings)])

    assert outcome.refusal is not None
    failure = outcome.refusal.__cause__
    assert failure is not None
    assert failure.__cause__ is error
    assert "reads_the_settings" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]


async def test_a_confirmed_call_has_one_before_and_one_after_and_is_not_changed_once_confirmed() -> None:
    """Kibana 11: before and after were not paired; a resume ran before again, and could change what was confirmed."""
    paid: list[Any] = []
    log: list[str] = []
    hooks, recorder = Hooks("h"), Recorder()

    @hooks.before(ToolCall)
    def doubles(call: ToolCall) -> ToolCall:
        log.append("before")
        return call.with_args(amount=call.args["amount"] * 2)

    hooks.guard(ToolCall)(lambda call: Ask("pay?"))
    hooks.after(ToolCall)(lambda call, result: log.append("after"))
    given: Any = {"hooks": [hooks, recorder.hooks], "store": JsonStore()}
    paused = await exec_agent(paying(paid, calls(pay(5))), "go", operation_id="op", **given)
    await resume_agent(paying(paid, says()), "op", [Approve("p1")], **given)

    assert ([dict(each.args) for each in paused.pending], paid) == ([{"amount": 10}], [10])
    events = [name for name in recorder.names() if "ToolCall" in name]
    assert [*log, *events] == ["before", "after", "beforeToolCall", "afterToolCall"]


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_a_failing_after_hook_does_not_lose_the_result_of_a_side_effect(on_error: Any) -> None:
    """Kibana 12: an afterToolCall that failed after the side effect aborted the run and lost the result."""
    paid: list[Any] = []
    hooks = Hooks("h")

    @hooks.after(ToolCall, on_error=on_error, id="late")
    def fails(call: ToolCall, result: Any) -> None:
        raise OSError("no disk")

    result = await exec_agent(paying(paid, calls(pay(5)), says("fine")), "go", hooks=[hooks])

    (told,) = tool_texts(result)
    assert (result.reason, result.output, paid) == ("done", "fine", [5])
    assert told == "paid 5" if on_error == "open" else told.startswith("The tool ran, but hook 'late'")


async def test_a_hook_for_one_tool_or_one_agent_does_not_run_for_others() -> None:
    """Kibana 13: there was no filter by agent or by tool."""
    seen: list[Any] = []
    hooks = Hooks("h")
    hooks.before(ToolCall, tool="local/pay")(lambda call: seen.append(call.tool_name))
    hooks.on(AfterStep)(lambda event: seen.append(event.agent_id))
    turn = calls(pay(), asks("look", "l1"))

    await exec_agent(paying([], turn, says(), hooks=[hooks]), "go")
    await exec_agent(paying([], turn, says()), "go")

    assert seen == ["pay", "payer", "payer"]


async def test_hooks_can_be_removed_listed_and_measured() -> None:
    """Kibana 14: there was no unregister, no introspection and no metrics."""
    heard: list[Any] = []
    hooks = Hooks("h")
    hooks.on(BeforeStep, id="observer")(heard.append)
    hooks.guard(ToolCall, id="guard")(lambda call: None)

    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [hooks])
        assert dispatcher.has_hooks("op", BeforeStep)
        registration.remove()
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))
        assert (heard, dispatcher.has_hooks("op")) == ([], False)
    chain = Chain([hooks])
    with recorded(chain) as records:
        await chain.run(tool_call(), Tool())

    assert (chain.order(ToolCall), [hook.id for hook in hooks.observers]) == (["guard"], ["observer"])
    assert [(record.hook_id, record.status, record.duration_ms >= 0) for record in records] == [("guard", "ok", True)]


async def test_one_bundle_can_be_early_both_before_and_after() -> None:
    """Kibana 15: a bundle had one priority for all of its entries."""
    log: list[str] = []
    early, other = Hooks("early", priority=1), Hooks("other")
    early.before(ToolCall)(lambda call: log.append("early before"))
    early.after(ToolCall, priority=900)(lambda call, result: log.append("early after"))
    other.before(ToolCall)(lambda call: log.append("other before"))
    other.after(ToolCall)(lambda call, result: log.append("other after"))

    await run([other, early])

    assert log == ["early before", "other before", "early after", "other after"]
