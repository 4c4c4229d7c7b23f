"""Print the figures of runs: means with intervals, checks, tags, cost, tokens and latency, models side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookline.cli._terminal import make_one_line, new_table
from hookline.evals import UNKNOWN, format_cost
from hookline.evals.reports import duration
from hookline.evals.statistics import Estimate, ModelStatistics, Percentiles, RunStatistics, TaskStatistics

__all__ = ["has_figures", "is_repeated", "show_statistics", "task_table"]

TASKS = 100
"""Tasks that are shown."""

ROWS = 12
"""Checks and tags that are shown, of each."""

NAMED = 5
"""Flaky tasks that are named."""

NOTHING = "-"
PER_ATTEMPT = "  p50, p90, p99 of an attempt"


def is_repeated(statistics: RunStatistics) -> bool:
    """Whether a run has repeats or several models, so that a task has more than one result."""
    return statistics.repeats > 1 or len(statistics.models) > 1


def has_figures(statistics: RunStatistics) -> bool:
    """Whether the figures of a run say more than its table of tasks and its totals."""
    return is_repeated(statistics) or any(
        model.total_cost_usd != 0
        or model.judge_cost_usd.total
        or model.user_cost_usd.total
        or model.weighted
        or model.input_tokens.total
        or model.output_tokens.total
        or model.tags
        or any(check.tasks > 1 for check in model.checks)
        for model in statistics.models
    )


def task_table(statistics: RunStatistics) -> Table:
    """Return a table with one row per task, and the models side by side; of many tasks only those that failed."""
    table = new_table(padding=(0, 1))
    several = len(statistics.models) > 1
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    columns = ["passed", "score", "cost"] if several else ["passed", "score", "steps", "tool\ncalls", "cost", "time"]
    for model in statistics.models:
        for number, name in enumerate(columns):
            table.add_column(_heading(model, name) if several and not number else name, justify="right", no_wrap=True)
    by_name = [{task.task: task for task in model.per_task} for model in statistics.models]
    names = list(dict.fromkeys(name for tasks in by_name for name in tasks))
    shown = names if len(names) <= TASKS else [name for name in names if _failed(name, by_name)][:TASKS]
    for name in shown:
        cells: list[str | Text] = [Text(make_one_line(name))]
        for tasks in by_name:
            cells += _task_cells(tasks.get(name), several=several)
        table.add_row(*cells)
    if len(shown) < len(names):
        table.caption = f"and {len(names) - len(shown):,} more; of many tasks, those that failed are shown"
        table.caption_justify = "left"
    return table


def _failed(name: str, by_name: Sequence[Mapping[str, TaskStatistics]]) -> bool:
    """Whether an attempt of a task failed with any model."""
    return any(bool(tasks[name].failure) for tasks in by_name if name in tasks)


def _heading(model: ModelStatistics, name: str) -> Text:
    return Text(f"{make_one_line(model.model or 'own model')}\n{name}")


def _task_cells(task: TaskStatistics | None, *, several: bool) -> list[str | Text]:
    if task is None:
        return [NOTHING] * (3 if several else 6)
    style = "dim" if not task.judged else "yellow" if task.flaky else "green" if task.passes else "bold red"
    passed = Text(f"{task.passes}/{task.judged}" if task.judged else NOTHING, style=style)
    cells: list[str | Text] = [passed, NOTHING if task.score is None else f"{task.score.mean:.2f}"]
    if not several:
        cells += [f"{task.steps:.3g}", f"{task.tool_calls:.3g}"]
    cells.append(NOTHING if task.cost_usd == 0 else format_cost(task.cost_usd))
    return cells if several else [*cells, duration(task.duration_ms)]


def show_statistics(console: Console, statistics: RunStatistics) -> None:
    """Print the figures of each model, side by side, and name flaky tasks."""
    models = statistics.models
    if not models:
        return
    table = new_table(padding=(0, 1))
    table.add_column("results", no_wrap=True, overflow="ellipsis", max_width=40)
    for model in models:
        heading = make_one_line(model.model or "own model") if len(models) > 1 else ""
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for name, cells in _rows(models):
        table.add_row(name, *cells)
    for title, kinds in (("by check", _by_check(models)), ("by tag", _by_tag(models))):
        if kinds:
            table.add_section()
            table.add_row(Text(title, style="bold"))
            for name, estimates in list(kinds.items())[:ROWS]:
                table.add_row(Text(f"  {make_one_line(name)}"), *map(_show, estimates))
            if len(kinds) > ROWS:
                table.add_row(Text(f"  and {len(kinds) - ROWS} more; --json has all", style="dim"))
    console.print(table)
    console.print("[dim]In brackets: 95 % intervals for tasks like these; a task counts once, however often it ran.[/]")
    for model in models:
        if model.flaky:
            console.print(_flaky_line(model, several=len(models) > 1), soft_wrap=True, markup=False)


def _rows(models: Sequence[ModelStatistics]) -> list[tuple[str, list[str]]]:
    figures: list[tuple[str, Callable[[ModelStatistics], str]]] = [
        ("tasks", lambda model: str(model.tasks)),
        ("attempts", lambda model: str(model.attempts)),
        ("passed", lambda model: _show(model.passed)),
        ("score, weighted" if any(model.weighted for model in models) else "score", lambda model: _show(model.score)),
    ]
    most = max(max(model.pass_at_k, default=0) for model in models)
    if most > 1:
        figures += [
            (f"pass@{most}", lambda model: _show(model.pass_at_k.get(most))),
            (f"pass^{most}", lambda model: _show(model.pass_hat_k.get(most))),
            ("flaky tasks", lambda model: str(len(model.flaky))),
        ]
    if any(model.total_cost_usd != 0 for model in models):
        figures += [
            ("cost in USD", lambda model: format_cost(model.total_cost_usd)),
            (PER_ATTEMPT, lambda model: _percentiles(model.cost_usd, "{:.4f}".format) if model.cost_usd else UNKNOWN),
        ]
    if any(model.judge_cost_usd.total for model in models):
        figures += [
            ("judges in USD", lambda model: f"{model.judge_cost_usd.total:.4f}"),
            (PER_ATTEMPT, lambda model: _percentiles(model.judge_cost_usd, "{:.4f}".format)),
        ]
    if any(model.user_cost_usd.total for model in models):
        figures += [
            ("simulated users in USD", lambda model: f"{model.user_cost_usd.total:.4f}"),
            (PER_ATTEMPT, lambda model: _percentiles(model.user_cost_usd, "{:.4f}".format)),
        ]
    if any(model.input_tokens.total or model.output_tokens.total for model in models):
        figures += [
            ("tokens read", lambda model: f"{model.input_tokens.total:,.0f}"),
            (PER_ATTEMPT, lambda model: _percentiles(model.input_tokens, "{:,.0f}".format)),
            ("tokens written", lambda model: f"{model.output_tokens.total:,.0f}"),
            (PER_ATTEMPT, lambda model: _percentiles(model.output_tokens, "{:,.0f}".format)),
        ]
    figures.append(("latency p50, p90, p99", lambda model: _percentiles(model.duration_ms, duration)))
    return [(name, [cell(model) for model in models]) for name, cell in figures]


def _percentiles(values: Percentiles, show: Callable[[float], str]) -> str:
    return ", ".join(show(value) for value in (values.p50, values.p90, values.p99))


def _by_check(models: Sequence[ModelStatistics]) -> dict[str, list[Estimate | None]]:
    """Return the score of each check, by model; nothing if each task has a check of its own."""
    found = {check.check: check.tasks for model in models for check in model.checks}
    if len(found) > ROWS and max(found.values(), default=0) < 2:
        return {}
    tables = [{check.check: check.score for check in model.checks} for model in models]
    return {name: [table.get(name) for table in tables] for name in found}


def _by_tag(models: Sequence[ModelStatistics]) -> dict[str, list[Estimate | None]]:
    tables = [{tag.tag: tag.score for tag in model.tags} for model in models]
    return {name: [table.get(name) for table in tables] for name in dict.fromkeys(n for table in tables for n in table)}


def _flaky_line(model: ModelStatistics, *, several: bool) -> str:
    rates = [make_one_line(f"{task.task} ({task.passes} of {task.judged})") for task in model.per_task if task.flaky]
    more = f" and {len(rates) - NAMED} more" if len(rates) > NAMED else ""
    of = f" with {make_one_line(model.model or 'own model')}" if several else ""
    return f"Flaky{of}, as they passed and failed: {', '.join(rates[:NAMED])}{more}"


def _show(estimate: Estimate | None) -> str:
    return NOTHING if estimate is None else f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
