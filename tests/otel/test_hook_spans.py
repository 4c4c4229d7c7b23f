"""Hooks as spans or span events: which ran, what it decided, for how long, and where in the trace that belongs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from msgspec import structs
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from hookline import (
    AfterStep,
    AfterToolCall,
    AgentCall,
    AgentSession,
    Approve,
    Ask,
    BeforeStep,
    BeforeToolCall,
    CompactCall,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    OnError,
    Respond,
    StepCall,
    SubAgentCall,
    ToolCall,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.events import EVENTS
from hookline.otel._hook_spans import executions, unregistrations
from hookline.runtime import Compaction, InMemoryStore
from hookline.signals import hook_executed
from tests.otel.capture import Sink, agent_of, asks, call, calls, failed, says
from tests.tables import for_each

pytestmark = pytest.mark.anyio

CALLS = (AgentCall, StepCall, ModelCall, ToolCall, SubAgentCall, CompactCall)
SPANS = pytest.mark.parametrize("hook_spans", [True, "spans"])
ORDER = pytest.mark.parametrize("tracing_first", [True, False], ids=["tracing first", "tracing last"])


@tool
async def find(key: str = "") -> str:
    """Find it."""
    return "found"


@contextlib.contextmanager
def recorded() -> Iterator[list[Any]]:
    """Every record of a hook that this process makes."""
    found: list[Any] = []

    def receive(sender: object, *, execution: Any) -> None:
        found.append(execution)

    with hook_executed.connected_to(receive):
        yield found


def hook_span(sink: Sink, hook_id: str) -> Any:
    (span,) = hook_spans_of(sink, hook_id)
    return span


def hook_spans_of(sink: Sink, hook_id: str) -> list[Any]:
    return [span for span in sink.named("hook") if span.attributes["hookline.hook.id"] == hook_id]


def hook_events(span: Any) -> list[Any]:
    return [event for event in span.events if event.name == "hookline.hook"]


def parent_name(sink: Sink, span: Any) -> str:
    parent = sink.parent(span)
    return parent.name if parent is not None else ""


def ordered(tracing: Hooks, *hooks: Hooks, tracing_first: bool) -> list[Hooks]:
    return [tracing, *hooks] if tracing_first else [*hooks, tracing]


# Whether.


async def test_hooks_are_in_no_trace_unless_asked_for_and_not_even_recorded():
    sink, hooks, connected = Sink(), Hooks("mine"), []

    @hooks.on(BeforeStep)
    def look(event):
        connected.append(bool(hook_executed.receivers))

    await exec_agent(agent_of(says()), "go", hooks=[sink.tracing(), hooks])

    assert sink.named("hook") == []
    assert not any(span.events for span in sink.spans)
    assert connected == [False]


@SPANS
async def test_each_run_of_a_hook_is_a_span_that_says_which_it_was(hook_spans):
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(BeforeStep, id="look")(lambda event: None)

    with recorded() as records:
        agent = agent_of(calls(call("find")), says(), tools=[find])
        await exec_agent(agent, "go", hooks=[sink.tracing(hook_spans=hook_spans), hooks], operation_id="it")

    first, second = hook_spans_of(sink, "look")
    for span, record in zip((first, second), records, strict=True):
        assert span.name == "hook look"
        assert span.attributes["hookline.hook.type"] == "beforeStep"
        assert span.attributes["hookline.hook.status"] == "ok"
        assert span.attributes["hookline.operation.id"] == "it"
        assert span.attributes["hookline.hook.own_time"] == record.duration_ms / 1e3
        assert span.start_time == record.time_unix_nano
        assert span.end_time - span.start_time >= int(record.duration_ms * 1e6)
    sink.assert_whole()


async def test_hooks_of_a_run_that_is_not_sampled_are_not_even_recorded():
    sink, hooks, connected = Sink(sampler=ALWAYS_OFF), Hooks("mine"), []

    @hooks.on(BeforeStep)
    def look(event):
        connected.append(bool(hook_executed.receivers))

    await exec_agent(agent_of(says()), "go", hooks=[sink.tracing(hook_spans=True), hooks])

    assert connected == [False]


async def test_hooks_of_other_runs_are_none_of_its_business():
    sink, hooks, both = Sink(), Hooks("mine"), anyio.Event()

    @hooks.on(BeforeStep)
    async def look(event):
        await both.wait()

    async def untraced() -> None:
        await exec_agent(agent_of(says()), "go", hooks=[hooks])

    async with anyio.create_task_group() as group:
        group.start_soon(untraced)
        both.set()
        result = await exec_agent(agent_of(says()), "go", hooks=[sink.tracing(hook_spans=True), hooks])

    assert [span.attributes["hookline.operation.id"] for span in sink.named("hook")] == [result.operation_id]


@pytest.mark.parametrize("hook_spans", [True, "events"])
async def test_telemetry_does_not_watch_itself(hook_spans):
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(AfterStep, id="look")(lambda event: None)
    telemetry = [
        sink.tracing(id="one", hook_spans=hook_spans),
        sink.tracing(id="two", hook_spans=hook_spans),
        sink.metrics(),
    ]

    await exec_agent(agent_of(calls(call("find")), says(), tools=[find]), "go", hooks=[*telemetry, hooks])

    ids = [span.attributes["hookline.hook.id"] for span in sink.named("hook")]
    ids += [event.attributes["hookline.hook.id"] for span in sink.spans for event in hook_events(span)]
    assert ids == ["look"] * 4


# What was decided.


async def decided(*turns: Any, hooks: Hooks, **options: Any) -> Sink:
    sink = Sink()
    agent = agent_of(*(turns or (calls(call("find")), says())), tools=[find])
    await exec_agent(agent, "go", hooks=[sink.tracing(hook_spans=True, **options), hooks])
    sink.assert_whole()
    return sink


async def test_a_denial_is_told_and_is_no_error():
    hooks = Hooks("mine")
    hooks.guard(ToolCall, id="judge")(lambda asked: Deny("never"))

    sink = await decided(hooks=hooks)

    span = hook_span(sink, "judge")
    assert span.attributes["hookline.hook.status"] == "denied"
    assert span.attributes["hookline.hook.type"] == "ToolCall"
    assert not failed(span)
    assert "error.type" not in span.attributes


async def test_a_question_to_a_person_is_a_denial_for_now():
    hooks = Hooks("mine")
    hooks.before(ToolCall, id="asker")(lambda asked: Ask("really?"))

    sink = await decided(hooks=hooks)

    assert hook_span(sink, "asker").attributes["hookline.hook.status"] == "denied"
    assert not failed(hook_span(sink, "asker"))


@for_each("way", ["mock", "respond", "around"])
async def test_an_answer_in_a_tools_place_is_told(way):
    hooks = Hooks("mine")
    if way == "mock":
        hooks.on(BeforeToolCall, id="it")(lambda event: event.mock("made up") and None)
    elif way == "respond":
        hooks.before(ToolCall, id="it")(lambda asked: Respond("made up"))
    else:

        @hooks.around(ToolCall, id="it")
        async def instead(asked, call_next):
            return Respond("made up")

    sink = await decided(hooks=hooks)

    assert hook_span(sink, "it").attributes["hookline.hook.status"] == "mocked"
    assert not failed(hook_span(sink, "it"))


@for_each("point", ["observer", "async observer", "asked", "before", "around", "after", "unwaited"])
async def test_a_failure_of_a_hook_is_an_error_of_its_span_alone(point, caplog):
    hooks = Hooks("mine")

    async def later(*given):
        raise LookupError("secret")

    def now(*given):
        raise LookupError("secret")

    if point == "observer":
        hooks.on(AfterStep, id="bad")(now)
    elif point == "async observer":
        hooks.on(AfterToolCall, id="bad")(later)
    elif point == "asked":
        hooks.on(BeforeToolCall, id="bad")(later)
    elif point == "unwaited":
        hooks.before(ToolCall, id="bad", wait=False)(later)
    else:
        getattr(hooks, point)(ToolCall, id="bad", on_error="open")(later)

    sink = await decided(hooks=hooks)

    for span in hook_spans_of(sink, "bad"):
        assert span.attributes["hookline.hook.status"] == "error"
        assert span.attributes["error.type"] == "LookupError"
        assert failed(span)
        assert span.status.description is None
        assert span.events == ()
    assert hook_spans_of(sink, "bad")
    assert not any(failed(span) for span in sink.spans if not span.name.startswith("hook"))
    assert b"secret" not in sink.exported()


@pytest.mark.parametrize("point", ["async observer", "before"])
async def test_a_hook_that_took_too_long_is_an_error_of_its_own_type(point, caplog):
    hooks = Hooks("mine")

    async def forever(*given):
        await anyio.sleep_forever()

    if point == "before":
        hooks.before(ToolCall, id="slow", timeout=0.001, on_error="open")(forever)
    else:
        hooks.on(AfterToolCall, id="slow", timeout=0.001)(forever)

    sink = await decided(hooks=hooks)

    span = hook_span(sink, "slow")
    assert span.attributes["hookline.hook.status"] == "timeout"
    assert span.attributes["error.type"] == "timeout"
    assert failed(span)


async def test_an_event_that_no_hook_got_is_told_as_dropped(caplog):
    sink, hooks, last = Sink(), Hooks("mine"), anyio.Event()

    @hooks.on(AfterToolCall, id="slow")
    async def slow(event):
        await last.wait()

    @hooks.on(OnComplete)
    def at_the_end(event):
        last.set()

    turns = (calls(*(call("find", f"t{number}") for number in range(4))), says())
    async with HookDispatcher(max_queued=1) as dispatcher:
        agent = agent_of(*turns, tools=[find])
        await exec_agent(agent, "go", hooks=[sink.tracing(hook_spans=True), hooks], dispatcher=dispatcher)

    statuses = [span.attributes["hookline.hook.status"] for span in hook_spans_of(sink, "slow")]
    assert "dropped" in statuses
    assert "ok" in statuses
    assert len(statuses) == 4
    assert not any(failed(span) for span in hook_spans_of(sink, "slow"))
    sink.assert_whole()


async def test_a_hook_that_was_cut_off_at_the_end_is_told_as_dropped(caplog):
    sink, hooks = Sink(), Hooks("mine")

    @hooks.on(AfterStep, id="stuck")
    async def stuck(event):
        await anyio.sleep_forever()

    await exec_agent(agent_of(says()), "go", hooks=[sink.tracing(hook_spans=True), hooks], drain_timeout=0)

    span = hook_span(sink, "stuck")
    assert span.attributes["hookline.hook.status"] == "dropped"
    assert [link.context for link in span.links] == [sink.one("invoke_agent").context]


@for_each(("capture_content", "there"), [(True, True), (False, False), ("EVENT_ONLY", False)])
async def test_what_a_hook_said_is_told_only_with_content_on(capture_content, there, caplog):
    hooks = Hooks("mine")
    hooks.guard(ToolCall, id="judge")(lambda asked: Deny("the reason"))
    hooks.on(AfterStep, id="bad")(lambda event: 1 / 0)

    sink = await decided(hooks=hooks, capture_content=capture_content)

    assert ("hookline.denial.reason" in hook_span(sink, "judge").attributes) is there
    assert all(("hookline.hook.error" in span.attributes) is there for span in hook_spans_of(sink, "bad"))
    if there:
        assert hook_span(sink, "judge").attributes["hookline.denial.reason"] == "the reason"
        assert "division by zero" in hook_spans_of(sink, "bad")[0].attributes["hookline.hook.error"]


# Where it belongs.


@ORDER
async def test_a_hook_is_under_the_innermost_span_that_was_open_all_along(tracing_first):
    sink, hooks = Sink(), Hooks("mine")
    for kind in CALLS:
        hooks.before(kind, id=f"before {kind.__name__}")(lambda asked: None)
        hooks.after(kind, id=f"after {kind.__name__}")(lambda asked, result: None)
    for event in (BeforeStep, BeforeToolCall, AfterToolCall, AfterStep):
        hooks.on(event, id=event.__name__)(lambda event: None)

    tracing = sink.tracing(hook_spans=True)
    agent = agent_of(calls(call("find")), tools=[find], max_steps=1)
    await exec_agent(agent, "go", hooks=ordered(tracing, hooks, tracing_first=tracing_first))

    where = {span.attributes["hookline.hook.id"]: parent_name(sink, span) for span in sink.named("hook")}
    assert where.pop("BeforeStep") == ("agent_step" if tracing_first else "invoke_agent tester")
    assert where.pop("BeforeToolCall") == ("execute_tool find" if tracing_first else "agent_step")
    assert where == {
        "before AgentCall": "invoke_agent tester",
        "after AgentCall": "invoke_agent tester",
        "before StepCall": "agent_step",
        "after StepCall": "agent_step",
        "before ModelCall": "agent_step",
        "after ModelCall": "agent_step",
        "before ToolCall": "agent_step",
        "after ToolCall": "agent_step",
        "AfterToolCall": "agent_step",
        "AfterStep": "invoke_agent tester",
    }
    sink.assert_whole()


async def test_hooks_of_parallel_tool_calls_are_each_under_their_own():
    sink, hooks = Sink(), Hooks("mine")
    meeting, arrived = anyio.Event(), []

    @hooks.on(BeforeToolCall, id="meet")
    async def meet(event):
        arrived.append(event.tool_call_id)
        if len(arrived) == 3:
            meeting.set()
        await meeting.wait()

    turns = (calls(*(call("find", f"t{number}") for number in range(3))), says())
    await exec_agent(agent_of(*turns, tools=[find]), "go", hooks=[sink.tracing(hook_spans=True), hooks])

    under = [sink.parent(span).attributes["gen_ai.tool.call.id"] for span in hook_spans_of(sink, "meet")]
    assert sorted(under) == ["t0", "t1", "t2"]
    sink.assert_whole()


async def test_hooks_of_a_sub_agent_are_in_its_own_segment():
    sink, hooks = Sink(), Hooks("mine", inherit=True)
    hooks.on(AfterStep, id="look")(lambda event: None)
    child = agent_of(says(), id="child")

    agent = agent_of(calls(asks("child")), says(), sub_agents=[child])
    await exec_agent(agent, "go", hooks=[sink.tracing(hook_spans=True), hooks])

    assert sorted(parent_name(sink, span) for span in hook_spans_of(sink, "look")) == [
        "invoke_agent child",
        "invoke_agent tester",
        "invoke_agent tester",
    ]
    sink.assert_whole()


@ORDER
@for_each("event", [OnComplete, OnError])
@for_each("is_async", [True, False], ids=["async", "sync"])
async def test_what_runs_when_the_run_is_over_is_a_trace_of_its_own_with_a_link(event, is_async, tracing_first):
    sink, hooks = Sink(), Hooks("mine")

    async def later(event):
        await anyio.sleep(0)

    hooks.on(event, id="last")(later if is_async else lambda event: None)

    tracing = sink.tracing(hook_spans=True)
    agent = agent_of(ValueError("broke"))
    await exec_agent(agent, "go", hooks=ordered(tracing, hooks, tracing_first=tracing_first))

    span, root = hook_span(sink, "last"), sink.one("invoke_agent")
    assert span.parent is None
    assert span.context.trace_id != root.context.trace_id
    assert [link.context for link in span.links] == [root.context]


@ORDER
async def test_what_runs_when_a_resumed_segment_is_over_is_linked_to_that_one(tracing_first):
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(OnComplete, id="last")(lambda event: None)

    @tool(needs_approval=True)
    def send() -> str:
        return "sent"

    agent = agent_of(calls(call("send")), says(), tools=[send])
    given = ordered(sink.tracing(hook_spans=True), hooks, tracing_first=tracing_first)
    paused = await exec_agent(agent, "go", hooks=given)
    await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=given)

    roots = [root.context for root in sink.named("invoke_agent")]
    assert [[link.context for link in span.links] for span in hook_spans_of(sink, "last")] == [[root] for root in roots]


async def test_a_slow_hook_of_a_step_that_is_over_is_under_the_root_and_not_under_the_next_step():
    sink, hooks, next_step = Sink(), Hooks("mine"), anyio.Event()

    @hooks.on(AfterToolCall, id="slow")
    async def slow(event):
        await next_step.wait()

    @hooks.before(ModelCall)
    async def wait_for_it(asked):
        if asked.step_index == 1:
            next_step.set()
            await slow_is_told(sink)

    agent = agent_of(calls(call("find")), says(), tools=[find])
    await exec_agent(agent, "go", hooks=[sink.tracing(hook_spans=True), hooks])

    assert parent_name(sink, hook_span(sink, "slow")) == "invoke_agent tester"
    sink.assert_whole()


async def slow_is_told(sink: Sink) -> None:
    """Wait until the span of the slow hook is there."""
    with anyio.fail_after(10):
        while not hook_spans_of(sink, "slow"):
            await anyio.sleep(0)


async def test_a_hook_that_ends_after_the_run_is_a_trace_of_its_own_with_a_link():
    sink, hooks, over = Sink(), Hooks("mine"), anyio.Event()

    @hooks.on(BeforeStep, id="slow")
    async def slow(event):
        await over.wait()

    hooks.on(OnComplete)(lambda event: over.set())

    await exec_agent(agent_of(says()), "go", hooks=[sink.tracing(hook_spans=True), hooks])

    span, root = hook_span(sink, "slow"), sink.one("invoke_agent")
    assert span.parent is None
    assert span.end_time > root.end_time
    assert [link.context for link in span.links] == [root.context]


async def test_hooks_of_a_session_that_moves_are_told_as_long_as_a_task_runs():
    sink, hooks = Sink(), Hooks("mine")
    hooks.on_phase(None, None, id="moved")(lambda transition: None)

    async with AgentSession(agent_of(says()), hooks=[sink.tracing(hook_spans=True), hooks]) as session:
        await session.run("go")

    spans = hook_spans_of(sink, "moved")
    assert spans
    assert {span.attributes["hookline.hook.type"] for span in spans} == {"phase"}
    sink.assert_whole()


# As events.


@ORDER
async def test_as_events_hooks_are_on_the_spans_and_make_none(tracing_first):
    sink, hooks = Sink(), Hooks("mine")
    for kind in CALLS:
        hooks.before(kind)(lambda asked: None)
    for event in EVENTS.values():
        hooks.on(event)(lambda event: None)
    hooks.guard(ToolCall, id="judge")(lambda asked: Deny("never"))

    with recorded() as records:
        agent = agent_of(calls(call("find")), ValueError("broke"), tools=[find])
        tracing = sink.tracing(hook_spans="events")
        await exec_agent(agent, "go", hooks=ordered(tracing, hooks, tracing_first=tracing_first))

    assert sink.named("hook") == []
    events = [(span, event) for span in sink.spans for event in hook_events(span)]
    late = [record for record in sink.logs if record.event_name == "hookline.hook"]
    assert len(events) + len(late) == len(records)
    for span, event in events:
        assert span.start_time <= event.timestamp <= span.end_time, event.attributes
    (denied,) = [event for _, event in events if event.attributes["hookline.hook.id"] == "judge"]
    assert denied.attributes["hookline.hook.status"] == "denied"
    root = sink.one("invoke_agent").context
    assert all((record.trace_id, record.span_id) == (root.trace_id, root.span_id) for record in late)
    told = [event.attributes["hookline.hook.id"] for _, event in events]
    told += [record.attributes["hookline.hook.id"] for record in late]
    assert sorted(told) == sorted(record.hook_id for record in records)


async def test_an_event_of_a_failed_hook_does_not_make_the_span_an_error(caplog):
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(AfterToolCall, id="bad")(lambda event: 1 / 0)

    agent = agent_of(calls(call("find")), says(), tools=[find])
    await exec_agent(agent, "go", hooks=[sink.tracing(hook_spans="events"), hooks])

    step = sink.named("agent_step")[0]
    (event,) = [event for event in hook_events(step) if event.attributes["hookline.hook.id"] == "bad"]
    assert event.attributes["error.type"] == "ZeroDivisionError"
    assert not any(failed(span) for span in sink.spans)


# Laws.


def watchers(async_too: bool = True) -> Hooks:
    """Hooks on everything that a run has, in every form."""
    hooks = Hooks("watching", inherit=True)

    async def later(*given):
        await anyio.sleep(0)

    async def around(asked, call_next):
        await anyio.sleep(0)
        result = await call_next(asked)
        await anyio.sleep(0)
        return result

    for event in EVENTS.values():
        hooks.on(event)(lambda event: None)
        if async_too:
            hooks.on(event)(later)
    for kind in CALLS:
        hooks.before(kind)(lambda asked: None)
        hooks.guard(kind)(later)
        hooks.after(kind)(lambda asked, result: None)
        hooks.around(kind)(around)
        hooks.after(kind, wait=False)(later)
    return hooks


def busy(*turns: Any) -> Any:
    """An agent with everything in it."""

    @tool
    async def broken() -> str:
        raise LookupError("not there")

    @tool(needs_approval=True)
    def send() -> str:
        return "sent"

    async def summarize(messages):
        await anyio.sleep(0)
        return "short"

    child = agent_of(calls(call("find"), call("find", "t2")), says(), id="child", tools=[find])
    other = agent_of(ValueError("broke"), id="other")
    turns = turns or (
        calls(call("find", "t1"), call("broken", "t2"), asks("child", "t3"), asks("other", "t4"), tokens=99),
        calls(call("send", "t5"), call("find", "t6")),
        says(),
    )
    return agent_of(
        *turns,
        tools=[find, broken, send],
        sub_agents=[child, other],
        compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=0),
    )


@ORDER
@for_each("hook_spans", [True, "events"])
@for_each("ending", ["done", "error", "interrupted", "cancelled", "paused", "denied"])
async def test_every_record_is_in_the_trace_once_and_nothing_outlives_what_it_is_in(ending, hook_spans, tracing_first):
    sink, stop = Sink(), Hooks("stop")
    tracing = sink.tracing(hook_spans=hook_spans)
    given = ordered(tracing, watchers(), stop, tracing_first=tracing_first)
    agent = busy() if ending != "error" else busy(calls(call("find"), asks("child", "t3")), ValueError("broke"))
    scope, store = anyio.CancelScope(), InMemoryStore()

    @stop.on(BeforeStep)
    def late(event):
        if event.step_index == 1 and event.agent_id == "tester":
            if ending == "interrupted":
                interrupt("it")
            elif ending == "cancelled":
                scope.cancel()

    if ending == "denied":
        stop.guard(ModelCall)(lambda asked: Deny("enough") if asked.step_index else None)
    with recorded() as records, scope:
        result = await exec_agent(agent, "go", hooks=given, operation_id="it", store=store)
        if ending == "done":
            await resume_agent(agent, result.operation_id, [Approve("t5")], hooks=given, store=store)

    sink.assert_whole()
    assert tracing.open_kinds() == []
    assert sink.losses() == {}
    told = [(span.attributes["hookline.hook.id"], span.attributes["hookline.hook.type"]) for span in sink.named("hook")]
    events = [event for span in sink.spans for event in hook_events(span)]
    events += [record for record in sink.logs if record.event_name == "hookline.hook"]
    told += [(event.attributes["hookline.hook.id"], event.attributes["hookline.hook.type"]) for event in events]
    assert sorted(told) == sorted((record.hook_id, record.hook_type) for record in records)
    roots = {root.context.span_id: root for root in sink.named("invoke_agent")}
    for span in sink.named("hook"):
        if span.parent is None:
            (link,) = span.links
            root = roots[link.context.span_id]
            assert root.attributes["hookline.operation.id"] == span.attributes["hookline.operation.id"]
        else:
            parent = sink.parent(span)
            assert parent.attributes["hookline.operation.id"] == span.attributes["hookline.operation.id"]
            assert not parent.name.startswith("hook")
    for span in sink.spans:
        for event in span.events:
            assert span.start_time <= event.timestamp <= span.end_time, dict(event.attributes)


async def test_runs_at_the_same_time_keep_their_hooks_apart():
    sink, hooks = Sink(), watchers()
    tracing = sink.tracing(hook_spans=True)

    async def one(name: str) -> None:
        await exec_agent(busy(), "go", hooks=[tracing, hooks], operation_id=name, store=InMemoryStore())

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(one, f"run {number}")

    sink.assert_whole()
    counts = {}
    for span in sink.named("hook"):
        operation_id = span.attributes["hookline.operation.id"]
        parent = sink.parent(span)
        if parent is not None:
            assert parent.attributes["hookline.operation.id"] == operation_id
        counts[operation_id] = counts.get(operation_id, 0) + 1
    assert len({counts[f"run {number}"] for number in range(5)}) == 1


@for_each("ending", ["done", "error", "interrupted", "cancelled"])
async def test_after_a_run_nobody_listens_any_more(ending):
    sink, stop = Sink(), Hooks("stop")
    scope = anyio.CancelScope()

    @stop.on(BeforeStep)
    def late(event):
        if ending == "interrupted":
            interrupt("it")
        elif ending == "cancelled":
            scope.cancel()

    with scope:
        agent = agent_of(ValueError("broke")) if ending == "error" else agent_of(says())
        await exec_agent(agent, "go", hooks=[sink.tracing(hook_spans=True), sink.metrics(), stop], operation_id="it")

    assert not hook_executed.receivers
    assert executions._receivers == {}
    assert unregistrations._receivers == {}


# Other runtimes.


def complete(operation_id: str, reason: Any = "waiting_for_human") -> OnComplete:
    numbers = {"steps": 1, "llm_calls": 1, "tool_calls": 1, "total_tokens": 1, "cost_usd": 0.0, "duration_ms": 1.0}
    said = {"last_assistant_content": "", "error_type": None, "error_message": None}
    return OnComplete(operation_id=operation_id, reason=reason, **numbers, **said)


async def test_in_another_runtime_a_hook_of_several_segments_is_told_once_for_each_of_its_runs():
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(BeforeStep, id="look")(lambda event: None)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [sink.tracing(hook_spans=True), hooks])
        for number in range(3):
            dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=number))
            dispatcher.dispatch(complete("foreign"))
        await dispatcher.unregister("foreign")

    assert [parent_name(sink, span) for span in hook_spans_of(sink, "look")] == ["agent_step"] * 3
    assert not hook_executed.receivers
    sink.assert_whole()


async def test_a_span_whose_end_was_stamped_before_its_hooks_had_ended_ends_after_them():
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(BeforeStep, id="look")(lambda event: None)
    begin = BeforeStep(operation_id="foreign", step_index=0)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [sink.tracing(hook_spans=True), hooks])
        dispatcher.dispatch(begin)
        dispatcher.dispatch(structs.replace(complete("foreign"), time_unix_nano=begin.time_unix_nano))

    assert hook_span(sink, "look").end_time > begin.time_unix_nano
    sink.assert_whole()


async def test_an_operation_that_is_unregistered_without_an_end_is_ended_and_no_longer_listened_to():
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(BeforeStep, id="look")(lambda event: None)
    tracing = sink.tracing(hook_spans=True)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [tracing, hooks])
        dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=0))
        await dispatcher.unregister("foreign")

    assert tracing.open_kinds() == []
    assert not hook_executed.receivers
    assert len(hook_spans_of(sink, "look")) == 1
    sink.assert_whole()


async def test_a_segment_that_is_closed_by_hand_leaves_nobody_listening():
    sink, hooks = Sink(), Hooks("mine")
    hooks.on(BeforeStep, id="look")(lambda event: None)
    tracing = sink.tracing(hook_spans=True)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [tracing, hooks])
        dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=0))
        tracing.close()
        tracing.close()

    assert tracing.open_kinds() == []
    assert not hook_executed.receivers
