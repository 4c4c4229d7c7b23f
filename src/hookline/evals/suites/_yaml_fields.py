"""Taking the fields of a YAML mapping one by one, with the line of whatever is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hookline.evals._yaml_lines import BadLine, LinedDict, LinedList, plain
from hookline.evals.suites._imports import ImportProblem, imported

__all__ = ["REQUIRED", "Fields", "one_key"]

REQUIRED: Any = object()
"""The default of a field that must be given."""


class Fields:
    """The fields of a mapping, each taken once; `done` refuses those that nobody asked for.

    Args:
        entry: The mapping.
        what: What it is, for errors.
        line: Where it stands.

    Raises:
        BadLine: If it is no mapping.
    """

    def __init__(self, entry: Any, what: str, line: int) -> None:
        if not isinstance(entry, LinedDict):
            got = "nothing" if entry is None else repr(plain(entry))[:100]
            raise BadLine(line, f"{what} is a mapping; got {got}")
        self._entry = entry
        self._what = what
        self._taken: list[str] = []
        self.line = entry.line
        self.lines = entry.lines

    def __contains__(self, key: str) -> bool:
        return key in self._entry

    def take(self, key: str, default: Any = REQUIRED) -> Any:
        """A field as it stands."""
        self._taken.append(key)
        if key in self._entry:
            return self._entry[key]
        if default is REQUIRED:
            raise BadLine(self.line, f"{self._what} needs `{key}`")
        return default

    def text(self, key: str, default: Any = REQUIRED, *, empty: bool = False) -> Any:
        """A text."""
        value = self.take(key, default)
        if key in self._entry and (not isinstance(value, str) or not (value or empty)):
            self._refuse(key, "a text", value)
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A whole number from 0."""
        value = self.take(key, default)
        if key in self._entry and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            self._refuse(key, "a whole number from 0", value)
        return value

    def mapping(self, key: str, default: Any = REQUIRED) -> Any:
        """A mapping, as a plain dict."""
        value = self.take(key, default)
        if key in self._entry and not isinstance(value, dict):
            self._refuse(key, "a mapping", value)
        return plain(value)

    def one_of(self, key: str, words: tuple[str, ...], default: Any = REQUIRED) -> Any:
        """One of some words."""
        value = self.take(key, default)
        if value not in words:
            self._refuse(key, f"one of {', '.join(words)}", value)
        return value

    def items(self, key: str, default: Any = REQUIRED) -> list[tuple[int, Any]]:
        """A list, as pairs of line and item."""
        value = self.take(key, default)
        if key not in self._entry:
            return []
        if not isinstance(value, LinedList):
            self._refuse(key, "a list", value)
        return list(zip(value.lines, value, strict=True))

    def imported(self, key: str, folder: Path, default: Any = REQUIRED) -> Any:
        """What an import path names, such as `package.module:name`."""
        value = self.take(key, default)
        if key not in self._entry:
            return default
        try:
            return imported(value, folder)
        except ImportProblem as error:
            raise BadLine(self.lines[key], f"`{key}`: {error}") from error.__cause__

    def rest(self) -> list[str]:
        """The keys that nobody has asked for."""
        return [key for key in self._entry if key not in self._taken]

    def done(self) -> None:
        """Refuse what nobody has asked for."""
        for key in self.rest():
            known = ", ".join(f"`{each}`" for each in dict.fromkeys(self._taken))
            raise BadLine(self.lines[key], f"{self._what} has no key `{key}`; it takes {known}")

    def _refuse(self, key: str, expected: str, value: Any) -> None:
        raise BadLine(self.lines[key], f"`{key}` is {expected}; got {plain(value)!r:.100}")


def one_key(line: int, entry: Any, what: str, known: Iterable[str]) -> tuple[str, Any]:
    """The key and the value of a mapping that has one key, which is one of some."""
    words = list(known)
    if not isinstance(entry, LinedDict) or len(entry) != 1:
        raise BadLine(line, f"{what} is a mapping with one key, one of {', '.join(words)}; got {plain(entry)!r:.100}")
    ((key, value),) = entry.items()
    if key not in words:
        raise BadLine(entry.lines[key], f"{what} has no kind `{key}`; it is one of {', '.join(words)}")
    return key, value
