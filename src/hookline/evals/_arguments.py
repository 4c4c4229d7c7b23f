"""Comparing arguments, and saying how they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["MISSING", "at", "contained", "difference", "without"]

MISSING: Final = object()
"""Stands for a field that is not there."""


def at(value: Any, dotted: str) -> Any:
    """The value of a dotted field (`"filter.tags.0"`), or `MISSING`."""
    if isinstance(value, Mapping) and dotted in value:
        return value[dotted]  # a key that has dots itself
    for part in dotted.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def without(args: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Arguments without some dotted fields."""
    left = dict(args)
    for dotted in fields:
        if dotted in left:
            del left[dotted]
            continue
        head, _, rest = dotted.partition(".")
        if rest and head in left:
            left[head] = _without(left[head], rest)
    return left


def _without(value: Any, dotted: str) -> Any:
    if isinstance(value, Mapping):
        return without(value, [dotted])
    head, _, rest = dotted.partition(".")
    if isinstance(value, list | tuple) and head.isdecimal() and int(head) < len(value):
        place = int(head)
        if not rest:
            return [*value[:place], *value[place + 1 :]]
        return [*value[:place], _without(value[place], rest), *value[place + 1 :]]
    return value


def contained(small: Any, large: Any, *, flip: bool = False) -> bool:
    """Whether every field of one mapping is in another with an equal value, nested mappings likewise.

    Args:
        small: The one.
        large: The other.
        flip: Whether the expected values are in `large`; their `==` decides.
    """
    if isinstance(small, Mapping) and isinstance(large, Mapping):
        return all(key in large and contained(value, large[key], flip=flip) for key, value in small.items())
    return bool(large == small) if flip else bool(small == large)


def difference(wanted: Mapping[str, Any], given: Mapping[str, Any], *, mode: str = "exact") -> str:
    """In words, how arguments differ from those that were wanted.

    Args:
        wanted: Those.
        given: The arguments.
        mode: Which differences count; `superset` allows further arguments, `subset` missing ones.
    """
    told: list[str] = []
    if mode != "subset":
        told += [f"{key!r} is missing" for key in wanted if key not in given]
    told += [
        f"{key!r} is {given[key]!r:.100}, not {value!r:.100}"
        for key, value in wanted.items()
        if key in given and not _alike(value, given[key], mode)
    ]
    if mode != "superset":
        told += [f"{key!r} is not expected" for key in given if key not in wanted]
    return ", ".join(told) or "the arguments differ"


def _alike(wanted: Any, given: Any, mode: str) -> bool:
    if mode == "superset":
        return contained(wanted, given)
    if mode == "subset":
        return contained(given, wanted, flip=True)
    return bool(wanted == given)
