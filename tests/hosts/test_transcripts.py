"""Tokens and cost of sessions, from the transcripts that coding agents write; nothing else depends on them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.hosts import Host, Moment
from hookline.hosts._transcripts import FORMATS, LONGEST_LINE, ReportedCall, Transcript
from hookline.runtime import ModelCallRecord, OperationState
from tests.hosts.in_process import LocalHost, recorded
from tests.otel.scenes import Scene, attributes

RECORDED = Path(__file__).parent / "transcripts"


class Figures(NamedTuple):
    """Number of model calls, and the tokens of each."""

    calls: int
    read: int
    wrote: int


MAIN = {
    "claude": Figures(3, 1110, 7),
    "codex": Figures(4, 110, 5),
    "gemini": Figures(3, 110, 8),
    "copilot": Figures(3, 110, 5),
}
CHILD = {
    "claude": Figures(2, 1110, 7),
    "codex": Figures(2, 110, 5),
    "gemini": Figures(4, 110, 8),
    "copilot": Figures(2, 110, 5),
}


def read(host: str, path: Path, since: float = 0.0, seconds: float = 10.0) -> list[ReportedCall]:
    return Transcript(str(path), FORMATS[host], since).read(monotonic() + seconds)


def line(call_id: str, *, read_tokens: int = 10, **more: Any) -> bytes:
    """Return a line of Claude Code's transcript."""
    usage = {"input_tokens": read_tokens, "output_tokens": 1}
    message = {"id": call_id, "model": "claude-opus-4-5", "usage": usage}
    return (
        json.dumps({"type": "assistant", "timestamp": "2026-11-24T18:37:34.819Z", "message": message, **more}).encode()
        + b"\n"
    )


# Files.


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_the_calls_of_a_recorded_transcript_are_read_once_with_their_tokens(name: str) -> None:
    transcript = Transcript(str(RECORDED / f"{name}.jsonl"), FORMATS[name], 0.0)

    calls = transcript.read(monotonic() + 10)

    expected = MAIN[name]
    assert [(each.tokens["input_tokens"], each.tokens["output_tokens"]) for each in calls] == [
        expected[1:]
    ] * expected.calls
    assert all(each.cost_usd > 0 and each.model for each in calls)
    assert transcript.read(monotonic() + 10) == []


def test_the_lines_of_copilot_name_the_sub_agent() -> None:
    calls = read("copilot", RECORDED / "copilot.jsonl")

    assert [bool(each.agent_id) for each in calls] == [False, False, True, True, False]
    assert {each.cost_usd for each in calls} == {0.0}


def test_a_transcript_is_read_on_where_it_was_left(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(line("a") + line("b")[:40])
    transcript = Transcript(str(file), FORMATS["claude"], 0.0)

    first = transcript.read(monotonic() + 10)
    file.write_bytes(line("a") + line("b") + line("c"))
    second = transcript.read(monotonic() + 10)

    assert [each.id for each in first] == ["a"]
    assert [each.id for each in second] == ["b", "c"]


def test_of_several_lines_about_a_call_the_last_counts(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(line("a", read_tokens=1) + line("a", read_tokens=9))

    assert [each.tokens["input_tokens"] for each in read("claude", file)] == [9]


def test_a_transcript_that_was_replaced_is_read_anew_and_no_call_counts_twice(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(line("a") + line("b"))
    transcript = Transcript(str(file), FORMATS["claude"], 0.0)
    transcript.read(monotonic() + 10)
    (tmp_path / "new").write_bytes(line("a") + line("b") + line("c"))
    (tmp_path / "new").replace(file)

    assert [each.id for each in transcript.read(monotonic() + 10)] == ["c"]


def test_calls_of_before_the_session_belong_to_another_operation() -> None:
    calls = read("codex", RECORDED / "codex.jsonl")

    assert read("codex", RECORDED / "codex.jsonl", since=calls[2].at) == calls[2:]


def test_totals_of_an_older_codex_count_once(tmp_path: Path) -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    info = {"total_token_usage": {"input_tokens": 5, "output_tokens": 2}, "last_token_usage": usage}
    told = {"timestamp": "2026-01-01T00:00:00Z", "type": "event_msg", "payload": {"type": "token_count", "info": info}}
    file = tmp_path / "t.jsonl"
    file.write_text(f"{json.dumps(told)}\n" * 3)

    assert [each.tokens for each in read("codex", file)] == [usage]


def test_the_document_of_an_older_gemini_is_read(tmp_path: Path) -> None:
    messages = [json.loads(each) for each in (RECORDED / "gemini.jsonl").read_text().splitlines()]
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"sessionId": "s-1", "messages": messages}, indent=2))

    assert len(read("gemini", file)) == MAIN["gemini"].calls


@pytest.mark.parametrize("host", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"nonsense",
        b'{"type": "assistant", "usage": 1}\n' * 3,
        b'{"type":"assistant","message":{"usage":{"input_tokens":"many"},"id":[]},"timestamp":"yesterday"}\n',
        b'{"type":"token_usage_record","payload":null}\n{"type":"event_msg","payload":{"type":"token_count","info":null}}\n',
        b'{"type":"gemini","tokens":[],"id":1,"timestamp":""}\n{"$set":{"messages":[1,"tokens"]}}\n',
        b'{"type":"session.usage_record","data":{"usage":"none"}}\n',
        b'["usage", "tokens", "token_count", "session.usage_record"]\n',
        b'{"usage":' * 3000 + b"\n",
        b'\xff\xfe{"usage": 1}\n',
    ],
)
def test_lines_that_are_not_understood_are_skipped(tmp_path: Path, host: str, text: bytes) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(text + (RECORDED / f"{host}.jsonl").read_bytes() if text.endswith(b"\n") else text)

    assert len(read(host, file)) in (0, len(read(host, RECORDED / f"{host}.jsonl")))


@given(st.lists(st.binary(max_size=60), max_size=8), st.integers(0, 7))
def test_no_file_makes_reading_fail(tmp_path_factory: pytest.TempPathFactory, junk: list[bytes], place: int) -> None:
    file = tmp_path_factory.getbasetemp() / "junk.jsonl"
    lines = (RECORDED / "claude.jsonl").read_bytes().splitlines(keepends=True)
    lines[place:place] = junk
    file.write_bytes(b"".join(lines))

    assert len(read("claude", file)) <= MAIN["claude"].calls


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    with file.open("wb") as opened:
        opened.write(line("a"))
        opened.write(b'"usage"' + b"x" * (LONGEST_LINE + 2 * 1024 * 1024) + b"\n")
        opened.write(line("b"))

    assert [each.id for each in read("claude", file)] == ["a", "b"]


def test_a_reading_stops_when_its_time_is_over(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(line("a"))
    transcript = Transcript(str(file), FORMATS["claude"], 0.0)

    assert transcript.read(monotonic()) == []
    assert [each.id for each in transcript.read(monotonic() + 10)] == ["a"]


def test_what_is_no_readable_file_has_no_calls(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for path in ("/nowhere/t.jsonl", str(tmp_path / "pipe"), str(tmp_path / "folder"), "/dev/zero", "a\0b", ""):
        assert read("claude", Path(path) if path else Path()) == []


# Sessions.


def lay_out(host: str, folder: Path, session: list[tuple[str, dict[str, Any]]]) -> None:
    """Put the recorded transcripts where the frames of a session name them, as if they were written from now on."""
    main = next(
        value
        for _, frame in session
        for key, value in frame.items()
        if key in ("transcript_path", "transcriptPath") and value
    )
    write_now(RECORDED / f"{host}.jsonl", Path(main), session)
    inside = next(
        (frame.get("agent_transcript_path") for _, frame in session if frame.get("agent_transcript_path")), None
    )
    if host == "gemini":
        inside = str(Path(main).parent / session[0][1]["session_id"] / "agent.jsonl")
    if inside is not None:
        write_now(RECORDED / f"{host}-agent.jsonl", Path(inside), session)


def write_now(source: Path, target: Path, session: list[tuple[str, dict[str, Any]]]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(each) for each in source.read_text().splitlines()]
    agent = next((frame[key] for _, frame in session for key in ("agent_id", "agentId") if key in frame), "")
    start = datetime.now(UTC) + timedelta(seconds=1)
    for nth, each in enumerate(lines):
        if "timestamp" in each:
            each["timestamp"] = (start + timedelta(milliseconds=nth)).isoformat()
        if each.get("agentId"):
            each["agentId"] = agent
    target.write_text("".join(f"{json.dumps(each)}\n" for each in lines))


async def replay(host: LocalHost, folder: Path) -> tuple[OperationState, OperationState]:
    """Replay a recorded session with its transcripts; return its operation, and that of its sub-agent."""
    session = recorded(host.host.name, "s-1", folder)
    ends = next(nth for nth, (event, frame) in enumerate(session) if ends_agent(host.host, event, frame))
    for nth, (event, frame) in enumerate(session):
        if nth == ends:
            lay_out(host.host.name, folder, session)
        await host.ask(event, frame)
    states = await host.operations("s-1")
    main, child = (
        next(each for each in states if (each.parent_operation_id is None) is wanted) for wanted in (True, False)
    )
    return main, child


def ends_agent(host: Host, event: str, frame: dict[str, Any]) -> bool:
    """Whether an event is the end of a sub-agent."""
    moment = host.events[event]
    return moment is Moment.AGENT_STOP or (moment is Moment.AFTER_TOOL and frame.get("tool_name") == "invoke_agent")


@pytest.mark.anyio
@pytest.mark.parametrize("name", MAIN)
async def test_the_tokens_of_a_session_are_those_of_its_operations(folder: Path, name: str) -> None:
    async with LocalHost(folder, name) as host:
        main, child = await replay(host, folder)

        records = [await host.store.model_calls_of(each.operation_id) for each in (main, child)]
        stored = [await host.store.operation(each.operation_id) for each in (main, child)]
    for state, calls, expected, row in zip((main, child), records, (MAIN[name], CHILD[name]), stored, strict=True):
        told = [each for each in calls if each.input_tokens]
        assert [(each.input_tokens, each.output_tokens) for each in told] == [expected[1:]] * expected.calls
        assert all(each.model for each in told)
        assert len(calls) == state.llm_calls == max(state.steps, expected.calls)
        assert state.usage.input_tokens == expected.calls * expected.read
        assert row is not None
        assert row.total_tokens == expected.calls * (expected.read + expected.wrote)
        assert (row.cost_usd > 0) is (name != "copilot")


@pytest.mark.anyio
@pytest.mark.parametrize("name", MAIN)
async def test_the_trace_of_a_session_has_the_tokens_of_its_model_calls(folder: Path, name: str) -> None:
    with Scene() as scene:
        scene.traces = 1
        async with LocalHost(folder, name, more=[scene.tracing()]) as host:
            states = await replay(host, folder)

    for state, expected in zip(states, (MAIN[name], CHILD[name]), strict=False):
        chats = [attributes(span) for span in scene.of(state.operation_id) if span.name.startswith("chat")]
        told = [each for each in chats if "gen_ai.usage.input_tokens" in each]
        assert [(each["gen_ai.usage.input_tokens"], each["gen_ai.usage.output_tokens"]) for each in told] == [
            expected[1:]
        ] * expected.calls
        assert all(each["gen_ai.request.model"] and each["gen_ai.operation.name"] == "chat" for each in told)


@pytest.mark.anyio
async def test_each_call_belongs_to_the_step_that_it_led_to(folder: Path) -> None:
    async with LocalHost(folder, "claude") as host:
        session = recorded("claude", "s-1", folder)
        path = Path(session[0][1]["transcript_path"])
        path.parent.mkdir(parents=True)
        await host.ask(*session[1])
        for nth in range(2):
            append(path, f"m-{nth}")
            await host.ask(*host.shell(f"echo {nth}", transcript_path=str(path)))
            await host.ask(
                *host.frame(
                    "PostToolUse",
                    session_id="s-1",
                    tool_use_id=f"call echo {nth}",
                    tool_input={"command": f"echo {nth}"},
                )
            )
        append(path, "m-2")
        await host.ask(*host.frame("Stop", session_id="s-1", transcript_path=str(path)))
        append(path, "m-3")
        await host.ask(*host.frame("SessionEnd", session_id="s-1", transcript_path=str(path)))

        calls = await calls_of(host)
    assert [each.step_index for each in calls] == [0, 1, 2, 2]
    assert all(0 <= each.duration_ms < 60_000 for each in calls)


def append(path: Path, call_id: str) -> None:
    """Add the line of a call that ends now."""
    with path.open("ab") as file:
        file.write(line(call_id, timestamp=datetime.now(UTC).isoformat()))


async def calls_of(host: LocalHost) -> list[ModelCallRecord]:
    main = (await host.operations("s-1"))[0]
    return await host.store.model_calls_of(main.operation_id)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["claude", "cursor"])
async def test_without_a_transcript_the_steps_are_counted_as_calls_without_tokens(folder: Path, name: str) -> None:
    async with LocalHost(folder, name) as host:
        for event, frame in recorded(name, "s-1", folder):
            await host.ask(event, frame)

        main = next(each for each in await host.operations("s-1") if each.parent_operation_id is None)
        calls = await host.store.model_calls_of(main.operation_id)
    assert len(calls) == main.llm_calls == main.steps
    assert (main.usage.input_tokens, main.usage.cost_usd) == (0, 0.0)


@pytest.mark.anyio
async def test_the_cost_that_claude_counts_itself_is_added_where_a_price_is_not_known(folder: Path) -> None:
    async with LocalHost(folder, "claude") as host:
        session = recorded("claude", "s-1", folder)
        lay_out("claude", folder, session)
        path = Path(session[0][1]["transcript_path"])
        path.write_text(path.read_text().replace('"claude-opus-5-5"', '"a-model-of-tomorrow"').replace("0.0044", "1.5"))
        for event, frame in session:
            await host.ask(event, frame)

        stored = [await host.store.operation(each.operation_id) for each in await host.operations("s-1")]
    assert sum(each.cost_usd for each in stored if each is not None) == pytest.approx(1.5)


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["relative.jsonl", "/dev/zero", "/", "a\0b", "\ud83d", 7])
async def test_a_transcript_that_cannot_be_read_costs_a_session_nothing(folder: Path, path: object) -> None:
    async with LocalHost(folder, "claude") as host:
        for event, frame in recorded("claude", "s-1", folder):
            assert await host.ask(event, {**frame, "transcript_path": path, "agent_transcript_path": path}) == {}

        assert {each.status for each in await host.operations("s-1")} == {"done"}


@pytest.mark.anyio
async def test_what_copilot_writes_after_its_session_ended_still_counts(folder: Path) -> None:
    async with LocalHost(folder, "copilot") as host:
        session = recorded("copilot", "s-1", folder)
        path = Path(next(frame["transcriptPath"] for _, frame in session if frame.get("transcriptPath")))
        await host.ask(*session[1])
        await host.ask(*session[-2])
        lay_out("copilot", folder, session)
        whole = path.read_text()
        path.write_text("")
        event, frame = session[-1]
        answer = await host.resident.answer(event, json.dumps(frame).encode(), 20.0, perf_counter())
        path.write_text(whole)
        await host.policy.settle()

        main = (await host.operations("s-1"))[0]
    assert answer.out == b""
    assert (main.status, main.llm_calls) == ("done", MAIN["copilot"].calls + CHILD["copilot"].calls)


@pytest.mark.anyio
async def test_no_tokens_are_lost_when_the_process_ends(folder: Path) -> None:
    async with LocalHost(folder, "codex") as host:
        session = recorded("codex", "s-1", folder)
        lay_out("codex", folder, session)
        await host.ask(*session[1])

    async with LocalHost(folder, "codex") as reader:
        main = (await reader.operations("s-1"))[0]
    assert (main.status, main.llm_calls) == ("interrupted", MAIN["codex"].calls)
