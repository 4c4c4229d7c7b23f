"""The options of `hookline eval diff` that say how much worse a run may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from hookline.evals.reports import DiffThresholds, parse_increase, parse_score

__all__ = ["AllowMissing", "MaxCallsIncrease", "MaxCostIncrease", "MaxScoreDrop", "MinScore", "thresholds_of"]

MEAN = "mean:"

MinScore = Annotated[
    list[str] | None,
    typer.Option(
        "--min-score", metavar="SCORE", help="The least score of each task in B, 0 to 1; mean:0.9 for the mean."
    ),
]
MaxScoreDrop = Annotated[
    list[str] | None,
    typer.Option(
        "--max-score-drop",
        metavar="SCORE",
        help="How far a task's score may fall; mean:0.02 for the mean. 0 unless given.",
    ),
]
MaxCostIncrease = Annotated[
    list[str] | None,
    typer.Option(
        "--max-cost-increase",
        metavar="USD",
        help="How much more a task may cost: 0.02, 10%, mean:10%. No limit unless given.",
    ),
]
MaxCallsIncrease = Annotated[
    list[str] | None,
    typer.Option(
        "--max-calls-increase",
        metavar="N",
        help="How many more tool calls a task may make: 2, 10%, mean:10%. No limit unless given.",
    ),
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Tasks of A may be gone, not run or not judged in B.")
]


def thresholds_of(
    *,
    min_score: Sequence[str] | None,
    max_score_drop: Sequence[str] | None,
    max_cost_increase: Sequence[str] | None,
    max_calls_increase: Sequence[str] | None,
    allow_missing: bool,
) -> DiffThresholds:
    """Read the options: `0.1` is about each task, `mean:0.1` about the mean of all tasks.

    Raises:
        typer.BadParameter: If one of them is no number, or is given twice.
    """
    task_score, mean_score = _limits("--min-score", min_score, parse_score)
    task_drop, mean_drop = _limits("--max-score-drop", max_score_drop, parse_score)
    task_cost, mean_cost = _limits("--max-cost-increase", max_cost_increase, parse_increase)
    task_calls, mean_calls = _limits("--max-calls-increase", max_calls_increase, parse_increase)
    return DiffThresholds(
        min_score=None if task_score is None else parse_score(task_score),
        min_mean_score=None if mean_score is None else parse_score(mean_score),
        max_score_drop=None if task_drop is None else parse_score(task_drop),
        max_mean_score_drop=None if mean_drop is None else parse_score(mean_drop),
        max_cost_increase=task_cost,
        max_mean_cost_increase=mean_cost,
        max_calls_increase=task_calls,
        max_mean_calls_increase=mean_calls,
        allow_missing=allow_missing,
    )


def _limits(
    option: str, given: Sequence[str] | None, parse: Callable[[object], object]
) -> tuple[str | None, str | None]:
    """What an option says about each task, and about the mean."""
    found: dict[bool, str] = {}
    for text in given or ():
        mean = text.startswith(MEAN)
        value = text.removeprefix(MEAN)
        try:
            parse(value)
        except ValueError as error:
            problem = f"{error}. In front of it, mean: makes it about the mean of all tasks."
            raise typer.BadParameter(problem, param_hint=f"'{option}'") from None
        if mean in found:
            raise typer.BadParameter(
                f"It is given twice for {'the mean' if mean else 'each task'}; give it once.", param_hint=f"'{option}'"
            )
        found[mean] = value
    return found.get(False), found.get(True)
