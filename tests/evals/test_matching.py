"""Matchers: what they match, why they do not, and which of two is the narrower."""

from __future__ import annotations

import re
from typing import Any

import pytest
from dirty_equals import IsInt
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import BeforeToolCall
from hookline.calls import ToolSpec
from hookline.errors import HookUsageError
from hookline.evals import Matcher, match
from hookline.evals.mocking._rules import never_matches

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
ARGS = st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON, max_size=3)


def call(path: str = "bank/send", args: dict[str, Any] | None = None, index: int = 1, step: int = 0) -> BeforeToolCall:
    toolset, _, name = path.rpartition("/")
    return BeforeToolCall(
        operation_id="op",
        toolset=toolset,
        tool_name=name,
        args=args or {},
        call_index=index,
        step_index=step,
        tool_call_id="t",
        tenant_id="acme",
    )


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("bank/send", True),
        ("send", True),
        ("bank/*", True),
        ("*/send", True),
        ("*", True),
        (re.compile(r"bank/s\w+"), True),
        (lambda path: path.startswith("bank/"), True),
        ("bank/sen", False),
        ("sen", False),
        ("shop/*", False),
        (re.compile("bank"), False),
        (lambda path: "x" in path, False),
    ],
)
def test_a_tool_is_matched_by_path_name_glob_regex_and_predicate(pattern: Any, fits: bool) -> None:
    assert match.tool(pattern).matches(call()) is fits
    assert (match.tool(pattern).explain(call()) is None) is fits


@pytest.mark.parametrize(
    ("matcher", "fits"),
    [
        (match.args({"to": "x", "n": 1}), True),
        (match.args({"to": "x"}), False),
        (match.args({"to": "x"}, mode="superset"), True),
        (match.args({"to": "x", "n": 1, "more": 2}, mode="subset"), True),
        (match.args({"to": "x", "n": 2}, mode="subset"), False),
        (match.args({"to": "x"}, ignore=["n"]), True),
        (match.args({}, mode="ignore"), True),
        (match.args({"to": match.one_of("x", "y"), "n": match.anything}), True),
        (match.args({"to": match.one_of("y", "z"), "n": 1}), False),
        (match.args({"to": "x", "n": IsInt(gt=0)}), True),
        (match.args({"to": "x", "n": IsInt(gt=1)}), False),
        (match.where(lambda seen: seen.args["n"] == 1), True),
        (match.schema({"properties": {"n": {"type": "integer", "maximum": 1}}}), True),
        (match.schema({"required": ["subject"]}), False),
        (match.nth(1) & match.step(0), True),
        (match.nth(2) | match.after(1), False),
        (match.run(tenant_id="acme"), True),
        (match.run(tenant_id="other"), False),
    ],
)
def test_arguments_and_places_are_matched(matcher: Matcher, fits: bool) -> None:
    seen = call(args={"to": "x", "n": 1})

    assert matcher.matches(seen) is fits
    assert (matcher.explain(seen) is None) is fits
    assert (~matcher).matches(seen) is not fits


def test_nested_fields_are_named_with_dots() -> None:
    seen = call(args={"filter": {"since": "today", "tags": ["urgent", "new"]}, "a.b": 1})

    assert match.fields({"filter.tags.0": "urgent", "a.b": 1}).matches(seen)
    assert match.args({"filter": {"tags": ["urgent", "new"]}}, mode="superset").matches(seen)
    assert match.args({"filter": {"tags": ["?", "new"]}}, ignore=["filter.since", "filter.tags.0", "a.b"]).matches(seen)
    assert match.fields({"filter.until": 1}).explain(seen) == "there is no field 'filter.until'"


def test_a_matcher_says_why_a_call_does_not_match() -> None:
    seen = call(args={"to": "x", "more": 1}, index=3)
    wanted = match.tool("bank/read") & match.args({"to": "y", "from": "z"}) & match.nth(1)

    assert wanted.explain(seen) == (
        "the tool is bank/send, not 'bank/read'; 'from' is missing, 'to' is 'x', not 'y', 'more' is not expected; "
        "its call_index is 3, not 1"
    )


@settings(max_examples=60, deadline=None)
@given(first=ARGS, second=ARGS)
def test_subset_is_superset_seen_from_the_other_side(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = call(args=first), call(args=second)

    assert match.args(first, mode="subset").matches(other) is match.args(second, mode="superset").matches(one)
    assert match.args(first).matches(one)
    if match.args(first).matches(other):
        assert match.args(first, mode="subset").matches(other)
        assert match.args(first, mode="superset").matches(other)


@settings(max_examples=60, deadline=None)
@given(args=ARGS, first=ARGS, second=ARGS)
def test_combinations_follow_the_laws_of_logic(
    args: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    seen, one, other = call(args=args), match.args(first), match.args(second, mode="superset")

    assert (~(one & other)).matches(seen) is (~one | ~other).matches(seen)
    assert (~(one | other)).matches(seen) is (~one & ~other).matches(seen)
    assert (~~one) == one


def test_narrower_matchers_are_more_specific() -> None:
    order = [
        match.tool("*"),
        match.tool(str.isidentifier),
        match.tool(re.compile("bank/.*")),
        match.tool("*nd"),
        match.tool("bank/*"),
        match.tool("send"),
        match.tool("bank/send"),
        match.tool("bank/send") & match.where(bool),
        match.tool("bank/send") & match.args({"to": 1}, mode="superset"),
        match.tool("bank/send") & match.args({"to": 1}),
        match.tool("bank/send") & match.args({"to": 1}) & match.nth(1),
    ]

    assert [each.specificity for each in order] == sorted(each.specificity for each in order)
    assert len({each.specificity for each in order}) == len(order)


@pytest.mark.parametrize(
    "matcher",
    [
        match.tool("a/b") & match.tool("a/c"),
        match.tool("a/b") & ~match.tool("b"),
        match.tool("a/b") & match.tool("c/*"),
        match.nth(1) & match.nth(2),
        match.nth(2) & match.after(2),
        match.step(0) & match.step(1),
        match.args({"a": 1}) & match.args({"a": 2}),
        match.args({"a": 1}) & match.fields({"b": 1}),
        match.args({"a": {"b": 1}}) & match.args({"a": {"c": 1}}, mode="superset"),
        match.args({"a": match.one_of()}),
        match.schema(False),
        ~match.tool("*"),
        match.step(0) & ~match.step(0),
        match.run(tenant_id="a") & match.run(tenant_id="b"),
        (match.nth(1) & match.nth(2)) | match.schema(False),
    ],
)
def test_a_matcher_that_can_never_match_is_found(matcher: Matcher) -> None:
    assert never_matches(matcher) is not None


@settings(max_examples=60, deadline=None)
@given(first=ARGS, second=ARGS, args=ARGS, index=st.integers(1, 3), nth=st.integers(1, 3))
def test_a_matcher_that_matches_something_is_never_called_impossible(
    first: dict[str, Any], second: dict[str, Any], args: dict[str, Any], index: int, nth: int
) -> None:
    matcher = match.tool("bank/send") & match.args(first) & match.args(second, mode="superset") & match.nth(nth)

    if matcher.matches(call(args=args, index=index)):
        assert never_matches(matcher) is None


class Even:
    """Stands for every even number."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other % 2 == 0

    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("exact", "held", "args"),
    [
        ({"b": {}, "a": {"": False}}, {"a": {}}, {"b": {}, "a": {"": False}}),
        ({"a": Even()}, {"a": match.one_of(1, 2)}, {"a": 2}),
        ({"a": {"b": Even(), "c": 1}}, {"a": {"b": 2}}, {"a": {"b": 2, "c": 1}}),
        ({"a": [Even()]}, {"a": match.one_of([2])}, {"a": [2]}),
    ],
)
def test_what_nested_and_custom_values_allow_is_not_called_impossible(
    exact: dict[str, Any], held: dict[str, Any], args: dict[str, Any]
) -> None:
    matcher = match.tool("bank/send") & match.args(exact) & match.args(held, mode="superset")

    assert matcher.matches(call(args=args))
    assert never_matches(matcher) is None


def test_a_rule_for_no_known_tool_or_argument_is_found() -> None:
    schema = {"type": "object", "properties": {"to": {}}, "additionalProperties": False}
    tools = [ToolSpec(toolset="bank", name="send", description="", schema=schema)]

    assert "no tool matches" in (never_matches(match.tool("bank/sand"), tools) or "")
    assert "has no argument 'too'" in (never_matches(match.tool("send") & match.args({"too": 1}), tools) or "")
    assert never_matches(match.tool("send") & match.fields({"to.name": 1}), tools) is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: match.tool(""),
        lambda: match.tool(3),  # type: ignore[arg-type]
        lambda: match.tool(re.compile(b"x")),  # type: ignore[arg-type]
        lambda: match.args([1]),  # type: ignore[arg-type]
        lambda: match.args({}, mode="most"),  # type: ignore[arg-type]
        lambda: match.args({}, ignore="abc"),
        lambda: match.fields({}),
        lambda: match.where("x"),  # type: ignore[arg-type]
        lambda: match.nth(0),
        lambda: match.nth(True),
        lambda: match.step(-1),
        lambda: match.run(),
        lambda: match.run(colour="red"),
        lambda: match.run(tenant_id=None),  # type: ignore[arg-type]
        lambda: match.after(None),  # type: ignore[arg-type]
        lambda: match.after(-1),
        lambda: match.schema({"type": 3}),
        lambda: match.schema("object"),  # type: ignore[arg-type]
    ],
)
def test_a_matcher_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(HookUsageError):
        wrong()
