"""Record prompts, answers, arguments and results: only where the user asked for it, redacted, and cut as valid JSON."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from hookline.calls import Message, ModelResponse, ToolSpec
from hookline.errors import HookUsageError
from hookline.otel import _attributes as names
from hookline.otel._attributes import clean

__all__ = ["CaptureMode", "Content", "Redact", "capture_mode"]

logger = logging.getLogger("hookline.otel")

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

CaptureMode = Literal["NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT"]
MODES: dict[str, CaptureMode] = {
    "": "NO_CONTENT",
    "false": "NO_CONTENT",
    "true": "SPAN_ONLY",
    "no_content": "NO_CONTENT",
    "span_only": "SPAN_ONLY",
    "event_only": "EVENT_ONLY",
    "span_and_event": "SPAN_AND_EVENT",
}

Redact = Callable[[str, str, Any], Any]
"""`(kind of span, name of the attribute, value) -> value`, or `None` to leave it out."""

MAX_DEPTH = 32
"""How deep a structure is followed; a cyclic one ends there."""

MAX_COUNTED = 10_000
"""How many items of a structure are looked at to tell its length."""

FORMS = {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.SYSTEM_INSTRUCTIONS, names.TOOL_DEFINITIONS}
"""Attributes in a form that the conventions lay down, which readers take apart again."""

FORM_DEPTHS, PART_DEPTHS = (1, 3), (2,)
"""Where in such a form its objects are (messages, and their parts), and where lists of parts."""

FORM_WORDS = {"role", "type", "id", "name", "finish_reason"}

_warned: set[str] = set()


def capture_mode(given: bool | str | None) -> CaptureMode:
    """Choose where content is recorded: as the argument says, else as the environment says, else nowhere.

    Raises:
        HookUsageError: If what was given is no mode.
    """
    if given is None:
        found = os.environ.get(CAPTURE_VARIABLE, "").strip()
        mode = MODES.get(found.lower())
        if mode is None and found not in _warned:
            _warned.add(found)
            logger.warning(
                "%s is %r, which is none of NO_CONTENT, SPAN_ONLY, EVENT_ONLY, SPAN_AND_EVENT, true and false; "
                "no content is recorded",
                CAPTURE_VARIABLE,
                found,
            )
        return mode or "NO_CONTENT"
    mode = MODES.get(str(given).lower()) if isinstance(given, bool | str) and given != "" else None
    if mode is None:
        raise HookUsageError(
            f"`capture_content` is True, False, 'SPAN_ONLY', 'EVENT_ONLY', 'SPAN_AND_EVENT' or 'NO_CONTENT'; "
            f"got {given!r}."
        )
    return mode


def longest_value() -> float:
    """Return the longest attribute that the SDK keeps, as the environment says; it would cut JSON in the middle."""
    for variable in ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        found = os.environ.get(variable, "").strip()
        if found.isdecimal():
            return int(found)
    return math.inf


class Content:
    """The policy for recording content.

    Args:
        mode: Where it is recorded.
        redact: Changes or drops each value before it is cut; one that raises drops it.
        max_characters: How many characters one attribute holds.
        on_error: Told of what went wrong.

    Attributes:
        on_spans: Whether spans get content.
        on_events: Whether log events get content.
    """

    def __init__(
        self,
        mode: CaptureMode,
        redact: Redact | None,
        max_characters: int,
        on_error: Callable[[str, BaseException], None],
    ) -> None:
        self.on_spans = mode in ("SPAN_ONLY", "SPAN_AND_EVENT")
        self.on_events = mode in ("EVENT_ONLY", "SPAN_AND_EVENT")
        self._redact = redact
        self._max = max_characters
        self._longest = longest_value()
        self._on_error = on_error

    def message(self, kind: str, name: str, text: str) -> str | None:
        """Return a text for a status description, or `None` where no content may be recorded."""
        return self.put({}, kind, name, text) if self.on_spans else None

    def put(self, attributes: dict[str, Any], kind: str, name: str, value: Any, *, newest_first: bool = False) -> Any:
        """Add a value to attributes: text as it is, anything else as JSON.

        Args:
            attributes: What it is added to.
            kind: Kind of the span, for `redact`.
            name: Name of the attribute.
            value: The value.
            newest_first: Whether the end of a list matters more than its beginning.

        Returns:
            What was recorded.
        """
        try:
            if self._redact is not None:
                value = self._redact(kind, name, value)
            return None if value is None else self._put(attributes, name, value, newest_first=newest_first)
        except Exception as error:
            self._on_error("content", error)
            return None

    def building(self, build: Callable[..., None], *args: object) -> None:
        """Call a function that adds content; if it fails, the content is left out and the failure is reported."""
        try:
            build(*args)
        except Exception as error:
            self._on_error("content", error)

    def _put(self, attributes: dict[str, Any], name: str, value: Any, *, newest_first: bool) -> str:
        budget = self._max
        while True:
            cut = _Cut(budget, structured=newest_first or name in FORMS)
            if isinstance(value, str):
                recorded = cut.text(value)
            else:
                shown = cut.newest(value) if newest_first and isinstance(value, Sequence) else cut.value(value)
                recorded = msgspec.json.encode(shown).decode()
            if len(recorded) <= self._longest or budget <= 1:
                break
            budget = int(min(budget, self._longest)) // 2  # quotes and braces had not been counted
        attributes[name] = recorded
        if cut.happened:
            attributes[names.CONTENT_TRUNCATED] = [*attributes.get(names.CONTENT_TRUNCATED, ()), name]
            attributes[names.CONTENT_LENGTH] = [*attributes.get(names.CONTENT_LENGTH, ()), length_of(value)]
        return recorded


class _Cut:
    """Shortens one value to a budget of characters, inside its structure, so that it stays readable JSON.

    Args:
        characters: The budget.
        structured: Whether the value is in the conventions' form for messages and tools, whose own words are kept.

    Attributes:
        happened: Whether anything was left out.
    """

    def __init__(self, characters: int, *, structured: bool) -> None:
        self.left = characters
        self.structured = structured
        self.happened = False

    def text(self, text: str) -> str:
        left = max(self.left, 0)
        self.left -= len(text)
        if len(text) > left:
            self.happened = True
            text = f"{text[:left]}… [{len(text) - left} more characters]"
        return clean(text, len(text))

    def value(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or value is True or value is False:
            return value
        self.left -= 2  # a million numbers are not free
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int):
            return int(value) if -(2**63) <= value < 2**64 else f"<int of {value.bit_length()} bits>"
        if depth >= MAX_DEPTH:
            self.happened = True
            return "… [nested too deeply]"
        if isinstance(value, Mapping):
            form = self.structured and depth in FORM_DEPTHS
            return self.form(value, depth) if form else self.mapping(value, depth)
        if isinstance(value, list | tuple):
            return self.items(value, depth)
        return f"<{type(value).__name__}>"

    def form(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        """Return a message, a part of one, or a tool, with only its free text cut."""
        return {
            clean(key): clean(item) if key in FORM_WORDS and isinstance(item, str) else self.value(item, depth + 1)
            for key, item in value.items()
        }

    def mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for position, (key, item) in enumerate(value.items()):
            if self.left <= 0:
                self.happened = True
                shown["…"] = f"[{len(value) - position} more]"
                break
            name = self.text(key) if isinstance(key, str) else str(key) if isinstance(key, int | float) else clean(key)
            shown[f"{name} ({position})" if name in shown else name] = self.value(item, depth + 1)
        return shown

    def items(self, value: Sequence[Any], depth: int) -> list[Any]:
        shown: list[Any] = []
        for position, item in enumerate(value):
            if self.left <= 0:
                self.happened = True
                rest = f"… [{len(value) - position} more]"
                shown.append({"type": "text", "content": rest} if self.structured and depth in PART_DEPTHS else rest)
                break
            shown.append(self.value(item, depth + 1))
        return shown

    def newest(self, value: Sequence[Any]) -> list[Any]:
        """Return a list without its oldest items, as many as do not fit."""
        shown: list[Any] = []
        for item in reversed(value):
            if self.left <= 0:
                self.happened = True
                break
            shown.append(self.value(item, 1))
        return shown[::-1]


def length_of(value: Any) -> int:
    """Count the characters of text in a value; of an enormous structure, in its first part."""
    total, waiting, seen = 0, [value], 0
    while waiting and seen < MAX_COUNTED:
        each = waiting.pop()
        seen += 1
        if isinstance(each, str):
            total += len(each)
        elif isinstance(each, Mapping):
            waiting.extend(each)
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each[:MAX_COUNTED])
    return total


def message_parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in the form of the conventions."""
    return [{"role": message.role, "parts": _parts(message)} for message in messages]


def split_system(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split a conversation into its first instructions and the rest, both in the form of the conventions."""
    first = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    return [part for message in messages[:first] for part in _parts(message)], message_parts(messages[first:])


def answer_parts(response: ModelResponse) -> list[dict[str, Any]]:
    """Return a model's answer in the form of the conventions."""
    parts: list[dict[str, Any]] = []
    if response.reasoning:
        parts.append({"type": "reasoning", "content": response.reasoning})
    message = Message(role="assistant", content=response.content, tool_calls=list(response.tool_calls))
    return [{"role": "assistant", "parts": [*parts, *_parts(message)], "finish_reason": response.finish_reason}]


def tool_definitions(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools in the form of the conventions."""
    return [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema}
        for tool in tools
    ]


def _parts(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}]
    parts: list[dict[str, Any]] = [{"type": "text", "content": message.content}] if message.content else []
    parts += [
        {"type": "tool_call", "id": call.tool_call_id, "name": call.tool_name, "arguments": call.args}
        for call in message.tool_calls
    ]
    return parts
