"""Options of the gate that compares runs: models, the paired test, a baseline and a summary; and its exit code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hookline.cli._exit_codes import exit_code_of
from hookline.cli._terminal import make_one_line
from hookline.cli.eval._baseline import open_baseline
from hookline.cli.eval._diff import show_diff
from hookline.cli.eval._evaluation import Evaluation
from hookline.evals.reports import (
    DiffThresholds,
    RunDiff,
    SavedRun,
    diff_runs,
    diff_summary,
    run_summary,
    write_summary,
)

__all__ = [
    "Baseline",
    "ComparedModels",
    "FailOnCannotTell",
    "Gate",
    "PairedTestChoice",
    "SummaryFile",
    "compare_models",
    "gate_code",
    "name_runs",
]

ComparedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Compare this model of both runs; twice: the first of A with the second of B. One run is enough then.",
    ),
]
PairedTestChoice = Annotated[
    bool,
    typer.Option("--paired-test", help="Let a paired test of all tasks decide, as it does with repeats."),
]
FailOnCannotTell = Annotated[
    bool, typer.Option("--fail-on-cannot-tell", help="Exit with 5 if the paired test cannot tell.")
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="FILE", help="Saved run to compare with; main:evals/run.jsonl is one in git."),
]
SummaryFile = Annotated[
    Path | None,
    typer.Option("--summary", metavar="FILE", help="Write a summary in Markdown, for a pull request."),
]


def name_runs(runs: Sequence[str], baseline: str | None) -> tuple[str, str | None]:
    """Return the names of the earlier and of the later run; the later one is `None` if only one is named.

    Args:
        runs: The runs that are named without an option.
        baseline: The earlier run, if an option names it.

    Raises:
        typer.BadParameter: If there are too many.
    """
    named = [*([] if baseline is None else [baseline]), *runs]
    if len(named) > 2:
        raise typer.BadParameter(f"Two runs are compared; got {len(named)}: {', '.join(named)}.")
    return named[0], named[1] if len(named) > 1 else None


def compare_models(
    a: SavedRun,
    b: SavedRun | None,
    models: Sequence[str] | None,
    *,
    thresholds: DiffThresholds,
    paired: bool,
) -> RunDiff:
    """Compare two runs, or two models of one run.

    Args:
        a: The earlier run.
        b: The later run; `None` to compare models of the same run.
        models: The models that were chosen.
        thresholds: How much worse B may be.
        paired: Whether the paired test is asked for; with repeats it decides anyway.

    Raises:
        typer.BadParameter: If the number of models does not fit.
        HookUsageError: If a run does not have the model.
    """
    chosen = list(models or [])
    if len(chosen) > 2:
        raise typer.BadParameter("Two models at most can be compared.", param_hint="'--model'")
    if b is None and len(chosen) != 2:
        raise typer.BadParameter("Name a second run, or two models of this one: --model X --model Y.")
    return diff_runs(
        a,
        a if b is None else b,
        thresholds=thresholds,
        model=None if not chosen else (chosen[0], chosen[-1]),
        paired=paired or None,
    )


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The baseline and the summary of `hookline eval`, which decide its exit code.

    Attributes:
        baseline: The saved run to compare with.
        thresholds: How much worse than the baseline the run may be.
        paired: Whether the paired test is asked for; with repeats it decides anyway.
        fail_on_cannot_tell: Whether to exit with a code of its own if the paired test cannot tell.
        summary: The file of the summary.
    """

    baseline: str | None
    thresholds: DiffThresholds
    paired: bool
    fail_on_cannot_tell: bool
    summary: Path | None

    def check(self, *, saved: Path | None) -> None:
        """Check that the options go together.

        Args:
            saved: The file to which the run is saved.

        Raises:
            typer.BadParameter: If they do not.
        """
        if self.baseline is None:
            limits = self.thresholds
            for option, given in (
                ("--min-score", (limits.min_score, limits.min_mean_score)),
                ("--max-score-drop", (limits.max_score_drop, limits.max_mean_score_drop)),
                ("--max-cost-increase", (limits.max_cost_increase, limits.max_mean_cost_increase)),
                ("--max-calls-increase", (limits.max_calls_increase, limits.max_mean_calls_increase)),
                ("--allow-missing", (limits.allow_missing or None,)),
                ("--paired-test", (self.paired or None,)),
                ("--fail-on-cannot-tell", (self.fail_on_cannot_tell or None,)),
            ):
                if any(each is not None for each in given):
                    raise typer.BadParameter(f"{option} is about the comparison with a --baseline; give one.")
        elif saved is not None and os.path.realpath(saved) == os.path.realpath(self.baseline):
            raise typer.BadParameter("The run would overwrite its baseline; save it to another file.")

    @contextlib.contextmanager
    def open(self) -> Iterator[SavedRun | None]:
        """Load the baseline, before anything is run; `None` without one."""
        if self.baseline is None:
            yield None
        else:
            with open_baseline(self.baseline) as run:
                yield run

    def compare(self, evaluation: Evaluation, baseline: SavedRun | None) -> list[RunDiff]:
        """Compare the run with the baseline: each of its models with the same one there.

        If both have one model only, these are compared.

        Raises:
            HookUsageError: If no model of the run is in the baseline.
        """
        if baseline is None:
            return []
        run, paired = SavedRun.of(evaluation.runs[0], evaluation.targets), self.paired or None
        shared = [model for model in run.models if model in baseline.models]
        if max(len(run.models), len(baseline.models)) < 2 or not shared:
            return [diff_runs(baseline, run, thresholds=self.thresholds, paired=paired)]
        return [diff_runs(baseline, run, thresholds=self.thresholds, model=model, paired=paired) for model in shared]

    def show(self, console: Console, evaluation: Evaluation, diffs: Sequence[RunDiff]) -> None:
        """Print the comparisons, and which models the baseline does not have."""
        for diff in diffs:
            model = f" with {diff.models[1]}" if len(diffs) > 1 else ""
            heading = f"Compared with the baseline {self.baseline}{model}, which decides the exit code:"
            console.print(f"\n[bold]{escape(make_one_line(heading))}[/]", soft_wrap=True)
            show_diff(console, diff)
        compared = {diff.models[1] for diff in diffs}
        others = [model for model in evaluation.runs[0].models if model not in compared]
        if diffs and others:
            line = f"Not compared, as the baseline does not have them: {', '.join(others)}."
            console.print(f"[yellow]{escape(make_one_line(line))}[/]", soft_wrap=True)

    def write_summary(self, evaluation: Evaluation, diffs: Sequence[RunDiff]) -> None:
        """Write the summary, if it is asked for: of the comparisons, or of the run itself.

        Raises:
            ReportError: If it cannot be written.
        """
        if self.summary is None:
            return
        texts = [diff_summary(diff, a=self.baseline or "A", b="this run") for diff in diffs]
        write_summary(self.summary, "\n".join(texts or [run_summary(evaluation.runs, evaluation.comparison)]))

    def exit_code(self, evaluation: Evaluation, diffs: Sequence[RunDiff], *, arrived: bool) -> int:
        """Choose the exit code of the evaluation; with a baseline, the comparison decides if it passed.

        Args:
            evaluation: The evaluation.
            diffs: Its comparisons with the baseline.
            arrived: Whether spans arrived where they were sent.
        """
        if not diffs:
            return exit_code_of(ok=evaluation.ok, judged=evaluation.judged, arrived=arrived)
        same = evaluation.comparison is None or evaluation.comparison.same
        return gate_code(diffs, fail_on_cannot_tell=self.fail_on_cannot_tell, arrived=arrived, ok=same)


def gate_code(diffs: Sequence[RunDiff], *, fail_on_cannot_tell: bool, arrived: bool = True, ok: bool = True) -> int:
    """Choose the exit code of comparisons; the worst decides.

    Args:
        diffs: The comparisons.
        fail_on_cannot_tell: Whether to exit with a code of its own if the paired test cannot tell.
        arrived: Whether spans arrived where they were sent.
        ok: Whether everything else passed.
    """
    return exit_code_of(
        ok=ok and all(diff.ok for diff in diffs),
        judged=all(diff.judged for diff in diffs),
        arrived=arrived,
        conclusive=not (fail_on_cannot_tell and any(diff.cannot_tell for diff in diffs)),
    )
