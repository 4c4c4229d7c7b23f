"""The one model of a run's waterfall: which bar is inside of which, when each begins and ends, and where nothing ran."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterToolCall,
    Agent,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    Hooks,
    ModelResponse,
    OnComplete,
    OnToolCallError,
    ScriptedModel,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.cli.trace import Tracing
from hookline.cli.trace._span_tree import draw_traces
from hookline.evals import Bar, EventRecorder, Waterfall, draw_run
from hookline.evals.running._timeline import timeline_of
from hookline.events import AfterHumanIntervention, AfterStep, PendingTool, encode
from hookline.registry import ExecutionRow, HookRun
from hookline.runtime import JournalEntry
from hookline.server.page._waterfall import waterfall_body
from hookline.signals import HookExecution

BEGAN = 1_700_000_000_000_000_000
MS = 1_000_000
STEP = {
    "step_type": "call_tool",
    "content": "",
    "reasoning": "",
    "tools_calling": [],
    "tools_result": [],
    "should_continue": True,
    "execution_time_ms": 1.0,
    "elapsed_ms": 1.0,
    "step_cost_usd": 0.0,
    "total_cost_usd": 0.0,
    "total_input_tokens": 0,
    "total_output_tokens": 0,
    "total_steps": 1,
    "total_tool_calls": 0,
}
END = {
    "steps": 1,
    "llm_calls": 0,
    "tool_calls": 0,
    "total_tokens": 0,
    "cost_usd": 0.0,
    "duration_ms": 0.0,
    "last_assistant_content": "",
}


def at(kind: Any, ms: float, **fields: Any) -> Any:
    return kind(operation_id="op", time_unix_nano=BEGAN + int(ms * MS), **fields)


def begin(ms: float, index: int = 0) -> Event:
    event: Event = at(BeforeStep, ms, step_index=index)
    return event


def finish(ms: float, index: int = 0) -> Event:
    event: Event = at(AfterStep, ms, step_index=index, **STEP)
    return event


def call(kind: Any, ms: float, index: int = 0, **fields: Any) -> Any:
    common = {"toolset": "local", "tool_name": "search", "args": {}, "call_index": 1, "tool_call_id": "c1"}
    return at(kind, ms, step_index=index, **(common | fields))


def hook(ms: float, duration_ms: float = 1.0, point: str = "beforeStep", **fields: Any) -> HookExecution:
    return HookExecution(
        hook_id="watch",
        hook_type=point,
        operation_id="op",
        status="ok",
        duration_ms=duration_ms,
        time_unix_nano=BEGAN + int(ms * MS),
        **fields,
    )


def shape(waterfall: Waterfall) -> list[tuple[int, str, str]]:
    return [(depth, bar.kind, bar.name) for depth, bar in waterfall.rows()]


def test_a_hook_is_inside_of_the_call_that_it_names_even_if_another_step_has_a_call_of_the_same_id() -> None:
    events = [
        *(begin(0), call(BeforeToolCall, 1), call(AfterToolCall, 2, content="", success=True), finish(3)),
        *(begin(4, 1), call(BeforeToolCall, 5, 1), call(AfterToolCall, 6, 1, content="", success=True), finish(7, 1)),
    ]

    drawn = draw_run(events, [hook(1.2, 0.1, "ToolCall", step_index=0, tool_call_id="c1")])

    assert shape(drawn) == [
        (0, "step", "Step 1"),
        (1, "tool", "local/search"),
        (2, "hook", "watch"),
        (0, "step", "Step 2"),
        (1, "tool", "local/search"),
    ]


def test_a_hook_that_names_no_step_is_inside_of_the_one_that_was_running() -> None:
    events = [begin(0), finish(10), begin(20, 1), finish(30, 1)]

    drawn = draw_run(events, [hook(5, point="phase"), hook(15, point="phase"), hook(25, point="phase")])

    assert [depth for depth, kind, _ in shape(drawn) if kind == "hook"] == [1, 0, 1]


def test_a_hook_of_the_end_is_inside_of_no_step_even_if_the_last_one_never_ended() -> None:
    drawn = draw_run([begin(0), at(OnComplete, 5, reason="error", **END)], [hook(5, point="onComplete")])

    assert (0, "hook", "watch") in shape(drawn)


def test_a_hooks_bar_is_as_long_as_its_own_time() -> None:
    drawn = draw_run([begin(0), finish(100)], [hook(10, 4.5, step_index=0)])

    assert [drawn.duration_of(bar) for _, bar in drawn.rows() if bar.kind == "hook"] == [4.5 * MS]


def test_what_a_run_left_unfinished_is_stopped_where_the_run_ended() -> None:
    events = [begin(0), call(BeforeToolCall, 1), at(OnComplete, 8, reason="interrupted", **END)]

    drawn = draw_run(events, now=BEGAN + 1000 * MS)

    assert [(bar.kind, bar.status, drawn.duration_of(bar) // MS) for _, bar in drawn.rows()] == [
        ("step", "stopped", 8),
        ("tool", "stopped", 7),
        ("end", "failed", 0),
    ]


def test_a_call_that_ends_after_its_run_has_still_one_bar() -> None:
    events = [
        *(begin(0), call(BeforeToolCall, 1), at(OnComplete, 8, reason="interrupted", **END)),
        call(OnToolCallError, 9, error="cancelled", error_type="CancelledError"),
    ]

    drawn = draw_run(events)

    assert [(bar.status, drawn.duration_of(bar) // MS) for _, bar in drawn.rows() if bar.kind == "tool"] == [
        ("failed", 8)
    ]


def test_a_run_that_waits_for_a_person_keeps_its_question_open() -> None:
    pending = [PendingTool(toolset="bank", tool_name="pay", tool_call_id="c1", args={})]
    events = [
        *(begin(0), at(BeforeHumanIntervention, 1, step_index=0, pending_tools=pending), finish(2)),
        at(OnComplete, 3, reason="waiting_for_human", **END),
    ]

    drawn = draw_run(events, now=BEGAN + 50 * MS)

    assert [(bar.status, drawn.duration_of(bar) // MS) for _, bar in drawn.rows() if bar.kind == "person"] == [
        ("waiting", 49)
    ]


@pytest.mark.parametrize(
    ("decisions", "status", "note", "ended"),
    [
        ([("c1", "approve", None)], "waiting", "approved", None),
        ([("c1", "approve", None), ("c2", "approve", None)], "ok", "approved · approved", 21),
        (
            [("c2", "rejectAndContinue", "no"), ("c1", "approve", None)],
            "denied",
            "rejected and continued: no · approved",
            21,
        ),
        ([("c1", "reject", "no")], "denied", "rejected and stopped: no", 20),
        ([(None, "approve", None)], "ok", "approved", 20),
    ],
    ids=["one of two", "both", "one of them rejected", "a rejection that stops", "a decision without a call"],
)
def test_a_question_about_two_calls_ends_when_both_are_decided(
    decisions: Any, status: str, note: str, ended: int | None
) -> None:
    pending = [PendingTool(toolset="bank", tool_name="pay", tool_call_id=call, args={}) for call in ("c1", "c2")]
    events: list[Event] = [at(BeforeHumanIntervention, 1, step_index=0, pending_tools=pending)]
    for place, (call, action, reason) in enumerate(decisions):
        decided = at(AfterHumanIntervention, 20 + place, action=action, tool_call_id=call, rejection_reason=reason)
        events.append(decided)

    (bar,) = draw_run(events, now=BEGAN + 50 * MS).bars

    assert (bar.status, bar.note) == (status, note)
    assert bar.end == (None if ended is None else BEGAN + ended * MS)


def test_own_time_is_what_is_left_beside_the_bars_inside() -> None:
    outer = Bar("step", "s", 0, 100)
    outer.inner = [Bar("tool", "one", 10, 40), Bar("tool", "two", 30, 60), Bar("hook", "late", 90, 200)]

    assert Waterfall([outer]).own_time_of(outer) == 40


def test_a_bar_has_its_place_on_an_axis_that_begins_with_the_earliest() -> None:
    outer, early = Bar("step", "s", 100, 200), Bar("hook", "of another clock", 50, 150)
    outer.inner = [early]

    waterfall = Waterfall([outer])

    assert [waterfall.place_of(bar) for bar in (outer, early)] == [
        (pytest.approx(1 / 3), 1.0),
        (0.0, pytest.approx(2 / 3)),
    ]


@pytest.mark.parametrize(
    ("bars", "pauses"),
    [
        ([], []),
        ([("tool", 0, 70), ("tool", 7_000, 7_070)], [(70, 7_000)]),
        ([("tool", 0, 70), ("tool", 500, 570)], []),
        ([("tool", 0, 70), ("person", 70, 7_000), ("tool", 7_000, 7_070)], [(70, 7_000)]),
        ([("tool", 0, 20_000), ("tool", 29_000, 40_000)], []),
        ([("tool", 0, 10), ("person", 10, 5_000)], [(10, 5_000)]),
    ],
    ids=["nothing", "a long one", "a short one", "a person waits", "work is longer", "a person at the end"],
)
def test_pauses_are_the_long_times_in_which_nothing_but_a_person_was_at_work(bars: Any, pauses: Any) -> None:
    waterfall = Waterfall([Bar(kind, "x", start * MS, end * MS) for kind, start, end in bars])

    assert waterfall.pauses() == [(start * MS, end * MS) for start, end in pauses]


def test_a_person_inside_of_a_step_is_a_pause_too() -> None:
    step = Bar("step", "s", 0, 10_000 * MS)
    step.inner = [Bar("person", "decides", 10 * MS, 9_990 * MS)]

    assert Waterfall([step]).pauses() == [(10 * MS, 9_990 * MS)]


BARS = st.recursive(
    st.lists(
        st.tuples(st.sampled_from(["step", "tool", "person", "hook"]), st.integers(0, 10**10), st.integers(0, 10**10))
    ),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(["step", "tool"]), st.integers(0, 10**10), st.integers(0, 10**10), inner), max_size=4
    ),
    max_leaves=20,
)


def made(drawn: Any) -> list[Bar]:
    bars = []
    for kind, start, length, *inner in drawn:
        bar = Bar(kind, "x", start, start + length)
        bar.inner = made(inner[0]) if inner else []
        bars.append(bar)
    return bars


@settings(max_examples=40)
@given(BARS)
def test_every_bar_is_on_the_axis_and_no_pause_is_in_one_that_has_nothing_inside(drawn: Any) -> None:
    waterfall = Waterfall(made(drawn))

    rows = list(waterfall.rows())
    for _, bar in rows:
        begin, end = waterfall.place_of(bar)
        assert 0 <= begin <= end <= 1
        assert 0 <= waterfall.own_time_of(bar) <= waterfall.duration_of(bar)
    pauses = waterfall.pauses()
    assert all(one[1] <= other[0] for one, other in pairwise(pauses))
    for _, bar in rows:
        if bar.kind != "person" and not bar.inner:
            assert all(bar.end <= start or end <= bar.start for start, end in pauses if bar.end is not None)


@tool
async def search(query: str) -> str:
    return f"found {query}"


@tool
async def crash() -> str:
    raise OSError("no route")


def test_report_page_and_terminal_draw_the_same_bars_of_a_run() -> None:
    requests = [[ToolRequest(tool_name="search", args={"query": "x"}, tool_call_id="1")], [ToolRequest("crash")]]
    turns = [*(ModelResponse(tool_calls=calls) for calls in requests), ModelResponse(content="done")]
    agent = Agent(id="a", model=ScriptedModel(turns), tools=[search, crash])
    rules, tracing = Hooks("rules"), Tracing(None)

    @rules.on(AfterToolCall)
    def look(event: AfterToolCall) -> None:
        return None

    with EventRecorder() as recorder:
        anyio.run(lambda: exec_agent(agent, "go", hooks=[recorder.hooks, tracing.hooks, rules]))
    recorded = recorder.only

    report = timeline_of(recorded)
    entries = [
        JournalEntry(number=number, type=event.hook_type, time_unix_nano=event.time_unix_nano, wire=encode(event))
        for number, event in enumerate(recorded.events, 1)
    ]
    rows = [
        ExecutionRow(
            id=str(number),
            operation_id="op",
            tenant_id="",
            request_id="op",
            point=run.hook_type,
            status=run.status,
            duration_ms=run.duration_ms,
            created_at=0.0,
            step_index=run.step_index,
            tool_call_id=run.tool_call_id,
            executions=[
                HookRun(
                    hook_id=run.hook_id,
                    status=run.status,
                    duration_ms=run.duration_ms,
                    time_unix_nano=run.time_unix_nano,
                )
            ],
        )
        for number, run in enumerate(each.execution for each in recorded.executions)
    ]
    page = waterfall_body(entries, rows, now=0.0)
    (trace,) = draw_traces(tracing.spans)

    in_report = [(bar.kind, bar.duration_ms) for bar in report.bars if bar.kind in ("step", "tool")]
    on_page = [(bar.kind, bar.duration) for bar in page.bars if bar.kind in ("step", "tool")]
    in_terminal = [(bar.kind, bar.status) for _, bar in trace.rows() if bar.kind in ("step", "tool")]
    assert [kind for kind, _ in in_report] == ["step", "tool", "step", "tool", "step"]
    assert [(kind, pytest.approx(ms, abs=1e-3)) for kind, ms in in_report] == on_page
    assert in_terminal == [(bar.kind, bar.status) for bar in page.bars if bar.kind in ("step", "tool")]
    hooks = sum(bar.kind == "hook" for bar in report.bars)
    assert hooks == sum(bar.kind == "hook" for bar in page.bars) == len(recorded.executions)
    assert {bar.status for bar in report.bars if bar.kind == "tool"} == {"ok", "raised"}


def test_arguments_that_json_does_not_know_are_drawn() -> None:
    args = {"text": "\ud800", "large": 10**30, "nan": float("nan"), "object": {1, 2}}
    call = at(
        BeforeToolCall, 0, tool_call_id="c1", tool_name="look", toolset="local", args=args, call_index=1, step_index=0
    )

    [bar] = draw_run([call], now=BEGAN + MS).bars

    assert '"large":1000000000000000000000000000000' in bar.note


def test_a_decision_ends_the_question_that_waited_longest() -> None:
    pending = [PendingTool(toolset="bank", tool_name="pay", tool_call_id="c1", args={})]
    events = [
        *(at(BeforeHumanIntervention, ms, step_index=0, pending_tools=pending) for ms in (0, 1)),
        at(AfterHumanIntervention, 20, action="reject", tool_call_id="c1", rejection_reason="no"),
    ]

    drawn = draw_run(events, now=BEGAN + 30 * MS)

    assert [(bar.status, bar.note) for bar in drawn.bars] == [("denied", "rejected and stopped: no"), ("waiting", "")]
