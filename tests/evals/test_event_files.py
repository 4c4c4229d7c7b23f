"""Recorded runs as files: what is written is read again, and what is no event is told with its line."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from events.samples import EXAMPLES, example

from hookline import Agent, BeforeToolCall, Event, ModelResponse, ScriptedModel, encode, exec_agent
from hookline.evals import EventFileError, EventRecorder, read_events, write_events
from hookline.evals.trajectories import _event_files

EVENTS: list[Event] = [example(kind) for kind in EXAMPLES]
GOOD = encode(EVENTS[0]) + b"\n"


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """As a user who may do nothing; root may do everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_all_sixteen_events_come_back_as_they_were_in_their_order(tmp_path: Path) -> None:
    path = write_events(tmp_path / "run.jsonl", EVENTS)

    assert path == tmp_path / "run.jsonl"
    assert len(EVENTS) == 16
    assert read_events(path) == EVENTS


def test_a_file_has_one_event_per_line_as_encode_writes_it(tmp_path: Path) -> None:
    path = write_events(tmp_path / "run.jsonl", EVENTS)

    assert path.read_bytes().splitlines() == [encode(event) for event in EVENTS]


def test_the_events_of_a_real_run_come_back(tmp_path: Path) -> None:
    recorder = EventRecorder()
    agent = Agent(id="tester", model=ScriptedModel([ModelResponse(content="hello")]))
    result = anyio.run(lambda: exec_agent(agent, "Say hello", hooks=[recorder.hooks]))
    events = recorder[result.operation_id].events

    assert read_events(write_events(tmp_path / "run.jsonl", events)) == events


def test_a_name_may_be_text(tmp_path: Path) -> None:
    write_events(f"{tmp_path}/run.jsonl", EVENTS)

    assert read_events(f"{tmp_path}/run.jsonl") == EVENTS


def test_writing_replaces_what_was_there(tmp_path: Path) -> None:
    path = write_events(tmp_path / "run.jsonl", EVENTS)

    write_events(path, EVENTS[:1])

    assert read_events(path) == EVENTS[:1]


def test_no_events_are_an_empty_file(tmp_path: Path) -> None:
    path = write_events(tmp_path / "run.jsonl", [])

    assert path.read_bytes() == b""
    assert read_events(path) == []


def test_blank_lines_and_a_missing_last_newline_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\n" + GOOD + b"  \r\n" + GOOD.replace(b"\n", b"\r\n") + GOOD.rstrip())

    assert read_events(path) == [EVENTS[0]] * 3


def test_a_file_of_many_events_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(GOOD * 20_000)

    assert len(read_events(path)) == 20_000


def test_an_event_of_some_megabytes_is_read(tmp_path: Path) -> None:
    event = example(BeforeToolCall, args={"text": "x" * 5_000_000})

    assert read_events(write_events(tmp_path / "run.jsonl", [event])) == [event]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"hello", "JSON is malformed: invalid character (byte 0) at $."),
        (b"\x00\xff\xfe\x00", "JSON is malformed"),
        (b"\xff", "JSON is malformed: invalid character (byte 0) at $."),
        (b"[]", "Expected `object`, got `array` at $."),
        (b"{}", "Object missing required field `type` at $.type."),
        (b'{"type": "afterParty"}', "Invalid value 'afterParty' at $.type."),
        (b'{"type": "beforeStep", "operationId": "op"}', "Object missing required field `stepIndex` at $.stepIndex."),
        (b'{"type": "beforeStep", "operationId": "op", "stepIndex": "1"}', "Expected `int`, got `str` at $.stepIndex."),
    ],
)
def test_a_line_that_is_no_event_is_told_with_its_number_and_what_is_wrong(
    line: bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)

    with pytest.raises(EventFileError) as caught:
        read_events(path)
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    assert str(caught.value).startswith(f"Line 3 of {path} cannot be read: {told.removesuffix('.')}")
    assert "as `write_events` writes it." in str(caught.value)


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_a_last_line_that_was_cut_off_is_told_to_be(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(GOOD + GOOD.rstrip()[:kept])

    with pytest.raises(EventFileError, match=r"Line 2 of .* cannot be read: it is cut off in the middle\."):
        read_events(path)


def test_a_line_without_an_end_is_given_up_at_some_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_event_files, "MAX_LINE", 1 << 20)

    with pytest.raises(EventFileError, match="Line 1 of /dev/zero cannot be read: it is longer than 1 MiB"):
        read_events("/dev/zero")


def test_a_file_that_is_not_there_or_a_folder_is_told(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(EventFileError) as caught:
            read_events(path)
        assert str(caught.value) == f"{path} cannot be read: {told}."


def test_a_file_that_may_not_be_read_or_written_is_told(tmp_path: Path) -> None:
    path = write_events(tmp_path / "run.jsonl", EVENTS)
    path.chmod(0)

    with nobody():
        with pytest.raises(EventFileError, match=r"cannot be read: Permission denied\."):
            read_events(path)
        with pytest.raises(EventFileError, match=r"cannot be written: Permission denied\."):
            write_events(path, EVENTS)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "no" / "file", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(EventFileError) as caught:
            write_events(path, EVENTS)
        assert str(caught.value) == f"{path} cannot be written: {told}."


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "(Encoding objects of type object is unsupported)."),
        (float("nan"), "(`args.x` is nan)."),
        ("\ud800", "surrogates not allowed)."),
    ],
)
def test_an_event_that_json_cannot_hold_is_told_and_nothing_is_written(
    value: object, told: str, tmp_path: Path
) -> None:
    path = write_events(tmp_path / "run.jsonl", EVENTS)

    with pytest.raises(EventFileError) as caught:
        write_events(path, [EVENTS[0], example(BeforeToolCall, args={"x": value})])
    assert caught.value.line == 2
    assert f"Line 2 of {path} cannot be written: a beforeToolCall event holds what JSON cannot" in str(caught.value)
    assert str(caught.value).endswith(told)
    assert read_events(path) == EVENTS


def test_the_error_survives_pickling() -> None:
    error = EventFileError("run.jsonl", "read", "it is cut off in the middle", 3)

    assert str(pickle.loads(pickle.dumps(error))) == str(error)
