"""Summaries for pull requests: the verdict first, what changed, and nothing that Markdown takes for more than text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hookline.calls import Usage
from hookline.evals import Provenance, ReportError, SuiteRun, diff_runs, diff_summary, run_summary
from hookline.evals.reports import junit_xml, write_report, write_summary

from .test_repeated_diff import STEADY, attempts, saved
from .test_run_diff import result, run


def test_the_verdict_comes_first_then_figures_tasks_that_changed_and_tags() -> None:
    figures = {"tags": ["drink"], "cost_usd": 0.5, "input_tokens": 1000}
    flaky = attempts("milk", 1, 0, 1, 0, 1)
    before = saved(attempts("tea", *[1] * 5, **figures), attempts("rice", *[1] * 5), flaky, *STEADY)
    after = saved(attempts("tea", *[0] * 5, **figures), attempts("rice", *[0] * 5), flaky, *STEADY)

    text = diff_summary(diff_runs(before, after), a="main.jsonl", b="change.jsonl")

    lines = text.splitlines()
    assert lines[0] == "### ✗ The run as a whole got worse, 0 higher, 2 lower."
    assert "- The mean score of 11 tasks fell from 0.964 to 0.782" in text
    assert [line for line in lines if line.startswith("* ")] == ["* A: `main.jsonl`", "* B: `change.jsonl`"]
    assert "| cost in USD | 2.5000 | 2.5000 |" in lines
    assert "| flaky tasks | 1 | 1 |" in lines
    assert "| tokens read | 5,000 | 5,000 |" in lines
    assert "#### Tasks that changed: 2 of 11" in lines
    assert "| `shop/tea` | lower | 5/5 → 0/5 | 1.00 → 0.00 | 0.5000 | the suite's own check failed |" in lines
    assert "Flaky in B, as they passed and failed: `shop/milk`." in lines
    assert lines[-1].startswith("| `drink` | 1 | 1.00 (0.")


def test_what_is_worse_comes_before_what_else_changed() -> None:
    before = run(result("tea", score=0.5), result("milk", score=1.0))
    after = run(result("tea", score=1.0), result("milk", score=0.0))

    text = diff_summary(diff_runs(before, after))

    assert text.index("`shop/milk`") < text.index("`shop/tea`")
    assert text.startswith("### ✗ 1 task got worse, 1 better.")


def test_names_and_reasons_stay_text() -> None:
    nasty = "a|b`c``\n\x1b<script>@all"
    before = run(result(nasty, score=1.0))
    broken = result(nasty, score=None, reason="error", error="*x* | <b>\n## heading [link](http://x) @team")

    text = diff_summary(diff_runs(before, run(broken)), a="`a", b="b|c")

    (row,) = [line for line in text.splitlines() if line.startswith("| ```")]
    assert "a\\|b`c`` <script>@all" in row
    assert "\\*x\\* \\| \\<b\\> \\#\\# heading \\[link\\](http://x) @<!-- -->team" in row
    assert "* A: `` `a ``\n* B: `b|c`\n" in text


def test_long_tables_end_with_a_count() -> None:
    before = run(*(result(str(number), score=1.0) for number in range(60)))
    after = run(*(result(str(number), score=0.0) for number in range(60)))

    text = diff_summary(diff_runs(before, after))

    assert "and 10 more" in text
    assert text.count("| `shop/") == 50


def suite_run(*tasks: list, **given: object) -> SuiteRun:  # type: ignore[type-arg]
    return saved(*tasks, **given).suite_run()


def test_a_run_without_a_baseline_has_its_verdict_its_failures_and_its_tags() -> None:
    text = run_summary([suite_run(attempts("tea", 1, 0, tags=["drink"]), attempts("milk", 1, 1))])

    lines = text.splitlines()
    assert lines[0] == (
        "### ✗ Failed: 1 of 2 tasks passed in every attempt; 1 passed in some attempts: shop/tea; 3 of 4 attempts passed."
    )
    assert "#### Tasks that failed: 1 of 2" in lines
    assert "| `shop/tea` | 1/2 | 0.50 | 0.0000 | the suite's own check failed |" in lines
    assert any(line.startswith("| `drink` | 1 |") for line in lines)


def test_models_stand_side_by_side() -> None:
    text = run_summary(
        [suite_run(attempts("tea", 1, model="large"), attempts("tea", 0, model="small"), models=["large", "small"])]
    )

    assert "| | large | small |" in text
    assert "#### Tasks that failed with small: 1 of 1" in text
    assert "Tasks that failed with large" not in text


def test_a_run_without_tasks_has_a_verdict_too() -> None:
    assert run_summary([suite_run()]).startswith("### ! Not judged: no task ran.\n")


def test_the_summary_of_a_job_on_github_is_appended_to_and_other_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = tmp_path / "step", tmp_path / "own.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shared))
    for text in ("one\n", "two\n"):
        for file in (shared, own):
            assert write_summary(file, text) == file

    assert shared.read_text() == "one\n\ntwo\n\n"
    assert own.read_text() == "two\n"
    with pytest.raises(ReportError, match="there is no folder"):
        write_summary(tmp_path / "none" / "summary.md", "text")


def test_a_summary_says_when_and_with_what_the_runs_were_made() -> None:
    origin = Provenance(
        started_at="2026-11-24T10:00:00Z", models=["large"], made_by="hookline eval shop.yaml", commit="abc"
    )
    made = msgspec.structs.replace(saved(attempts("tea", 1)), provenance=origin)

    compared, ran = diff_summary(diff_runs(made, made)), run_summary([made.suite_run()])

    facts = "started `2026-11-24T10:00:00Z`; command `hookline eval shop.yaml`; models `large`; commit `abc`"
    assert f"* A: `A`; {facts}" in compared
    assert facts in ran


def test_a_weighted_score_and_the_costs_of_others_are_in_the_summary_the_report_and_junit(tmp_path: Path) -> None:
    tea = attempts("tea", 1, weight=3.0, judge_usage=Usage(cost_usd=0.5))
    ran = saved(tea, attempts("milk", 0)).suite_run()

    summary, report, junit = run_summary([ran]), write_report(tmp_path / "r.html", [ran]).read_text(), junit_xml([ran])

    assert "| score, weighted | 0.75 (" in summary
    assert "| judges in USD | 0.5000 |" in summary
    assert "Mean score, weighted</dt><dd>0.75" in report
    assert "Cost of judges</dt>" in report
    assert "Cost of simulated users</dt>" not in report
    assert 'name="weight" value="3"' in junit
    assert 'name="judge_cost_usd" value="0.5"' in junit
