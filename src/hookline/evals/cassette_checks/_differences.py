"""Compare a recorded answer of a tool with a present one, and grade each difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec

from hookline.errors import HookUsageError
from hookline.evals._equality import json_equal
from hookline.evals.cassettes import RecordedCall
from hookline.evals.matching import MISSING, format_value

__all__ = ["DifferenceKind", "ResultDifference", "check_ignored", "compare_results"]

DifferenceKind = Literal["outcome changed", "field gone", "type changed", "new field", "value changed"]
"""Kinds of differences, the gravest first."""

LISTED = 50
"""Differences of one answer that are kept."""

Path = tuple[str, ...]


class ResultDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One difference between a recorded answer and a present one.

    Attributes:
        kind: `"outcome changed"`: one succeeded, the other failed or raised another exception. `"field gone"`,
            `"new field"`: a field of a JSON object. `"type changed"`: a value has another JSON type; `"value changed"`:
            it has the same type.
        field: The dotted field of the answer; empty for the answer as a whole. `*` stands for any place of a list.
        recorded: The recorded value, shortened; empty if there is none.
        present: The present value, shortened; empty if there is none.
    """

    kind: DifferenceKind
    field: str = ""
    recorded: str = ""
    present: str = ""

    @property
    def is_shape(self) -> bool:
        """Whether more than a value has changed, so that an agent may have to read the answer in another way."""
        return self.kind != "value changed"

    def __str__(self) -> str:
        where = f"`{self.field}`" if self.field else "the answer"
        change = f": {self.recorded or 'nothing'} → {self.present or 'nothing'}"
        return f"{self.kind}, {where}{change}"


def check_ignored(ignore: Sequence[str]) -> list[Path]:
    """Return fields that do not count, split at their dots.

    Raises:
        HookUsageError: If one is not text.
    """
    if isinstance(ignore, str) or not all(isinstance(field, str) and field for field in ignore):
        raise HookUsageError(f"`ignore` is a list of fields, as ['items.*.id']; got {ignore!r:.100}.")
    return [tuple(field.split(".")) for field in ignore]


def compare_results(
    recorded: RecordedCall, present: RecordedCall, *, ignore: Sequence[str] = ()
) -> list[ResultDifference]:
    """Compare two answers to the same call. Answers that are JSON are compared field by field, others as texts.

    Args:
        recorded: The recorded answer.
        present: The present answer.
        ignore: Dotted fields that do not count: `["updated_at", "items.*.id"]`.

    Returns:
        The differences, the gravest first; an empty list if there are none. Of items of a list that differ in the same
        way, one is given.

    Raises:
        HookUsageError: If `ignore` is invalid.
    """
    ignored = check_ignored(ignore)
    if (recorded.success, recorded.raised) != (present.success, present.raised):
        outcomes = (_outcome(each) for each in (recorded, present))
        return [ResultDifference(kind="outcome changed", recorded=next(outcomes), present=next(outcomes))]
    found: dict[tuple[str, str], ResultDifference] = {}
    try:
        for difference in _compare((), _parse(recorded.result), _parse(present.result), ignored):
            found.setdefault((difference.kind, difference.field), difference)
    except RecursionError:  # JSON that is nested a thousand levels deep is compared as text
        if recorded.result != present.result:
            found["", ""] = _difference("value changed", (), recorded.result, present.result)
    return sorted(found.values(), key=lambda each: get_args(DifferenceKind).index(each.kind))[:LISTED]


def _outcome(call: RecordedCall) -> str:
    kind = f"raised {call.raised}" if call.raised else "succeeded" if call.success else "failed"
    return f"{kind} with {format_value(call.result)}"


def _parse(text: str) -> Any:
    """Return a text as JSON if it is a JSON object or list; other texts stay texts, numbers among them."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _compare(path: Path, before: Any, now: Any, ignored: Sequence[Path]) -> Iterator[ResultDifference]:
    if path and any(_is_within(path, field) for field in ignored):
        return
    kinds = _kind(before), _kind(now)
    if kinds[0] != kinds[1]:
        yield _difference("type changed", path, before, now)
    elif isinstance(before, dict):
        for name in {**before, **now}:
            below = (*path, name)
            if name in before and name in now:
                yield from _compare(below, before[name], now[name], ignored)
            elif not any(_is_within(below, field) for field in ignored):
                kind: DifferenceKind = "field gone" if name in before else "new field"
                yield _difference(kind, below, before.get(name, MISSING), now.get(name, MISSING))
    elif isinstance(before, list):
        if len(before) != len(now):
            yield _difference("value changed", path, f"{len(before)} items", f"{len(now)} items")
        for one, other in zip(before, now, strict=False):
            yield from _compare((*path, "*"), one, other, ignored)
    elif not json_equal(before, now):
        yield _difference("value changed", path, before, now)


def _difference(kind: DifferenceKind, path: Path, before: Any, now: Any) -> ResultDifference:
    recorded, present = ("" if value is MISSING else format_value(value) for value in (before, now))
    return ResultDifference(kind=kind, field=".".join(path), recorded=recorded, present=present)


def _is_within(path: Path, field: Path) -> bool:
    """Whether a place is the one that an ignored field names, or below it."""
    if len(path) < len(field):
        return False
    return all(name in ("*", part) or part == "*" for part, name in zip(path, field, strict=False))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((dict, "object"), (list, "list"), (str, "text"), (int | float, "number")):
        if isinstance(value, kind):
            return name
    return "null"
