"""Trajectories: the steps and calls of an agent, and their alignment with the expected calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

import msgspec

from hookline._checks import has_wildcard, tool_test
from hookline.calls import ToolRequest
from hookline.errors import HookUsageError
from hookline.evals._canonical import canonical
from hookline.evals._equality import json_key
from hookline.evals.matching import ArgumentMode, ArgumentRule, ArgumentRules, ToolRule, format_value, match, path_of
from hookline.evals.mocking import MockedCall
from hookline.evals.trajectories._alignment import FULL, Pairs, align_in_any_order, align_in_order
from hookline.events import ToolOutcome

__all__ = [
    "AlignedCall",
    "ArgumentMode",
    "ArgumentRule",
    "ExpectedCall",
    "MatchType",
    "Trajectory",
    "TrajectoryMatch",
    "TrajectoryStep",
    "assert_trajectory",
]

MatchType = Literal["strict", "in_order", "unordered", "subset", "superset"]
"""How a trajectory is compared with the expected one.

`"strict"`: the same calls in the same order. `"in_order"`: the expected calls in their order, others may come between.
`"unordered"`: the same calls in any order. `"subset"`: no call that is not expected; some may be left out.
`"superset"`: every expected call; there may be others. A call counts as often as it is made.
"""

ExpectedCall: TypeAlias = "str | tuple[str, object] | Mapping[str, Any] | ToolRequest | MockedCall"
"""An expected call as one writes it: `"get_iban"`, `("bank/get_iban", {"user": "x"})`, `{"tool": …, "args": …}`."""

COLUMN = 48
"""How many characters of a call a line of an alignment shows, on each side."""


class TrajectoryStep(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, tool calls and tool results of one step.

    Attributes:
        content: The text of the model's answer.
        calls: The tool calls that the model asked for.
        results: The tool results that the model read.
    """

    content: str
    calls: list[ToolRequest]
    results: list[ToolOutcome]


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of an agent and its final answer, without anything that differs between equal runs.

    Attributes:
        steps: The steps.
        output: The final answer.
        reason: The reason of the run's end: `"done"`, `"error"`, …
    """

    steps: list[TrajectoryStep]
    output: str
    reason: str

    @classmethod
    def of_calls(cls, calls: Iterable[ExpectedCall]) -> Trajectory:
        """Make an expected trajectory from calls alone; each call is a step.

        Args:
            calls: Each is a tool with its arguments, as `("bank/get_iban", {"user": "x"})` or `{"tool": …, "args": …}`;
                a tool alone, with any arguments; a `ToolRequest`; or one of `ToolMocks.calls`. A tool is a path, a bare
                name (of any toolset) or a glob. Arguments, and the values in them, may be objects with an `__eq__`
                of their own.

        Raises:
            HookUsageError: If one of them is something else; it says which.
        """
        if isinstance(calls, str | Mapping):
            raise HookUsageError(f"Expected calls are given as a list; got {format_value(calls)}.")
        callings = [_to_request(number, call) for number, call in enumerate(calls, 1)]
        steps = [TrajectoryStep(content="", calls=[calling], results=[]) for calling in callings]
        return cls(steps=steps, output="", reason="done")

    @property
    def calls(self) -> list[ToolRequest]:
        """All tool calls that the model asked for, in their order."""
        return [call for step in self.steps for call in step.calls]

    def encode(self) -> bytes:
        """Encode the trajectory as canonical JSON. Equal runs give equal bytes."""
        return canonical(self).encode()

    def match(
        self,
        expected: Trajectory | Iterable[ExpectedCall],
        *,
        mode: MatchType = "strict",
        args: ToolRule = "exact",
        tools: Mapping[str, ToolRule] | None = None,
    ) -> TrajectoryMatch:
        """Compare the calls with the expected ones. Texts and results do not count.

        Args:
            expected: A trajectory, or calls as `of_calls` takes them.
            mode: The calls that may be missing, added or moved.
            args: How arguments are compared: an `ArgumentRule`, or its mode, its dotted fields or its comparator alone.
            tools: The same for some tools, by path, name or glob; the most specific one holds.

        Returns:
            The alignment with its score. Time and memory grow with the product of the numbers of calls that differ:
            2,000 by 2,000 take seconds.

        Raises:
            HookUsageError: If an argument makes no sense, or if too many calls differ.
        """
        if mode not in get_args(MatchType):
            modes = ", ".join(map(repr, get_args(MatchType)))
            raise HookUsageError(f"A trajectory is matched by one of {modes}; got {format_value(mode)}.")
        reference = expected if isinstance(expected, Trajectory) else Trajectory.of_calls(expected)
        return _Comparison(self.calls, reference.calls, ArgumentRules(args, tools)).match(mode)


class AlignedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an alignment: an actual call, an expected call, or a pair of them.

    Attributes:
        sign: `"="` for a call as expected, `"~"` for one with other arguments, `"-"` for an expected call that was not
            made, `"+"` for one that was not expected.
        actual: The call that was made.
        expected: The call that was expected.
        actual_index: Its place among the calls, from 0.
        expected_index: Its place among the expected calls, from 0.
        differences: For `"~"`, how the arguments differ.
    """

    sign: Literal["=", "~", "-", "+"]
    actual: ToolRequest | None = None
    expected: ToolRequest | None = None
    actual_index: int | None = None
    expected_index: int | None = None
    differences: list[str] = []


class TrajectoryMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a trajectory with the expected one. `str()` shows both side by side.

    Attributes:
        ok: Whether it is as expected in this `mode`.
        score: The share of calls that are as expected, from 0 to 1, and 1 only if `ok`. A call with other arguments
            counts half. Calls that `mode` allows to be missing or added do not count.
        mode: The mode of the comparison.
        alignment: Every call of both sides, once.
    """

    ok: bool
    score: float
    mode: MatchType
    alignment: list[AlignedCall]

    def __str__(self) -> str:
        verdict = "matches" if self.ok else "does not match"
        lines = [f"The trajectory {verdict} ({self.mode}, score {_percent(self.score)})."]
        if self.alignment:
            lines.append(f"  {'expected':<{COLUMN + 5}}  actual")
        for line in self.alignment:
            left = _side(line.expected, line.expected_index)
            lines.append(f"{line.sign} {left:<{COLUMN + 5}}  {_side(line.actual, line.actual_index)}".rstrip())
            lines.extend(f"       {difference}" for difference in line.differences)
        return "\n".join(lines)

    @property
    def pairs(self) -> list[AlignedCall]:
        """The lines that have a call on both sides."""
        return [line for line in self.alignment if line.sign in "=~"]

    @property
    def missing(self) -> list[ToolRequest]:
        """The expected calls that were not made, whether `mode` allows that or not."""
        return [line.expected for line in self.alignment if line.sign == "-" and line.expected]

    @property
    def extra(self) -> list[ToolRequest]:
        """The calls that were not expected, whether `mode` allows them or not."""
        return [line.actual for line in self.alignment if line.sign == "+" and line.actual]


class HasTrajectory(Protocol):
    """Anything with a trajectory: a recorded operation, or a row of results."""

    @property
    def trajectory(self) -> Trajectory:
        """The steps of the agent and its final answer."""


def assert_trajectory(
    actual: Trajectory | HasTrajectory,
    expected: Trajectory | Iterable[ExpectedCall],
    *,
    mode: MatchType = "strict",
    args: ToolRule = "exact",
    tools: Mapping[str, ToolRule] | None = None,
    min_score: float = 1.0,
) -> None:
    """Fail unless an agent did what was expected. The message shows both sides.

    Args:
        actual: A trajectory, or an object that has one, such as a recorded operation.
        expected: A trajectory, or calls as `Trajectory.of_calls` takes them.
        mode: The calls that may be missing, added or moved.
        args: How arguments are compared, as in `Trajectory.match`.
        tools: The same for some tools, by path, name or glob.
        min_score: The lowest accepted score, from 0 to 1.

    Raises:
        AssertionError: If the score is too low. The message shows the alignment.
        HookUsageError: If an argument is invalid.
    """
    __tracebackhide__ = True
    if not 0 <= min_score <= 1:
        raise HookUsageError(f"`min_score` is a number from 0 to 1; got {min_score!r}.")
    trajectory = actual if isinstance(actual, Trajectory) else actual.trajectory
    result = trajectory.match(expected, mode=mode, args=args, tools=tools)
    if result.score < min_score:
        raise AssertionError(str(result))


class _Comparison:
    def __init__(self, actual: Sequence[ToolRequest], expected: Sequence[ToolRequest], rules: ArgumentRules) -> None:
        self.actual, self.expected, self.rules = actual, expected, rules
        self.actual_paths = [path_of(call) for call in actual]
        self.expected_paths = [path_of(call) for call in expected]
        self._same_tool: dict[tuple[str, str], bool] = {}

    def match(self, mode: MatchType) -> TrajectoryMatch:
        if mode in ("strict", "in_order"):
            pairs = align_in_order(len(self.actual), len(self.expected), self.worth)
        else:
            pairs = align_in_any_order(self.keys(self.actual), self.keys(self.expected), self.worth)
        counted = {"in_order": len(self.expected), "superset": len(self.expected), "subset": len(self.actual)}
        most = FULL * counted.get(mode, max(len(self.actual), len(self.expected)))
        reached = sum(worth for _, _, worth in pairs)
        return TrajectoryMatch(
            ok=reached == most, score=reached / most if most else 1.0, mode=mode, alignment=self.lines(pairs)
        )

    def worth(self, actual: int, expected: int) -> int:
        paths = self.actual_paths[actual], self.expected_paths[expected]
        same = self._same_tool.get(paths)
        if same is None:
            same = self._same_tool[paths] = paths[0] == paths[1] or bool(tool_test(paths[1])(paths[0]))
        if not same:
            return 0
        rule = self.rules.of(paths[0])
        return 1 + rule.allows(self.actual[actual].args, self.expected[expected].args)

    def keys(self, calls: Sequence[ToolRequest]) -> list[tuple[str, str] | None]:
        return [self.key(call) for call in calls]

    def key(self, call: ToolRequest) -> tuple[str, str] | None:
        """Return a key that only interchangeable calls share, or `None` if equality is not enough."""
        path = path_of(call)
        rule = self.rules.of(path)
        if not rule.is_equivalence or has_wildcard(path):
            return None
        if rule.mode == "ignore":
            return path, ""
        try:
            return path, json_key(call.args)
        except (TypeError, ValueError, RecursionError):
            return None

    def lines(self, pairs: Pairs) -> list[AlignedCall]:
        by_expected = {expected: (actual, worth) for actual, expected, worth in pairs}
        taken = {actual for actual, _, _ in pairs}
        lines: list[AlignedCall] = []
        shown_until = 0
        for place, wanted in enumerate(self.expected):
            if place not in by_expected:
                lines.append(AlignedCall(sign="-", expected=wanted, expected_index=place))
                continue
            actual, worth = by_expected[place]
            lines += [self.extra(other) for other in range(shown_until, actual) if other not in taken]
            shown_until = max(shown_until, actual + 1)
            made = self.actual[actual]
            rule = self.rules.of(self.actual_paths[actual])
            lines.append(
                AlignedCall(
                    sign="=" if worth == FULL else "~",
                    actual=made,
                    expected=wanted,
                    actual_index=actual,
                    expected_index=place,
                    differences=[] if worth == FULL else rule.differences(made.args, wanted.args),
                )
            )
        rest = range(shown_until, len(self.actual))
        return lines + [self.extra(other) for other in rest if other not in taken]

    def extra(self, place: int) -> AlignedCall:
        return AlignedCall(sign="+", actual=self.actual[place], actual_index=place)


def _to_request(number: int, call: object) -> ToolRequest:
    args: object = match.anything
    tool = call
    if isinstance(call, ToolRequest):
        return call
    if isinstance(call, MockedCall):
        return ToolRequest(
            toolset=call.toolset, tool_name=call.tool_name, args=call.args, tool_call_id=call.tool_call_id
        )
    if isinstance(call, Mapping) and "tool" in call and not call.keys() - {"tool", "args"}:
        tool, args = call["tool"], call.get("args", args)
    elif isinstance(call, tuple) and len(call) == 2:
        tool, args = call
    if not isinstance(tool, str) or not tool:
        raise HookUsageError(
            f"Expected call {number} is {format_value(call)}. Write it as a tool, "
            "as ('bank/get_iban', {'user': 'x'}) or as {'tool': 'bank/get_iban', 'args': {'user': 'x'}}."
        )
    toolset, slash, name = tool.rpartition("/")
    # Structs do not check their fields, so the arguments may be an object with its own `==`.
    return ToolRequest(
        toolset=toolset if slash else "*", tool_name=name, args=cast("dict[str, Any]", args), tool_call_id=""
    )


def _side(call: ToolRequest | None, place: int | None) -> str:
    if call is None or place is None:
        return ""
    path = path_of(call).removeprefix("*/")
    args: object = call.args
    if args is match.anything:
        return f"{place + 1:>4} {path}"
    room = max(COLUMN - len(path) - 1, 12)
    return f"{place + 1:>4} {path} {format_value(args, room)}"


def _percent(score: float) -> str:
    # Rounded down, so that only a full match is shown as 1.
    return f"{int(score * 1000) / 1000:.3g}"
