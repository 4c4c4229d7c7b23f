"""Fill the task of a suite's file with the values of each of its cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline._yaml import LinedDict, LinedList
from hookline.evals.datasets import fill_text, fill_value, parameters_in

__all__ = ["VALUE_KEYS", "fill_entry", "has_parameters"]

VALUE_KEYS = frozenset(
    (
        *("args", "returns", "sequence", "answers", "fields", "schema", "metadata", "settings"),
        *("max_calls", "max_steps", "times", "count", "nth", "step", "weight", "threshold", "limits", "faults"),
    )
)
"""Fields in which a text that is one parameter becomes a number, true, false or null. Elsewhere it becomes text."""

OWN_BRACES = frozenset(("template",))
"""Fields whose braces mean something else: the arguments of the call, in the answer of a mock."""


def has_parameters(node: Any, key: str = "") -> bool:
    """Whether a part of a task names parameters."""
    if key in OWN_BRACES:
        return False
    if isinstance(node, str):
        return "{" in node and bool(parameters_in(node))
    if isinstance(node, dict):
        return any(has_parameters(item, name) for name, item in node.items())
    return isinstance(node, list) and any(has_parameters(item, key) for item in node)


def fill_entry(node: Any, values: Mapping[str, Any], *, key: str, line: int, raw: bool = False) -> Any:
    """Return a part of a task with its parameters filled. Lines stay those of the file of the suite.

    A text that is one parameter becomes a list or an object if that is the value.

    Args:
        node: The part.
        values: The values of the case.
        key: The field that has the part.
        line: The line of the part.
        raw: Whether a text that is one parameter becomes its value of whatever type.

    Raises:
        MissingParameterError: If the case has no value for a parameter.
    """
    if isinstance(node, str):
        if key in OWN_BRACES or "{" not in node:
            return node
        value = fill_value(node, values)
        if isinstance(value, dict | list):
            return _with_lines(value, line)
        return value if raw or isinstance(value, str) else fill_text(node, values)
    if isinstance(node, LinedDict):
        mapping = LinedDict(node.line)
        mapping.lines = node.lines
        for name, item in node.items():
            at = node.lines[name]
            mapping[name] = fill_entry(item, values, key=name, line=at, raw=raw or name in VALUE_KEYS)
        return mapping
    if isinstance(node, LinedList):
        items = LinedList(node.line)
        items.lines = node.lines
        for at, item in zip(node.lines, node, strict=True):
            items.append(fill_entry(item, values, key=key, line=at, raw=raw))
        return items
    return node


def _with_lines(value: Any, line: int) -> Any:
    """Return a value of a case as if it stood in a line of the file."""
    if isinstance(value, dict):
        mapping = LinedDict(line)
        mapping.update({name: _with_lines(item, line) for name, item in value.items()})
        mapping.lines = dict.fromkeys(value, line)
        return mapping
    if isinstance(value, list):
        items = LinedList(line)
        items.extend(_with_lines(item, line) for item in value)
        items.lines = [line] * len(items)
        return items
    return value
