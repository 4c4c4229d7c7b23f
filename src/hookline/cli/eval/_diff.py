"""Compare two saved runs: options that limit how much worse the second may be, and the table of differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hookline.cli._terminal import make_one_line, new_table
from hookline.evals import canonical, format_cost
from hookline.evals.reports import (
    Change,
    DiffThresholds,
    RunDiff,
    TaskDiff,
    judge_diff,
    parse_increase,
    parse_score,
)

__all__ = [
    "AllowMissing",
    "MaxCallsIncrease",
    "MaxCostIncrease",
    "MaxScoreDrop",
    "MinScore",
    "diff_document",
    "diff_json",
    "show_diff",
    "thresholds_of",
]

T = TypeVar("T")

MEAN = "mean:"

MinScore = Annotated[
    list[str] | None,
    typer.Option(
        "--min-score", metavar="SCORE", help="Lowest score of each task, 0 to 1; mean:0.9 for the mean of all tasks."
    ),
]
MaxScoreDrop = Annotated[
    list[str] | None,
    typer.Option(
        "--max-score-drop",
        metavar="SCORE",
        help="How far a task's score may fall; mean:0.02 for the mean.  [default: 0]",
    ),
]
MaxCostIncrease = Annotated[
    list[str] | None,
    typer.Option(
        "--max-cost-increase",
        metavar="USD",
        help="How much more a task may cost: 0.02, 10%, mean:10%.  [default: no limit]",
    ),
]
MaxCallsIncrease = Annotated[
    list[str] | None,
    typer.Option(
        "--max-calls-increase",
        metavar="N",
        help="How many more tool calls a task may make: 2, 10%, mean:10%.  [default: no limit]",
    ),
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Allow tasks of the earlier run to be missing, not run or not judged.")
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
        typer.BadParameter: If one of them is not a number, or is given twice.
    """
    task_score, mean_score = _parse_limits("--min-score", min_score, parse_score)
    task_drop, mean_drop = _parse_limits("--max-score-drop", max_score_drop, parse_score)
    task_cost, mean_cost = _parse_limits("--max-cost-increase", max_cost_increase, _check_increase)
    task_calls, mean_calls = _parse_limits("--max-calls-increase", max_calls_increase, _check_increase)
    return DiffThresholds(
        min_score=task_score,
        min_mean_score=mean_score,
        max_score_drop=task_drop,
        max_mean_score_drop=mean_drop,
        max_cost_increase=task_cost,
        max_mean_cost_increase=mean_cost,
        max_calls_increase=task_calls,
        max_mean_calls_increase=mean_calls,
        allow_missing=allow_missing,
    )


def _check_increase(text: str) -> str:
    parse_increase(text)
    return text


def _parse_limits(option: str, given: Sequence[str] | None, parse: Callable[[str], T]) -> tuple[T | None, T | None]:
    """Return the limit that an option gives for each task, and the one for the mean of all tasks."""
    found: dict[bool, T] = {}
    for text in given or ():
        mean = text.startswith(MEAN)
        try:
            value = parse(text.removeprefix(MEAN))
        except ValueError as error:
            problem = f"{error}. Put mean: in front of it to limit the mean of all tasks."
            raise typer.BadParameter(problem, param_hint=f"'{option}'") from None
        if mean in found:
            raise typer.BadParameter(
                f"It is set twice for {'the mean' if mean else 'each task'}; set it once.", param_hint=f"'{option}'"
            )
        found[mean] = value
    return found.get(False), found.get(True)


STYLES: dict[Change, str] = {
    "worse": "bold red",
    "better": "green",
    "changed": "yellow",
    "same": "dim",
    "new": "cyan",
    "gone": "bold red",
    "not run": "bold red",
    "higher": "green",
    "lower": "yellow",
}

OUTCOME_STYLES = {"good": "green", "bad": "red", "open": "yellow"}

SHOWN = 5
"""How many tasks' calls are shown side by side, and how many flaky tasks are named."""


def diff_document(diff: RunDiff) -> dict[str, object]:
    """Return the whole comparison, for JSON."""
    test, figures = diff.test, diff.statistics
    return {
        "ok": diff.ok,
        "verdict": test.verdict if diff.paired and test is not None else None,
        "cannotTell": diff.cannot_tell,
        "compared": len(diff.compared),
        "worse": [task.task for task in diff.worse],
        "problems": diff.problems,
        "declines": diff.declines,
        "models": diff.models,
        "provenance": diff.provenance,
        "attempts": diff.attempts,
        "passed": diff.passed,
        "score": diff.score,
        "toolCalls": diff.tool_calls,
        "costUsd": diff.cost_usd,
        "similarity": diff.similarity,
        "flaky": diff.flaky,
        "notCompared": diff.not_compared,
        "pairedTest": test,
        # The figures of each task are among its comparison.
        "statistics": figures and [msgspec.structs.replace(each, per_task=[]) for each in figures],
        "thresholds": diff.thresholds,
        "tasks": diff.tasks,
    }


def diff_json(diff: RunDiff) -> str:
    """Return the whole comparison as JSON."""
    return canonical(diff_document(diff), indent=2, sort_keys=False)


def show_diff(console: Console, diff: RunDiff) -> None:
    """Print the tasks that are not the same, how their calls differ, the sums, and the verdict."""
    different = [task for task in diff.tasks if task.change != "same"]
    if different:
        console.print(_task_table(different))
    for task in [task for task in different if task.alignment][:SHOWN]:
        console.print(f"\n[bold]{escape(task.task)}[/]: expected is A, actual is B", soft_wrap=True)
        console.print(escape(task.alignment), soft_wrap=True)
    if diff.worse:
        console.print()
    for task in diff.worse:
        for problem in task.problems:
            console.print(f"[red]✗ {escape(f'{task.task} {problem}')}[/]", soft_wrap=True)
    console.print()
    console.print(_total_table(diff))
    console.print()
    for problem in diff.problems:
        console.print(f"[red]✗ {escape(problem)}.[/]", soft_wrap=True)
    if diff.not_compared:
        console.print(f"Not compared: {len(diff.not_compared)} tasks that A was interrupted before.")
    if diff.flaky:
        console.print(_flaky_line(diff), soft_wrap=True)
    console.print(f"{_verdict(diff)} {_explanation(diff)}".rstrip())


def _task_table(tasks: list[TaskDiff]) -> Table:
    table = new_table(padding=(0, 1))
    repeated = any(count > 1 for task in tasks for count in task.attempts)
    columns = ["task", "change", *(["passed"] if repeated else []), "score", "calls", "cost"]
    for name in [*columns, *([] if repeated else ["alike"])]:
        wide = name == "task"
        table.add_column(name, justify="left" if wide else "right", no_wrap=True, overflow="ellipsis")
    for task in tasks:
        cells: list[str | Text] = [Text(make_one_line(task.task)), Text(task.change, style=STYLES[task.change])]
        if repeated:
            passes = (f"{count}/{of}" if of else "-" for count, of in zip(task.passes, task.attempts, strict=True))
            cells.append(_join_pair(*passes))
        cells += [_pair(task.score, "{:.2f}"), _pair(task.tool_calls, "{:.6g}"), _pair(task.cost_usd, "{:.4f}")]
        if not repeated:
            cells.append("-" if task.similarity is None else f"{task.similarity:.0%}")
        table.add_row(*cells)
    return table


def _total_table(diff: RunDiff) -> Table:
    table = new_table(padding=(0, 1))
    for place, name in enumerate(("totals", *_names(diff))):
        table.add_column(Text(make_one_line(name)), justify="right" if place else "left", no_wrap=True)
    if any(count > 1 for task in diff.tasks for count in task.attempts):
        table.add_row("attempts", *(str(each) for each in diff.attempts))
    table.add_row("passed", *(str(each) for each in diff.passed))
    table.add_row("score", *("-" if each is None else f"{each:.3f}" for each in diff.score))
    table.add_row("tool calls", *(str(each) for each in diff.tool_calls))
    table.add_row("cost in USD", *(format_cost(each) for each in diff.cost_usd))
    if diff.similarity is not None or not diff.paired:
        table.add_row("trajectories alike", "", "-" if diff.similarity is None else f"{diff.similarity:.1%}")
    return table


def _names(diff: RunDiff) -> tuple[str, str]:
    """Return the headings of the two runs, with their models if they differ."""
    a, b = diff.models
    return ("A", "B") if a == b else (f"A: {a or 'own model'}", f"B: {b or 'own model'}")


def _verdict(diff: RunDiff) -> str:
    verdict = judge_diff(diff)
    style = "yellow" if verdict.outcome == "good" and diff.declines else OUTCOME_STYLES[verdict.outcome]
    return f"[{style}]{verdict.mark} {escape(verdict.headline)}[/]{escape(verdict.rest)}"


def _explanation(diff: RunDiff) -> str:
    """Return what follows the verdict: what the paired test found, or how many tasks are equal byte for byte."""
    test = diff.test
    if diff.paired:
        return escape(diff.explanation)
    identical = sum(task.identical for task in diff.tasks)
    equal = f"Tool results, answers and trajectories of {identical} of {len(diff.tasks)} tasks are equal byte for byte."
    if test is None or test.verdict != "cannot tell" or not test.fell or not diff.worse:
        return equal
    return (
        f"{equal} Each task ran once. If the agent's answers vary, some tasks fail by chance: equal runs differ as "
        f"much with p = {test.p_value:.2g}. Repeat the tasks, or use --paired-test."
    )


def _flaky_line(diff: RunDiff) -> str:
    """Return a line that names tasks that both passed and failed in B."""
    rates = {task.task: f"{task.passes[1]} of {task.attempts[1]}" for task in diff.tasks}
    named = ", ".join(escape(make_one_line(f"{name} ({rates[name]})")) for name in diff.flaky[:SHOWN])
    more = len(diff.flaky) - SHOWN
    return f"Flaky in B: {named}{f' and {more} more' if more > 0 else ''}."


def _pair(values: tuple[float | None, float | None], shape: str) -> str:
    return _join_pair(*("-" if value is None else shape.format(value) for value in values))


def _join_pair(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
