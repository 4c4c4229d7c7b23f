"""What is measured of hooks, of lanes, and of the telemetry itself; and that nothing of it stays behind."""

from __future__ import annotations

import gc
import logging
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    BeforeStep,
    BeforeToolCall,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    Respond,
    ScriptedModel,
    StepCall,
    ToolCall,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.otel import TracingHooks
from hookline.signals import HookExecution, hook_executed, operation_unregistered

from .gauge import ERROR, Gauge, agent_of, look_up
from .receiver import ask, call, calls, says

pytestmark = pytest.mark.anyio

HOOK, TYPE, STATUS, KIND = (
    "hookline.hook.id",
    "hookline.hook.type",
    "hookline.hook.status",
    "hookline.span.kind",
)


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


@pytest.fixture
def executions() -> Iterator[list[HookExecution]]:
    """What anybody is told of the runs of hooks."""
    told: list[HookExecution] = []

    def receive(sender: object, *, execution: HookExecution) -> None:
        told.append(execution)

    hook_executed.connect(receive)
    yield told
    hook_executed.disconnect(receive)


def every_kind_of_hook() -> Hooks:
    """Hooks that go well, fail, run out of time, deny and answer."""
    hooks = Hooks("h", inherit=True)

    @hooks.on(AfterStep)
    def quick(event: AfterStep) -> None:
        """Fine."""

    @hooks.on(AfterStep)
    async def queued(event: AfterStep) -> None:
        await anyio.sleep(0)

    @hooks.on(OnComplete)
    async def last(event: OnComplete) -> None:
        await anyio.sleep(0)

    @hooks.on(AfterStep)
    async def failing(event: AfterStep) -> None:
        raise LookupError("secret: it")

    @hooks.on(AfterStep, timeout=0.001)
    async def hanging(event: AfterStep) -> None:
        await anyio.sleep_forever()

    @hooks.on(BeforeToolCall, tool="*/look_up")
    def mocking(event: BeforeToolCall) -> None:
        event.mock("mocked")

    @hooks.guard(ToolCall, tool="*/forbidden")
    def denying(call: ToolCall) -> Deny:
        return Deny("secret: reason")

    @hooks.before(ToolCall, tool="*/answered")
    def answering(call: ToolCall) -> Respond:
        return Respond("answer")

    @hooks.around(StepCall)
    async def surrounding(call: StepCall, call_next: Callable[[StepCall], Awaitable[Any]]) -> Any:
        return await call_next(call)

    @hooks.after(ModelCall, on_error="open")
    def tolerated(call: ModelCall, result: Any) -> None:
        raise OSError("secret")

    @hooks.before(ModelCall, wait=False)
    async def unwaited(call: ModelCall) -> None:
        await anyio.sleep(0)

    return hooks


def busy() -> Agent:
    step = calls(call("look_up", "t1"), call("forbidden", "t2"), call("answered", "t3"))
    return agent_of(
        step, says(), tools=[look_up, tool(lambda: "x", name="forbidden"), tool(lambda: "x", name="answered")]
    )


# Runs of hooks.


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without the log records of hooks that fail."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
async def test_runs_of_hooks_are_measured_by_hook_type_and_outcome(gauge: Gauge) -> None:
    await exec_agent(busy(), "go", hooks=[gauge.hooks(), every_kind_of_hook()])

    assert gauge.counts("hookline.hook.duration", HOOK, TYPE, STATUS, ERROR) == {
        ("h.quick", "afterStep", "ok", None): 2,
        ("h.queued", "afterStep", "ok", None): 2,
        ("h.last", "onComplete", "ok", None): 1,
        ("h.failing", "afterStep", "error", "LookupError"): 2,
        ("h.hanging", "afterStep", "timeout", "timeout"): 2,
        ("h.mocking", "beforeToolCall", "mocked", None): 1,
        ("h.denying", "ToolCall", "denied", None): 1,
        ("h.answering", "ToolCall", "mocked", None): 1,
        ("h.surrounding", "StepCall", "ok", None): 2,
        ("h.tolerated", "ModelCall", "error", "OSError"): 2,
        ("h.unwaited", "ModelCall", "ok", None): 2,
    }
    assert gauge.counts("hookline.hook.dropped", HOOK) == {}


@pytest.mark.usefixtures("quiet")
async def test_of_each_run_of_a_hook_its_own_time_is_measured_and_no_other(
    gauge: Gauge, executions: list[HookExecution]
) -> None:
    await exec_agent(busy(), "go", hooks=[gauge.hooks(), gauge.tracing(), every_kind_of_hook()])

    told: defaultdict[str, float] = defaultdict(float)
    for execution in executions:
        told[execution.hook_id] += execution.duration_ms / 1e3
    data = gauge.reader.get_metrics_data()
    assert data is not None
    (metric,) = [
        metric
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "hookline.hook.duration"
    ]
    measured = {str((point.attributes or {})[HOOK]): point.sum for point in metric.data.data_points}
    assert measured == pytest.approx(told)


@pytest.mark.usefixtures("quiet")
async def test_hooks_of_sub_agents_are_measured_as_well(gauge: Gauge) -> None:
    helper = agent_of(says(), id="helper")
    agent = agent_of(calls(ask("helper")), says(), sub_agents=[helper])

    await exec_agent(agent, "go", hooks=[gauge.hooks(), every_kind_of_hook()])

    assert gauge.counts("hookline.hook.duration", HOOK)["h.quick"] == 3


@pytest.mark.usefixtures("quiet")
async def test_hooks_of_runs_that_nobody_measures_are_not_measured(gauge: Gauge) -> None:
    hooks, met = every_kind_of_hook(), [anyio.Event(), anyio.Event()]

    async def run(at: int, further: list[Hooks]) -> None:
        @tool
        async def meet() -> str:
            met[at].set()
            await met[1 - at].wait()
            return "x"

        await exec_agent(agent_of(calls(call("meet")), says(), tools=[meet]), "go", hooks=[*further, hooks])

    async with anyio.create_task_group() as group:
        group.start_soon(run, 0, [gauge.hooks()])
        group.start_soon(run, 1, [])

    assert gauge.counts("hookline.hook.duration", HOOK)["h.quick"] == 2


async def test_without_hook_metrics_no_records_are_even_made(gauge: Gauge) -> None:
    seen = []

    @tool
    async def look() -> str:
        seen.append(bool(hook_executed.receivers))
        return "x"

    def agent() -> Agent:
        return agent_of(calls(call("look")), says(), tools=[look])

    hooks = Hooks("h")
    hooks.on(AfterStep, id="h.quick")(lambda event: None)
    await exec_agent(agent(), "go", hooks=[gauge.hooks(hook_metrics=False), gauge.tracing(), hooks])
    assert gauge.counts("hookline.hook.duration", HOOK) == {}
    await exec_agent(agent(), "go", hooks=[gauge.hooks(), hooks])

    assert seen == [False, True]
    assert gauge.counts("hookline.hook.duration", HOOK) == {"h.quick": 2}


async def test_another_runtimes_hooks_count_once_in_every_segment(gauge: Gauge) -> None:
    hooks, ids = Hooks("h"), {"operation_id": "op", "agent_id": "foreign"}
    hooks.on(BeforeStep, id="h.quick")(lambda event: None)
    async with HookDispatcher() as dispatcher:
        async with dispatcher.operation("op", [gauge.hooks(), gauge.tracing(hook_spans=True), hooks]):
            for at in range(3):
                dispatcher.dispatch(BeforeStep(**ids, step_index=at, time_unix_nano=10**18 + at))
                dispatcher.dispatch(complete(ids, at))
        assert not hook_executed.receivers

    assert gauge.counts("hookline.hook.duration", HOOK) == {"h.quick": 3}
    assert not operation_unregistered.receivers


def complete(ids: dict[str, str], at: int) -> OnComplete:
    return OnComplete(
        **ids, time_unix_nano=10**18 + at, reason="waiting_for_human", steps=1, llm_calls=1, tool_calls=0,
        total_tokens=0, cost_usd=0.0, duration_ms=1.0, last_assistant_content="", error_type=None, error_message=None,
    )  # fmt: skip


# Lanes.


@pytest.mark.usefixtures("quiet")
async def test_what_a_full_lane_refuses_is_counted_as_dropped(gauge: Gauge) -> None:
    hooks, free = Hooks("slow"), anyio.Event()

    @hooks.on(AfterToolCall)
    async def wait(event: AfterToolCall) -> None:
        await free.wait()

    @tool
    async def let_go() -> str:
        free.set()
        return "x"

    turns = [*(calls(call("look_up")) for _ in range(5)), calls(call("let_go")), says()]
    async with HookDispatcher(max_queued=2) as dispatcher:
        agent = agent_of(*turns, tools=[look_up, let_go])
        await exec_agent(agent, "go", hooks=[gauge.hooks(), hooks], dispatcher=dispatcher)

    # One is running, two wait, two of five are refused; the sixth comes when the lane is free, or is refused as well.
    dropped = gauge.counts("hookline.hook.dropped", HOOK, TYPE)["slow.wait", "afterToolCall"]
    assert dropped + gauge.counts("hookline.hook.duration", HOOK)["slow.wait"] == 6
    assert dropped >= 2


@pytest.mark.usefixtures("quiet")
async def test_what_is_cancelled_at_the_end_of_a_run_is_counted_as_dropped(gauge: Gauge) -> None:
    hooks = Hooks("stuck")

    @hooks.on(AfterStep)
    async def wait(event: AfterStep) -> None:
        await anyio.sleep_forever()

    await exec_agent(
        agent_of(calls(call("look_up")), says(), tools=[look_up]), "go", hooks=[gauge.hooks(), hooks], drain_timeout=0.0
    )

    assert gauge.counts("hookline.hook.dropped", HOOK, TYPE) == {("stuck.wait", "afterStep"): 2}
    assert gauge.counts("hookline.hook.duration", HOOK) == {}


async def test_lanes_are_observed_while_they_are_full_and_when_they_are_empty(gauge: Gauge) -> None:
    free, seen = anyio.Event(), []

    def waiting(name: str, kind: type[Any]) -> Hooks:
        hooks = Hooks(name)

        @hooks.on(kind)
        async def wait(event: Any) -> None:
            await free.wait()

        return hooks

    def observed() -> tuple[Any, Any]:
        (queued,) = gauge.counts("hookline.lane.queued", "none").values()
        (longest,) = gauge.counts("hookline.lane.length", "none").values()
        return queued, longest

    @tool
    async def look() -> str:
        await anyio.wait_all_tasks_blocked()
        seen.append(observed())
        if len(seen) == 4:
            free.set()
        return "x"

    agent = agent_of(*(calls(call("look")) for _ in range(4)), says(), tools=[look])
    bundles = [gauge.hooks(), waiting("steps", AfterStep), waiting("tools", AfterToolCall)]
    await exec_agent(agent, "go", hooks=bundles)

    # Of the events of each lane the first is running, which does not wait in it.
    assert seen == [(0, 0), (0, 0), (1 + 1, 1), (2 + 2, 2)]
    assert observed() == (0, 0)


async def test_the_lanes_of_all_dispatchers_are_observed_and_of_none_that_is_gone(gauge: Gauge) -> None:
    free, full = anyio.Event(), anyio.Event()
    hooks, reached = Hooks("slow"), []

    @hooks.on(AfterToolCall)
    async def wait(event: AfterToolCall) -> None:
        await free.wait()

    @tool
    async def look() -> str:
        await anyio.wait_all_tasks_blocked()
        reached.append(None)
        if len(reached) == 6:
            full.set()
        return "x"

    async def run() -> None:
        @tool
        async def stay() -> str:
            await free.wait()
            return "x"

        turns = [*(calls(call("look")) for _ in range(3)), calls(call("stay")), says()]
        await exec_agent(agent_of(*turns, tools=[look, stay]), "go", hooks=[gauge.hooks(), hooks])

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        group.start_soon(run)
        await full.wait()
        await anyio.wait_all_tasks_blocked()
        assert gauge.counts("hookline.lane.queued", "none") == {None: 2 + 2}
        assert gauge.counts("hookline.lane.length", "none") == {None: 2}
        free.set()

    gc.collect()
    assert gauge.counts("hookline.lane.queued", "none") == {None: 0}


# The telemetry itself.


async def test_open_spans_are_observed_by_kind_and_are_none_when_the_run_is_over(gauge: Gauge) -> None:
    tracing, seen = gauge.tracing(), []

    @tool
    async def look() -> str:
        seen.append(gauge.counts("hookline.tracer.open_spans", KIND))
        return "x"

    helper = agent_of(calls(call("look")), says(), id="helper", tools=[look])
    await exec_agent(agent_of(calls(ask("helper")), says(), sub_agents=[helper]), "go", hooks=[tracing])

    assert seen == [{"invoke_agent": 2, "agent_step": 2, "call_agent": 1, "execute_tool": 1}]
    assert not any(gauge.counts("hookline.tracer.open_spans", KIND).values())


async def test_a_kind_of_which_no_span_is_open_any_more_is_observed_as_none(gauge: Gauge) -> None:
    tracing = gauge.tracing()
    async with HookDispatcher() as dispatcher, dispatcher.operation("op", [tracing]):
        ids = {"operation_id": "op", "agent_id": "foreign"}
        dispatcher.dispatch(BeforeStep(**ids, step_index=0))
        before = gauge.counts("hookline.tracer.open_spans", KIND)
        dispatcher.dispatch(after_step(ids, 0))
        after = gauge.counts("hookline.tracer.open_spans", KIND)

    assert before == {"invoke_agent": 1, "agent_step": 1}
    assert after == {"invoke_agent": 1, "agent_step": 0}


def after_step(ids: dict[str, str], index: int) -> AfterStep:
    return AfterStep(
        **ids, step_index=index, step_type="call_llm", content="", reasoning="", tools_calling=[], tools_result=[],
        should_continue=True, execution_time_ms=1.0, elapsed_ms=1.0, step_cost_usd=0.0, total_cost_usd=0.0,
        total_input_tokens=0, total_output_tokens=0, total_steps=1, total_tool_calls=0,
    )  # fmt: skip


def before_tool(ids: dict[str, str], call_id: str) -> BeforeToolCall:
    return BeforeToolCall(
        **ids, toolset="local", tool_name="look_up", args={}, call_index=1, step_index=0, tool_call_id=call_id
    )


@pytest.mark.parametrize(
    ("ending", "cut"),
    [("shutdown", 4), ("unregistered", 4), ("step_ended", 2), ("restarted", 3), ("waiting_for_human", 3)],
)
async def test_every_span_that_was_ended_in_place_of_its_event_is_counted(gauge: Gauge, ending: str, cut: int) -> None:
    tracing, ids = gauge.tracing(), {"operation_id": "op", "agent_id": "foreign"}
    async with HookDispatcher() as dispatcher, dispatcher.operation("op", [tracing]):
        dispatcher.dispatch(BeforeStep(**ids, step_index=0, time_unix_nano=10**18))
        await dispatcher.dispatch_before_tool_call(before_tool(ids, "t1"))
        await dispatcher.dispatch_before_tool_call(before_tool(ids, "t2"))
        match ending:
            case "shutdown":
                tracing.close()
            case "unregistered":
                await dispatcher.unregister("op")
            case "step_ended":
                dispatcher.dispatch(after_step(ids, 0))
            case "restarted":
                dispatcher.dispatch(BeforeStep(**ids, step_index=0))
            case "waiting_for_human":
                dispatcher.dispatch(complete(ids, 0))
        data = gauge.reader.get_metrics_data()

    assert data is not None
    (metric,) = [
        metric
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "hookline.tracer.truncated_spans"
    ]
    assert [(list((point.attributes or {}).values()), point.value) for point in metric.data.data_points] == [
        ([ending], cut)
    ]


@pytest.mark.usefixtures("quiet")
async def test_what_goes_wrong_in_the_telemetry_is_counted_every_time(gauge: Gauge) -> None:
    def redact(kind: str, name: str, value: Any) -> Any:
        raise LookupError("secret")

    tracing = gauge.tracing(capture_content=True, redact=redact)
    agent = agent_of(calls(call("look_up", "t1"), call("look_up", "t2")), says(), tools=[look_up])

    result = await exec_agent(agent, "go", hooks=[tracing])

    assert result.reason == "done"
    ((callback, error),) = gauge.counts("hookline.tracer.errors", "hookline.tracer.callback", ERROR)
    assert (callback, error) in {("content", "LookupError"), ("redact", "LookupError")}
    assert gauge.counts("hookline.tracer.errors", ERROR)["LookupError"] > 5


# Nothing stays behind.


async def test_a_thousand_bundles_of_one_provider_share_its_instruments_and_leave_nothing_behind(
    gauge: Gauge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tracer_provider = TracerProvider(shutdown_on_exit=False)
    gone = []
    agent = Agent(id="tester", model=ScriptedModel(lambda call: says()))

    for at in range(1000):
        metrics = gauge.hooks()
        tracing = TracingHooks(tracer_provider, meter_provider=gauge.provider, hook_spans=True)
        gone += [weakref.ref(metrics), weakref.ref(tracing)]
        if at % 10 == 0:
            await exec_agent(agent, "go", hooks=[metrics, tracing])
            assert not hook_executed.receivers
            assert not operation_unregistered.receivers
    del metrics, tracing
    gc.collect()

    assert [reference for reference in gone if reference() is not None] == []
    assert [record for record in caplog.records if record.name != "asyncio"] == []
    assert gauge.counts("gen_ai.invoke_agent.duration", "none") == {None: 100}
    assert not any(gauge.counts("hookline.tracer.open_spans", KIND).values())


async def test_a_provider_that_nobody_uses_any_more_is_not_kept() -> None:
    gone = []
    for _ in range(3):
        gauge = Gauge()
        await exec_agent(agent_of(says()), "go", hooks=[gauge.hooks(), gauge.tracing()])
        gauge.provider.shutdown()
        gone.append(weakref.ref(gauge.provider))
    del gauge
    gc.collect()

    assert [reference for reference in gone if reference() is not None] == []


@pytest.mark.parametrize("ending", ["done", "error", "cancelled", "paused", "bad hook", "not sampled"])
async def test_no_receiver_of_a_signal_is_left_whatever_becomes_of_a_run(gauge: Gauge, ending: str) -> None:
    scope = anyio.CancelScope()

    @tool
    async def hang() -> str:
        scope.cancel()
        await anyio.sleep_forever()
        return ""

    turns: dict[str, list[Any]] = {
        "error": [ValueError("x")],
        "cancelled": [calls(call("hang"))],
        "paused": [calls(call("pay"))],
    }
    pay = tool(lambda: "x", name="pay", needs_approval=True)
    tracer_provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False) if ending == "not sampled" else None
    tracing = TracingHooks(tracer_provider or TracerProvider(shutdown_on_exit=False), hook_spans=True)
    hooks: list[Any] = [gauge.hooks(), tracing]
    async with HookDispatcher() as dispatcher:
        if ending == "bad hook":
            hooks.append("no hook")
        with scope:
            try:
                agent = agent_of(*turns.get(ending, [says()]), tools=[hang, pay])
                await exec_agent(agent, "go", hooks=hooks, dispatcher=dispatcher)
            except Exception:
                assert ending == "bad hook"

    assert not hook_executed.receivers
    assert not operation_unregistered.receivers
    assert tracing.open_kinds() == []


async def test_a_run_that_cannot_even_be_registered_leaves_nothing_behind(gauge: Gauge) -> None:
    metrics, tracing = gauge.hooks(), gauge.tracing(hook_spans=True)

    class Late(Hooks):
        """A bundle that is found to be wrong only when it is compiled."""

        @property
        def observers(self) -> Any:
            raise RuntimeError("broken bundle")

        @observers.setter
        def observers(self, value: Any) -> None:
            """Nobody keeps them."""

    with pytest.raises(RuntimeError, match="broken bundle"):
        await exec_agent(agent_of(says()), "go", hooks=[metrics, tracing, Late("late")])

    assert not hook_executed.receivers
    assert tracing.open_kinds() == []
    assert not any(gauge.counts("hookline.tracer.open_spans", KIND).values())


async def test_a_tool_result_may_be_anything_and_is_on_no_metric(gauge: Gauge) -> None:
    @tool
    def odd() -> ToolResult:
        return ToolResult(content="x" * 10**6, success=False, error_type="Näme \ud800" * 100)

    await exec_agent(agent_of(calls(call("odd")), says(), tools=[odd]), "go", hooks=[gauge.hooks()])

    (error,) = gauge.counts("gen_ai.execute_tool.duration", ERROR)
    assert len(error) <= 256
    assert error.encode()
