"""Compare arguments as JSON does: numbers by their value, and `true` with nothing but `true`.

Python takes `True`, `1` and `1.0` as equal; a model that writes `true` for a number has made another call. Matchers,
trajectories and cassettes all compare by this one rule.
"""

from __future__ import annotations

from typing import Any

from hookline.evals._canonical import canonical

__all__ = ["json_equal", "json_key"]


_KEPT = frozenset({str, int, bool, type(None)})
"""What `_with_whole_numbers` returns as it is, without a call for each."""


def json_equal(expected: Any, actual: Any) -> bool:
    """Whether two JSON values are equal: `1` equals `1.0`, and neither equals `true`.

    An expected value, or a part of it, may be an object with its own `==`, which decides.

    Args:
        expected: The expected value.
        actual: The value that was given.
    """
    return bool(expected == actual) and not _mix_booleans(expected, actual)


def json_key(value: Any) -> str:
    """Return a text that equal JSON values share, and no others.

    Args:
        value: A JSON value.
    """
    return canonical(_with_whole_numbers(value))


def _mix_booleans(one: Any, other: Any) -> bool:
    """Whether two values that `==` takes as equal have a boolean in the place of a number."""
    kind, other_kind = one.__class__, other.__class__
    if kind is bool or other_kind is bool:
        return kind is not other_kind and kind in (bool, int, float) and other_kind in (bool, int, float)
    if isinstance(one, dict) and isinstance(other, dict):
        for key, value in one.items():
            if value.__class__ is not str and key in other and _mix_booleans(value, other[key]):
                return True
        return False
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return any(_mix_booleans(*pair) for pair in zip(one, other, strict=False))
    return False


def _with_whole_numbers(value: Any) -> Any:
    """Copy a value with floats that are whole numbers as integers; a value without any is returned as it is."""
    if value.__class__ is float:
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        changed = {
            key: new
            for key, item in value.items()
            if item.__class__ not in _KEPT and (new := _with_whole_numbers(item)) is not item
        }
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        items = [_with_whole_numbers(item) for item in value]
        return items if any(new is not item for new, item in zip(items, value, strict=True)) else value
    return value
