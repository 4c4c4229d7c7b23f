"""Match tool calls by tool, arguments and position, with matchers that combine with `&`, `|` and `~`.

Values are compared as JSON does: `1` equals `1.0`, and `true` is no number.
"""

from __future__ import annotations

import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, get_args

import msgspec

from hookline._checks import has_wildcard, tool_test
from hookline.errors import HookUsageError, MissingExtraError
from hookline.evals._equality import json_equal
from hookline.execution import is_async_handler

__all__ = ["Anything", "ArgumentMode", "Matcher", "OneOf", "SeenCall", "match"]

VALUE_CHARACTERS = 60
"""How much of one value a message shows."""

CONTEXT = 15
"""How much of two long values is shown in front of the place where they differ."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()
"""Stands for a missing field."""


class NamesTool(Protocol):
    """Anything that names a tool: a tool call, a tool event, a request of the model."""

    @property
    def toolset(self) -> str:
        """The toolset that the tool belongs to."""

    @property
    def tool_name(self) -> str:
        """The tool's name in its toolset."""


def path_of(call: NamesTool) -> str:
    """Return the tool of a call as `toolset/tool_name`."""
    return f"{call.toolset}/{call.tool_name}"


def format_value(value: object, limit: int = VALUE_CHARACTERS) -> str:
    """Format a value on one line, as JSON if possible, in at most `limit` characters.

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
        # The text goes into the message of another error, which this one must not replace.
        return f"a {type(value).__name__} that cannot be shown"
    # A lone surrogate of a model would make the whole message unprintable.
    return text.encode(errors="backslashreplace").decode()


def _format_apart(expected: object, actual: object) -> tuple[str, str]:
    """Format two values, each from shortly before the place where they differ."""
    texts = _text(expected), _text(actual)
    pairs = enumerate(zip(*texts, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(map(len, texts)))
    if max(map(len, texts)) > VALUE_CHARACTERS and same > CONTEXT:
        texts = (f"…{texts[0][same - CONTEXT :]}", f"…{texts[1][same - CONTEXT :]}")
    one, other = (text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…" for text in texts)
    return one, other


def argument_differences(expected: object, actual: object, *, more: bool = False, fewer: bool = False) -> list[str]:
    """Describe how arguments differ from the expected ones, one line per field.

    Args:
        expected: Arguments, or any object that compares itself with arguments.
        actual: The arguments of a call.
        more: Whether fields that were not expected are allowed.
        fewer: Whether expected fields may be missing.
    """
    return list(_differences("", expected, actual, more, fewer))


def _differences(path: str, expected: object, actual: object, more: bool, fewer: bool) -> Iterator[str]:
    if (expected is MISSING and more) or (actual is MISSING and fewer):
        return
    if expected is not MISSING and actual is not MISSING:
        if json_equal(expected, actual):
            return
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            for key in {**expected, **actual}:
                below = f"{path}.{key}" if path else str(key)
                yield from _differences(below, expected.get(key, MISSING), actual.get(key, MISSING), more, fewer)
            return
    wanted, got = _format_apart(expected, actual)
    yield f"{path or 'arguments'}: expected {wanted}, got {got}"


def value_at(value: Any, dotted: str) -> Any:
    """Return the value of a dotted field such as `"filter.tags.0"`, or `MISSING`."""
    if isinstance(value, Mapping) and dotted in value:
        return value[dotted]  # a key with dots
    for part in dotted.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def without_fields(args: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Copy arguments without some dotted fields."""
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
        return without_fields(value, [dotted])
    head, _, rest = dotted.partition(".")
    if isinstance(value, list | tuple) and head.isdecimal() and int(head) < len(value):
        place = int(head)
        if not rest:
            return [*value[:place], *value[place + 1 :]]
        return [*value[:place], _without(value[place], rest), *value[place + 1 :]]
    return value


def is_subset(small: Any, large: Any, *, flip: bool = False) -> bool:
    """Whether every field of one mapping is in another with an equal value, nested mappings included.

    Args:
        small: The one.
        large: The other.
        flip: Whether the expected values are in `large`; their `==` decides.
    """
    if isinstance(small, Mapping) and isinstance(large, Mapping):
        return all(key in large and is_subset(value, large[key], flip=flip) for key, value in small.items())
    return json_equal(large, small) if flip else json_equal(small, large)


def explain_arguments(wanted: Mapping[str, Any], given: Mapping[str, Any], *, mode: str = "exact") -> str:
    """Explain in a sentence how arguments differ from the wanted ones.

    Args:
        wanted: The wanted arguments.
        given: The arguments.
        mode: The differences that count. `superset` allows further arguments, `subset` missing ones.
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
        return is_subset(wanted, given)
    if mode == "subset":
        return is_subset(given, wanted, flip=True)
    return json_equal(wanted, given)


Specificity = tuple[int, int, int]
"""The rank of the tool pattern, the number of fixed letters in a glob, and the weight of all other conditions."""

ANY = 0
"""The rank of a matcher that does not look at the tool."""


class SeenCall(Protocol):
    """A tool call as matchers see it: a `BeforeToolCall`, a `ToolCall`, or any object with these fields."""

    @property
    def toolset(self) -> str:
        """The toolset that the tool belongs to."""

    @property
    def tool_name(self) -> str:
        """The tool's name in its toolset."""

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments of the call."""

    @property
    def call_index(self) -> int:
        """The number of the call among the calls of this tool in the operation, from 1."""

    @property
    def step_index(self) -> int:
        """The step that the call belongs to, from 0."""


class Matcher(ABC):
    """A condition on tool calls that can explain why a call does not meet it.

    Combine matchers with `&`, `|` and `~`. Matchers with equal conditions are equal.
    """

    @abstractmethod
    def explain(self, call: SeenCall) -> str | None:
        """Explain why a call does not match; return `None` if it does."""

    @property
    @abstractmethod
    def specificity(self) -> Specificity:
        """Narrowness of the matcher. Of several matching rules, the one with the largest value wins."""

    def matches(self, call: SeenCall) -> bool:
        """Whether a call matches."""
        return self.explain(call) is None

    def may_match(self, path: str) -> bool:
        """Whether any call of a tool can match.

        Args:
            path: The tool, as `toolset/tool_name`.
        """
        return True

    @property
    def tool_only(self) -> bool:
        """Whether the matcher looks at nothing but the tool, so that `may_match` decides alone."""
        return False

    def paths(self) -> frozenset[str] | None:
        """Return the paths of the only tools that can match, or `None` if they are not known in advance."""
        return None

    def __and__(self, other: object) -> Matcher:
        return AllOf((*_parts(AllOf, self), *_parts(AllOf, other))) if isinstance(other, Matcher) else NotImplemented

    def __or__(self, other: object) -> Matcher:
        return AnyOf((*_parts(AnyOf, self), *_parts(AnyOf, other))) if isinstance(other, Matcher) else NotImplemented

    def __invert__(self) -> Matcher:
        return self.inner if isinstance(self, Not) else Not(self)


@dataclass(frozen=True)
class AllOf(Matcher):
    """Matches calls that match every part.

    Attributes:
        parts: The parts.
    """

    parts: tuple[Matcher, ...]

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, AnyOf) else repr(part) for part in self.parts)

    @property
    def specificity(self) -> Specificity:
        """The narrowest tool pattern of the parts, and the weights of all parts together."""
        each = [part.specificity for part in self.parts]
        rank, fixed, _ = max(each)
        return rank, fixed, sum(weight for _, _, weight in each)

    def explain(self, call: SeenCall) -> str | None:
        """Join the reasons of all parts that do not match."""
        reasons: list[str] = []
        for part in self.parts:
            try:
                reason = part.explain(call)
            except Exception:
                if not reasons:
                    raise  # as in `matches`, which never asks the later parts about such a call
            else:
                reasons += [reason] if reason is not None else []
        return "; ".join(reasons) if reasons else None

    def matches(self, call: SeenCall) -> bool:
        """Whether every part matches."""
        for part in self.parts:  # noqa: SIM110  the generator for `all` takes as long as a part
            if not part.matches(call):
                return False
        return True

    def may_match(self, path: str) -> bool:
        """Whether no part excludes the tool."""
        return all(part.may_match(path) for part in self.parts)

    @property
    def tool_only(self) -> bool:
        """Whether every part looks at nothing but the tool."""
        return all(part.tool_only for part in self.parts)

    def paths(self) -> frozenset[str] | None:
        """Return the paths that every part with known paths allows."""
        known = [paths for part in self.parts if (paths := part.paths()) is not None]
        return frozenset.intersection(*known) if known else None


@dataclass(frozen=True)
class AnyOf(Matcher):
    """Matches calls that match at least one part.

    Attributes:
        parts: The parts.
    """

    parts: tuple[Matcher, ...]

    def __repr__(self) -> str:
        return " | ".join(repr(part) for part in self.parts)

    @property
    def specificity(self) -> Specificity:
        """The specificity of the least specific part."""
        return min(part.specificity for part in self.parts)

    def explain(self, call: SeenCall) -> str | None:
        """Join the reasons of all parts; return `None` as soon as one matches."""
        reasons: list[str] = []
        for part in self.parts:
            reason = part.explain(call)
            if reason is None:
                return None
            reasons.append(reason)
        return "; and ".join(reasons)

    def matches(self, call: SeenCall) -> bool:
        """Whether at least one part matches."""
        return any(part.matches(call) for part in self.parts)

    def may_match(self, path: str) -> bool:
        """Whether at least one part may match calls of the tool."""
        return any(part.may_match(path) for part in self.parts)

    @property
    def tool_only(self) -> bool:
        """Whether every part looks at nothing but the tool."""
        return all(part.tool_only for part in self.parts)

    def paths(self) -> frozenset[str] | None:
        """Return the paths of all parts together, or `None` if those of one part are not known."""
        known = [part.paths() for part in self.parts]
        return None if None in known else frozenset().union(*filter(None, known))


@dataclass(frozen=True)
class Not(Matcher):
    """Matches calls that another matcher does not match.

    Attributes:
        inner: The matcher that calls must not match.
    """

    inner: Matcher

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, AllOf | AnyOf) else f"~{self.inner!r}"

    @property
    def specificity(self) -> Specificity:
        """The smallest weight there is: an exclusion says little about what it is for."""
        return ANY, 0, 1

    def explain(self, call: SeenCall) -> str | None:
        """Name the inner matcher if it does match."""
        return f"it does match {self.inner!r}" if self.inner.matches(call) else None

    def may_match(self, path: str) -> bool:
        """Whether the inner matcher leaves any call of the tool over."""
        return not (self.inner.tool_only and self.inner.may_match(path))

    @property
    def tool_only(self) -> bool:
        """Whether the inner matcher looks at nothing but the tool."""
        return self.inner.tool_only


def _parts(kind: type[AllOf] | type[AnyOf], matcher: Matcher) -> tuple[Matcher, ...]:
    return matcher.parts if isinstance(matcher, kind) else (matcher,)


ArgumentMode = Literal["exact", "subset", "superset", "ignore"]
"""How arguments are compared. `subset` allows no field that is not given, `superset` requires all that are given."""

EXACT, NAME, GLOB, REGEX, PREDICATE = 5, 4, 3, 2, 1
"""Ranks of tool patterns, the narrowest one being the largest."""

GLOB_CHARS = "*?["


@dataclass(frozen=True)
class ToolIs(Matcher):
    """Matches calls of certain tools.

    Attributes:
        pattern: A glob over `toolset/tool_name`, of which one without a `/` means that tool wherever it comes from;
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
        return f"tool({_format_pattern(self.pattern)})"

    @property
    def specificity(self) -> Specificity:
        """The rank of the pattern: a path before a name, a glob, a regular expression, a predicate."""
        fixed = sum(char not in GLOB_CHARS for char in self.pattern) if isinstance(self.pattern, str) else 0
        return self.rank, fixed if self.rank == GLOB else 0, 0

    def explain(self, call: SeenCall) -> str | None:
        """Name the call's tool and the pattern if they do not fit."""
        path = path_of(call)
        return None if self.test(path) else f"the tool is {path}, not {_format_pattern(self.pattern)}"

    def matches(self, call: SeenCall) -> bool:
        """Whether the call's tool fits the pattern."""
        return bool(self.test(f"{call.toolset}/{call.tool_name}"))

    def may_match(self, path: str) -> bool:
        """Whether the tool fits the pattern."""
        return bool(self.test(path))

    @property
    def tool_only(self) -> bool:
        """Always true: the arguments do not count."""
        return True

    def paths(self) -> frozenset[str] | None:
        """Return the one path that an exact pattern names, or `None` for other patterns."""
        return frozenset({self.pattern}) if self.rank == EXACT and isinstance(self.pattern, str) else None


@dataclass(frozen=True)
class ArgumentsAre(Matcher):
    """Matches calls with certain arguments.

    Attributes:
        values: The arguments; a value may be any object with its own `==`.
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArgumentsAre):
            return NotImplemented
        return (self.mode, self.ignore) == (other.mode, other.ignore) and json_equal(self.values, other.values)

    def __repr__(self) -> str:
        further = f", mode={self.mode!r}" if self.mode != "exact" else ""
        return f"args({dict(self.values)!r}{further}{f', ignore={self.ignore!r}' if self.ignore else ''})"

    @property
    def specificity(self) -> Specificity:
        """The weight of the comparison: `exact` is the narrowest."""
        return ANY, 0, self.weights[self.mode]

    def explain(self, call: SeenCall) -> str | None:
        """Describe how the arguments differ from the wanted ones."""
        return None if self.matches(call) else explain_arguments(*self._sides(call), mode=self.mode)

    def matches(self, call: SeenCall) -> bool:
        """Whether the arguments are the wanted ones, compared as `mode` says."""
        if self.mode == "ignore":
            return True
        wanted, given = self._sides(call)
        if self.mode == "exact":
            return json_equal(wanted, given)
        return is_subset(wanted, given) if self.mode == "superset" else is_subset(given, wanted, flip=True)

    def _sides(self, call: SeenCall) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        if not self.ignore:
            return self.values, call.args
        return without_fields(self.values, self.ignore), without_fields(call.args, self.ignore)


@dataclass(frozen=True)
class FieldsAre(Matcher):
    """Matches calls in whose arguments certain fields have certain values.

    Attributes:
        values: The values, by dotted field: `{"filter.tags.0": "urgent"}`.
    """

    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping) or not self.values:
            raise HookUsageError(f"Fields to match are a mapping from dotted names; got {self.values!r:.100}.")

    def __eq__(self, other: object) -> bool:
        return json_equal(self.values, other.values) if isinstance(other, FieldsAre) else NotImplemented

    def __repr__(self) -> str:
        return f"fields({dict(self.values)!r})"

    @property
    def specificity(self) -> Specificity:
        """A fixed weight, between that of exact arguments and that of a predicate."""
        return ANY, 0, 2

    def matches(self, call: SeenCall) -> bool:
        """Whether every field is there with the wanted value."""
        for name, wanted in self.values.items():
            given = value_at(call.args, name)
            if given is MISSING or not json_equal(wanted, given):
                return False
        return True

    def explain(self, call: SeenCall) -> str | None:
        """Name the first field that is missing or has another value."""
        for name, wanted in self.values.items():
            given = value_at(call.args, name)
            if given is MISSING:
                return f"there is no field {name!r}"
            if not json_equal(wanted, given):
                return f"{name!r} is {given!r:.100}, not {wanted!r:.100}"
        return None


@dataclass(frozen=True)
class SchemaAllows(Matcher):
    """Matches calls whose arguments are valid against a JSON Schema.

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
        """A fixed weight, the same as that of a predicate."""
        return ANY, 0, 1

    def explain(self, call: SeenCall) -> str | None:
        """Say which argument the schema refuses, and why."""
        error = next(self.validator.iter_errors(dict(call.args)), None)
        return None if error is None else f"the schema refuses {error.json_path}: {error.message:.200}"


@dataclass(frozen=True)
class Where(Matcher):
    """Matches calls for which a function returns a true value.

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
        """A fixed weight, the same as that of a schema."""
        return ANY, 0, 1

    def explain(self, call: SeenCall) -> str | None:
        """Name the function if it returned a false value."""
        return None if self.predicate(call) else f"{self!r} is not true of it"


@dataclass(frozen=True)
class PlaceIs(Matcher):
    """Matches calls by their position: the n-th call of a tool, or the calls of a step.

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
        """One position weighs more than a range of positions."""
        return ANY, 0, 2 if self.first == self.last else 1

    def explain(self, call: SeenCall) -> str | None:
        """Name the call's position if it is outside of the range."""
        place: int = getattr(call, self.what)
        if place >= self.first and (self.last is None or place <= self.last):
            return None
        return f"its {self.what} is {place}, not {_span(self.first, self.last)}"


@dataclass(frozen=True)
class RunIs(Matcher):
    """Matches calls of certain runs.

    Attributes:
        fields: The required values of `agent_id`, `user_id`, `tenant_id` or `operation_id`.
    """

    fields: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"run({', '.join(f'{name}={value!r}' for name, value in self.fields)})"

    @property
    def specificity(self) -> Specificity:
        """The number of fields that a run must have."""
        return ANY, 0, len(self.fields)

    def explain(self, call: SeenCall) -> str | None:
        """Name the first field of the run that has another value."""
        for name, wanted in self.fields:
            given = getattr(call, name, "")
            if given != wanted:
                return f"its {name} is {given!r}, not {wanted!r}"
        return None


def _tool_test(pattern: object) -> tuple[int, Callable[[str], object]]:
    if isinstance(pattern, re.Pattern):
        if not isinstance(pattern.pattern, str):
            raise HookUsageError("A tool's regular expression must match text, not bytes.")
        return REGEX, pattern.fullmatch
    if callable(pattern) and not is_async_handler(pattern):
        return PREDICATE, pattern
    if not isinstance(pattern, str) or not pattern:
        raise HookUsageError(
            "A tool is matched by 'toolset/tool_name', a name, a glob, a compiled regular expression or a plain "
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
        raise HookUsageError(f"The schema is not a JSON Schema, at {error.json_path}: {error.message:.200}") from error
    return kind(schema)


def _format_pattern(pattern: object) -> str:
    if isinstance(pattern, re.Pattern):
        return f"/{pattern.pattern}/"
    return repr(pattern) if isinstance(pattern, str) else getattr(pattern, "__name__", repr(pattern))


def _span(first: int, last: int | None) -> str:
    if first == last:
        return str(first)
    return f"{first} or later" if last is None else f"{first} to {last}"


Comparator = Callable[[Any, Any], object]


class ArgumentRule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule that compares the arguments of a call with the expected ones.

    Attributes:
        mode: `"exact"`: they are equal. `"ignore"`: always. `"subset"`: every field of the call is expected.
            `"superset"`: every expected field is in the call, which may have more. Nested objects are compared alike.
        ignore: Dotted fields that do not count: `["sent_at", "options.retries"]`.
        fields: Dotted fields that alone count, each by equality; one that neither side has is equal.
        compare: A function of the call's arguments and the expected ones that says whether they are alike.

    Raises:
        HookUsageError: If `fields` or `compare` is combined with anything else.
    """

    mode: ArgumentMode = "exact"
    ignore: Sequence[str] = ()
    fields: Sequence[str] = ()
    compare: Comparator | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(ArgumentMode):
            modes = ", ".join(map(repr, get_args(ArgumentMode)))
            raise HookUsageError(f"An argument mode is one of {modes}; got {format_value(self.mode)}.")
        for name in ("ignore", "fields"):
            paths = getattr(self, name)
            if isinstance(paths, str) or not all(isinstance(path, str) and path for path in paths):
                raise HookUsageError(f"`{name}` is a list of dotted fields, as ['to.name']; got {format_value(paths)}.")
        if self.compare is not None and (not callable(self.compare) or inspect.iscoroutinefunction(self.compare)):
            raise HookUsageError(f"`compare` is a plain function of two arguments; got {format_value(self.compare)}.")
        chosen = [self.mode != "exact" or bool(self.ignore), bool(self.fields), self.compare is not None]
        if sum(chosen) > 1:
            raise HookUsageError("An ArgumentRule has a `mode` (and `ignore`), or `fields`, or `compare`: give one.")

    @property
    def is_equivalence(self) -> bool:
        """Whether two calls that are both equal to a third are always equal to each other."""
        return self.compare is None and not self.fields and self.mode in ("exact", "ignore")

    def allows(self, actual: Any, expected: Any) -> bool:
        """Whether arguments count as equal to the expected ones."""
        if self.compare is not None:
            return self._compared(self.compare, actual, expected)
        if self.fields:
            return all(json_equal(value_at(expected, field), value_at(actual, field)) for field in self.fields)
        if self.mode == "ignore":
            return True
        if self.ignore:
            actual, expected = _without_keys(actual, self.ignore), _without_keys(expected, self.ignore)
        # Compare the whole first: containers compare a NaN with itself as equal.
        if json_equal(expected, actual):
            return True
        if not isinstance(expected, Mapping) or not isinstance(actual, Mapping):
            return False
        if self.mode == "superset":
            return is_subset(expected, actual)
        return self.mode == "subset" and is_subset(actual, expected, flip=True)

    def differences(self, actual: Any, expected: Any) -> list[str]:
        """Explain why arguments do not count as equal to the expected ones, one line per field."""
        if self.compare is not None:
            return ["arguments: the comparison says that they differ"]
        if self.fields:
            expected, actual = (_fields(args, self.fields) for args in (expected, actual))
        elif self.ignore:
            actual, expected = _without_keys(actual, self.ignore), _without_keys(expected, self.ignore)
        return argument_differences(expected, actual, more=self.mode == "superset", fewer=self.mode == "subset")

    @staticmethod
    def _compared(compare: Comparator, actual: Any, expected: Any) -> bool:
        outcome = compare(actual, expected)
        if inspect.iscoroutine(outcome):
            outcome.close()
            raise HookUsageError("`compare` is a plain function; an async one would never be awaited.")
        return bool(outcome)


ToolRule = ArgumentRule | ArgumentMode | Sequence[str] | Comparator
"""A rule for comparing arguments, or just its mode, its fields or its comparison function."""


class ArgumentRules:
    """Chooses the argument rule of each tool.

    Args:
        default: The rule of all other tools.
        tools: Rules by tool pattern. The most specific one applies: a path, a name, then the longest glob.

    Raises:
        HookUsageError: If a rule is invalid.
    """

    def __init__(self, default: ToolRule = "exact", tools: Mapping[str, ToolRule] | None = None) -> None:
        self._default = _rule(default)
        ranked = sorted((tools or {}).items(), key=lambda entry: _rank(entry[0]), reverse=True)
        self._tools = [(tool_test(pattern), _rule(rule)) for pattern, rule in ranked]
        self._found: dict[str, ArgumentRule] = {}

    def of(self, path: str) -> ArgumentRule:
        """Return the rule for a tool, given as `toolset/tool_name`."""
        found = self._found.get(path)
        if found is None:
            found = next((rule for fits, rule in self._tools if fits(path)), self._default)
            self._found[path] = found
        return found


def _rule(given: object) -> ArgumentRule:
    if isinstance(given, ArgumentRule):
        return given
    if isinstance(given, str):
        return ArgumentRule(mode=given)  # type: ignore[arg-type]  # refused there if it is not a mode
    if callable(given):
        return ArgumentRule(compare=given)
    if isinstance(given, Sequence):
        return ArgumentRule(fields=given)
    raise HookUsageError(
        "Arguments are compared by an ArgumentRule, a mode, a list of dotted fields or a function; got "
        f"{format_value(given)}."
    )


def _rank(pattern: str) -> tuple[int, int]:
    return GLOB if has_wildcard(pattern) else EXACT if "/" in pattern else NAME, len(pattern)


def _without_keys(args: Any, fields: Sequence[str]) -> Any:
    return without_fields(args, fields) if isinstance(args, Mapping) else args


def _fields(args: Any, fields: Sequence[str]) -> dict[str, Any]:
    return {field: value for field in fields if (value := value_at(args, field)) is not MISSING}


@dataclass(frozen=True, eq=False)
class OneOf:
    """A value that is equal to each of several values. `match.one_of` makes it."""

    values: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return any(json_equal(value, other) for value in self.values)

    def __hash__(self) -> int:
        raise TypeError("one_of() equals several values, so it has no hash")

    def __repr__(self) -> str:
        return f"one_of({', '.join(map(repr, self.values))})"


class Anything:
    """A value that is equal to every other value. `match.anything` is one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise TypeError("anything equals every value, so it has no hash")

    def __repr__(self) -> str:
        return "anything"


class match:  # noqa: N801  (read as a word: match.tool("bank/*") & match.nth(2))
    """Makes matchers: `match.tool("bank/*") & match.args({"city": "Rome"}) & ~match.step(0)`."""

    anything: ClassVar[Anything] = Anything()
    """As an argument's value: any value will do, but there must be one."""

    @staticmethod
    def tool(pattern: str | re.Pattern[str] | Callable[[str], object]) -> Matcher:
        """Match calls of a tool: `toolset/tool_name`, a name, a glob, a compiled regex, or a predicate on the path."""
        return ToolIs(pattern)

    @staticmethod
    def args(values: Mapping[str, Any], *, mode: ArgumentMode = "exact", ignore: Iterable[str] = ()) -> Matcher:
        """Match calls by their arguments: exactly these, at least these (`superset`) or at most these (`subset`)."""
        return ArgumentsAre(values, mode, ignore if isinstance(ignore, str) else tuple(ignore))  # type: ignore[arg-type]

    @staticmethod
    def fields(values: Mapping[str, Any]) -> Matcher:
        """Match calls that have these values in these fields: `{"filter.tags.0": "urgent"}`."""
        return FieldsAre(values)

    @staticmethod
    def schema(schema: Mapping[str, Any] | bool) -> Matcher:
        """Match calls whose arguments are valid against a JSON Schema.

        Raises:
            HookUsageError: If the schema is invalid.
            MissingExtraError: If the extra `evals` is not installed.
        """
        return SchemaAllows(schema)

    @staticmethod
    def where(predicate: Callable[[Any], object]) -> Matcher:
        """Match calls for which `predicate(call)` is true."""
        return Where(predicate)

    @staticmethod
    def nth(index: int) -> Matcher:
        """Match the n-th call of the tool in its operation, from 1."""
        return PlaceIs("call_index", index, index)

    @staticmethod
    def after(count: int) -> Matcher:
        """Match the calls of the tool in its operation after the first `count`."""
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise HookUsageError(f"after() takes how many calls come before, from 0; got {count!r:.100}.")
        return PlaceIs("call_index", count + 1, None)

    @staticmethod
    def step(index: int) -> Matcher:
        """Match the calls of one step, from 0."""
        return PlaceIs("step_index", index, index)

    @staticmethod
    def run(**fields: str) -> Matcher:
        """Match the calls of runs with this `agent_id`, `user_id`, `tenant_id` or `operation_id`."""
        unknown = sorted(fields.keys() - {"agent_id", "user_id", "tenant_id", "operation_id"})
        if unknown or not fields:
            raise HookUsageError(
                f"run() takes agent_id, user_id, tenant_id or operation_id; got {', '.join(unknown) or 'nothing'}."
            )
        for name, value in fields.items():
            if not isinstance(value, str):
                raise HookUsageError(f"`{name}` of run() is text; got {value!r:.100}.")
        return RunIs(tuple(sorted(fields.items())))

    @staticmethod
    def one_of(*values: object) -> OneOf:
        """Return a value that is equal to any of these, to be used as an argument's value."""
        return OneOf(values)
