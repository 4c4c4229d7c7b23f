"""Finding rules that no call can match, before a run shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from hookline.calls import ToolSpec
from hookline.evals._arguments import MISSING, at
from hookline.evals._conditions import ArgumentsAre, FieldsAre, Fits, PlaceIs, RunIs, ToolIs
from hookline.evals._matcher import AllOf, AnyOf, Matcher, Not
from hookline.evals.matching import OneOf

__all__ = ["never_matches"]


def never_matches(matcher: Matcher, tools: Sequence[ToolSpec] = ()) -> str | None:
    """Why no call can match; `None` where one might.

    Args:
        matcher: What a rule asks for.
        tools: The tools that there are; none to judge the matcher alone.
    """
    if isinstance(matcher, AnyOf):
        reasons = [never_matches(part, tools) for part in matcher.parts]
        return None if None in reasons else "; and ".join(filter(None, reasons))
    parts = matcher.parts if isinstance(matcher, AllOf) else (matcher,)
    for part in parts:
        reason = _alone(part)
        if reason is not None:
            return reason
    for one, other in combinations(parts, 2):
        reason = _together(one, other) or _together(other, one)
        if reason is not None:
            return reason
    return _among(matcher, parts, tools)


def _alone(part: Matcher) -> str | None:
    if isinstance(part, ArgumentsAre | FieldsAre):
        for name, value in part.values.items():
            if isinstance(value, OneOf) and not value.values:
                return f"{name!r} is to be one of no values"
    if isinstance(part, Fits) and part.schema is False:
        return "its schema allows nothing"
    if isinstance(part, Not) and isinstance(part.inner, ToolIs) and part.inner.pattern == "*":
        return "no call has no tool"
    return None


def _together(one: Matcher, other: Matcher) -> str | None:
    excluded = f"{one!r} and {other!r} exclude each other"
    if isinstance(one, Not) and one.inner == other:
        return excluded
    paths = one.paths()
    if paths is not None and not any(other.may_match(path) for path in paths):
        return excluded
    if isinstance(one, PlaceIs) and isinstance(other, PlaceIs) and one.what == other.what:
        return excluded if one.last is not None and one.last < other.first else None
    if isinstance(one, RunIs) and isinstance(other, RunIs):
        wanted = dict(one.fields)
        return excluded if any(wanted.get(name, value) != value for name, value in other.fields) else None
    if isinstance(one, ArgumentsAre) and one.mode == "exact" and not one.ignore:
        return excluded if _contradicts(one.values, other) else None
    return None


def _contradicts(exact: Mapping[str, Any], other: Matcher) -> bool:
    """Whether these arguments and no others cannot be what another matcher wants too."""
    if isinstance(other, FieldsAre):
        return not all(_may_equal(value, at(exact, name)) for name, value in other.values.items())
    if isinstance(other, ArgumentsAre) and other.mode in ("exact", "superset") and not other.ignore:
        # An exact matcher wants no other fields either, but that is seen from its own side.
        return not _may_contain(other.values, exact, nested=other.mode == "superset")
    return False


def _may_contain(wanted: Mapping[str, Any], given: Mapping[str, Any], *, nested: bool) -> bool:
    for name, value in wanted.items():
        held = given.get(name, MISSING)
        if nested and isinstance(value, Mapping) and isinstance(held, Mapping):
            if not _may_contain(value, held, nested=True):
                return False
        elif not _may_equal(value, held):
            return False
    return True


def _may_equal(wanted: Any, given: Any) -> bool:
    """Return whether two expected values may stand for one and the same; of one with an `==` of its own who knows."""
    return given is not MISSING and (not _is_plain(given) or bool(wanted == given))


def _is_plain(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)


def _among(matcher: Matcher, parts: Sequence[Matcher], tools: Sequence[ToolSpec]) -> str | None:
    if not tools:
        return None
    fitting = [spec for spec in tools if matcher.may_match(f"{spec.identifier}/{spec.name}")]
    if not fitting:
        known = ", ".join(f"{spec.identifier}/{spec.name}" for spec in tools[:10])
        return f"no tool matches {matcher!r}; the tools are {known}{' and others' if len(tools) > 10 else ''}"
    for part in parts:
        if not (isinstance(part, ArgumentsAre) and part.mode in ("exact", "superset")) and not isinstance(
            part, FieldsAre
        ):
            continue
        ignored = part.ignore if isinstance(part, ArgumentsAre) else ()
        names = [name.partition(".")[0] if isinstance(part, FieldsAre) else name for name in part.values]
        unknown = [name for name in names if name not in ignored and all(_lacks(spec, name) for spec in fitting)]
        if unknown:
            return f"{fitting[0].identifier}/{fitting[0].name} has no argument {unknown[0]!r}"
    return None


def _lacks(spec: ToolSpec, argument: str) -> bool:
    schema = spec.schema
    properties = schema.get("properties")
    return isinstance(properties, dict) and argument not in properties and schema.get("additionalProperties") is False
