"""What a matcher can ask of a tool call: its tool, its arguments, its place, its run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hookline._checks import has_wildcard, tool_test
from hookline.errors import HookUsageError, MissingExtraError
from hookline.evals._arguments import MISSING, at, contained, difference, without
from hookline.evals._matcher import ANY, Matcher, SeenCall, Specificity
from hookline.execution import is_async_handler

__all__ = ["ArgumentMode", "ArgumentsAre", "FieldsAre", "Fits", "PlaceIs", "RunIs", "ToolIs", "Where"]

ArgumentMode = Literal["exact", "subset", "superset", "ignore"]
"""How arguments are compared: `subset` wants nothing but what is given, `superset` all that is given."""

EXACT, NAME, GLOB, REGEX, PREDICATE = 5, 4, 3, 2, 1
"""Ranks of tool patterns; the larger one is the narrower."""

GLOB_CHARS = "*?["


@dataclass(frozen=True)
class ToolIs(Matcher):
    """Calls of some tools.

    Attributes:
        pattern: A glob over `identifier/api_name`, of which one without a `/` means that tool wherever it comes from;
            a compiled regular expression that the whole path must match; or a predicate on the path.
    """

    pattern: str | re.Pattern[str] | Callable[[str], object]
    rank: int = field(init=False, compare=False, repr=False)
    test: Callable[[str], object] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        rank, test = _tool_test(self.pattern)
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "test", test)

    def __repr__(self) -> str:
        return f"tool({_shown_pattern(self.pattern)})"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        fixed = sum(char not in GLOB_CHARS for char in self.pattern) if isinstance(self.pattern, str) else 0
        return self.rank, fixed if self.rank == GLOB else 0, 0

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        path = f"{call.identifier}/{call.api_name}"
        return None if self.test(path) else f"the tool is {path}, not {_shown_pattern(self.pattern)}"

    def matches(self, call: SeenCall) -> bool:
        """See `Matcher`."""
        return bool(self.test(f"{call.identifier}/{call.api_name}"))

    def may_match(self, path: str) -> bool:
        """See `Matcher`."""
        return bool(self.test(path))

    @property
    def tool_only(self) -> bool:
        """See `Matcher`."""
        return True

    def paths(self) -> frozenset[str] | None:
        """See `Matcher`."""
        return frozenset({self.pattern}) if self.rank == EXACT and isinstance(self.pattern, str) else None


@dataclass(frozen=True)
class ArgumentsAre(Matcher):
    """Calls with some arguments.

    Attributes:
        values: The arguments; a value may be any object with an `==` of its own.
        mode: `exact`: these and no others. `superset`: these, and perhaps others. `subset`: none but these. `ignore`:
            any.
        ignore: Fields that do not count, dotted: `"filter.since"`.
    """

    values: Mapping[str, Any]
    mode: ArgumentMode = "exact"
    ignore: tuple[str, ...] = ()
    weights: ClassVar[dict[str, int]] = {"exact": 3, "superset": 2, "subset": 2, "ignore": 0}

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise HookUsageError(f"Arguments to match are a mapping; got {self.values!r:.100}.")
        object.__setattr__(self, "values", dict(self.values))
        if self.mode not in self.weights:
            raise HookUsageError(f"`mode` is one of {', '.join(self.weights)}; got {self.mode!r}.")
        ignore: object = self.ignore
        if not isinstance(ignore, tuple) or not all(isinstance(each, str) for each in ignore):
            raise HookUsageError(f"`ignore` is a sequence of dotted fields; got {ignore!r:.100}.")

    def __repr__(self) -> str:
        further = f", mode={self.mode!r}" if self.mode != "exact" else ""
        return f"args({dict(self.values)!r}{further}{f', ignore={self.ignore!r}' if self.ignore else ''})"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return ANY, 0, self.weights[self.mode]

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        return None if self.matches(call) else difference(*self._sides(call), mode=self.mode)

    def matches(self, call: SeenCall) -> bool:
        """See `Matcher`."""
        if self.mode == "ignore":
            return True
        wanted, given = self._sides(call)
        if self.mode == "exact":
            return bool(wanted == given)
        return contained(wanted, given) if self.mode == "superset" else contained(given, wanted, flip=True)

    def _sides(self, call: SeenCall) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        if not self.ignore:
            return self.values, call.args
        return without(self.values, self.ignore), without(call.args, self.ignore)


@dataclass(frozen=True)
class FieldsAre(Matcher):
    """Calls in whose arguments some fields have some values.

    Attributes:
        values: By dotted field: `{"filter.tags.0": "urgent"}`.
    """

    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping) or not self.values:
            raise HookUsageError(f"Fields to match are a mapping from dotted names; got {self.values!r:.100}.")

    def __repr__(self) -> str:
        return f"fields({dict(self.values)!r})"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return ANY, 0, 2

    def matches(self, call: SeenCall) -> bool:
        """See `Matcher`."""
        for name, wanted in self.values.items():
            given = at(call.args, name)
            if given is MISSING or not (wanted == given):  # noqa: SIM201
                return False
        return True

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        for name, wanted in self.values.items():
            given = at(call.args, name)
            if given is MISSING:
                return f"there is no field {name!r}"
            if not (wanted == given):  # noqa: SIM201  (the expected value's own == decides, and it may have no !=)
                return f"{name!r} is {given!r:.100}, not {wanted!r:.100}"
        return None


@dataclass(frozen=True)
class Fits(Matcher):
    """Calls whose arguments a JSON Schema allows.

    Attributes:
        schema: The schema.
    """

    schema: Mapping[str, Any] | bool
    validator: Any = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        schema: object = self.schema
        if not isinstance(schema, Mapping | bool):
            raise HookUsageError(f"A JSON Schema is a mapping, or True or False; got {schema!r:.100}.")
        object.__setattr__(self, "validator", _validator(schema))

    def __repr__(self) -> str:
        return f"schema({self.schema!r:.100})"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return ANY, 0, 1

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        error = next(self.validator.iter_errors(dict(call.args)), None)
        return None if error is None else f"the schema refuses {error.json_path}: {error.message:.200}"


@dataclass(frozen=True)
class Where(Matcher):
    """Calls that a function is content with.

    Attributes:
        predicate: `(call) -> bool`.
    """

    predicate: Callable[[Any], object]

    def __post_init__(self) -> None:
        if not callable(self.predicate) or is_async_handler(self.predicate):
            raise HookUsageError(f"where() takes a plain function of the call; got {self.predicate!r:.100}.")

    def __repr__(self) -> str:
        return f"where({getattr(self.predicate, '__name__', repr(self.predicate))})"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return ANY, 0, 1

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        return None if self.predicate(call) else f"{self!r} is not true of it"


@dataclass(frozen=True)
class PlaceIs(Matcher):
    """Calls at some place of their operation.

    Attributes:
        what: `"call_index"` (from 1, per tool) or `"step_index"` (from 0).
        first: The first place that matches.
        last: The last one; `None` for no end.
    """

    what: Literal["call_index", "step_index"]
    first: int
    last: int | None

    def __post_init__(self) -> None:
        start = 1 if self.what == "call_index" else 0
        for place in (self.first, self.last):
            if place is not None and (not isinstance(place, int) or isinstance(place, bool) or place < start):
                raise HookUsageError(f"A {self.what} is a whole number from {start}; got {place!r}.")

    def __repr__(self) -> str:
        short = "nth" if self.what == "call_index" else "step"
        if self.first == self.last:
            return f"{short}({self.first})"
        return f"after({self.first - 1})" if self.what == "call_index" else f"{short}({self.first}…{self.last or ''})"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return ANY, 0, 2 if self.first == self.last else 1

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        place: int = getattr(call, self.what)
        if place >= self.first and (self.last is None or place <= self.last):
            return None
        return f"its {self.what} is {place}, not {_span(self.first, self.last)}"


@dataclass(frozen=True)
class RunIs(Matcher):
    """Calls of some runs.

    Attributes:
        fields: What the call's event must say: `agent_id`, `user_id`, `tenant_id`, `operation_id`.
    """

    fields: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"run({', '.join(f'{name}={value!r}' for name, value in self.fields)})"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return ANY, 0, len(self.fields)

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        for name, wanted in self.fields:
            given = getattr(call, name, "")
            if given != wanted:
                return f"its {name} is {given!r}, not {wanted!r}"
        return None


def _tool_test(pattern: object) -> tuple[int, Callable[[str], object]]:
    if isinstance(pattern, re.Pattern):
        if not isinstance(pattern.pattern, str):
            raise HookUsageError("A tool's regular expression is one over text, not over bytes.")
        return REGEX, pattern.fullmatch
    if callable(pattern) and not is_async_handler(pattern):
        return PREDICATE, pattern
    if not isinstance(pattern, str) or not pattern:
        raise HookUsageError(
            "A tool is matched by 'identifier/api_name', a name, a glob, a compiled regular expression or a plain "
            f"function of the path; got {pattern!r:.100}."
        )
    if pattern == "*":
        return ANY, lambda path: True
    rank = GLOB if has_wildcard(pattern) else EXACT if "/" in pattern else NAME
    return rank, tool_test(pattern)


def _validator(schema: Any) -> Any:
    try:
        import jsonschema
    except ModuleNotFoundError as error:
        raise MissingExtraError("evals", "Matching arguments by JSON Schema") from error
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise HookUsageError(f"The schema is no JSON Schema, at {error.json_path}: {error.message:.200}") from error
    return kind(schema)


def _shown_pattern(pattern: object) -> str:
    if isinstance(pattern, re.Pattern):
        return f"/{pattern.pattern}/"
    return repr(pattern) if isinstance(pattern, str) else getattr(pattern, "__name__", repr(pattern))


def _span(first: int, last: int | None) -> str:
    if first == last:
        return str(first)
    return f"{first} or later" if last is None else f"{first} to {last}"
