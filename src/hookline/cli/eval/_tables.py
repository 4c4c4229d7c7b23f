"""Print an evaluation in a terminal: a table of its tasks, its totals, its failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hookline.calls import Usage
from hookline.cli._terminal import make_one_line, new_table, print_path
from hookline.cli.eval._evaluation import Evaluation
from hookline.cli.eval._judges import agreement_lines
from hookline.cli.eval._statistics import has_figures, is_repeated, show_statistics, task_table
from hookline.evals.judges import judge_agreement
from hookline.evals.reports import NAMES, duration, judge_runs
from hookline.evals.running import Comparison, Difference, Mode, SuiteRun, TaskResult, Totals, describe_key
from hookline.evals.statistics import RunStatistics
from hookline.evals.trajectories import Coverage

__all__ = ["show_evaluation"]

LETTERS: dict[Mode, str] = {"real": "(a)", "replayed": "(b)"}

TASKS_SHOWN = 200
"""Tasks in the table of a run. A larger run shows failed tasks only."""

FAILURES_SHOWN = 10
"""Failures of a run that are printed."""

NEVER_SHOWN = 3
"""Tools that no task called, and tasks that nothing judged, that are named."""

UNCHECKED = "-"
"""Stands for a task that was not checked, because no real tool ran."""


def show_evaluation(console: Console, evaluation: Evaluation, report: Path | None) -> None:
    """Print the verdict, the tasks, the totals, whether both runs are the same, and where the report is."""
    console.print()
    console.print(_verdict_line(evaluation), soft_wrap=True)
    console.print(_provenance_text(evaluation.runs[0]))
    console.print()
    statistics = RunStatistics.of(evaluation.runs[0])
    repeated = evaluation.comparison is None and is_repeated(statistics)
    console.print(task_table(statistics) if repeated else _task_table(evaluation))
    hidden = len(evaluation.runs[0].results) - TASKS_SHOWN
    if hidden > 0 and not repeated:
        console.print(
            f"Of {hidden + TASKS_SHOWN:,} tasks the table has those that failed, {TASKS_SHOWN} at most.", style="dim"
        )
    console.print()
    console.print(_total_table(evaluation.runs, repeated=repeated))
    console.print()
    if evaluation.comparison is None and has_figures(statistics):
        show_statistics(console, statistics)
        console.print()
    struck = [run for run in evaluation.runs if run.faults]
    for run in struck[:1]:  # a replay meets the same faults
        console.print(_fault_table(run))
        console.print()
    unpriced = evaluation.runs[0].totals.unpriced_models
    if unpriced:
        names = escape(make_one_line(", ".join(unpriced)))
        console.print(f"[yellow]! costs are unknown, as there is no price of {names}[/]", soft_wrap=True)
    for run in evaluation.runs:
        if run.totals.replayed_calls:
            console.print(_saved_line(run.totals), soft_wrap=True)
    for coverage in evaluation.runs[0].coverage:
        console.print(_coverage_line(coverage))
    for line in _stale_lines(evaluation.runs[0]):
        console.print(line, soft_wrap=True)
    for line in agreement_lines(judge_agreement(evaluation.runs[0].results)):
        console.print(escape(line), soft_wrap=True)
    for run in evaluation.runs:
        failed = 0
        for result in run.results:
            failed += not result.ok
            if not result.ok and failed <= FAILURES_SHOWN:
                failure = escape(f"{describe_key(result.key, quote=False)}: {result.failure}")
                console.print(f"[red]✗ {NAMES[run.mode]}: {failure}[/]", soft_wrap=True)
        if failed > FAILURES_SHOWN:
            console.print(f"[red]✗ and {failed - FAILURES_SHOWN} more tasks; --report shows all[/]")
    if evaluation.comparison is not None:
        console.print(_comparison_text(evaluation.comparison, evaluation.runs[-1], passed=evaluation.ok))
    elif evaluation.judged and evaluation.runs[0].not_judged:
        console.print(_unjudged_line(evaluation.runs[0]), soft_wrap=True)
    if report is not None:
        print_path(console, "Report", report)


def _verdict_line(evaluation: Evaluation) -> Text:
    verdict = judge_runs(evaluation.runs, evaluation.comparison)
    sign, style = {"Passed": ("✓", "green"), "Failed": ("✗", "bold red")}.get(verdict.outcome, ("!", "yellow"))
    return Text.assemble((f"{sign} {verdict.outcome}:", style), f" {make_one_line(verdict.sentence)}")


def _provenance_text(run: SuiteRun) -> Text:
    """Return when, by which command and with what the run was made."""
    facts = [f"{name} {make_one_line(value)}" for name, value in run.provenance.facts.items()]
    facts += [f"resumed {each.started_at}" for each in run.resumed]
    return Text("; ".join(facts), style="dim")


def _task_table(evaluation: Evaluation) -> Table:
    runs, comparison = evaluation.runs, evaluation.comparison
    table = new_table()
    for name in ("task", "check", "steps", "tool\ncalls"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    # With two runs side by side every character counts: the table fits into 80 columns.
    for name in ("mocked", "fail" if comparison else "failed", "hook\ntime"):
        for run in runs:
            heading = f"{name}\n{LETTERS[run.mode]}" if comparison else name
            table.add_column(heading, justify="right", no_wrap=True)
    scored = comparison is None and any(result.checks for result in runs[0].results)
    for name, shown in (("faults", comparison is None and runs[0].faults), ("score", scored), ("same", comparison)):
        if shown:
            table.add_column(name, justify="right", no_wrap=True)
    differing = {difference.task for difference in comparison.differences} if comparison else set()
    suite = ""
    for rows in _rows_to_show(runs, differing):
        if rows[0].suite != suite:
            suite = rows[0].suite
            table.add_section()
            table.add_row(Text(suite, style="bold"))
        attempt = f" #{rows[0].attempt}" if runs[0].repeat > 1 else ""
        cells: list[str | Text] = [
            f"{rows[0].task_id}{attempt}",
            _check(rows[0]),
            str(rows[0].steps),
            str(rows[0].tool_calls),
        ]
        cells += [Text(str(row.mocked), style="yellow" if row.mocked else "dim") for row in rows]
        cells += [Text(str(row.failed), style="red" if row.failed else "dim") for row in rows]
        cells += [duration(row.hook_time_ms) for row in rows]
        if comparison is None and runs[0].faults:
            faults = sum(call.fault is not None for call in rows[0].calls)
            cells.append(Text(str(faults), style="magenta" if faults else "dim"))
        if scored:
            cells.append(UNCHECKED if rows[0].score is None else f"{rows[0].score:.2f}")
        if comparison is not None:
            cells.append(_mark(rows[0].name not in differing))
        table.add_row(*cells)
    return table


def _rows_to_show(runs: Sequence[SuiteRun], differing: Collection[str]) -> Iterator[tuple[TaskResult, ...]]:
    """Yield the results of each task; of a large run only those that failed or differ, and not too many of them."""
    large = len(runs[0].results) > TASKS_SHOWN
    shown = 0
    for rows in zip(*(run.results for run in runs), strict=True):
        if large and rows[0].name not in differing and all(row.ok for row in rows):
            continue
        yield rows
        shown += 1
        if shown == TASKS_SHOWN:
            return


def _fault_table(run: SuiteRun) -> Table:
    """Return a table of the injected faults, by tool."""
    table = new_table()
    table.add_column("fault", min_width=12, no_wrap=True)
    table.add_column("tool", no_wrap=True, overflow="ellipsis")
    for name in ("calls", "tasks", "failed"):
        table.add_column(name, justify="right", min_width=len(name), no_wrap=True)
    for (fault, tool), calls in sorted(run.faults_by_tool.items()):
        failed = sum(not call.success for call in calls)
        table.add_row(fault, tool, str(len(calls)), str(len({call.task for call in calls})), str(failed))
    table.add_row(Text(f"seed {run.seed}", style="dim"))
    return table


def _coverage_line(coverage: Coverage) -> Text:
    """Return how many of a suite's tools were called, and which were not."""
    called = len(coverage.discovered) - len(coverage.never_called)
    told = Text.assemble((coverage.suite, "bold"), f": {called} of {len(coverage.discovered)} tools called")
    if coverage.mocked and coverage.real:
        told.append(f", {sum(coverage.mocked.values())} calls mocked and {sum(coverage.real.values())} real")
    if coverage.never_called:
        shown = ", ".join(path.rpartition("/")[2] for path in coverage.never_called[:NEVER_SHOWN])
        more = len(coverage.never_called) - NEVER_SHOWN
        told.append(f"; never: {shown}{f' and {more} more' if more > 0 else ''}", style="dim")
    if coverage.unknown:
        told.append(f"; not among its tools: {', '.join(coverage.unknown)}", style="red")
    return told


def _total_table(runs: Sequence[SuiteRun], *, repeated: bool) -> Table:
    table = new_table()
    table.add_column("totals", min_width=16, no_wrap=True)
    for run in runs:
        table.add_column(NAMES[run.mode], justify="right", min_width=15, no_wrap=True)
    totals = [run.totals for run in runs]
    table.add_row("attempts" if repeated else "tasks", *(str(each.tasks) for each in totals))
    table.add_row("checks passed", *(_checks_passed(each) for each in totals))
    table.add_row("steps", *(str(each.steps) for each in totals))
    table.add_row("tool calls", *(str(each.tool_calls) for each in totals))
    table.add_row("real tools run", *(str(each.tools_run + each.forbidden) for each in totals))
    table.add_row("mocked", *(Text(str(each.mocked), style="yellow" if each.mocked else "") for each in totals))
    table.add_row("failed", *(Text(str(each.failed), style="red" if each.failed else "") for each in totals))
    table.add_row("hooks run", *(str(each.hook_executions) for each in totals))
    table.add_row("hook time", *(duration(each.hook_time_ms) for each in totals))
    table.add_row("wall clock", *(duration(each.duration_ms) for each in totals))
    for name, usages in (
        ("judges", [each.judge_usage for each in totals]),
        ("simulated users", [each.user_usage for each in totals]),
    ):
        if any(usage != Usage() for usage in usages):
            pairs = zip(usages, totals, strict=True)
            table.add_row(name, *(_usage_text(usage, known=not each.unpriced_models) for usage, each in pairs))
    return table


def _usage_text(usage: Usage, *, known: bool) -> str:
    """Return tokens and cost; a cost of 0 is unknown where models without a price were asked."""
    cost = f"{usage.cost_usd:.4f} USD" if known or usage.cost_usd else "cost unknown"
    return f"{usage.input_tokens + usage.output_tokens:,} tokens, {cost}"


def _saved_line(totals: Totals) -> str:
    """Return what tapes have saved: `Tapes answered 4 model calls: saved 12,345 tokens, $0.12`."""
    calls, saved = totals.replayed_calls, totals.replayed_usage
    cost = f"${saved.cost_usd:,.2f}" if saved.cost_usd or not totals.unpriced_models else "cost unknown"
    return (
        f"Tapes answered {calls:,} model call{'' if calls == 1 else 's'}: "
        f"saved {saved.input_tokens + saved.output_tokens:,} tokens, {cost}."
    )


def _checks_passed(totals: Totals) -> Text:
    if not totals.checked:
        return Text(UNCHECKED, style="dim")
    return Text(f"{totals.useful}/{totals.checked}", style="green" if totals.useful == totals.checked else "red")


def _comparison_text(comparison: Comparison, replayed: SuiteRun, *, passed: bool) -> str:
    if comparison.same:
        same = "(a) and (b) produced the same results"
        # Failures that happen twice are no success, so only a run that passed ends with a green line.
        return (
            f"{f'[green]✓ {same}[/]' if passed else f'{same}, the failures too'}: {comparison.tool_results} tool "
            f"results, all answers and all trajectories of {comparison.tasks} tasks are equal byte for byte; "
            f"{replayed.totals.forbidden or 'no'} real tools ran in (b)."
        )
    lines = [f"[red]✗ (a) and (b) produced different results[/]: {len(comparison.differences)} differences."]
    lines += [
        f"  {escape(f'{each.task}, {each.what}: {_difference_text(each)}')}" for each in comparison.differences[:5]
    ]
    if len(comparison.differences) > 5:
        lines.append(f"  and {len(comparison.differences) - 5} more")
    return "\n".join(lines)


def _stale_lines(run: SuiteRun) -> list[str]:
    """Return a line for each tool whose schema has changed since its recordings were made."""
    changes: dict[str, str] = {}
    calls = Counter[str]()
    for result in run.results:
        for call in result.calls:
            if call.stale is not None:
                changes.setdefault(call.tool, call.stale)
                calls[call.tool] += 1
    lines = [
        f"[yellow]! stale recordings ({calls[tool]} call{'' if calls[tool] == 1 else 's'}): "
        f"{escape(make_one_line(change))}[/]"
        for tool, change in sorted(changes.items())
    ]
    more = len(lines) - FAILURES_SHOWN
    return [*lines[:FAILURES_SHOWN], *([f"[yellow]! and those of {more} more tools[/]"] if more > 0 else [])]


def _unjudged_line(run: SuiteRun) -> str:
    """Return a line that names tasks without checks and expected calls."""
    names = run.not_judged
    more = f" and {len(names) - NEVER_SHOWN} more" if len(names) > NEVER_SHOWN else ""
    told = f"{len(names)} of {len(run.results)} tasks were not judged: no check came to a verdict"
    return f"[yellow]{told}: {escape(', '.join(names[:NEVER_SHOWN]))}{more}[/]"


def _difference_text(difference: Difference) -> str:
    return f"{difference.real!r:.60} ≠ {difference.replayed!r:.60}"


def _check(result: TaskResult) -> Text:
    return Text(UNCHECKED, style="dim") if result.utility is None else _mark(result.utility)


def _mark(good: bool) -> Text:
    return Text("✓", style="green") if good else Text("✗", style="bold red")
