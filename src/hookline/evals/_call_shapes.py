"""What evaluations know of a tool call, how a pattern names calls, and how arguments are shown and told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Protocol

__all__ = ["Named", "argument_differences", "path_of", "shown"]

VALUE_CHARACTERS = 60
"""How much of one value a message shows."""

CONTEXT = 15
"""How much of two long values is shown in front of the place where they differ."""


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


class Named(Protocol):
    """What says which tool it is about."""

    @property
    def identifier(self) -> str:
        """Where the tool comes from."""

    @property
    def api_name(self) -> str:
        """The tool's name there."""


def path_of(call: Named) -> str:
    """The tool of a call as patterns name it: `identifier/api_name`."""
    return f"{call.identifier}/{call.api_name}"


def shown(value: object, limit: int = VALUE_CHARACTERS) -> str:
    """A value on one line, as JSON where it is JSON, and never longer than `limit`.

    Args:
        value: Anything, also what JSON does not know.
        limit: Characters; of a longer text the start and the end are shown.
    """
    text = _text(value)
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def _text(value: object) -> str:
    try:
        if value is None or isinstance(value, str | int | float | dict | list | tuple):
            text = json.dumps(value, ensure_ascii=False, default=repr)
        else:
            text = repr(value)
    except Exception:
        # What is shown stands in the message of another error, which it must not replace.
        return f"a {type(value).__name__} that cannot be shown"
    # A lone surrogate of a model would make the whole message unprintable.
    return text.encode(errors="backslashreplace").decode()


def _shown_apart(expected: object, actual: object) -> tuple[str, str]:
    """Two values, each from shortly before the place where they differ."""
    texts = _text(expected), _text(actual)
    pairs = enumerate(zip(*texts, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(map(len, texts)))
    if max(map(len, texts)) > VALUE_CHARACTERS and same > CONTEXT:
        texts = (f"…{texts[0][same - CONTEXT :]}", f"…{texts[1][same - CONTEXT :]}")
    one, other = (text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…" for text in texts)
    return one, other


def argument_differences(expected: object, actual: object, *, more: bool = False, fewer: bool = False) -> list[str]:
    """How arguments differ from the expected ones, a line per field: what was expected, then what there was.

    Args:
        expected: Arguments, or any object that compares itself with arguments.
        actual: The arguments of a call.
        more: Whether fields that were not expected are no difference.
        fewer: Whether expected fields that there are not are no difference.
    """
    return list(_differences("", expected, actual, more, fewer))


def _differences(path: str, expected: object, actual: object, more: bool, fewer: bool) -> Iterator[str]:
    if (expected is ABSENT and more) or (actual is ABSENT and fewer):
        return
    if expected is not ABSENT and actual is not ABSENT:
        if expected == actual:
            return
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            for key in {**expected, **actual}:
                below = f"{path}.{key}" if path else str(key)
                yield from _differences(below, expected.get(key, ABSENT), actual.get(key, ABSENT), more, fewer)
            return
    wanted, got = _shown_apart(expected, actual)
    yield f"{path or 'arguments'}: expected {wanted}, got {got}"
