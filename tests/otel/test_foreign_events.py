"""Events that no run of this package has sent: dispatched by hand, replayed, repeated, lost, mixed up, of any time."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.context import get_current
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from hookline import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    Approve,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnStopByHumanIntervention,
    OnToolCallError,
    decode,
    encode,
    tool,
)
from hookline.events import EVENTS, PendingTool
from hookline.otel import TracingHooks
from hookline.runtime import Compaction, InMemoryStore
from tests.otel.scenes import (
    CallbackModel,
    Scene,
    agent_of,
    ask,
    attributes,
    call,
    calls,
    error_type,
    failed,
    here,
    linked,
    own,
    place,
    resume,
    run,
    says,
    status,
)

pytestmark = pytest.mark.anyio

START = 1_700_000_000 * 10**9
DAY = 86_400 * 10**9


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as scene:
        yield scene


class Script:
    """Makes the events of one operation, each a millisecond after the one before."""

    def __init__(self, operation_id: str = "op", *, agent: str = "bot", parent: str | None = None, at: int = START):
        self.ids: dict[str, Any] = {"operation_id": operation_id, "agent_id": agent, "parent_operation_id": parent}
        self.at = at

    def _next(self, at: int | None) -> dict[str, Any]:
        self.at = self.at + 10**6 if at is None else at
        return {**self.ids, "time_unix_nano": self.at}

    def before_step(self, index: int = 0, *, at: int | None = None) -> BeforeStep:
        return BeforeStep(**self._next(at), step_index=index)

    def after_step(self, index: int = 0, *, at: int | None = None, goes_on: bool = False) -> AfterStep:
        return AfterStep(
            **self._next(at), step_index=index, step_type="call_llm", content="", reasoning="", tools_calling=[],
            tools_result=[], should_continue=goes_on, execution_time_ms=1.0, elapsed_ms=1.0, step_cost_usd=0.0,
            total_cost_usd=0.0, total_input_tokens=0, total_output_tokens=0, total_steps=1, total_tool_calls=0,
        )  # fmt: skip

    def _tool(self, call_id: str, step: int, name: str) -> dict[str, Any]:
        fields = {"toolset": "local", "tool_name": name, "args": {}, "call_index": 1}
        return {**fields, "step_index": step, "tool_call_id": call_id}

    def before_tool(self, call_id: str = "t1", *, step: int = 0, name: str = "add", at: int | None = None) -> Any:
        return BeforeToolCall(**self._next(at), **self._tool(call_id, step, name))

    def after_tool(self, call_id: str = "t1", *, step: int = 0, name: str = "add", at: int | None = None) -> Any:
        told = {"content": "", "success": True, "mocked": False, "answered_by": None, "metadata": {}}
        return AfterToolCall(**self._next(at), **self._tool(call_id, step, name), **told, execution_time_ms=1.0)

    def tool_error(self, call_id: str = "t1", *, step: int = 0, name: str = "add", at: int | None = None) -> Any:
        told = {"error": "", "error_type": "LookupError", "mocked": False, "answered_by": None, "metadata": {}}
        return OnToolCallError(**self._next(at), **self._tool(call_id, step, name), **told, execution_time_ms=1.0)

    def before_human(self, step: int = 0, *, at: int | None = None) -> BeforeHumanIntervention:
        pending = [PendingTool(toolset="local", tool_name="pay", tool_call_id="t9", args={})]
        return BeforeHumanIntervention(**self._next(at), step_index=step, pending_tools=pending)

    def decided(self, call_id: str | None = "t9", action: Any = "approve", *, at: int | None = None) -> Any:
        return AfterHumanIntervention(**self._next(at), action=action, tool_call_id=call_id, rejection_reason=None)

    def stopped(self, call_id: str | None = "t9", *, at: int | None = None) -> OnStopByHumanIntervention:
        return OnStopByHumanIntervention(**self._next(at), tool_call_id=call_id, rejection_reason=None)

    def before_compact(self, step: int = 0, *, at: int | None = None) -> BeforeCompact:
        return BeforeCompact(**self._next(at), step_index=step, message_count=9, token_count=99)

    def after_compact(self, step: int = 0, *, at: int | None = None) -> AfterCompact:
        told = {"group_id": "g", "messages_before": 9, "messages_after": 2, "summary": "s"}
        return AfterCompact(**self._next(at), step_index=step, **told)

    def compact_error(self, step: int = 0, *, at: int | None = None) -> OnCompactError:
        return OnCompactError(**self._next(at), step_index=step, token_count=99, error="e")

    def before_call(self, callee: str = "child", *, at: int | None = None) -> BeforeCallAgent:
        return BeforeCallAgent(**self._next(at), callee_id=callee, instruction="go")

    def after_call(self, callee: str = "child", child: str = "", *, at: int | None = None, ok: bool = True) -> Any:
        told = {"callee_id": callee, "sub_operation_id": child, "thread_id": child, "success": ok}
        return AfterCallAgent(**self._next(at), **told)

    def call_error(self, callee: str = "child", *, at: int | None = None) -> OnCallAgentError:
        return OnCallAgentError(**self._next(at), callee_id=callee, error="e")

    def complete(self, reason: Any = "done", *, at: int | None = None) -> OnComplete:
        wrong = "LookupError" if reason == "error" else None
        return OnComplete(
            **self._next(at), reason=reason, steps=1, llm_calls=1, tool_calls=0, total_tokens=0, cost_usd=0.0,
            duration_ms=1.0, last_assistant_content="", error_type=wrong, error_message=wrong,
        )  # fmt: skip

    def error(self, *, at: int | None = None) -> OnError:
        return OnError(**self._next(at), error_message="e", error_type="LookupError", error_detail="", step_index=None)


async def feed(dispatcher: HookDispatcher, *events: Any) -> None:
    """Dispatch events; the caller's context is the same before and after each."""
    for event in events:
        before = get_current()
        if isinstance(event, BeforeToolCall):
            await dispatcher.dispatch_before_tool_call(event)
        else:
            dispatcher.dispatch(event)
        assert get_current() == before


@contextlib.asynccontextmanager
async def foreign(tracing: TracingHooks, *operation_ids: str) -> Any:
    """A runtime that only dispatches events, and unregisters its operations at the end."""
    async with HookDispatcher() as dispatcher:
        for operation_id in operation_ids or ("op",):
            dispatcher.register(operation_id, [tracing])
        yield dispatcher


# Whole runs of other runtimes.


async def test_the_events_alone_make_the_tree_without_models(scene: Scene) -> None:
    op, tracing = Script(), scene.tracing()
    async with foreign(tracing) as dispatcher:
        await feed(dispatcher, op.before_step(), op.before_compact(), op.after_compact())
        await feed(dispatcher, op.before_tool("t1"), op.before_tool("t2"), op.tool_error("t1"), op.after_tool("t2"))
        await feed(dispatcher, op.before_human(), op.decided(), op.after_step(), op.complete())
        assert not tracing.open_kinds()

    tool_ = ("execute_tool add",)
    step = ("agent_step", ("compact_context",), tool_, tool_, ("human_intervention",))
    assert scene.tree() == ("invoke_agent bot", step)
    root = scene.one("invoke_agent")
    assert (root.start_time, root.end_time) == (START + 10**6, op.at)
    assert [error_type(span) for span in scene.spans if failed(span)] == ["LookupError"]


async def test_times_are_those_of_the_events(scene: Scene) -> None:
    op = Script()
    events = [op.before_step(), op.before_tool(), op.after_tool(), op.after_step(), op.complete()]
    async with foreign(scene.tracing()) as dispatcher:
        await feed(dispatcher, *events)

    at = [event.time_unix_nano for event in events]
    assert {span.name: (span.start_time, span.end_time) for span in scene.spans} == {
        "invoke_agent bot": (at[0], at[4]),
        "agent_step": (at[0], at[3]),
        "execute_tool add": (at[1], at[2]),
    }


async def test_a_sub_agents_operation_stands_under_its_call(scene: Scene) -> None:
    scene.traces = 1
    op, tracing = Script(), scene.tracing()
    async with foreign(tracing, "op", "kid") as dispatcher:
        await feed(dispatcher, op.before_step(), op.before_call())
        kid = Script("kid", agent="child", parent="op", at=op.at)
        await feed(dispatcher, kid.before_step(), kid.after_step(), kid.complete())
        op.at = kid.at
        await feed(dispatcher, op.after_call(child="kid"), op.after_step(), op.complete())

    assert scene.tree() == (
        "invoke_agent bot",
        ("agent_step", ("call_agent child", ("invoke_agent child", ("agent_step",)))),
    )
    assert own(scene.one("call_agent"), "sub_operation.id", "outcome") == ("kid", "done")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_parallel_calls_of_one_sub_agent_within_a_millisecond_are_two(scene: Scene, order: Any) -> None:
    """Other runtimes have clocks of milliseconds."""
    op, at = Script(), START + 10**6
    kids = [Script(f"kid{number}", agent="child", parent="op", at=at) for number in (0, 1)]
    async with foreign(scene.tracing(), "op", "kid0", "kid1") as dispatcher:
        await feed(dispatcher, op.before_step(at=at), op.before_call(at=at), op.before_call(at=at))
        for kid in kids:
            await feed(dispatcher, kid.before_step(at=at), kid.complete(at=at + 10**6))
        for number in order:
            await feed(dispatcher, op.after_call(child=f"kid{number}", at=at + 10**6))
        await feed(dispatcher, op.complete())

    called = scene.named("call_agent")
    assert [own(span, "sub_operation.id") for span in called] == [("kid0",), ("kid1",)]
    assert [own(span, "span.truncated") for span in called] == [(None,), (None,)]
    for span in called:
        (root,) = [each for each in scene.named("invoke_agent") if scene.parent(each) is span]
        assert own(root, "operation.id") == own(span, "sub_operation.id")


async def test_the_failed_one_of_parallel_calls_is_the_one_whose_run_failed(scene: Scene) -> None:
    op = Script()
    kids = [Script(f"kid{number}", agent="child", parent="op") for number in (0, 1)]
    async with foreign(scene.tracing(), "op", "kid0", "kid1") as dispatcher:
        await feed(dispatcher, op.before_step(), op.before_call(), op.before_call())
        await feed(dispatcher, kids[0].before_step(), kids[1].before_step(), kids[1].complete("error"))
        await feed(dispatcher, op.call_error(), kids[0].complete(), op.after_call(child="kid0"), op.complete())

    assert [(own(span, "sub_operation.id"), status(span)) for span in scene.named("call_agent")] == [
        (("kid0",), "UNSET"),
        (("kid1",), "ERROR"),
    ]


async def test_tool_calls_without_ids_are_told_apart_by_their_number(scene: Scene) -> None:
    op = Script()
    before = [replace(op.before_tool(""), call_index=index) for index in (1, 2)]
    after = [replace(op.after_tool(""), call_index=2), replace(op.tool_error(""), call_index=1)]
    async with foreign(scene.tracing()) as dispatcher:
        await feed(dispatcher, op.before_step(), *before, *after, op.after_step(), op.complete())

    assert [status(span) for span in scene.named("execute_tool")] == ["ERROR", "UNSET"]
    assert not [span for span in scene.spans if own(span, "span.truncated")[0]]


async def test_steps_that_overlap_hold_their_own_calls(scene: Scene) -> None:
    op = Script()
    async with foreign(scene.tracing()) as dispatcher:
        await feed(dispatcher, op.before_step(0), op.before_step(1), op.before_tool("late", step=0))
        await feed(dispatcher, op.before_tool("new", step=1), op.before_compact(0), op.before_human(0))
        await feed(dispatcher, op.after_tool("late", step=0), op.after_tool("new", step=1), op.after_compact(0))
        await feed(dispatcher, op.after_step(0), op.after_step(1), op.complete())

    assert scene.tree() == (
        "invoke_agent bot",
        ("agent_step", ("execute_tool add",), ("compact_context",), ("human_intervention",)),
        ("agent_step", ("execute_tool add",)),
    )
    late = next(span for span in scene.named("execute_tool") if attributes(span)["gen_ai.tool.call.id"] == "late")
    assert own(scene.parent(late), "step.index") == (0,)


async def test_an_operation_that_waits_and_goes_on_is_two_linked_segments(scene: Scene) -> None:
    op = Script()
    async with foreign(scene.tracing()) as dispatcher:
        await feed(dispatcher, op.before_step(), op.before_human(), op.after_step(), op.complete("waiting_for_human"))
        await feed(dispatcher, op.before_step(1), op.decided(), op.after_step(1), op.complete())

    first, second = scene.named("invoke_agent")
    assert list(linked(second).values()) == [place(first)]
    assert second.parent is None
    assert own(second, "resumed", "outcome") == (True, "done")


async def test_hooks_of_a_later_segment_are_shown_once(scene: Scene) -> None:
    tracing, hooks, op = scene.tracing(hook_spans=True), Hooks("mine"), Script(at=time.time_ns() - 10**9)
    hooks.on(BeforeStep, id="seen")(lambda event: None)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing, hooks])
        for index in range(3):
            await feed(dispatcher, op.before_step(index), op.after_step(index), op.complete("waiting_for_human"))

    assert len(scene.named("hook")) == 3


# What is lost, repeated, mixed up.


@pytest.mark.parametrize("lost", ["tool", "call", "human", "compact", "step", "kid"])
async def test_a_second_event_that_never_comes_leaves_no_span_open(scene: Scene, lost: str) -> None:
    op, tracing = Script(), scene.tracing()
    kid = Script("kid", agent="child", parent="op")
    before = {
        "tool": [op.before_tool()],
        "call": [op.before_call()],
        "human": [op.before_human()],
        "compact": [op.before_compact()],
        "step": [],
        "kid": [op.before_call(), kid.before_step(), kid.before_tool("t5")],
    }[lost]
    async with foreign(tracing, "op", "kid") as dispatcher:
        await feed(dispatcher, op.before_step(at=START), *before)
        if lost != "step":
            await feed(dispatcher, op.after_step())
        await feed(dispatcher, op.complete())

        assert not tracing.open_kinds()
        assert not scene.still_open


async def test_an_end_without_a_beginning_is_a_segment_of_no_length(scene: Scene) -> None:
    async with foreign(scene.tracing()) as dispatcher:
        await feed(dispatcher, Script().complete("error"))

    root = scene.one("invoke_agent")
    assert (root.start_time, error_type(root)) == (root.end_time, "LookupError")


@pytest.mark.parametrize("swapped", [False, True])
async def test_error_and_completion_are_one_end_in_either_order(scene: Scene, swapped: bool) -> None:
    op = Script()
    ends = [op.error(), op.complete("error")] if swapped else [op.complete("error"), op.error()]
    async with foreign(scene.tracing()) as dispatcher:
        await feed(dispatcher, op.before_step(at=START), *ends)

    assert scene.tree() == ("invoke_agent bot", ("agent_step",))
    assert own(scene.one("invoke_agent"), "outcome") == ("error",)
    assert len(scene.logs("hookline.error")) == 1


async def test_events_that_are_told_twice_count_once(scene: Scene) -> None:
    op, kid = Script(), Script("kid", agent="child", parent="op")
    events = [op.before_step(), op.before_tool(), op.after_tool(), op.before_call(), kid.before_step()]
    events += [kid.complete(), op.after_call(child="kid"), op.before_human(), op.decided(), op.after_step()]
    events += [op.complete("error"), op.error()]
    async with HookDispatcher() as dispatcher:
        tracing = scene.tracing()
        for operation_id in ("op", "kid"):
            dispatcher.register(operation_id, [tracing])
            dispatcher.register(operation_id, [tracing])
        await feed(dispatcher, *events)

    assert Counter(span.name for span in scene.spans) == {
        "invoke_agent bot": 1,
        "invoke_agent child": 1,
        "agent_step": 2,
        "execute_tool add": 1,
        "call_agent child": 1,
        "human_intervention": 1,
    }
    assert len(scene.logs("hookline.error")) == 1


async def test_time_that_runs_backwards_makes_spans_without_length_and_not_below(scene: Scene) -> None:
    op = Script()
    async with foreign(scene.tracing()) as dispatcher:
        await feed(
            dispatcher, op.before_step(at=START), op.before_tool(at=START - DAY), op.after_tool(at=START - 2 * DAY)
        )
        await feed(dispatcher, op.after_step(at=5), op.complete(at=START - 10))

    assert {(span.start_time, span.end_time) for span in scene.spans} == {(START, START)}


@pytest.mark.parametrize("wrong", [-1, 2**63, 2**64, 10**30, 1.5, None, "now", True])
async def test_a_time_that_is_none_is_now(scene: Scene, wrong: Any) -> None:
    op = Script(at=time.time_ns())
    async with foreign(scene.tracing()) as dispatcher:
        before = time.time_ns()
        await feed(
            dispatcher, replace(op.before_step(), time_unix_nano=wrong), replace(op.complete(), time_unix_nano=wrong)
        )
        after = time.time_ns()

    root = scene.one("invoke_agent")
    assert before <= root.start_time <= root.end_time <= after


async def test_an_operation_under_itself_or_under_its_own_child_does_no_harm(scene: Scene) -> None:
    tracing, own_child = scene.tracing(), Script("op", parent="op")
    one, two = Script("one", parent="two"), Script("two", parent="one")
    async with foreign(tracing, "op", "one", "two") as dispatcher:
        await feed(dispatcher, own_child.before_step(), own_child.before_call("bot"), own_child.before_step(1))
        await feed(dispatcher, one.before_step(), two.before_step(), one.complete(), one.before_step(1), two.complete())
        await feed(dispatcher, own_child.complete(), one.complete(), two.complete())

        assert not tracing.open_kinds()


async def test_a_parent_that_goes_before_its_child_takes_it_along(scene: Scene) -> None:
    op, tracing = Script(), scene.tracing()
    kid, grandchild = Script("kid", parent="op", agent="child"), Script("grandchild", parent="kid", agent="third")
    async with foreign(tracing, "op", "kid", "grandchild") as dispatcher:
        await feed(dispatcher, op.before_step(), op.before_call(), kid.before_step(), kid.before_call("third"))
        await feed(dispatcher, grandchild.before_step(), grandchild.before_tool("t5", at=START + DAY))
        await feed(dispatcher, op.complete())

        assert not tracing.open_kinds()
        await feed(dispatcher, grandchild.after_tool("t5"), grandchild.complete(), kid.complete())

    assert len(scene.trees()) == 1


async def test_a_child_that_is_unregistered_does_not_outlive_its_call(scene: Scene) -> None:
    op, kid = Script(), Script("kid", parent="op", agent="child", at=START + 10**9)
    async with foreign(scene.tracing(), "op", "kid") as dispatcher:
        await feed(dispatcher, op.before_step(), op.before_call(), kid.before_step())
        await dispatcher.unregister("kid")
        await feed(dispatcher, op.after_call(child="kid"), op.after_step(), op.complete())

    assert max(span.end_time for span in scene.spans) < START + DAY


async def test_events_of_an_unknown_operation_in_a_span_of_now_do_not_begin_before_it(scene: Scene) -> None:
    """A recording is replayed inside of a request: what is long over is not a part of that."""
    op = Script()
    with scene.tracer.start_as_current_span("request"):
        async with foreign(scene.tracing()) as dispatcher:
            await feed(dispatcher, op.before_step(), op.after_step(), op.complete())

    assert [span.start_time for span in scene.named("invoke_agent")] == [START + 10**6]


async def test_events_that_other_operations_tools_send_belong_to_their_own(scene: Scene) -> None:
    tracing = scene.tracing()

    @tool
    async def relay() -> str:
        op = Script()
        for event in (op.before_step, op.before_tool, op.after_tool, op.after_step, op.complete):
            await feed(dispatcher, event(at=time.time_ns()))
        return here()

    async with foreign(tracing) as dispatcher:
        result = await run(
            agent_of(calls(call("relay")), says(), tools=[relay]), hooks=[tracing], dispatcher=dispatcher
        )

    assert result.reason == "done"
    assert not tracing.open_kinds()


async def test_what_is_not_sampled_stays_silent_to_its_end() -> None:
    with Scene(sampler=ParentBased(ALWAYS_OFF)) as scene:
        op, tracing = Script(), scene.tracing(hook_spans=True)
        async with foreign(tracing) as dispatcher:
            await feed(dispatcher, op.before_step(), op.before_tool(), op.after_tool(), op.after_step(), op.complete())
            assert not tracing.open_kinds()

        assert scene.spans == []


# Recorded runs.


def recorder(events: list[Any]) -> Hooks:
    hooks = Hooks("recorder", inherit=True)
    for kind in EVENTS.values():
        hooks.on(kind)(events.append)
    return hooks


@tool
async def add(a: int = 1) -> int:
    await anyio.lowlevel.checkpoint()
    return a


@tool
async def fail() -> str:
    raise LookupError


@tool(needs_approval=True)
def pay() -> str:
    return "paid"


async def short(messages: Any) -> str:
    return "short"


async def broken(messages: Any) -> str:
    raise LookupError


def recorded_agents() -> dict[str, Any]:
    async def by_instruction(model_call: ModelCall) -> Any:
        return says(model_call.messages[-1].content)

    child = agent_of(model=CallbackModel(by_instruction), id="child")
    middle = agent_of(calls(ask("child"), call("add", "t2")), says(), id="middle", tools=[add], sub_agents=[child])
    busy = [calls(call("add", f"t{at}"), call("fail", "x"), tokens=99) for at in range(3)]
    return {
        "tools": agent_of(calls(call("add", "t1"), call("fail", "t2"), call("none", "t3")), says(), tools=[add, fail]),
        "compaction": agent_of(*busy, says(), tools=[add, fail], compaction=Compaction(max_tokens=9, summarize=short)),
        "no compaction": agent_of(*busy, tools=[add, fail], compaction=Compaction(max_tokens=9, summarize=broken)),
        "failing model": agent_of(calls(call("add")), LookupError(), tools=[add]),
        "nested": agent_of(calls(ask("middle"), call("add", "t2")), says(), tools=[add], sub_agents=[middle]),
        "failing child": agent_of(calls(ask("bad")), says(), sub_agents=[agent_of(LookupError(), id="bad")]),
        "paused": agent_of(calls(call("pay"), call("add", "t2")), says(), tools=[pay, add]),
    }


@pytest.mark.parametrize("name", list(recorded_agents()))
async def test_a_recorded_run_that_is_replayed_makes_the_same_spans_at_the_same_times(scene: Scene, name: str) -> None:
    events: list[Any] = []
    agent, store = recorded_agents()[name], InMemoryStore()
    given: dict[str, Any] = {"hooks": [scene.tracing(model_spans=False), recorder(events)], "store": store}
    result = await run(agent, **given)
    if result.pending:
        await resume(agent, result.operation_id, Approve("t1"), **given)

    with Scene() as other:
        async with foreign(other.tracing(), *{event.operation_id for event in events}) as dispatcher:
            await feed(dispatcher, *(decode(encode(event)) for event in events))
            assert not other.still_open

        assert other.trees() == scene.trees()
        for one, two in zip(scene.spans, other.spans, strict=True):
            if one.name != "agent_step":  # no event says that a step has failed
                assert status(one) == status(two)
            if not one.name.startswith("invoke_agent"):
                assert (one.start_time, one.end_time) == (two.start_time, two.end_time)
        assert [own(span, "outcome") for span in other.named("invoke_agent")] == [
            own(span, "outcome") for span in scene.named("invoke_agent")
        ]


# Any events, in any order, of any time.

TIMES = (
    st.integers(0, 40).map(lambda tick: START + tick * 10**6)
    | st.integers(0, 40).map(lambda tick: START + tick)
    | st.sampled_from([0, 1, START - DAY, START + DAY, time.time_ns()])
)
OPERATIONS = {"op": None, "kid": "op", "other": "op", "grandchild": "kid", "lonely": "nobody"}
MAKERS = ("before_step", "after_step", "before_tool", "after_tool", "tool_error", "before_human", "decided", "stopped",
          "before_compact", "after_compact", "compact_error", "before_call", "after_call", "call_error", "complete",
          "error")  # fmt: skip
ARGUMENTS: dict[str, Any] = {
    "before_step": st.integers(0, 2),
    "after_step": st.integers(0, 2),
    "before_tool": st.sampled_from(["t1", "t2", ""]),
    "after_tool": st.sampled_from(["t1", "t2", ""]),
    "tool_error": st.sampled_from(["t1", "t2", ""]),
    "decided": st.sampled_from(["t1", "t9", None]),
    "stopped": st.sampled_from(["t1", "t9", None]),
    "before_call": st.sampled_from(["child", "bot"]),
    "after_call": st.sampled_from(["child", "bot"]),
    "call_error": st.sampled_from(["child", "bot"]),
    "complete": st.sampled_from(["done", "error", "interrupted", "waiting_for_human"]),
}
AGENTS = {"op": "bot", "kid": "child", "other": "child", "grandchild": "child", "lonely": "bot"}


@st.composite
def any_event(draw: st.DrawFn) -> Any:
    operation_id = draw(st.sampled_from(list(OPERATIONS)))
    maker = draw(st.sampled_from(MAKERS))
    script = Script(operation_id, agent=AGENTS[operation_id], parent=OPERATIONS[operation_id])
    arguments = [draw(ARGUMENTS[maker])] if maker in ARGUMENTS else []
    if maker == "after_call":
        arguments.append(draw(st.sampled_from(["kid", "other", "grandchild", ""])))
    return getattr(script, maker)(*arguments, at=draw(TIMES))


STORY = [
    ("op", "before_step"), ("op", "before_tool"), ("op", "before_call"), ("kid", "before_step"), ("kid", "before_call"),
    ("grandchild", "before_step"), ("grandchild", "before_tool"), ("op", "after_tool"), ("grandchild", "after_tool"),
    ("op", "before_call"), ("other", "before_step"), ("other", "before_human"), ("grandchild", "after_step"),
    ("grandchild", "complete"), ("kid", "after_call"), ("kid", "before_compact"), ("kid", "compact_error"),
    ("kid", "after_step"), ("kid", "complete"), ("op", "after_call"), ("other", "after_step"), ("other", "complete"),
    ("op", "call_error"), ("op", "after_step"), ("op", "complete"), ("op", "error"),
]  # fmt: skip


@st.composite
def a_spoiled_story(draw: st.DrawFn) -> list[Any]:
    """The events of three generations, of which some are lost, some are repeated, and some come at the wrong time."""
    scripts = {key: Script(key, agent=AGENTS[key], parent=parent) for key, parent in OPERATIONS.items()}
    clock, events = START, []
    for operation_id, maker in STORY:
        clock += 10**6
        events.append(getattr(scripts[operation_id], maker)(at=clock))
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, len(events) - 1))
        match draw(st.sampled_from(["lose", "repeat", "move", "late", "early"])):
            case "lose" if len(events) > 1:
                del events[at]
            case "repeat":
                events.insert(draw(st.integers(0, len(events))), events[at])
            case "move":
                events.insert(draw(st.integers(0, len(events) - 1)), events.pop(at))
            case "late" | "early" as when:
                shift = draw(st.integers(1, 50)) * 10**6 * (1 if when == "late" else -1)
                events[at] = replace(events[at], time_unix_nano=events[at].time_unix_nano + shift)
    return events


def tell(events: list[Any], *, ends: list[str], hook_spans: bool, interruptions: dict[int, str]) -> None:
    """Dispatch events; then every operation ends; then the laws must hold."""

    async def main() -> None:
        with Scene() as scene:
            tracing, hooks = scene.tracing(hook_spans=hook_spans), Hooks("mine")
            for kind in EVENTS.values():
                hooks.on(kind)(lambda event: None)
            async with HookDispatcher() as dispatcher:
                for operation_id in OPERATIONS:
                    dispatcher.register(operation_id, [tracing, hooks])
                for at, event in enumerate(events):
                    match interruptions.get(at):
                        case "close":
                            tracing.close()
                        case "close early":
                            tracing.close(at=5)
                        case "unregister":
                            await dispatcher.unregister(event.operation_id)
                            dispatcher.register(event.operation_id, [tracing, hooks])
                    await feed(dispatcher, event)
                for operation_id in ends:
                    await feed(dispatcher, Script(operation_id, agent="x").complete())
                assert not tracing.open_kinds()
                assert not scene.still_open

    anyio.run(main)


ENDS = st.permutations(list(OPERATIONS))
INTERRUPTIONS = st.dictionaries(
    st.integers(0, 30), st.sampled_from(["close", "close early", "unregister"]), max_size=2
) | st.just({})
relaxed = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(events=st.lists(any_event(), max_size=30), ends=ENDS, hook_spans=st.booleans(), interruptions=INTERRUPTIONS)
@relaxed
def test_any_events_in_any_order_end_every_span_once_and_inside_of_its_parent(
    events: list[Any], ends: list[str], hook_spans: bool, interruptions: dict[int, str]
) -> None:
    tell(events, ends=ends, hook_spans=hook_spans, interruptions=interruptions)


@given(events=a_spoiled_story(), ends=ENDS, hook_spans=st.booleans(), interruptions=INTERRUPTIONS)
@relaxed
def test_a_story_that_is_spoiled_ends_every_span_once_and_inside_of_its_parent(
    events: list[Any], ends: list[str], hook_spans: bool, interruptions: dict[int, str]
) -> None:
    tell(events, ends=ends, hook_spans=hook_spans, interruptions=interruptions)


@given(events=st.permutations([Script(key, agent=AGENTS[key], parent=OPERATIONS[key]) for key in OPERATIONS]))
@settings(max_examples=30, deadline=None)
def test_operations_may_begin_in_any_order(events: list[Script]) -> None:
    tell([script.before_step(at=START) for script in events], ends=list(OPERATIONS), hook_spans=False, interruptions={})


async def test_attributes_of_a_recorded_run_are_those_of_the_run(scene: Scene) -> None:
    events: list[Any] = []
    await run(recorded_agents()["tools"], hooks=[scene.tracing(model_spans=False), recorder(events)])
    with Scene() as other:
        async with foreign(other.tracing(), events[0].operation_id) as dispatcher:
            await feed(dispatcher, *events)

        known = {"gen_ai.tool.description", "gen_ai.request.model"}  # of the agent, which no event speaks of
        for one, two in zip(scene.spans, other.spans, strict=True):
            assert {key: value for key, value in attributes(one).items() if key not in known} == attributes(two)
