"""Recorded calls: the key by which one answers a call (tool and arguments), and what is nearest where none does."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from hookline.calls import ToolResult
from hookline.evals._canonical import canonical
from hookline.evals._equality import json_key
from hookline.evals._recorded_answers import RecordedAnswers, ReplayScope
from hookline.events import AfterToolCall, OnToolCallError
from hookline.redaction import Redacting

__all__ = [
    "Matching",
    "RecordedCall",
    "RecordedCalls",
    "diff_arguments",
    "explain_miss",
    "find_nearest",
    "recording_of",
    "sort_for_file",
    "to_json_value",
]

Matching = Literal["keyed", "sequential"]

PROVENANCE = ("cassette", "recording", "latency_ms", "stale")
"""Metadata that says how a call went this time; it would be another one the next time."""

Key = tuple[str, str, str]
"""The sub-agent, the tool, and the arguments as canonical JSON (nothing where they do not matter)."""


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded tool call with its answer.

    Attributes:
        tool: The tool, as `toolset/tool_name`.
        args: The arguments, without secrets.
        result: The tool's answer, or the message of its exception.
        success: Whether the tool succeeded.
        raised: The exception's class name, if the tool raised.
        metadata: The metadata of the answer.
        step: The step of its operation, from 0.
        call_index: The number of the call, from 1, per tool and operation.
        agent: The sub-agent that called; empty for the main agent.
        operation: The number of that sub-agent's run, or of the turn of a conversation, from 1.
    """

    tool: str
    args: dict[str, Any]
    result: str
    success: bool = True
    raised: str | None = None
    metadata: dict[str, Any] = {}
    step: int = 0
    call_index: int = 1
    agent: str = ""
    operation: int = 1

    def __str__(self) -> str:
        who = f"{self.agent}: " if self.agent else ""
        return f"{who}{self.tool} with {canonical(self.args):.200}"

    @property
    def answer(self) -> ToolResult:
        """Return the recorded answer as a result."""
        succeeded = self.success and self.raised is None
        return ToolResult(content=self.result, success=succeeded, error_type=self.raised, metadata=self.metadata)


def recording_of(event: AfterToolCall | OnToolCallError, scope: ReplayScope, redaction: Redacting) -> RecordedCall:
    """Make a recording of a call that has ended, without secrets."""
    if isinstance(event, OnToolCallError):
        result, success, raised = event.error, False, event.error_type
    else:
        result, success, raised = event.content, event.success, None
    metadata = {key: value for key, value in event.metadata.items() if key not in PROVENANCE}
    return RecordedCall(
        tool=f"{event.toolset}/{event.tool_name}",
        args=redaction.value(to_json_value(event.args)),
        result=redaction.text(result),
        success=success,
        raised=raised,
        metadata=redaction.value(to_json_value(metadata)) if metadata else {},
        step=event.step_index,
        call_index=event.call_index,
        agent=scope.agent,
        operation=scope.operation(event.operation_id),
    )


_PLAIN = frozenset({str, int, float, bool, type(None)})
"""What `to_json_value` returns as it is, without a call for each."""


def to_json_value(value: Any) -> Any:
    """Copy a value as plain JSON data. Anything else becomes the text of its `repr`."""
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, dict):
        return {
            key if key.__class__ is str else _text(key): item if item.__class__ in _PLAIN else to_json_value(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return json.loads(canonical(value))


def _text(key: object) -> str:
    return str(key) if isinstance(key, str) else str(next(iter(json.loads(json.dumps({key: None}, default=repr)))))


class RecordedCalls(RecordedAnswers[RecordedCall]):
    """Recordings of tool calls, found by tool and arguments.

    Args:
        matching: Whether a recording is found by its arguments, or by its place among the calls of the tool.
        ignore: Fields of the arguments that make no difference.
        allow_repeats: Whether a call that is made more often than it was recorded gets the last answer again.

    Attributes:
        matching: How recordings are found.
    """

    def __init__(self, matching: Matching, ignore: Sequence[str] = (), *, allow_repeats: bool = False) -> None:
        super().__init__(allow_repeats=allow_repeats)
        self.matching: Matching = matching
        self._ignore = [field.split(".") for field in ignore]

    def key(self, agent: str, tool: str, args: dict[str, Any]) -> Key:
        """Return the key by which the recordings of a call are found."""
        if self.matching == "sequential":
            return agent, tool, ""
        for field in self._ignore:
            args = _without(args, field)
        return agent, tool, json_key(args)


def sort_for_file(recordings: Iterable[RecordedCall]) -> list[RecordedCall]:
    """Sort recordings in the order of a file, which is the same for the same recordings."""
    return sorted(recordings, key=_file_order)


def _file_order(recording: RecordedCall) -> tuple[str, int, int, str, int, str]:
    args = canonical(recording.args)
    return recording.agent, recording.operation, recording.step, recording.tool, recording.call_index, args


def _without(value: Any, field: list[str]) -> Any:
    """Copy a value without a field, named from the outside in; `*` stands for every name and position."""
    name, *inner = field
    if isinstance(value, dict):
        names = list(value) if name == "*" else [name] if name in value else []
        changed = {each: _without(value[each], inner) for each in names} if inner else {}
        return {key: changed.get(key, item) for key, item in value.items() if inner or key not in names}
    if isinstance(value, list):
        places = [place for place in range(len(value)) if name in ("*", str(place))]
        if not inner:
            return [item for place, item in enumerate(value) if place not in places]
        return [_without(item, inner) if place in places else item for place, item in enumerate(value)]
    return value


COMPARED = 200
"""Recordings of the tool that are looked at."""
COMPARED_CHARACTERS = 2_000
"""Characters of each one's arguments that are looked at."""
LISTED = 3
LISTED_CHARACTERS = 300
"""Bounds of what is listed in a sentence."""
SHOWN_LINES = 40
SHOWN_WIDTH = 110
READ_LINES = 1_000
"""Bounds of a difference: it goes to a model, and a test prints it."""


def explain_miss(recordings: Iterable[RecordedCall], tool: str, args: dict[str, Any], agent: str, known: int) -> str:
    """Explain why no recording answers a call.

    Args:
        recordings: All recordings of the cassette.
        tool: The tool.
        args: The arguments.
        agent: The sub-agent that calls; empty for the main agent.
        known: How many recordings of this very call there were.

    Returns:
        A sentence, and a difference in lines of their own where another recording comes near.
    """
    call = f"{tool} with {_short(args)}"
    if known:
        return f"{call}: it was recorded {known} times, and this is call {known + 1}. The real tool was not run."
    held = list(recordings)
    near = find_nearest(held, tool, args, agent)
    if near is None:
        others = _join_some(sorted({recording.tool for recording in held}))
        reason = f"no call of {tool} was recorded{f', only of {others}' if others else ''}"
        return f"{call}: {reason}. The real tool was not run."
    reason = (
        f"{tool} was recorded with {_join_some(dict.fromkeys(_short(each.args) for each in held if each.tool == tool))}"
    )
    if near.agent != agent:
        reason += f", by {f'the sub-agent {near.agent!r}' if near.agent else 'the agent that was run'}"
    shown = diff_arguments(near.args, args)
    return (
        f"{call}: {reason}. The real tool was not run."
        f"{f'{chr(10)}The nearest recording has other arguments:{chr(10)}{shown}' if shown else ''}"
    )


def _short(args: dict[str, Any]) -> str:
    text = canonical(args)
    return text if len(text) <= LISTED_CHARACTERS else f"{text[:LISTED_CHARACTERS]}..."


def _join_some(texts: Iterable[str]) -> str:
    shown = list(texts)
    return f"{', '.join(shown[:LISTED])}{' and others' if len(shown) > LISTED else ''}"


def find_nearest(
    recordings: Iterable[RecordedCall], tool: str, args: dict[str, Any], agent: str
) -> RecordedCall | None:
    """Find the recording of the same tool with the most similar arguments, first among those of the same sub-agent."""
    same = [recording for recording in recordings if recording.tool == tool]
    near = [recording for recording in same if recording.agent == agent] or same
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(canonical(args)[:COMPARED_CHARACTERS])
    best: RecordedCall | None = None
    best_score = -1.0
    for recording in near[:COMPARED]:
        matcher.set_seq1(canonical(recording.args)[:COMPARED_CHARACTERS])
        score = sum(key in args and args[key] == value for key, value in recording.args.items()) + matcher.quick_ratio()
        if score > best_score:
            best, best_score = recording, score
    return best


def diff_arguments(recorded: dict[str, Any], asked: dict[str, Any]) -> str:
    """Return a short unified diff of two sets of arguments; an empty text if they are equal."""
    lines = list(
        difflib.unified_diff(list(_lines(recorded)), list(_lines(asked)), "recorded", "asked", n=2, lineterm="")
    )
    if len(lines) > SHOWN_LINES:
        lines[SHOWN_LINES:] = [f"... and {len(lines) - SHOWN_LINES} more lines"]
    return "\n".join(lines)


def _lines(args: dict[str, Any]) -> Iterator[str]:
    """Split arguments into lines, long ones into several, so that a diff shows where they differ."""
    for number, line in enumerate(canonical(args, indent=2).split("\n")):
        if number >= READ_LINES:
            return
        for start in range(0, min(len(line), READ_LINES * SHOWN_WIDTH), SHOWN_WIDTH):
            yield line[start : start + SHOWN_WIDTH]
