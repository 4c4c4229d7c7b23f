"""What the bars of the waterfall are made of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import AfterToolCall, BeforeHumanIntervention, BeforeStep, BeforeToolCall, OnComplete, OnToolCallError
from hookline.events import AfterHumanIntervention, Event, PendingTool, encode
from hookline.registry import ExecutionRow, HookRun
from hookline.runtime import JournalEntry
from hookline.server.page._waterfall import BarBody, waterfall_body

BEGAN = 1_700_000_000_000_000_000
MS = 1_000_000


def journal(*events: Event) -> list[JournalEntry]:
    return [
        JournalEntry(number=number, type=event.hook_type, time_unix_nano=event.time_unix_nano, wire=encode(event))
        for number, event in enumerate(events, 1)
    ]


def at(kind: Any, ms: float, **fields: Any) -> Any:
    return kind(operation_id="op", time_unix_nano=BEGAN + int(ms * MS), **fields)


def tool(kind: Any, ms: float, call: str = "c1", **fields: Any) -> Any:
    common = {"toolset": "local", "tool_name": "search", "args": {}, "call_index": 1, "step_index": 0}
    return at(kind, ms, tool_call_id=call, **(common | fields))


def row(hook: str, ms: float, duration_ms: float, **fields: Any) -> ExecutionRow:
    run = HookRun(
        hook_id=hook, status=fields.pop("status", "ok"), duration_ms=duration_ms, time_unix_nano=BEGAN + int(ms * MS)
    )
    known = {"id": "1", "operation_id": "op", "tenant_id": "", "request_id": "op", "point": "ToolCall", "status": "ok"}
    return ExecutionRow(**(known | {"duration_ms": 1.0, "created_at": 1.7e9} | fields), executions=[run])


def bars(events: list[Event], rows: list[ExecutionRow] = [], now_ms: float = 1000) -> list[BarBody]:  # noqa: B006
    return waterfall_body(journal(*events), rows, now=(BEGAN + now_ms * MS) / 1e9).bars


def test_what_a_newer_version_has_written_is_left_out() -> None:
    entries = journal(at(BeforeStep, 0, step_index=0), at(BeforeStep, 1, step_index=1))
    entries[1] = msgspec.structs.replace(entries[1], wire=b'{"type": "beforeSomethingNew", "operationId": "op"}')

    body = waterfall_body(entries, [], now=BEGAN / 1e9)

    assert [bar.name for bar in body.bars] == ["Step 1"]


def test_a_hook_that_asked_a_person_is_not_shown_as_one_that_denied() -> None:
    rows = [
        row("asks", 1, 0.1, id="1", status="denied", step_index=0, tool_call_id="c1"),
        row("denies", 2, 0.1, id="2", status="denied", denied_by="denies", step_index=0, tool_call_id="c2"),
    ]
    rows = [msgspec.structs.replace(each, status="denied") for each in rows]

    found = {bar.name: bar.status for bar in bars([at(BeforeStep, 0, step_index=0)], rows) if bar.kind == "hook"}

    assert found == {"asks": "asked", "denies": "denied"}


def test_a_hook_is_inside_of_its_tool_call_and_that_inside_of_its_step() -> None:
    events = [
        at(BeforeStep, 0, step_index=0),
        tool(BeforeToolCall, 10),
        tool(AfterToolCall, 30, content="x", success=True),
    ]

    found = bars(events, [row("guard", 11, 4.5, tool_call_id="c1", step_index=0)])

    assert [(bar.depth, bar.kind, bar.name) for bar in found] == [
        (0, "step", "Step 1"),
        (1, "tool", "local/search"),
        (2, "hook", "guard"),
    ]
    assert found[2].duration == pytest.approx(4.5)


def test_what_still_runs_goes_on_until_now() -> None:
    (step,) = bars([at(BeforeStep, 0, step_index=0)], now_ms=700)

    assert (step.status, step.duration) == ("running", pytest.approx(700, abs=0.01))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"content": "x", "success": True}, "ok"),
        ({"content": "x", "success": True, "mocked": True, "answered_by": "m"}, "mocked"),
        (
            {"content": "x", "success": False, "mocked": True, "answered_by": "m", "metadata": {"fault": "slow"}},
            "fault",
        ),
        ({"content": "no", "success": False, "answered_by": "guard"}, "denied"),
        ({"content": "x", "success": False}, "failed"),
    ],
    ids=["ok", "mocked", "fault", "denied", "failed"],
)
def test_a_tool_call_tells_how_it_ended(fields: dict[str, Any], status: str) -> None:
    found = bars([at(BeforeStep, 0, step_index=0), tool(BeforeToolCall, 1), tool(AfterToolCall, 2, **fields)])

    assert found[1].status == status


def test_a_tool_that_raised_has_failed_and_says_why() -> None:
    error = tool(OnToolCallError, 2, error="no route", error_type="OSError")

    found = bars([at(BeforeStep, 0, step_index=0), tool(BeforeToolCall, 1), error])

    assert found[1].status == "failed"
    assert "no route" in found[1].note


def test_a_person_takes_as_long_as_the_decision() -> None:
    pending = [PendingTool(toolset="bank", tool_name="pay", tool_call_id="c1", args={})]

    waits = bars([at(BeforeHumanIntervention, 0, step_index=0, pending_tools=pending)], now_ms=50)
    decided = bars(
        [
            at(BeforeHumanIntervention, 0, step_index=0, pending_tools=pending),
            at(AfterHumanIntervention, 20, action="approve", tool_call_id="c1"),
        ]
    )

    assert (waits[0].status, decided[0].status) == ("waiting", "ok")
    assert decided[0].duration == pytest.approx(20)


def test_an_operation_without_events_has_no_bars() -> None:
    assert bars([]) == []


KINDS = st.sampled_from(["step", "before", "after", "error", "end", "person"])


@given(st.lists(st.tuples(KINDS, st.integers(0, 3), st.integers(0, 5000)), max_size=60))
def test_whatever_comes_in_whatever_order_each_bar_begins_inside_of_the_picture(
    moves: list[tuple[str, int, int]],
) -> None:
    made = {
        "step": lambda n, ms: at(BeforeStep, ms, step_index=n),
        "before": lambda n, ms: tool(BeforeToolCall, ms, call=f"c{n}", step_index=n),
        "after": lambda n, ms: tool(AfterToolCall, ms, call=f"c{n}", step_index=n, content="", success=True),
        "error": lambda n, ms: tool(OnToolCallError, ms, call=f"c{n}", step_index=n, error="", error_type="E"),
        "person": lambda n, ms: at(BeforeHumanIntervention, ms, step_index=n, pending_tools=[]),
        "end": lambda n, ms: at(
            OnComplete,
            ms,
            reason="done",
            steps=n,
            llm_calls=0,
            tool_calls=0,
            total_tokens=0,
            cost_usd=0.0,
            duration_ms=0.0,
            last_assistant_content="",
        ),
    }

    found = waterfall_body(journal(*(made[kind](n, ms) for kind, n, ms in moves)), [], now=BEGAN / 1e9 + 10)

    depth = -1
    for bar in found.bars:
        assert bar.start >= 0
        assert bar.duration >= 0
        assert bar.start + bar.duration <= found.duration
        assert bar.depth <= depth + 1
        depth = bar.depth
    assert msgspec.json.encode(found)
