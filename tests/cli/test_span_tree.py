"""Spans as a tree in the terminal: what one reads of them, at any width, and in any terminal."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from cli.scenes import MS, START, Tape, printed, shown
from hookline import (
    Agent,
    ModelResponse,
    ScriptedModel,
)
from hookline.cli.trace._otlp import Tracing
from hookline.cli.trace._recorded import replay_events
from hookline.cli.trace._span_tree import content_lines, format_duration
from hookline.instrumentation import SegmentInfo

PAUSED = """\
[1] op  (time)  trace (id)
‖ invoke_agent assistant  waits for a person  2 steps    802 ms ━━━━━━━━━━━━━━━━
  4 tool calls
├─✓ agent_step 0                                         730 ms ━━━━━━━━━━━━━━╸
│ ├─✓ execute_tool search                                390 ms ━━━━━━━━
│ ├─✗ execute_tool fetch  ConnectionError               50.0 ms ━
│ ├─✓ execute_tool balance  mocked by policy.fake       1.00 ms  ╸
│ ├─⊘ execute_tool delete  denied by policy.no_delete   1.00 ms  ╸
│ └─✓ call_agent writer                                  310 ms         ━━━━━━╸
│   └─✓ invoke_agent writer  1 step  1 tool call         300 ms         ╺━━━━━╸
│       1,200→300 tokens
│     └─✓ agent_step 0                                   295 ms         ╺━━━━━
│       └─✓ execute_tool search                          280 ms         ╺━━━━━
└─✓ agent_step 1                                        61.0 ms                ━
  └─‖ human_intervention  waits for a person  1 call    1.00 ms                ╺

[2] op  (time)  trace (id)
✓ invoke_agent assistant  resumed  3 steps so far        101 ms ━━━━━━━━━━━━━━━━
  5 tool calls so far
  ↩ first segment: [1]
└─✓ agent_step 2                                         100 ms ━━━━━━━━━━━━━━━━
  ├─✓ human_intervention  approved                         0 µs ╸
  └─✓ execute_tool pay                                  80.0 ms  ╺━━━━━━━━━━━━╸

16 spans in 2 traces, 1h 00m  longest: execute_tool search, 390 ms by itself
✗ 1 failed: execute_tool fetch  ⊘ 1 denied: execute_tool delete
‖ 1 waiting for a person: human_intervention  1 mocked
"""


def a_paused_run() -> Tape:
    tape = Tape()
    tape.step(0).tool("search", 10, 400).tool("fetch", 10, 60, error="ConnectionError")
    tape.tool("balance", 60, 61, mocked=True, answered_by="policy.fake")
    tape.tool("delete", 61, 62, success=False, answered_by="policy.no_delete").call("writer", 410)
    child = Tape("child", "writer", "op").step(415).tool("search", 420, 700).stepped(710, tokens=(1200, 300)).done(715)
    tape.events += child.events
    tape.called("writer", "child", 720).stepped(730)
    tape.step(740, 1).ask(800, 1).stepped(801, 1).done(802, "waiting_for_human", steps=2)
    later = 3_600_000
    tape.step(later, 2).decide(later + 1).tool("pay", later + 10, later + 90, step=2)
    return tape.stepped(later + 100, 2).done(later + 101, steps=3)


def without_ids(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "(time)", text)
    return re.sub(r"trace [0-9a-f]{32}", "trace (id)", text)


def test_what_was_slow_failed_mocked_denied_or_awaited_is_seen_in_eighty_columns() -> None:
    text = shown(a_paused_run().events)

    assert without_ids(text) == PAUSED


@pytest.mark.parametrize("width", [10, 24, 40, 60, 80, 100, 132, 200])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    text = shown(a_paused_run().events, content=True, width=width)

    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "denied" in text


def test_a_narrow_terminal_has_times_but_no_bars_and_loses_no_word() -> None:
    text = shown(a_paused_run().events, width=50)

    assert "━" not in text
    assert "50.0 ms" in text
    assert set(PAUSED.replace("━", " ").replace("╸", " ").replace("╺", " ").split()) <= {*without_ids(text).split()}


def test_a_wide_terminal_has_longer_bars() -> None:
    text = shown(a_paused_run().events, width=160)

    assert max(line.count("━") for line in text.splitlines()) == 48


def test_a_bar_shows_when_something_happened() -> None:
    tape = Tape().step(0).tool("first", 0, 50).tool("second", 50, 100).stepped(100).done(100)

    _, root, step, first, second, *_ = shown(tape.events).splitlines()

    assert root.endswith(" " + "━" * 16)
    assert step.endswith(" " + "━" * 16)
    assert first.endswith("ms " + "━" * 8)
    assert second.endswith("ms " + " " * 8 + "━" * 8)


def test_a_title_stands_for_an_operation_that_has_one() -> None:
    text = shown(Tape().step(0).done(1).events, titles={"op": "banking/user_task_0"})

    assert text.startswith("banking/user_task_0  20")


def test_a_span_that_takes_the_longest_itself_is_named_not_those_around_it() -> None:
    tape = Tape().step(0).tool("quick", 0, 10).tool("slow", 10, 90).stepped(95).done(100)

    assert "longest: execute_tool slow, 80.0 ms by itself" in shown(tape.events)


def test_parallel_calls_are_not_taken_off_the_step_twice() -> None:
    tape = Tape().step(0).tool("one", 0, 40).tool("two", 0, 40).stepped(100).done(100)

    assert "longest: agent_step 0, 60.0 ms by itself" in shown(tape.events)


def test_what_fails_inside_counts_once_however_much_is_around_it() -> None:
    tape = Tape().step(0).tool("fetch", 1, 2, error="OSError").done(3, "error", error="OSError")

    text = shown(tape.events)

    assert "✗ 1 failed: execute_tool fetch" in text
    assert text.count("✗") == 3


def test_of_many_failures_a_few_are_named() -> None:
    tape = Tape().step(0)
    for number in range(5):
        tape.tool(f"tool{number}", number, number + 1, error="OSError")

    assert "✗ 5 failed: execute_tool tool0, execute_tool tool1, execute_tool tool2 …" in shown(
        tape.stepped(9).done(9).events, width=120
    )


def test_a_recording_that_stops_in_the_middle_ends_where_it_stops() -> None:
    tape = Tape().step(0).tool("search", 10, 400)
    del tape.events[-1]
    tape.step(500, 1)

    text = shown(tape.events, width=100)

    assert re.search(r"■ invoke_agent assistant  never ended +500 ms", text)
    assert re.search(r"■ execute_tool search  never ended +490 ms", text)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("interrupted", "■ invoke_agent assistant  interrupted"),
        ("max_steps", "■ invoke_agent assistant  stopped at its limit of steps"),
        ("cost_limit", "■ invoke_agent assistant  stopped at its limit of cost"),
        ("waiting_for_human", "‖ invoke_agent assistant  waits for a person"),
        ("error", "✗ invoke_agent assistant  ValueError"),
        ("done", "✓ invoke_agent assistant  1 step"),
    ],
)
def test_the_reason_of_an_end_is_told(reason: str, told: str) -> None:
    tape = Tape().step(0).stepped(1).done(2, reason, error="ValueError" if reason == "error" else None)

    assert told in shown(tape.events, width=120)


def test_a_persons_refusal_is_no_failure() -> None:
    tape = Tape().step(0).ask(1).stepped(2).done(3, "waiting_for_human")
    tape.step(9, 1).decide(10, "reject").stepped(11, 1).done(12, "interrupted")

    text = shown(tape.events, width=120)

    assert "⊘ human_intervention  rejected" in text
    assert "✗" not in text


def test_a_link_to_a_span_that_is_elsewhere_is_told_in_full() -> None:
    tracing = Tracing(None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="done")]))
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    begun, _ = tracing.hooks.begin(
        SegmentInfo(operation_id="op", agent_id=agent.id, resumed=True, traceparents=(traceparent,))
    )
    tracing.hooks.close()

    assert begun is not None
    text = " ".join(printed(tracing).split())
    assert "↩ first segment: trace 0af7651916cd43dd8448eb211c80319c, span b7ad6b7169203331" in text


def test_content_is_shown_only_where_it_was_recorded() -> None:
    events = a_paused_run().events

    without, with_content = shown(events, width=120), shown(events, width=120, content=True)

    assert "argument of" not in without
    assert "result of" not in without
    assert 'arguments: {"q":"argument of search"}' in with_content
    assert "result: result of search" in with_content
    assert "✗ execute_tool fetch  ConnectionError: it says why" in with_content
    assert "reason: result of delete" in with_content


def test_what_a_terminal_would_obey_is_not_sent_to_it() -> None:
    evil = "\x1b[2J\x07\u202enips\nnew"
    tape = Tape(evil, evil).step(0).tool(evil, 1, 2, mocked=True, answered_by=evil, content=evil).stepped(3).done(4)

    text = shown(tape.events, content=True, width=120)

    assert not {"\x1b", "\x07", "\u202e"} & {*text}
    assert "�[2J��nips new" in text


def test_markup_in_names_is_text() -> None:
    tape = Tape("[red]op[/]", "[bold]agent").step(0).tool("[/x]", 1, 2).done(3)

    text = shown(tape.events)

    assert "[red]op[/]" in text
    assert "invoke_agent [bold]agent" in text
    assert "execute_tool [/x]" in text


def test_wide_characters_keep_the_columns() -> None:
    tape = Tape().step(0).tool("検索ツール", 1, 2).tool("🔎", 2, 3).stepped(4).done(5)

    text = shown(tape.events)

    assert len({cell_len(line[: line.index("ms ")]) for line in text.splitlines() if "ms ━" in line}) == 1
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_a_terminal_that_knows_only_ascii_gets_ascii() -> None:
    text = shown(a_paused_run().events, encoding="ascii")

    assert text.isascii()
    assert "?" not in text
    assert "x execute_tool fetch  ConnectionError" in text
    assert "================" in text


def test_a_name_that_is_longer_than_the_terminal_is_broken_not_lost() -> None:
    name = "n" * 200

    text = shown(Tape().step(0).tool(name, 1, 2).done(3).events)

    assert text.count("n") >= 200
    assert max(len(line) for line in text.splitlines()) <= 80


def test_what_is_deeper_than_the_terminal_is_wide_is_counted() -> None:
    tape = Tape("op0", "a0")
    for number in range(1, 40):
        tape.step(number)
        tape.call(f"a{number}", number)
        events = tape.events
        tape = Tape(f"op{number}", f"a{number}", f"op{number - 1}")
        tape.events = events
    tape.step(50)

    text = shown(tape.events)

    shown_spans = len([line for line in text.splitlines() if "■" in line and "stopped" not in line])
    more = int(re.search(r"… (\d+) more", text)[1])  # type: ignore[index]
    assert shown_spans + more == 39 * 3 + 2
    assert f"{shown_spans + more} spans" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_several_runs_are_numbered_and_one_is_not() -> None:
    one, two = Tape("first").step(0).done(1), Tape("second").step(5).done(6)

    assert shown(one.events).startswith("first  ")
    assert [line[:10] for line in shown([*one.events, *two.events]).splitlines() if line.startswith("[")] == [
        "[1] first ",
        "[2] second",
    ]


@pytest.mark.parametrize(
    ("nanoseconds", "told"),
    [
        (0, "0 µs"),
        (-5, "0 µs"),
        (1, "0.00 µs"),
        (1_500, "1.50 µs"),
        (9_994, "9.99 µs"),
        (9_996, "10.0 µs"),
        (99_960, "100 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (12_340_000, "12.3 ms"),
        (999_999_999, "1.00 s"),
        (59_900_000_000, "59.9 s"),
        (59_960_000_000, "1m 00s"),
        (3_599_000_000_000, "59m 59s"),
        (3_599_900_000_000, "1h 00m"),
        (90_000_000_000_000, "1d 01h"),
        (10**15, "11d 13h"),
        (2**64, "213503d"),
    ],
)
def test_a_time_has_three_digits_and_at_most_seven_characters(nanoseconds: int, told: str) -> None:
    assert format_duration(nanoseconds) == told
    assert len(told) <= 7


def test_content_that_is_no_message_is_shown_as_it_is() -> None:
    for value in ("not json", "[]", "[1]", "null", json.dumps([{"parts": [{"type": "text"}]}]), "[" * 100_000):
        span: Any = SimpleNamespace(attributes={"gen_ai.output.messages": value})

        assert [word for word, _ in content_lines(span)] == ["said"]


def test_times_are_those_of_the_events_however_long_ago() -> None:
    tracing = Tracing(None)

    replay_events(tracing.hooks, Tape().step(0).tool("search", 1, 2).stepped(3).done(4).events)

    assert {span.start_time for span in tracing.spans} == {START, START + MS}
    assert max(span.end_time or 0 for span in tracing.spans) == START + 4 * MS
