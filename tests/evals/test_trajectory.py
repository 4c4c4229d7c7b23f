"""What an agent did is compared with what was expected: five modes, rules for arguments, a score, an alignment."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, get_args

import pytest
from dirty_equals import IsPartialDict, IsPositive, IsStr
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.errors import HookUsageError
from hookline.evals import EventRecorder
from hookline.evals.trajectories import MatchType, Trajectory, assert_trajectory
from hookline.evals.trajectories._alignment import FULL, align_in_any_order, align_in_order
from hookline.evals.trajectories._trajectory import ArgumentMode, ArgumentRule, ExpectedCall

MODES = get_args(MatchType)
ARGS = get_args(ArgumentMode)
laws = settings(max_examples=30, deadline=None)

IBAN: ExpectedCall = ("bank/get_iban", {"user": "ann"})
SEND: ExpectedCall = ("bank/send", {"to": "ann", "amount": 5})
LOG: ExpectedCall = ("log/write", {"text": "sent"})

calls = st.tuples(
    st.sampled_from(["shop/a", "shop/b", "mail/a"]),
    st.dictionaries(st.sampled_from("pqr"), st.sampled_from([0, 1, "x", None]), max_size=2),
)
trajectories = st.lists(calls, max_size=5).map(Trajectory.of_calls)
modes = st.sampled_from(MODES)
arguments = st.sampled_from(ARGS)


def made(*calls: ExpectedCall) -> Trajectory:
    return Trajectory.of_calls(calls)


def matching(actual: Trajectory, expected: list[ExpectedCall]) -> set[str]:
    return {mode for mode in MODES if actual.match(expected, mode=mode).ok}


# The modes.


@pytest.mark.parametrize(
    ("actual", "modes"),
    [
        ([IBAN, SEND], set(MODES)),
        ([SEND, IBAN], {"unordered", "subset", "superset"}),
        ([IBAN, LOG, SEND], {"in_order", "superset"}),
        ([SEND, LOG, IBAN], {"superset"}),
        ([SEND], {"subset"}),
        ([], {"subset"}),
        ([IBAN, IBAN, SEND], {"in_order", "superset"}),
        ([LOG], set()),
    ],
)
def test_each_mode_allows_what_it_says(actual: list[ExpectedCall], modes: set[str]) -> None:
    assert matching(made(*actual), [IBAN, SEND]) == modes


def test_nothing_matches_nothing() -> None:
    assert matching(made(), []) == set(MODES)
    assert matching(made(IBAN), []) == {"in_order", "superset"}


async def run_and_record() -> Trajectory:
    @tool(in_thread=False)
    def look(where: str) -> str:
        return f"seen {where}"

    turns = [
        ModelResponse(
            tool_calls=[
                ToolRequest(tool_name="look", args={"where": "left"}, tool_call_id="t1"),
                ToolRequest(tool_name="look", args={"where": "right"}, tool_call_id="t2"),
            ]
        ),
        ModelResponse(tool_calls=[ToolRequest(tool_name="look", args={"where": "up"}, tool_call_id="t1")]),
        ModelResponse(content="end"),
    ]
    recorder = EventRecorder()
    await exec_agent(Agent(id="a", model=ScriptedModel(turns), tools=[look]), "go", hooks=[recorder.hooks])
    assert_trajectory(recorder.only, ["look", "look", "look"])
    return recorder.only.trajectory


@pytest.mark.anyio
async def test_the_calls_of_a_real_run_are_those_of_all_its_steps() -> None:
    trajectory = await run_and_record()

    assert [call.args for call in trajectory.calls] == [{"where": "left"}, {"where": "right"}, {"where": "up"}]
    assert_trajectory(trajectory, [("local/look", {"where": where}) for where in ("left", "right", "up")])


# Writing what is expected.


def test_a_call_is_written_in_four_ways() -> None:
    written = made(
        IBAN,
        {"tool": "bank/get_iban", "args": {"user": "ann"}},
        ToolRequest(toolset="bank", tool_name="get_iban", args={"user": "ann"}, tool_call_id="t1"),
        "bank/get_iban",
    )

    assert made(IBAN, IBAN, IBAN, IBAN).match(written).ok


@pytest.mark.parametrize("name", ["get_iban", "bank/get_iban", "bank/*", "*/get_ib?n", {"tool": "get_iban"}])
def test_a_tool_alone_stands_for_a_call_with_any_arguments(name: ExpectedCall) -> None:
    assert matching(made(IBAN), [name]) == set(MODES)
    assert matching(made(LOG), [name]) == set()


def test_a_bare_name_fits_the_tool_of_any_identifier() -> None:
    assert made(("bank/send", {"x": 1}), ("mail/send", {"x": 1})).match([("send", {"x": 1}), ("send", {"x": 1})]).ok


def test_a_tool_whose_name_looks_like_a_glob_matches_itself() -> None:
    odd = made(("web/get[0]", {}))

    assert odd.match(odd).ok


@pytest.mark.parametrize(
    "wrong", [[7], [("a", "b", "c")], [{"name": "x"}], [{"tool": "x", "arg": {}}], [""], "get_iban", {}]
)
def test_what_is_no_call_is_refused_with_its_place(wrong: Any) -> None:
    with pytest.raises(HookUsageError, match=r"Expected call"):
        Trajectory.of_calls(wrong)


def test_expected_values_may_compare_themselves() -> None:
    expected = [("bank/get_iban", {"user": IsStr(min_length=2)}), ("bank/send", IsPartialDict(amount=IsPositive))]

    assert matching(made(IBAN, SEND), expected) == set(MODES)
    for args in ("exact", "superset"):
        assert not made(("bank/get_iban", {"user": "a"}), SEND).match(expected, args=args).ok


def test_a_call_whose_arguments_are_no_object_matches_itself_alone() -> None:
    raw = Trajectory.of_calls([ToolRequest(toolset="bank", tool_name="send", args="{bad", tool_call_id="t")])

    assert all(raw.match(raw, args=args).ok for args in ARGS)
    assert not raw.match([SEND], args="superset").ok


# Rules for arguments.


@pytest.mark.parametrize(
    ("actual", "modes"),
    [
        ({"a": 1, "b": {"c": 2}}, {"exact", "ignore", "subset", "superset"}),
        ({"a": 1}, {"ignore", "subset"}),
        ({"a": 1, "b": {}}, {"ignore", "subset"}),
        ({"a": 1, "b": {"c": 2, "d": 3}, "e": 4}, {"ignore", "superset"}),
        ({"a": 2, "b": {"c": 2}}, {"ignore"}),
    ],
)
def test_each_argument_mode_allows_what_it_says(actual: dict[str, object], modes: set[str]) -> None:
    expected: ExpectedCall = ("t/x", {"a": 1, "b": {"c": 2}})

    assert {args for args in ARGS if made(("t/x", actual)).match([expected], args=args).ok} == modes


@pytest.mark.parametrize(
    "rule",
    [
        "ignore",
        ["to"],
        lambda actual, expected: actual["to"] == expected["to"],
        ArgumentRule(ignore=["amount", "meta.at"]),
        ArgumentRule(fields=["meta.by"]),
        ArgumentRule(compare=lambda actual, expected: actual["amount"] > expected["amount"]),
    ],
)
def test_a_tool_may_have_a_rule_of_its_own(rule: Any) -> None:
    actual = made(IBAN, ("bank/send", {"to": "ann", "amount": 6, "meta": {"at": 1, "by": "me"}}))
    expected = [IBAN, ("bank/send", {"to": "ann", "amount": 5, "meta": {"at": 2, "by": "me"}})]

    assert not actual.match(expected).ok
    assert all(actual.match(expected, mode=mode, tools={"bank/send": rule}).ok for mode in MODES)
    assert not actual.match(expected, tools={"log/write": rule}).ok


def test_the_most_specific_rule_of_a_tool_holds() -> None:
    actual, expected = made(("bank/send", {"a": 1})), [("bank/send", {"a": 2})]

    assert actual.match(expected, args="exact", tools={"bank/send": "ignore", "send": "exact", "*": "exact"}).ok
    assert actual.match(expected, args="exact", tools={"*": "exact", "send": "ignore", "bank/*": "exact"}).ok
    assert actual.match(expected, args="exact", tools={"bank/s*": "ignore", "*": "exact"}).ok


async def later(actual: object, expected: object) -> bool:
    raise AssertionError("never awaited")


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "any"},
        {"fields": "to"},
        {"ignore": [""]},
        {"mode": "ignore", "fields": ["to"]},
        {"fields": ["to"], "compare": max},
        {"compare": later},
        {"compare": 7},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        ArgumentRule(**wrong)


def test_a_comparison_that_turns_out_to_be_async_is_refused() -> None:
    with pytest.raises(HookUsageError, match="never be awaited"):
        made(SEND).match([SEND], args=lambda actual, expected: later(actual, expected))


@pytest.mark.parametrize("wrong", [{"mode": "exact"}, {"args": 7}, {"args": "any"}, {"tools": {"send": None}}])
def test_a_comparison_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        made(SEND).match([SEND], **wrong)


# The score.


@pytest.mark.parametrize(
    ("mode", "score"),
    [("strict", 0.625), ("in_order", 5 / 6), ("unordered", 0.625), ("subset", 0.625), ("superset", 5 / 6)],
)
def test_the_score_is_the_share_of_calls_that_are_right_and_half_of_those_with_other_arguments(
    mode: MatchType, score: float
) -> None:
    found = made(IBAN, ("bank/send", {"to": "bob"}), LOG, ("x/y", {})).match([IBAN, SEND, LOG], mode=mode)

    assert found.score == pytest.approx(score)
    assert not found.ok


@given(trajectories, modes, arguments)
@laws
def test_law_a_trajectory_matches_itself(trajectory: Trajectory, mode: MatchType, args: ArgumentMode) -> None:
    found = trajectory.match(trajectory, mode=mode, args=args)

    assert (found.ok, found.score, found.missing, found.extra) == (True, 1.0, [], [])


def test_a_value_that_does_not_equal_itself_matches_itself() -> None:
    odd = made(("t/x", {"n": float("nan"), "in": {"n": float("nan")}}))

    assert all(odd.match(odd, mode=mode, args=args).ok for mode in MODES for args in ARGS)


@given(trajectories, trajectories, modes, arguments)
@laws
def test_law_the_score_is_one_if_and_only_if_it_matches(
    actual: Trajectory, expected: Trajectory, mode: MatchType, args: ArgumentMode
) -> None:
    found = actual.match(expected, mode=mode, args=args)

    assert 0 <= found.score <= 1
    assert (found.score == 1) == found.ok


@given(trajectories, trajectories, arguments)
@laws
def test_law_what_is_strictly_equal_matches_in_every_mode(
    actual: Trajectory, expected: Trajectory, args: ArgumentMode
) -> None:
    ok = {mode for mode in MODES if actual.match(expected, mode=mode, args=args).ok}

    assert "strict" not in ok or ok == set(MODES)
    assert "in_order" not in ok or "superset" in ok
    assert "unordered" not in ok or {"subset", "superset"} <= ok


@given(st.data(), trajectories, st.lists(calls, max_size=5))
@laws
def test_law_the_order_does_not_matter_where_it_is_said_not_to(
    data: st.DataObject, actual: Trajectory, expected: list[ExpectedCall]
) -> None:
    shuffled = data.draw(st.permutations(expected))

    for mode in ("unordered", "subset", "superset"):
        assert actual.match(expected, mode=mode).score == actual.match(shuffled, mode=mode).score
        assert actual.match(expected, mode=mode).score == made(*shuffled).match(actual, mode=_other(mode)).score


@given(trajectories, trajectories, arguments)
@laws
def test_law_subset_and_superset_are_each_other_seen_from_the_other_side(
    actual: Trajectory, expected: Trajectory, args: ArgumentMode
) -> None:
    one = actual.match(expected, mode="subset", args=args)
    other = expected.match(actual, mode="superset", args=_other(args))

    assert (one.ok, one.score) == (other.ok, other.score)
    assert actual.match(expected, mode="unordered", args=args).ok == (
        one.ok and actual.match(expected, mode="superset", args=args).ok
    )


def _other(mode: Any) -> Any:
    return {"subset": "superset", "superset": "subset"}.get(mode, mode)


@given(trajectories, trajectories, modes, arguments)
@laws
def test_law_the_alignment_shows_every_call_once(
    actual: Trajectory, expected: Trajectory, mode: MatchType, args: ArgumentMode
) -> None:
    found = actual.match(expected, mode=mode, args=args)

    assert sorted(line.actual_index for line in found.alignment if line.actual) == list(range(len(actual.calls)))
    assert [line.expected_index for line in found.alignment if line.expected] == list(range(len(expected.calls)))
    assert all(line.differences for line in found.pairs if line.sign == "~")
    assert len(found.pairs) + len(found.missing) + len(found.extra) == len(found.alignment)


worths = st.integers(0, 6).flatmap(
    lambda columns: st.lists(st.lists(st.integers(0, 2), min_size=columns, max_size=columns), min_size=1, max_size=6)
)


@given(worths)
@laws
def test_law_no_alignment_in_order_is_worth_more(table: list[list[int]]) -> None:
    pairs = align_in_order(len(table), len(table[0]), lambda one, other: table[one][other])

    assert all(one < later and other < after for (one, other, _), (later, after, _) in pairwise(pairs))
    assert sum(worth for _, _, worth in pairs) == _best_in_order(table, 0, 0)


def _best_in_order(table: list[list[int]], one: int, other: int) -> int:
    if one == len(table) or other == len(table[0]):
        return 0
    with_both = table[one][other] + _best_in_order(table, one + 1, other + 1)
    return max(with_both, _best_in_order(table, one + 1, other), _best_in_order(table, one, other + 1))


@given(worths)
@laws
def test_law_no_pairing_has_more_equal_calls(table: list[list[int]]) -> None:
    unknown = [None] * len(table), [None] * len(table[0])

    pairs = align_in_any_order(*unknown, lambda one, other: table[one][other])

    assert len({one for one, _, _ in pairs}) == len({other for _, other, _ in pairs}) == len(pairs)
    assert all(table[one][other] == worth > 0 for one, other, worth in pairs)
    assert sum(worth == FULL for _, _, worth in pairs) == _most_equal(table, 0, frozenset())


def _most_equal(table: list[list[int]], one: int, taken: frozenset[int]) -> int:
    if one == len(table):
        return 0
    paired = [
        1 + _most_equal(table, one + 1, taken | {other})
        for other, worth in enumerate(table[one])
        if worth == FULL and other not in taken
    ]
    return max([_most_equal(table, one + 1, taken), *paired])


def test_a_call_is_not_paired_so_that_another_finds_no_partner() -> None:
    actual = made(("t/x", {"a": 1, "b": 2}), ("t/x", {"a": 1}))

    found = actual.match([("t/x", {"a": 1}), ("t/x", {"a": 1, "b": 2})], mode="superset", args="superset")

    assert found.ok


# Sizes.


@pytest.mark.parametrize("mode", MODES)
def test_thousands_of_calls_that_are_mostly_equal_are_compared_in_no_time(mode: MatchType) -> None:
    calls: list[ExpectedCall] = [("t/x", {"n": number}) for number in range(4_000)]

    found = made(*calls[:2_000], LOG, *calls[2_000:]).match(calls, mode=mode)

    assert len(found.extra) == 1
    assert found.ok == (mode in ("in_order", "superset"))


@pytest.mark.parametrize("mode", ["strict", "unordered"])
def test_hundreds_of_calls_of_which_none_is_equal_are_aligned(mode: MatchType) -> None:
    found = made(*[("t/x", {"n": number}) for number in range(300)]).match([("t/x", {"n": -1})] * 300, mode=mode)

    assert (found.score, len(found.pairs)) == (0.5, 300)


@pytest.mark.parametrize("mode", MODES)
def test_more_calls_than_can_be_aligned_are_refused(mode: MatchType) -> None:
    actual, expected = [made(*[("t/x", {"n": sign * n}) for n in range(1, 2_002)]) for sign in (1, -1)]

    with pytest.raises(HookUsageError, match="2,001 actual and 2,001 expected calls"):
        actual.match(expected, mode=mode)


# What a person reads.


def test_the_alignment_reads_side_by_side() -> None:
    actual = made(IBAN, ("bank/send", {"to": "ann", "amount": 6, "note": "x" * 100}), LOG)
    expected = ["get_iban", ("bank/send", {"to": "ann", "amount": 5}), ("bank/close", {})]

    assert str(actual.match(expected)).splitlines() == [
        "The trajectory does not match (strict, score 0.5).",
        "  expected                                               actual",
        '=    1 get_iban                                             1 bank/get_iban {"user": "ann"}',
        '~    2 bank/send {"to": "ann", "amount": 5}                 2 bank/send {"to": "ann", "amount": 6, "…xxxxxxx"}',
        "       amount: expected 5, got 6",
        f'       note: expected nothing, got "{"x" * 58}…',
        "-    3 bank/close {}",
        '+                                                           3 log/write {"text": "sent"}',
    ]


def test_a_match_says_so() -> None:
    assert str(made().match([])) == "The trajectory matches (strict, score 1)."
    assert str(made(IBAN).match([IBAN])).startswith("The trajectory matches (strict, score 1).\n")


def test_nothing_but_a_match_is_shown_with_score_one() -> None:
    almost = made(*[("t/x", {"n": number}) for number in range(5_000)])

    assert "score 0.999)" in str(almost.match([*almost.calls, LOG]))


def test_a_failed_assertion_is_the_alignment() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_trajectory(made(IBAN), [IBAN, SEND])

    assert str(caught.value) == str(made(IBAN).match([IBAN, SEND]))
    assert_trajectory(made(IBAN), [IBAN, SEND], mode="subset")


def test_a_score_may_be_good_enough() -> None:
    assert_trajectory(made(IBAN), [IBAN, SEND], min_score=0.5)
    with pytest.raises(AssertionError, match=r"score 0\.5"):
        assert_trajectory(made(IBAN), [IBAN, SEND], min_score=0.6)
    with pytest.raises(HookUsageError, match="from 0 to 1"):
        assert_trajectory(made(IBAN), [IBAN], min_score=60)


def test_a_match_survives_pickling() -> None:
    found = made(IBAN).match([IBAN, SEND])

    assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_arguments_are_as_they_were_after_a_comparison() -> None:
    args: Mapping[str, object] = {"a": {"at": 1}}

    made(("t/x", args)).match([("t/x", {"a": {"at": 2}})], args=ArgumentRule(ignore=["a.at"]))

    assert args == {"a": {"at": 1}}
