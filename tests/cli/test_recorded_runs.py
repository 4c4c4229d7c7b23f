"""`hookline trace` on recorded runs: what is shown of them, and what is said of files that are none."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from evals.test_event_files import nobody

from cli.receiver import parsed, spans_of
from cli.scenes import SPANS, Tape, a_recorded_run, run
from hookline import BeforeStep, OnComplete
from hookline.evals import read_events, write_events


def names_in(document: str) -> set[str]:
    return {span.name for span in spans_of(parsed(document))}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return a_recorded_run(tmp_path)


@pytest.mark.parametrize("command", ["trace", "eval"])
def test_a_run_that_was_recorded_is_shown_with_all_but_its_model_calls(command: str, tmp_path: Path) -> None:
    target = tmp_path / "run.jsonl"
    first = run(command, "agentdojo:banking", "--task", "user_task_0", "--record", str(target), width=300)

    result = run("trace", str(target), "--json")

    assert f"Recorded run: {target}" in first.stdout
    assert names_in(result.stdout) == SPANS - {"chat ground-truth"}
    assert {event.time_unix_nano for event in read_events(target)} >= {
        span.start_time_unix_nano for span in spans_of(parsed(result.stdout))
    }


def test_events_of_runs_at_the_same_time_are_recorded_and_shown_each_under_its_own(tmp_path: Path) -> None:
    target = tmp_path / "run.jsonl"
    tasks = [part for number in range(4) for part in ("--task", f"user_task_{number}")]
    run("trace", "agentdojo:banking", *tasks, "--concurrency", "4", "--record", str(target))

    spans = spans_of(parsed(run("trace", str(target), "--json").stdout))

    roots = [span for span in spans if not span.parent_span_id]
    assert len(roots) == len({span.trace_id for span in spans}) == 4
    assert {span.parent_span_id for span in spans} - {b""} <= {span.span_id for span in spans}


def test_a_recorded_run_says_that_model_calls_are_missing(recorded: Path) -> None:
    result = run("trace", str(recorded))

    assert result.exit_code == 0
    assert "✗ execute_tool fetch  OSError" in result.stdout
    assert result.stdout.endswith("A recorded run has no model calls: they have no events.\n")


def test_a_recording_without_an_end_ends_with_its_last_event(tmp_path: Path) -> None:
    tape = Tape().step(0).tool("search", 10, 400)
    child = Tape("child", "writer", "op").step(5)
    path = write_events(tmp_path / "run.jsonl", [*tape.events[:1], *child.events, tape.events[1]])

    spans = spans_of(parsed(run("trace", str(path), "--json").stdout))

    ends = {span.end_time_unix_nano for span in spans}
    assert len(spans) == 5
    assert max(ends) == tape.events[1].time_unix_nano


def test_runs_of_different_days_in_one_file_each_end_with_their_own_last_event(tmp_path: Path) -> None:
    one, two = Tape("one").step(0), Tape("two").step(90_000_000)
    path = write_events(tmp_path / "run.jsonl", [*one.events, *two.events])

    spans = spans_of(parsed(run("trace", str(path), "--json").stdout))

    assert {span.end_time_unix_nano - span.start_time_unix_nano for span in spans} == {0}


def test_operations_that_name_each_other_as_their_parents_are_shown_all_the_same(tmp_path: Path) -> None:
    events = [
        BeforeStep(operation_id=one, parent_operation_id=other, step_index=0, time_unix_nano=number)
        for number, (one, other) in enumerate([("a", "b"), ("b", "a"), ("c", "c")], start=1)
    ]
    path = write_events(tmp_path / "run.jsonl", events)

    result = run("trace", str(path))

    assert result.exit_code == 0
    assert "6 spans" in result.stdout


def test_a_child_that_is_told_of_before_its_parent_is_shown_all_the_same(tmp_path: Path) -> None:
    child, parent = Tape("child", "writer", "op").step(5).done(6), Tape().step(0).done(9)
    path = write_events(tmp_path / "run.jsonl", [*child.events, *parent.events])

    assert "4 spans" in run("trace", str(path)).stdout


def test_a_recording_of_a_mock_that_nobody_answers_is_not_asked_again(tmp_path: Path) -> None:
    tape = Tape().step(0).tool("search", 1, 2, mocked=True, answered_by="cassette.play")
    path = write_events(tmp_path / "run.jsonl", tape.stepped(3).done(4).events)

    assert "mocked by cassette.play" in run("trace", str(path)).stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "cannot be traced: it has no events."),
        (b"\n\n", "cannot be traced: it has no events."),
        (b"hello\n", "Line 1 of {path} cannot be read: JSON is malformed: invalid character (byte 0) at $."),
        (b"\x7fELF\x02\x01\x01\x00", "Line 1 of {path} cannot be read: JSON is malformed"),
        (b'{"type":"beforeStep","opera', "Line 1 of {path} cannot be read: it is cut off in the middle."),
        (b'{"resourceSpans":[]}\n', "Line 1 of {path} cannot be read: Object missing required field `type` at $.type."),
    ],
)
def test_a_file_that_is_no_recorded_run_is_told_in_one_line(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)

    result = run("trace", str(path))

    assert (result.exit_code, result.stdout) == (2, "")
    assert told.format(path=path) in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_recording_of_ends_alone_is_told_to_show_nothing(tmp_path: Path) -> None:
    events = [
        event for event in Tape().step(0).stepped(1).done(2).events if not isinstance(event, BeforeStep | OnComplete)
    ]
    path = write_events(tmp_path / "run.jsonl", events)

    result = run("trace", str(path))

    assert (result.exit_code, result.stdout) == (2, "")
    assert "it has no spans" in result.stderr


def test_a_file_that_may_not_be_read_is_told_in_one_line(recorded: Path) -> None:
    recorded.chmod(0)
    for parent in itertools.takewhile(Path(tempfile.gettempdir()).__ne__, recorded.parents):
        parent.chmod(0o755)

    with nobody():
        result = run("trace", str(recorded))

    assert result.exit_code == 2
    assert result.stderr == f"hookline: {recorded} cannot be read: Permission denied.\n"
