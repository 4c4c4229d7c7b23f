"""Rules of `ToolMocks`, and the table that finds the rule of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from hookline._readonly import ReadOnlyDict, ReadOnlyList
from hookline.calls import ToolSpec, as_tool_result
from hookline.errors import HookUsageError
from hookline.evals._equality import json_equal
from hookline.evals.errors import check_name
from hookline.evals.matching import (
    MISSING,
    AllOf,
    AnyOf,
    ArgumentsAre,
    FieldsAre,
    Matcher,
    Not,
    OneOf,
    PlaceIs,
    RunIs,
    SchemaAllows,
    SeenCall,
    ToolIs,
    value_at,
)
from hookline.evals.mocking._answers import (
    Answer,
    AnswerSequence,
    AnswerTable,
    AnswerTemplate,
    ArgumentsFunction,
    CallFunction,
    CassetteAnswer,
    FixedAnswer,
    Passthrough,
    Then,
    as_answers,
    as_cassette,
    as_error,
)

if TYPE_CHECKING:
    from hookline.evals.cassettes import Cassette

__all__ = ["Rule", "RuleTable", "never_matches"]


def never_matches(matcher: Matcher, tools: Sequence[ToolSpec] = ()) -> str | None:
    """Explain why no call can match; return `None` if one might.

    Args:
        matcher: The condition of the rule.
        tools: All tools of the run; empty to judge the matcher alone.
    """
    if isinstance(matcher, AnyOf):
        reasons = [never_matches(part, tools) for part in matcher.parts]
        return None if None in reasons else "; and ".join(filter(None, reasons))
    parts = matcher.parts if isinstance(matcher, AllOf) else (matcher,)
    for part in parts:
        reason = _why_never_alone(part)
        if reason is not None:
            return reason
    for one, other in combinations(parts, 2):
        reason = _why_never_together(one, other) or _why_never_together(other, one)
        if reason is not None:
            return reason
    return _why_never_among(matcher, parts, tools)


def _why_never_alone(part: Matcher) -> str | None:
    if isinstance(part, ArgumentsAre | FieldsAre):
        for name, value in part.values.items():
            if isinstance(value, OneOf) and not value.values:
                return f"{name!r} is to be one of no values"
    if isinstance(part, SchemaAllows) and part.schema is False:
        return "its schema allows nothing"
    if isinstance(part, Not) and isinstance(part.inner, ToolIs) and part.inner.pattern == "*":
        return "no call has no tool"
    return None


def _why_never_together(one: Matcher, other: Matcher) -> str | None:
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
    """Whether a call with exactly these arguments cannot match another matcher."""
    if isinstance(other, FieldsAre):
        return not all(_may_equal(value, value_at(exact, name)) for name, value in other.values.items())
    if isinstance(other, ArgumentsAre) and other.mode in ("exact", "superset") and not other.ignore:
        # That an exact matcher allows no other fields is checked when the two are swapped.
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
    """Whether an expected value may be equal to another one. Values with an `==` of their own always may."""
    return given is not MISSING and (not _is_plain(given) or json_equal(wanted, given))


def _is_plain(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)


def _why_never_among(matcher: Matcher, parts: Sequence[Matcher], tools: Sequence[ToolSpec]) -> str | None:
    if not tools:
        return None
    fitting = [spec for spec in tools if matcher.may_match(f"{spec.toolset}/{spec.name}")]
    if not fitting:
        known = ", ".join(f"{spec.toolset}/{spec.name}" for spec in tools[:10])
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
            return f"{fitting[0].toolset}/{fitting[0].name} has no argument {unknown[0]!r}"
    return None


def _lacks(spec: ToolSpec, argument: str) -> bool:
    schema = spec.schema
    properties = schema.get("properties")
    return isinstance(properties, dict) and argument not in properties and schema.get("additionalProperties") is False


F = TypeVar("F", bound=Callable[..., object])

INDEXED_FROM = 8
"""How many rules of one tool with exact arguments are asked one by one before they are looked up."""

ROUTES = 10_000
"""Tools whose rules are kept sorted; a model may invent names without end."""


class Rule:
    """Answers the calls that match it. `ToolMocks.tool` and `ToolMocks.when` make one.

    Attributes:
        name: The name in the metadata of every call that the rule answers.
        matcher: The condition that calls must match.
        answer: How matching calls are answered.
        hits: The number of calls that it matched, in all operations.
        optional: Whether `assert_all_mocks_used` accepts that the rule was never used.
    """

    def __init__(self, name: str, matcher: Matcher, number: int, changed: Callable[[Rule], None]) -> None:
        self.name = check_name(name)
        self.matcher = matcher
        self.answer = Answer()
        self.hits = 0
        self.optional = False
        self.specificity = matcher.specificity
        self.number = number
        self._changed = changed

    def __repr__(self) -> str:
        return f"Rule({self.name!r}, {self.matcher!r}, hits={self.hits})"

    def returns(self, value: object) -> Rule:
        """Answer with a value, as if the tool had returned it.

        Args:
            value: Text, a `ToolResult`, or anything that can be JSON; an exception counts as raised.
        """
        return self._set(FixedAnswer(value))

    def raises(self, error: Exception | type[Exception]) -> Rule:
        """Answer as if the tool had raised an exception.

        Args:
            error: The exception, or a class of exceptions that can be made without arguments.
        """
        return self._set(FixedAnswer(as_error(error)))

    def fails(self, content: str) -> Rule:
        """Answer with a failed result (`success=False`) instead of an exception."""
        return self._set(FixedAnswer(as_tool_result({"content": content, "success": False})))

    def answers(self, function: F) -> F:
        """Answer with what `function(call)` returns or raises. Sync or async; also a decorator."""
        self._set(CallFunction(_callable(function)))
        return function

    def runs(self, function: F) -> F:
        """Answer with what `function(**args)` returns or raises. Sync or async; also a decorator."""
        self._set(ArgumentsFunction(_callable(function)))
        return function

    def sequence(self, answers: list[object] | tuple[object, ...], *, then: Then = "last") -> Rule:
        """Answer the calls of an operation with one value after the other.

        Args:
            answers: Values, exceptions (also their classes), and functions of the call.
            then: What follows the last answer: the last one again (`last`), the first (`cycle`), or an error (`error`).
        """
        return self._set(AnswerSequence(as_answers(answers), then))

    def table(self, field: str, answers: Mapping[Any, object]) -> Rule:
        """Choose the answer by the value of one argument.

        Args:
            field: The argument, dotted.
            answers: Answers by the argument's value; `"*"` for all others.
        """
        return self._set(AnswerTable(field, answers))

    def template(self, text: str) -> Rule:
        """Answer with text in which `{field}` or `{dotted.field}` is replaced with an argument."""
        return self._set(AnswerTemplate(text))

    def passthrough(self) -> Rule:
        """Let the real tool run, even if the run is strict."""
        return self._set(Passthrough())

    def passthrough_then(self, transform: Callable[[Any, Any], object]) -> Rule:
        """Let the real tool run, and change what the model reads of its answer.

        The tool's events show the original answer. Works in runs that call interceptors, as `exec_agent` does.

        Args:
            transform: `(call, result) -> result`, plain or async, where the result is a `ToolResult` and what it gives
                is whatever `returns` takes.
        """
        return self._set(Passthrough(_callable(transform)))

    def replays(self, cassette: Cassette) -> Rule:
        """Answer from a cassette. A call that it has no recording of is handled as the cassette's mode says."""
        return self._set(CassetteAnswer(as_cassette(cassette)))

    def answered_with(self, answer: Answer) -> Rule:
        """Answer with an `Answer` of your own."""
        return self._set(answer)

    def _set(self, answer: Answer) -> Rule:
        self.answer = answer
        self._changed(self)
        return self


class _Route:
    """The rules that calls of one tool can match, the most specific first; among equals, the last registered first."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = sorted(rules, key=_sort_key)
        self.has_one_rule = len(self.rules) == 1 and self.rules[0].matcher.tool_only
        self.keyed: dict[Any, list[Rule]] = {}
        self.unkeyed: list[Rule] = self.rules
        keys = [(rule, _arguments_key(rule.matcher)) for rule in self.rules]
        if sum(key is not None for _, key in keys) >= INDEXED_FROM:
            self.unkeyed = [rule for rule, key in keys if key is None]
            for rule, key in keys:
                if key is not None:
                    self.keyed.setdefault(key, []).append(rule)

    def find(self, call: SeenCall) -> Rule | None:
        candidates = self.unkeyed
        if self.keyed:
            key = _freeze_or_none(call.args)
            found = self.keyed.get(key) if key is not None else self.rules
            if found is not None:
                candidates = sorted([*found, *candidates], key=_sort_key) if key is not None and candidates else found
        for rule in candidates:
            if rule.matcher.matches(call):
                return rule
        return None


class RuleTable:
    """All rules of a `ToolMocks`. Finding one takes the same time for ten exact names as for ten thousand."""

    def __init__(self) -> None:
        self.rules: dict[int, Rule] = {}
        self._exact: dict[str, list[Rule]] = {}
        self._other: list[Rule] = []
        self._alike: dict[str, list[Rule]] = {}
        self._routes: dict[str, _Route] = {}

    def add(self, rule: Rule) -> None:
        """Add a rule. It replaces one with an equal matcher, which no call could reach any more."""
        alike = self._alike.setdefault(repr(rule.matcher), [])
        for old in alike:
            if _are_equal(old.matcher, rule.matcher):
                alike.remove(old)
                self._remove(old)
                break
        alike.append(rule)
        self.rules[rule.number] = rule
        paths = rule.matcher.paths()
        if paths is None:
            self._other.append(rule)
            self._routes.clear()
        else:
            for path in paths:
                self._exact.setdefault(path, []).append(rule)
                self._routes.pop(path, None)

    def find(self, call: SeenCall) -> Rule | None:
        """Find the rule that answers a call, if there is one."""
        return self._route(f"{call.toolset}/{call.tool_name}").find(call)

    def of_tool(self, path: str) -> list[Rule]:
        """List the rules that calls of a tool can match, in the order in which they are tried."""
        return self._route(path).rules

    def has_one_rule(self, path: str) -> bool:
        """Whether every call of a tool gets the same rule."""
        return self._route(path).has_one_rule

    def _route(self, path: str) -> _Route:
        route = self._routes.get(path)
        if route is None:
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            rules = [*self._exact.get(path, ()), *self._other]
            route = self._routes[path] = _Route([rule for rule in rules if rule.matcher.may_match(path)])
        return route

    def _remove(self, rule: Rule) -> None:
        del self.rules[rule.number]
        paths = rule.matcher.paths()
        if paths is None:
            self._other.remove(rule)
        else:
            for path in paths:
                self._exact[path].remove(rule)


def _are_equal(one: Matcher, other: Matcher) -> bool:
    try:
        return bool(one == other)
    except Exception:  # values such as arrays cannot be compared as a whole
        return False


def _sort_key(rule: Rule) -> tuple[int, ...]:
    return (*(-each for each in rule.specificity), -rule.number)


def _arguments_key(matcher: Matcher) -> Any:
    """Return a hashable key that the arguments must equal, or `None` if the matcher requires none."""
    parts = matcher.parts if isinstance(matcher, AllOf) else (matcher,)
    for part in parts:
        if isinstance(part, ArgumentsAre) and part.mode == "exact" and not part.ignore:
            return _freeze_or_none(part.values)
    return None


def _freeze_or_none(value: object) -> Any:
    try:
        return _freeze(value)
    except (TypeError, RecursionError):
        return None


def _freeze(value: Any) -> Any:
    """Make a hashable copy of a JSON value; equal values give equal copies."""
    kind = type(value)  # no subclasses, which may have their own `==`
    if kind is str or kind is int or kind is float or value is None:
        return value
    if kind is ReadOnlyDict or kind is dict:
        return frozenset([(key, _freeze(item)) for key, item in value.items()])
    if kind is ReadOnlyList or kind is list:
        return ("list", *map(_freeze, value))
    if kind is bool:
        return ("bool", value)
    raise TypeError(f"a {kind.__name__} is not a JSON value")


def _callable(function: F) -> F:
    if not callable(function):
        raise HookUsageError(f"A function is needed here; got {function!r:.100}.")
    return function
