"""`hookline eval judges`: compare judges with people's labels and with each other, and write sheets to label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hookline.cli._commands import CommandApp
from hookline.cli._exit_codes import DONE, NOT_JUDGED
from hookline.cli._terminal import new_table, report_errors
from hookline.evals import canonical
from hookline.evals.judges import (
    Calibration,
    ConfusionMatrix,
    JudgeAgreement,
    calibrate,
    judge_agreement,
    read_labels,
    write_label_sheet,
)
from hookline.evals.reports import load_run

__all__ = ["agreement_lines", "judges_app"]

judges_app = CommandApp(name="judges", help="Compare judges with people and with each other.")

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run with a judge, saved with --save.")]
Check = Annotated[str | None, typer.Option(metavar="NAME", help="Only this judge, by the name of its check.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]

NAMED = 3
"""How many unknown tasks are named."""


@judges_app.command("calibrate")
def calibrate_judges(
    run: Run,
    labels: Annotated[
        str, typer.Argument(metavar="LABELS", help="People's labels: a .csv or .jsonl file with task and label.")
    ],
    check: Check = None,
    as_json: AsJson = False,
) -> None:
    """Compare the judges of a run with the labels of people.

    The tables show agreement, Cohen's kappa and the threshold that would fit the labels best. No model is called. A
    label is a row with task (suite/task) and label (pass or fail), and optionally attempt, model, check and by.

    Exits with 2 for a wrong file or name, with 3 if no label is about a judged task.
    """
    with report_errors():
        found = calibrate(load_run(run).results, read_labels(labels), check=check)
        if as_json:
            typer.echo(canonical([calibration_fields(each) for each in found], indent=2, sort_keys=False))
        else:
            show_calibrations(Console(highlight=False), found)
    raise typer.Exit(DONE if any(each.labels for each in found) else NOT_JUDGED)


@judges_app.command("agreement")
def show_judge_agreement(run: Run, as_json: AsJson = False) -> None:
    """Show how far the models of each judge of a run agree.

    The measure is Krippendorff's alpha: 1 for complete agreement, 0 for that of chance.

    Exits with 2 for a wrong file, with 3 if no judge has several models.
    """
    with report_errors():
        found = judge_agreement(load_run(run).results)
        if as_json:
            typer.echo(canonical(found, indent=2, sort_keys=False))
        elif found:
            show_agreement(Console(highlight=False), found)
        else:
            typer.echo("No judge of this run has several models.")
    raise typer.Exit(DONE if found else NOT_JUDGED)


@judges_app.command("sheet")
def write_sheet(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The CSV file to write.")],
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Draw this many tasks at random. All by default.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the draw.")] = 0,
) -> None:
    """Write a sheet of judged tasks for people to label.

    It is a CSV file with an empty column `label`, for pass or fail. It leaves out what the judge said, which would
    influence people. `hookline eval judges calibrate` reads it.

    Exits with 2 for a wrong file.
    """
    with report_errors():
        count = write_label_sheet(file, load_run(run).results, sample=sample, seed=seed)
    typer.echo(f"Wrote {count} tasks to {file}. Write pass or fail into the column label.")


def agreement_lines(found: Sequence[JudgeAgreement]) -> list[str]:
    """Return a line about the agreement of the models of each judge."""
    return [f"{each.check}: {len(each.models)} models, {_alpha_text(each)} over {each.tasks} tasks" for each in found]


def show_agreement(console: Console, found: Sequence[JudgeAgreement]) -> None:
    """Print a table of the agreement of each judge, and the mean score that each of its models gave."""
    table = new_table(padding=(0, 1))
    for name in ("judge", "alpha", "tasks", "no verdict", "mean scores"):
        table.add_column(name, justify="left" if name in ("judge", "mean scores") else "right")
    for each in found:
        means = ", ".join(
            f"{model} {'-' if mean is None else f'{mean:.2f}'}"
            for model, mean in zip(each.models, each.means, strict=True)
        )
        alpha = "-" if each.alpha is None else f"{each.alpha:.2f}"
        table.add_row(*map(Text, (each.check, alpha, str(each.tasks), str(each.missing), means)))
    console.print()
    console.print(table)


def show_calibrations(console: Console, found: Sequence[Calibration]) -> None:
    """Print how each judge compares with people."""
    for each in found:
        console.print()
        console.print(f"[bold]{escape(each.check)}[/]: {each.labels} labelled tasks", soft_wrap=True)
        if each.labels:
            _show_tables(console, each)
        for note in _notes(each):
            console.print(f"[dim]{escape(note)}[/]", soft_wrap=True)


def _show_tables(console: Console, found: Calibration) -> None:
    table = new_table(padding=(0, 1))
    for name in ("", "threshold", "agreement", "kappa"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, fit in (("now", found.now), ("best", found.best)):
        if fit is not None:
            agreement = "-" if fit.confusion.agreement is None else f"{fit.confusion.agreement:.0%}"
            table.add_row(name, f"{fit.threshold:.2f}", agreement, _kappa_text(fit.confusion))
    counts = new_table(padding=(0, 1))
    for name in ("now", "people: pass", "people: fail"):
        counts.add_column(name, justify="left" if name == "now" else "right", no_wrap=True)
    matrix = found.now.confusion
    counts.add_row("judge: pass", str(matrix.both_pass), str(matrix.judge_passes))
    counts.add_row("judge: fail", str(matrix.person_passes), str(matrix.both_fail))
    for each in (table, counts):
        console.print()
        console.print(each)
    console.print()


def _notes(found: Calibration) -> list[str]:
    notes: list[str] = []
    if found.held_out_kappa is not None and found.best is not None:
        kappa = f"{found.held_out_kappa:.2f}"
        notes.append(f"Thresholds that were chosen without the task that they judge have a kappa of {kappa}.")
    if found.people_alpha is not None:
        notes.append(f"People agree with each other with an alpha of {found.people_alpha:.2f}.")
    if found.labels and found.now.confusion.kappa is None:
        notes.append("There is no kappa: the judge and people all say the same about every task.")
    if found.few:
        notes.append(f"{found.labels} labels are few: 30 or more give figures that mean something.")
    counts = (
        (found.not_judged, "labelled tasks have no verdict of the judge"),
        (found.ties, "tasks have as many labels that say pass as that say fail"),
        (found.unlabelled, "judged tasks have no label"),
    )
    notes += [f"{count} {words}." for count, words in counts if count]
    if found.unknown:
        more = len(found.unknown) - NAMED
        names = ", ".join(found.unknown[:NAMED]) + (f" and {more} more" if more > 0 else "")
        notes.append(f"Not in the run: {names}.")
    return notes


def calibration_fields(found: Calibration) -> dict[str, object]:
    """Return a calibration as JSON values, with the figures that follow from its counts."""
    return {
        "check": found.check,
        "labels": found.labels,
        "now": _fit_fields(found.now.threshold, found.now.confusion),
        "best": None if found.best is None else _fit_fields(found.best.threshold, found.best.confusion),
        "heldOutKappa": found.held_out_kappa,
        "fits": [_fit_fields(fit.threshold, fit.confusion) for fit in found.fits],
        "notJudged": found.not_judged,
        "unlabelled": found.unlabelled,
        "ties": found.ties,
        "unknown": found.unknown,
        "people": found.people,
        "peopleAlpha": found.people_alpha,
    }


def _fit_fields(threshold: float, matrix: ConfusionMatrix) -> dict[str, object]:
    return {
        "threshold": threshold,
        "agreement": matrix.agreement,
        "kappa": matrix.kappa,
        "kappaInterval": matrix.kappa_interval,
        "confusion": matrix,
    }


def _kappa_text(matrix: ConfusionMatrix) -> str:
    if matrix.kappa is None or matrix.kappa_interval is None:
        return "-"
    low, high = matrix.kappa_interval
    return f"{matrix.kappa:.2f} ({low:.2f} to {high:.2f})"


def _alpha_text(found: JudgeAgreement) -> str:
    return "all scores are equal" if found.alpha is None else f"alpha {found.alpha:.2f}"
