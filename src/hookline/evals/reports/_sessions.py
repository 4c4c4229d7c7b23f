"""Record the tool calls of each test in a session, as plain data that can be sent between processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from hookline.calls import ToolResult
from hookline.errors import message_of
from hookline.evals._canonical import canonical
from hookline.evals.cassettes import Cassette, to_json_value
from hookline.evals.mocking import MockedCall, Outcome, ToolMocks
from hookline.evals.trajectories import EventRecorder
from hookline.events import AfterToolCall, BeforeToolCall, OnToolCallError
from hookline.redaction import Redacting, Redaction

__all__ = [
    "AskedCall",
    "CassetteUse",
    "SessionCall",
    "TestRecord",
    "WatchedCassette",
    "count_of",
    "decode_record",
    "encode_record",
    "record_of",
    "refused_calls",
    "summary_of",
    "unused_of",
    "use_of",
]

AskedCall: TypeAlias = tuple[BeforeToolCall, ToolResult | None]
"""A call and the answer of a cassette; `None` means that the real tool runs."""


class WatchedCassette(Cassette):
    """A cassette that remembers the calls it was asked to answer.

    Args:
        name: As for `Cassette`.
        **options: As for `Cassette`.

    Attributes:
        asked: Every call that it might have answered.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.asked: list[AskedCall] = []

    def answer(self, event: BeforeToolCall) -> ToolResult | None:
        result = super().answer(event)
        self.asked.append((event, result))
        return result


Key = tuple[str, str, int]
"""Operation, tool and call index, which identify a call."""

FormatArguments = Callable[[object], str]
"""A function that formats the arguments of a call."""

REDACTION = Redaction()
"""The default redaction of records."""

ARGUMENT_CHARACTERS = 4000
"""As much of a call's arguments as a row keeps."""

MESSAGE_CHARACTERS = 2000
"""As much as a record keeps of what went wrong."""


class SessionCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a test, and who answered it.

    Attributes:
        path: The tool, as `toolset/tool_name`.
        args: The arguments, as JSON text without secrets.
        call_index: The number of the call, from 1, per tool and operation.
        step_index: The step it was made in, from 0.
        outcome: `"mocked"`: a mock answered instead of the tool. `"real"`: the tool ran. `"refused"`: neither, for want
            of a rule. `"elsewhere"`: hooks other than the test's mocks answered or denied it.
        rule: The rule that answered.
        fault: The faults that struck, joined with commas.
        cassette: The cassette that answered, or had no answer.
        latency_ms: Time that the call was said to take.
    """

    path: str
    args: str
    call_index: int
    step_index: int
    outcome: Outcome
    rule: str | None = None
    fault: str | None = None
    cassette: str | None = None
    latency_ms: float = 0.0


class CassetteUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a test used its cassette.

    Attributes:
        path: The file, from the root of the tests.
        mode: Its record mode.
        recordings: How many it holds.
        written: Whether the file was written.
        unused: Recordings that no call asked for.
        misses: Calls that it could not answer.
    """

    path: str
    mode: str
    recordings: int = 0
    written: bool = False
    unused: list[str] = []
    misses: list[str] = []


class TestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The tool calls of one test, with its outcome.

    Attributes:
        nodeid: The test, as pytest names it.
        line: The line of the test in its file, from 1.
        outcome: `"passed"`, `"failed"`, `"error"`, `"skipped"`, `"xfailed"` or `"xpassed"`.
        message: The error message.
        duration_s: How long it ran, in seconds.
        seed: The seed of its faults.
        strict: Whether calls without a rule were refused.
        mocked: Calls that a mock answered instead of the tool.
        real: Calls in which the tool ran.
        refused: Calls that were refused for want of a rule.
        elsewhere: Calls that hooks other than the test's mocks answered or denied.
        faults: Names of the faults that struck, in order.
        cassette: How its cassette was used.
        calls: The tool calls, if a report was requested.
    """

    __test__ = False  # keeps pytest from collecting the class as a test

    nodeid: str
    line: int = 0
    outcome: str = "passed"
    message: str = ""
    duration_s: float = 0.0
    seed: int | None = None
    strict: bool = False
    mocked: int = 0
    real: int = 0
    refused: int = 0
    elsewhere: int = 0
    faults: list[str] = []
    cassette: CassetteUse | None = None
    calls: list[SessionCall] = []

    def with_outcome(
        self, outcome: str, message: str, duration_s: float, *, redaction: Redacting = REDACTION
    ) -> TestRecord:
        """Return the record with the outcome of the test.

        Args:
            outcome: The outcome, as pytest names it.
            message: The error message; `""` for none.
            duration_s: How long it ran, in seconds.
            redaction: Takes the secrets out of the message.
        """
        try:
            said = redaction.text(message)[:MESSAGE_CHARACTERS]
        except Exception as error:  # from the user's own redaction
            said = f"cannot be shown: {type(error).__name__}: {message_of(error)}"
        return msgspec.structs.replace(self, outcome=outcome, message=said, duration_s=duration_s)

    @property
    def ok(self) -> bool:
        """Whether the test neither failed nor ended with an error."""
        return self.outcome not in ("failed", "error")


def record_of(
    nodeid: str,
    *,
    line: int = 0,
    mocks: ToolMocks | None = None,
    recorder: EventRecorder | None = None,
    cassette: CassetteUse | None = None,
    asked: Sequence[AskedCall] = (),
    seed: int | None = None,
    strict: bool = False,
    with_calls: bool = False,
    redaction: Redacting = REDACTION,
) -> TestRecord:
    """Make the record of a test from its mocks, recorder and cassette.

    Args:
        nodeid: The test.
        line: The line of the test in its file, from 1.
        mocks: The test's mocks.
        recorder: The test's recorder, which may have seen calls that the mocks did not.
        cassette: How its cassette was used.
        asked: The calls that its cassette was asked to answer, by the mocks or by other hooks.
        seed: The seed of its faults.
        strict: Whether calls without a rule were refused.
        with_calls: Whether to keep a row for each call.
        redaction: Takes the secrets out of what the rows show.
    """
    shown = partial(_format_arguments, redaction=redaction) if with_calls else _omit_arguments
    # Who saw a call first says most about it: mocks know the rule, a recorder knows who answered.
    seen: dict[Key, SessionCall] = {}
    for call in mocks.calls if mocks is not None else ():
        seen[_key(call)] = _row_of_call(call, shown)
    for operation in recorder.operations.values() if recorder is not None else ():
        for answer in operation.answers:
            seen.setdefault(_key(answer), _row_of_answer(answer, shown))
    for event, result in asked:
        seen.setdefault(_key(event), _row_of_question(event, result, shown))
    rows = list(seen.values())
    outcomes = [row.outcome for row in rows]
    return TestRecord(
        nodeid=nodeid,
        line=line,
        seed=seed,
        strict=strict,
        mocked=outcomes.count("mocked"),
        real=outcomes.count("real"),
        refused=outcomes.count("refused"),
        elsewhere=outcomes.count("elsewhere"),
        faults=[strike.fault for strike in mocks.faults_struck] if mocks is not None else [],
        cassette=cassette,
        calls=rows if with_calls else [],
    )


def refused_calls(
    mocks: ToolMocks | None, cassette: Cassette | None, *, redaction: Redacting | None = None
) -> list[str]:
    """Describe the calls that no rule and no recording could answer, and that reached no tool.

    Args:
        mocks: The mocks of a test.
        cassette: The test's cassette, which lists the calls it could not answer.
        redaction: Takes the secrets out of the arguments.
    """
    shown = partial(_format_arguments, redaction=redaction or REDACTION)
    found = list(cassette.misses) if cassette is not None else []
    for call in mocks.calls if mocks is not None else ():
        if call.outcome == "refused" and (call.cassette is None or cassette is None):
            why = "no rule answers it" if call.rule is None else f"rule {call.rule!r} could not answer it"
            found.append(f"{call.path} with {shown(call.args)} (step {call.step_index}): {why}")
    return found


def use_of(cassette: Cassette, *, path: str, mode: str, written: bool) -> CassetteUse:
    """Describe how a test used its cassette.

    Args:
        cassette: The cassette, at the end of its test.
        path: The path of its file for people.
        mode: Its record mode.
        written: Whether its file was written.
    """
    return CassetteUse(
        path=path,
        mode=mode,
        recordings=len(cassette),
        written=written,
        unused=cassette.unused(),
        misses=list(cassette.misses),
    )


def encode_record(record: TestRecord) -> str:
    """Encode a record as ASCII JSON, which every channel between two processes can carry."""
    return canonical(record)


def decode_record(text: str) -> TestRecord:
    """Decode a record from its JSON text."""
    return msgspec.convert(json.loads(text), TestRecord)


def summary_of(records: Sequence[TestRecord]) -> str:
    """Summarize what tests did in one line: calls, faults, cassettes.

    Args:
        records: The records of the tests.
    """
    mocked = sum(each.mocked for each in records)
    real = sum(each.real for each in records)
    refused = sum(each.refused for each in records)
    elsewhere = sum(each.elsewhere for each in records)
    answered = f", {elsewhere} answered elsewhere" if elsewhere else ""
    parts = [f"{count_of(mocked, 'call')} mocked, {real} real, {refused} refused{answered}"]
    if faults := sum(len(each.faults) for each in records):
        seeds = sorted({each.seed for each in records if each.faults and each.seed is not None})
        parts.append(f"{count_of(faults, 'fault')} struck (seed {', '.join(map(str, seeds))})")
    used = [each.cassette for each in records if each.cassette is not None]
    if written := {each.path for each in used if each.written}:
        parts.append(f"{count_of(len(written), 'cassette')} written")
    if misses := sum(len(each.misses) for each in used):
        parts.append(f"{count_of(misses, 'call')} not recorded")
    if unused := len(unused_of(records)):
        parts.append(f"{count_of(unused, 'recording')} unused")
    return "; ".join(parts)


def unused_of(records: Sequence[TestRecord]) -> list[str]:
    """List the recordings that no test asked for, each with its file.

    Cassettes that a failed test used are left out: the test might have asked for more.

    Args:
        records: The records of the tests.
    """
    left: dict[str, list[str]] = {}
    for record in records:
        tape = record.cassette
        if tape is not None:
            unused = tape.unused if record.ok else []
            left[tape.path] = [each for each in left.get(tape.path, unused) if each in unused]
    return [f"{path}: {each} is unused" for path in sorted(left) for each in left[path]]


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: `1 call`, `2 calls`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _key(call: MockedCall | BeforeToolCall | AfterToolCall | OnToolCallError) -> Key:
    return call.operation_id, f"{call.toolset}/{call.tool_name}", call.call_index


def _row_of_call(call: MockedCall, shown: FormatArguments) -> SessionCall:
    return SessionCall(
        path=call.path,
        args=shown(call.args),
        call_index=call.call_index,
        step_index=call.step_index,
        outcome=call.outcome,
        rule=call.rule,
        fault=call.fault,
        cassette=call.cassette,
        latency_ms=call.latency_ms,
    )


def _row_of_answer(event: AfterToolCall | OnToolCallError, shown: FormatArguments) -> SessionCall:
    said = event.metadata
    outcome: Outcome = "refused" if said.get("unmocked") is True else "mocked" if event.mocked else "real"
    return SessionCall(
        path=f"{event.toolset}/{event.tool_name}",
        args=shown(event.args),
        call_index=event.call_index,
        step_index=event.step_index,
        outcome=outcome,
        rule=_text(said.get("rule")) or (event.answered_by if event.mocked and "cassette" not in said else None),
        fault=_text(said.get("fault")),
        cassette=_text(said.get("cassette")),
    )


def _row_of_question(event: BeforeToolCall, result: ToolResult | None, shown: FormatArguments) -> SessionCall:
    missed = result is not None and result.metadata.get("recording") is None
    return SessionCall(
        path=f"{event.toolset}/{event.tool_name}",
        args=shown(event.args),
        call_index=event.call_index,
        step_index=event.step_index,
        outcome="real" if result is None else "refused" if missed else "mocked",
        cassette=None if result is None else _text(result.metadata.get("cassette")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _omit_arguments(args: object) -> str:
    return ""


def _format_arguments(args: object, *, redaction: Redacting) -> str:
    try:
        text = canonical(redaction.value(to_json_value(args)), sort_keys=False)
    except Exception as error:  # arguments that cannot be encoded, or an error of the user's own redaction
        text = f"cannot be shown: {type(error).__name__}: {message_of(error)}"
    return text if len(text) <= ARGUMENT_CHARACTERS else f"{text[:ARGUMENT_CHARACTERS]}…"
