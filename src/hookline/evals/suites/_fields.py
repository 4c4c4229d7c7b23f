"""Read the fields of a mapping in the YAML file of a suite; every error names the line."""

from __future__ import annotations

from typing import Any

from hookline._yaml import BadLine, LinedDict, LinedList, plain
from hookline.evals.suites._source import SuiteSource

__all__ = ["REQUIRED", "Fields"]

REQUIRED: Any = object()
"""The default of a field that must be given."""


class Fields:
    """The fields of a mapping, each read once. `refuse_rest` refuses those that were not read.

    Args:
        entry: The mapping.
        what: The name of the mapping in errors.
        line: The line of the mapping.

    Raises:
        BadLine: If it is not a mapping.
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
        """Return a field as it stands."""
        self._taken.append(key)
        if key in self._entry:
            return self._entry[key]
        if default is REQUIRED:
            raise BadLine(self.line, f"{self._what} needs `{key}`")
        return default

    def text(self, key: str, default: Any = REQUIRED, *, empty: bool = False) -> Any:
        """Return a field that must be text."""
        value = self.take(key, default)
        if key in self._entry and (not isinstance(value, str) or not (value or empty)):
            self._refuse(key, "a text", value)
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field that must be a whole number from 0."""
        value = self.take(key, default)
        if key in self._entry and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            self._refuse(key, "a whole number from 0", value)
        return value

    def mapping(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field that must be a mapping, as a plain dict."""
        value = self.take(key, default)
        if key in self._entry and not isinstance(value, dict):
            self._refuse(key, "a mapping", value)
        return plain(value)

    def one_of(self, key: str, words: tuple[str, ...], default: Any = REQUIRED) -> Any:
        """Return a field that must be one of some words."""
        value = self.take(key, default)
        if value not in words:
            self._refuse(key, f"one of {', '.join(words)}", value)
        return value

    def items(self, key: str, default: Any = REQUIRED) -> list[tuple[int, Any]]:
        """Return a field that must be a list, as pairs of line and item."""
        value = self.take(key, default)
        if key not in self._entry:
            return []
        if not isinstance(value, LinedList):
            self._refuse(key, "a list", value)
        return list(zip(value.lines, value, strict=True))

    def amount(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field that must be a number."""
        value = self.take(key, default)
        if key in self._entry and (not isinstance(value, int | float) or isinstance(value, bool)):
            self._refuse(key, "a number", value)
        return value

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field that must be true or false."""
        value = self.take(key, default)
        if key in self._entry and not isinstance(value, bool):
            self._refuse(key, "true or false", value)
        return value

    def texts(self, key: str) -> list[str]:
        """Return a field that must be a list of texts; an empty list if it is not there."""
        for line, each in self.items(key, default=[]):
            if not isinstance(each, str) or not each:
                raise BadLine(line, f"`{key}` lists texts; got {plain(each)!r:.100}. Put it in quotes")
        return [each for _, each in self.items(key, default=[])]

    def import_object(self, key: str, source: SuiteSource, default: Any = REQUIRED) -> Any:
        """Return the object that a field names by its import path, such as `package.module:name`."""
        value = self.take(key, default)
        return source.load(self.lines[key], key, value) if key in self._entry else default

    def model(self, key: str, source: SuiteSource, default: Any = REQUIRED) -> Any:
        """Return the model that a field names, by an import path or by its name."""
        value = self.take(key, default)
        return source.model(self.lines[key], key, value) if key in self._entry else default

    def refuse_rest(self) -> None:
        """Raise an error if a key has not been read."""
        for key in self._entry:
            if key not in self._taken:
                known = ", ".join(f"`{each}`" for each in dict.fromkeys(self._taken))
                raise BadLine(self.lines[key], f"{self._what} has no key `{key}`; it takes {known}")

    def _refuse(self, key: str, expected: str, value: Any) -> None:
        raise BadLine(self.lines[key], f"`{key}` is {expected}; got {plain(value)!r:.100}")
