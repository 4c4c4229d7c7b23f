"""When the arguments of a call count as the expected ones: for all tools, and for some of them in another way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from hookline._checks import tool_test
from hookline.errors import HookUsageError
from hookline.evals._arguments import MISSING, at, contained, without
from hookline.evals._call_shapes import argument_differences, shown
from hookline.evals._conditions import ArgumentMode

__all__ = ["ArgumentMode", "ArgumentRule", "ArgumentRules", "ToolRule"]

Comparator = Callable[[Any, Any], object]


class ArgumentRule(msgspec.Struct, frozen=True, kw_only=True):
    """When the arguments of a call count as the expected ones.

    Attributes:
        mode: `"exact"`: they are equal. `"ignore"`: always. `"subset"`: every field of the call is expected.
            `"superset"`: every expected field is in the call, which may have more. Nested objects are compared alike.
        ignore: Dotted fields that do not count: `["sent_at", "options.retries"]`.
        fields: Dotted fields that alone count, each by equality; one that neither side has is equal.
        compare: A function of the call's arguments and the expected ones that says whether they are alike.

    Raises:
        HookUsageError: If it contradicts itself: `fields` or `compare` next to anything else.
    """

    mode: ArgumentMode = "exact"
    ignore: Sequence[str] = ()
    fields: Sequence[str] = ()
    compare: Comparator | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(ArgumentMode):
            modes = ", ".join(map(repr, get_args(ArgumentMode)))
            raise HookUsageError(f"An argument mode is one of {modes}; got {shown(self.mode)}.")
        for name in ("ignore", "fields"):
            paths = getattr(self, name)
            if isinstance(paths, str) or not all(isinstance(path, str) and path for path in paths):
                raise HookUsageError(f"`{name}` is a list of dotted fields, as ['to.name']; got {shown(paths)}.")
        if self.compare is not None and (not callable(self.compare) or inspect.iscoroutinefunction(self.compare)):
            raise HookUsageError(f"`compare` is a plain function of two arguments; got {shown(self.compare)}.")
        chosen = [self.mode != "exact" or bool(self.ignore), bool(self.fields), self.compare is not None]
        if sum(chosen) > 1:
            raise HookUsageError("An ArgumentRule has a `mode` (and `ignore`), or `fields`, or `compare`: give one.")

    @property
    def is_equivalence(self) -> bool:
        """Whether calls that are alike to a third are alike."""
        return self.compare is None and not self.fields and self.mode in ("exact", "ignore")

    def allows(self, actual: Any, expected: Any) -> bool:
        """Whether arguments count as the expected ones."""
        if self.compare is not None:
            return self._compared(self.compare, actual, expected)
        if self.fields:
            return all(at(expected, field) == at(actual, field) for field in self.fields)
        if self.mode == "ignore":
            return True
        if self.ignore:
            actual, expected = _without(actual, self.ignore), _without(expected, self.ignore)
        # Equal as a whole first: a NaN is equal to itself there.
        if expected == actual:
            return True
        if not isinstance(expected, Mapping) or not isinstance(actual, Mapping):
            return False
        if self.mode == "superset":
            return contained(expected, actual)
        return self.mode == "subset" and contained(actual, expected, flip=True)

    def differences(self, actual: Any, expected: Any) -> list[str]:
        """Why arguments do not count as the expected ones, a line per field."""
        if self.compare is not None:
            return ["arguments: the comparison says that they differ"]
        if self.fields:
            expected, actual = (_fields(args, self.fields) for args in (expected, actual))
        elif self.ignore:
            actual, expected = _without(actual, self.ignore), _without(expected, self.ignore)
        return argument_differences(expected, actual, more=self.mode == "superset", fewer=self.mode == "subset")

    @staticmethod
    def _compared(compare: Comparator, actual: Any, expected: Any) -> bool:
        outcome = compare(actual, expected)
        if inspect.iscoroutine(outcome):
            outcome.close()
            raise HookUsageError("`compare` is a plain function; an async one would never be awaited.")
        return bool(outcome)


ToolRule = ArgumentRule | ArgumentMode | Sequence[str] | Comparator
"""What says how a tool's arguments are compared: a rule, or its mode, its fields or its comparison alone."""


class ArgumentRules:
    """Which rule holds for which tool.

    Args:
        default: For every tool that nothing else is said of.
        tools: By pattern, for those tools; the most specific one holds: a path, then a name, then the longest glob.

    Raises:
        HookUsageError: If a rule makes no sense.
    """

    def __init__(self, default: ToolRule = "exact", tools: Mapping[str, ToolRule] | None = None) -> None:
        self._default = _rule(default)
        ranked = sorted((tools or {}).items(), key=lambda entry: _rank(entry[0]), reverse=True)
        self._tools = [(tool_test(pattern), _rule(rule)) for pattern, rule in ranked]
        self._found: dict[str, ArgumentRule] = {}

    def of(self, path: str) -> ArgumentRule:
        """The rule for a tool, `identifier/api_name`."""
        found = self._found.get(path)
        if found is None:
            found = next((rule for fits, rule in self._tools if fits(path)), self._default)
            self._found[path] = found
        return found


def _rule(given: object) -> ArgumentRule:
    if isinstance(given, ArgumentRule):
        return given
    if isinstance(given, str):
        return ArgumentRule(mode=given)  # type: ignore[arg-type]  # refused there if it is no mode
    if callable(given):
        return ArgumentRule(compare=given)
    if isinstance(given, Sequence):
        return ArgumentRule(fields=given)
    raise HookUsageError(
        f"Arguments are compared by an ArgumentRule, a mode, a list of dotted fields or a function; got {shown(given)}."
    )


def _rank(pattern: str) -> tuple[int, int]:
    if any(char in pattern for char in "*?["):
        return 0, len(pattern)
    return (2 if "/" in pattern else 1), len(pattern)


def _without(args: Any, fields: Sequence[str]) -> Any:
    return without(args, fields) if isinstance(args, Mapping) else args


def _fields(args: Any, fields: Sequence[str]) -> dict[str, Any]:
    return {field: value for field in fields if (value := at(args, field)) is not MISSING}
