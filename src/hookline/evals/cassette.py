"""A recording of tool calls that can answer the same calls again, without the tools."""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import Any

import msgspec

from hookline.calls import ToolResult
from hookline.evals._canonical import canonical
from hookline.events import AfterToolCall, BeforeToolCall, OnComplete, OnToolCallError
from hookline.hooks import Hooks

__all__ = ["Cassette"]

Key = tuple[str, str]
"""A tool's path and its arguments as canonical JSON."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What one real call was answered.

    Attributes:
        operation_id: The run in which it was recorded.
        call_index: Its place among that run's calls of the tool, from 1.
        result: What the tool answered, or raised.
    """

    operation_id: str
    call_index: int
    result: ToolResult


class Cassette:
    """Records what tools answer in one run, and answers in their place in another.

    A call is found again by its tool, its arguments (whatever the order of their keys) and how often the operation
    has made that very call before. Use one cassette per task. Recording another run replaces, call by call, what an
    earlier one had recorded.

    Args:
        name: Appears in the metadata of every call that the cassette answers.
    """

    def __init__(self, name: str = "cassette") -> None:
        self.name = name
        self._recordings: dict[Key, list[Recording]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._recordings.values()))

    def __repr__(self) -> str:
        return f"Cassette({self.name!r}, recordings={len(self)})"

    def recorder(self) -> Hooks:
        """Hooks that record every call that a tool answered or raised in; calls that a hook answered are left out."""
        hooks = Hooks(f"{self.name}.recorder")

        @hooks.on(AfterToolCall)
        def answered(event: AfterToolCall) -> None:
            self._record(event, ToolResult(content=event.content, success=event.success, metadata=event.metadata))

        @hooks.on(OnToolCallError)
        def raised(event: OnToolCallError) -> None:
            failure = ToolResult(
                content=event.error, success=False, error_type=event.error_type, metadata=event.metadata
            )
            self._record(event, failure)

        return hooks

    def player(self) -> Hooks:
        """Hooks that answer every call from the recording.

        A call that was not recorded is answered too, with a failed result that says so: while these hooks are
        attached no real tool runs. `metadata["recording"]` names the recording that answered, `None` for a miss.
        """
        hooks = Hooks(f"{self.name}.player")
        played: dict[str, defaultdict[Key, set[int]]] = {}

        @hooks.on(BeforeToolCall)
        def answer(event: BeforeToolCall) -> None:
            key = _key(event)
            used = played.setdefault(event.operation_id, defaultdict(set))[key]
            event.mock(self._answer(key, event.call_index, used))

        @hooks.on(OnComplete)
        def forget(event: OnComplete) -> None:
            if event.reason != "waiting_for_human":
                played.pop(event.operation_id, None)

        return hooks

    def _record(self, event: AfterToolCall | OnToolCallError, result: ToolResult) -> None:
        if event.mocked:
            return
        key = _key(event)
        track = self._recordings.get(key)
        if not track or track[0].operation_id != event.operation_id:
            track = self._recordings[key] = []
        # Parallel calls may end in any order; they are played in the order in which the model asked for them.
        recording = Recording(operation_id=event.operation_id, call_index=event.call_index, result=result)
        bisect.insort(track, recording, key=lambda each: each.call_index)

    def _answer(self, key: Key, call_index: int, used: set[int]) -> ToolResult:
        track = self._recordings.get(key, [])
        unused = [place for place in range(len(track)) if place not in used]
        if not unused:
            return self._miss(key, len(used) + 1)
        # Equal calls of one step start in any order on trio, so the recording of the same index comes first.
        place = next((each for each in unused if track[each].call_index == call_index), unused[0])
        used.add(place)
        recorded = track[place].result
        provenance = {"cassette": self.name, "recording": f"{key[0]} #{place + 1}"}
        return msgspec.structs.replace(recorded, metadata={**recorded.metadata, **provenance})

    def _miss(self, key: Key, nth: int) -> ToolResult:
        tool, args = key
        others = [known[1] for known in self._recordings if known[0] == tool]
        if any(known == args for known in others):
            reason = f"it was recorded {len(self._recordings[key])} times, and this is call {nth}"
        elif others:
            reason = f"{tool} was recorded with {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}"
        else:
            reason = f"no call of {tool} was recorded"
        metadata: dict[str, Any] = {"cassette": self.name, "recording": None}
        content = f"No recording in {self.name!r} answers {tool} with {args}: {reason}. The real tool was not run."
        return ToolResult(content=content, success=False, metadata=metadata)


def _key(event: BeforeToolCall | AfterToolCall | OnToolCallError) -> Key:
    return f"{event.identifier}/{event.api_name}", canonical(event.args)
