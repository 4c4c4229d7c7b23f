"""The expected calls of a task, as a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from hookline.calls import ToolRequest
from hookline.evals.matching import ToolRule, format_value, match, path_of
from hookline.evals.running import CheckResult
from hookline.evals.suites.checks import FinishedTask
from hookline.evals.trajectories import ExpectedCall, MatchType, Trajectory

__all__ = ["Expected", "expected_pattern"]

TARGET_CHARACTERS = 200
"""How much of the arguments of an expected call its line shows."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The calls that solve a task, as a check. Its score is how close an agent came.

    Attributes:
        calls: The calls: `"get_iban"` with any arguments, `("bank/get_iban", {"user": "x"})`, `{"tool": …, "args": …}`.
        mode: The calls that may be missing, added or moved: `strict`, `in_order`, `unordered`, `subset`, `superset`.
        args: How arguments are compared: `exact`, `ignore`, `subset`, `superset`, dotted fields, or a function.
        tools: The same for some tools, by path, name or glob.
    """

    calls: Sequence[ExpectedCall]
    mode: MatchType = "in_order"
    args: ToolRule = "exact"
    tools: Mapping[str, ToolRule] = field(default_factory=dict)

    @property
    def ground_truth(self) -> list[ToolRequest]:
        """The expected calls as requests of the model.

        Raises:
            HookUsageError: If one of them is not a call.
        """
        return Trajectory.of_calls(self.calls).calls

    @property
    def target(self) -> list[str]:
        """The expected calls, one line each.

        Raises:
            HookUsageError: If one of them is not a call.
        """
        lines: list[str] = []
        for call in self.ground_truth:
            path, args = path_of(call).removeprefix("*/"), cast("object", call.args)
            lines.append(path if args is match.anything else f"{path} {format_value(args, TARGET_CHARACTERS)}")
        return lines

    @property
    def tool_patterns(self) -> list[str]:
        """The tools that the expectation names. Suites check that they exist.

        Raises:
            HookUsageError: If one of the calls is invalid.
        """
        return [*(expected_pattern(path_of(call)) for call in self.ground_truth), *self.tools]

    def __call__(self, task: FinishedTask) -> CheckResult:
        """Compare what an agent did with it."""
        found = task.recorded.trajectory.match(self.calls, mode=self.mode, args=self.args, tools=self.tools)
        why = "" if found.ok else str(found)
        return CheckResult(
            name=f"trajectory ({self.mode})", passed=found.ok, score=found.score, why=why, kind="trajectory"
        )


def expected_pattern(path: str) -> str:
    """Return the pattern of the tools that an expected call allows.

    Args:
        path: The tool. A model that knows names only asks for `local/name`, whichever tool of that name there is.
    """
    return path.removeprefix("*/").removeprefix("local/")
