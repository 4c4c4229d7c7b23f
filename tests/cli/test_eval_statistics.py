"""The figures of a run in a terminal: rates with intervals, models side by side, names as they are."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from hookline.calls import Usage
from hookline.cli.eval._statistics import has_figures, is_repeated, show_statistics, task_table
from hookline.evals import CheckResult, RunStatistics, SavedRun
from tests.evals.test_repeated_diff import attempts, saved


def shown(run: SavedRun, *, width: int = 80) -> list[str]:
    """What a terminal of this width shows, line by line, with single blanks."""
    statistics, out = RunStatistics.of(run), StringIO()
    console = Console(file=out, width=width)
    console.print(task_table(statistics))
    show_statistics(console, statistics)
    assert all(len(line.rstrip()) <= width or line.startswith("Flaky") for line in out.getvalue().splitlines())
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_a_weighted_score_is_named_so_and_other_costs_have_rows_of_their_own() -> None:
    costs = {"judge_usage": Usage(cost_usd=0.5), "user_usage": Usage(cost_usd=0.25)}

    lines = shown(saved(attempts("tea", 1, weight=3.0, **costs), attempts("milk", 0)))
    plain = shown(saved(attempts("tea", 1), attempts("milk", 0)))

    assert any(line.startswith("score, weighted 0.75 [") for line in lines)
    assert "judges in USD 0.5000" in lines
    assert "simulated users in USD 0.2500" in lines
    assert "p50, p90, p99 of an attempt 0.2500, 0.4500, 0.4950" in lines
    assert any(line.startswith("score 0.50 [") for line in plain)
    assert not any("USD" in line for line in plain)


def test_a_row_for_each_task_and_the_figures_of_the_run_below() -> None:
    figures = {
        "tags": ["drink"],
        "steps": 3,
        "tool_calls": 2,
        "cost_usd": 0.25,
        "input_tokens": 1000,
        "output_tokens": 50,
    }
    polite = CheckResult(name="polite", passed=True, score=1.0)
    run = saved(
        attempts("tea", 1, 0, 1, 1, duration_ms=1500.0, checks=[polite], **figures),
        attempts("milk", 1, 1, 1, 1, duration_ms=500.0, checks=[polite], **figures),
    )

    lines = shown(run)

    assert "shop/tea 3/4 0.75 3 2 0.2500 1.50 s" in lines
    assert "shop/milk 4/4 1.00 3 2 0.2500 500 ms" in lines
    assert "attempts 8" in lines
    assert "passed 0.88 [0.37, 0.99]" in lines
    assert "pass@4 1.00 [0.34, 1.00]" in lines
    assert "pass^4 0.50 [0.09, 0.91]" in lines
    assert "cost in USD 2.0000" in lines
    assert "p50, p90, p99 of an attempt 0.2500, 0.2500, 0.2500" in lines
    assert "tokens read 8,000" in lines
    assert "latency p50, p90, p99 1.00 s, 1.50 s, 1.50 s" in lines
    assert "polite 1.00 [0.34, 1.00]" in lines
    assert "drink 0.88 [0.37, 0.99]" in lines
    assert "Flaky, as they passed and failed: shop/tea (3 of 4)" in lines


def test_models_stand_side_by_side() -> None:
    run = saved(
        [*attempts("tea", 1, 1, model="large"), *attempts("tea", 0, 1, model="small")],
        attempts("milk", 1, 1, model="large"),
        models=["large", "small"],
    )

    lines = shown(run)

    assert "results large small" in lines
    assert "tasks 2 1" in lines
    assert "shop/tea 2/2 1.00 - 1/2 0.50 -" in lines
    assert "shop/milk 2/2 1.00 - - - -" in lines
    assert "Flaky with small, as they passed and failed: shop/tea (1 of 2)" in lines


def test_names_are_text_and_no_markup() -> None:
    check = CheckResult(name="output matches '[a-z]+[/]'", passed=True, score=1.0)

    lines = shown(
        saved(attempts("[red]tea[/x]\x1b[31m", 1, 0, tags=["[bold]"], checks=[check], model="m[/]"), models=["m[/]"])
    )

    assert "shop/[red]tea[/x]␛[31m 1/2 0.50 1 0 - 0.0 µs" in lines
    assert "output matches '[a-z]+[/]' 1.00 [0.21, 1.00]" in lines
    assert any(line.startswith("[bold] ") for line in lines)


def test_of_many_tasks_those_that_failed_are_shown() -> None:
    lines = shown(saved(*(attempts(str(number), 1, float(number % 20 > 0)) for number in range(120))))

    assert sum(line.startswith("shop/") for line in lines) == 6
    assert "and 114 more; of many tasks, those that failed are shown" in " ".join(lines)


def test_figures_are_shown_where_they_say_more_than_the_totals() -> None:
    plain = RunStatistics.of(saved(attempts("tea", 1)))
    repeated = RunStatistics.of(saved(attempts("tea", 1, 1)))
    costly = RunStatistics.of(saved(attempts("tea", 1, cost_usd=0.1)))

    assert [has_figures(each) for each in (plain, repeated, costly)] == [False, True, True]
    assert [is_repeated(each) for each in (plain, repeated, costly)] == [False, True, False]
    assert "results" not in shown(saved())
