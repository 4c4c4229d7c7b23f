"""One rule says which arguments are equal, for matchers, mocks, trajectories and cassettes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import AfterToolCall, BeforeToolCall, HookDispatcher, ToolCall, ToolRequest
from hookline.evals import ArgumentRule, Cassette, ToolMocks, Trajectory, match
from hookline.evals._equality import json_equal, json_key
from hookline.evals.trajectories import MatchType

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 1.5, 1e300]) | st.text("ab"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=4,
)

SAME = [(1, 1.0), (0, -0.0), ([1], [1.0]), ({"x": [1]}, {"x": [1.0]}), (True, True), (10**30, 10**30)]
OTHER = [(True, 1), (1.0, True), (False, 0), ([1], [True]), ({"x": {"y": 0}}, {"x": {"y": False}}), (1, "1"), (0, None)]
CASES = [*((one, other, True) for one, other in SAME), *((one, other, False) for one, other in OTHER)]


def before(value: object) -> BeforeToolCall:
    return BeforeToolCall(
        operation_id="o",
        toolset="local",
        tool_name="look",
        args={"n": value},
        call_index=1,
        step_index=0,
        tool_call_id="c",
    )


def call(mocks: ToolMocks, *values: object) -> None:
    async def main() -> None:
        async with HookDispatcher() as dispatcher:
            dispatcher.register("o", [mocks])
            for value in values:
                await dispatcher.dispatch_before_tool_call(before(value))
            await dispatcher.unregister("o")

    anyio.run(main)


def by_matcher(wanted: Any, given: Any) -> bool:
    seen = ToolCall(toolset="local", tool_name="look", args={"n": given}, tool_call_id="c", call_index=1, step_index=0)
    answers = {
        match.args({"n": wanted}).matches(seen),
        match.args({"n": wanted}).explain(seen) is None,
        match.args({"n": wanted}, mode="superset").matches(seen),
        match.args({"n": wanted}, mode="subset").matches(seen),
        match.fields({"n": wanted}).matches(seen),
        match.args({"n": match.one_of(wanted)}).matches(seen),
    }
    (answer,) = answers
    return answer


def by_mocks(wanted: Any, given: Any) -> bool:
    mocks = ToolMocks(strict=True)
    mocks.tool("look", {"n": wanted}).returns("found")
    call(mocks, given)
    try:
        mocks.assert_called("look", {"n": wanted})
        asserted = True
    except AssertionError:
        asserted = False
    assert asserted == (mocks.calls[0].outcome == "mocked")
    return asserted


def by_trajectory(wanted: Any, given: Any) -> bool:
    made = Trajectory.of_calls([ToolRequest(tool_name="look", args={"n": given}, toolset="local")])
    modes: list[MatchType] = ["strict", "in_order", "unordered", "subset", "superset"]
    rules = ["exact", "superset", ArgumentRule(fields=["n"])]
    answers = {
        made.match([("look", {"n": wanted})], mode=mode, args=rule).ok  # type: ignore[arg-type]
        for mode in modes
        for rule in rules
    }
    (answer,) = answers
    return answer


def by_cassette(wanted: Any, given: Any) -> bool:
    cassette = Cassette("c", mode="new_episodes", redact=None)
    event = before(wanted)
    fields = {name: getattr(event, name) for name in ("operation_id", "toolset", "tool_name", "args")}
    cassette.keep(AfterToolCall(**fields, call_index=1, step_index=0, tool_call_id="c", content="x", success=True))
    cassette.forget("o")
    return cassette.answer(before(given)) is not None


@pytest.mark.parametrize("compare", [by_matcher, by_mocks, by_trajectory, by_cassette])
@pytest.mark.parametrize(("one", "other", "same"), CASES)
def test_numbers_are_equal_by_value_and_booleans_are_no_numbers(one: Any, other: Any, same: bool, compare: Any) -> None:
    assert (compare(one, other), compare(other, one)) == (same, same)


@given(one=VALUES, other=VALUES)
@settings(max_examples=80, deadline=None)
def test_law_equal_values_share_a_key_and_others_do_not(one: Any, other: Any) -> None:
    assert json_equal(one, other) == (json_key({"v": one}) == json_key({"v": other}))
    assert json_equal(one, other) == json_equal(other, one)
    assert not json_equal(one, other) or one == other


def test_an_expected_value_with_an_equality_of_its_own_decides() -> None:
    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    assert json_equal(Anything(), True)
    assert json_equal({"x": [Anything()]}, {"x": [1]})


def test_rules_for_true_and_for_one_stand_side_by_side() -> None:
    mocks = ToolMocks(strict=True)
    mocks.tool("look", {"n": True}).returns("true")
    mocks.tool("look", {"n": 1}).returns("one")
    mocks.tool("pick").table("n", {1: "one", "*": "other"})

    call(mocks, True, 1, 1.0)
    assert [rule.hits for rule in mocks.rules] == [1, 2, 0]
