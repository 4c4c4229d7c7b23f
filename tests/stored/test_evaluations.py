"""Saved runs, suites and faults of an earlier version are read, and compare with runs of today."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio
import msgspec
import pytest
from typer.testing import CliRunner

from hookline.cli._app import app
from hookline.evals import (
    FaultSpec,
    SavedRun,
    SuiteRun,
    SuiteRunner,
    cases_of,
    diff_runs,
    faults,
    load_faults,
    load_run,
    save_run,
)
from hookline.evals.reports._report import render_report
from hookline.evals.suites import load_suite_file

from .files import FILES, added_paths, read_json, without_times

EVALUATIONS = FILES / "evaluations"
GOOD, WORSE = EVALUATIONS / "good.json", EVALUATIONS / "worse.json"
ADDED = {
    *(f"$.{name}" for name in ("provenance", "repeat", "models", "stopped", "resumed", "dropped")),
    *(f"$.results[].{name}" for name in ("attempt", "model", "tags", "inputTokens", "outputTokens")),
    *(f"$.results[].{name}" for name in ("timeline", "target")),
    "$.results[].calls[].stale",
    *(f"$.results[].{name}" for name in ("turns", "conversationEnd", "judgeUsage", "userUsage")),
    *(f"$.results[].{name}" for name in ("expectedOutput", "weight", "metadata")),
    *(f"$.results[].{name}" for name in ("tape", "tapeMisses", "replayedCalls", "replayedUsage", "unpricedModels")),
    *(f"$.results[].checks[].{name}" for name in ("judged", "required", "judgement", "usage", "kind")),
}
"""The fields of a saved run that the stored ones do not have."""
DOWN = faults.RaiseError(ConnectionError("the line is down"))


def run_suite(*specs: FaultSpec) -> SuiteRun:
    cases = cases_of([load_suite_file(EVALUATIONS / "suite.yaml")])
    return anyio.run(SuiteRunner(cases, faults=specs, seed=3).run)


def test_a_saved_run_is_read_with_everything_in_it() -> None:
    run = load_run(GOOD)

    assert (run.mode, run.seed, run.targets, run.not_run) == ("spy", 3, ["suite.yaml"], [])
    assert [(result.name, result.ok, result.score) for result in run.results] == [
        ("shop/price-of-tea", True, 1.0),
        ("shop/order-tea", True, 1.0),
        ("shop/milk-is-out", True, 1.0),
    ]
    order = run.results[1]
    assert (order.tool_calls, order.mocked, order.failed, order.tools_run) == (3, 1, 0, 2)
    assert order.tool_results == ["tea costs 3 EUR", "ordered 2 tea", "paid 6 EUR"]
    assert [(call.tool, call.outcome, call.rule) for call in order.calls] == [
        ("local/price", "real", None),
        ("local/order", "real", None),
        ("local/pay", "mocked", "no-card"),
    ]
    assert [call.args for step in order.trajectory.steps for call in step.calls][1] == {"item": "tea", "count": 2}
    assert run.coverage[0].called == {"local/order": 3, "local/pay": 1, "local/price": 2}
    assert run.coverage[0].mocked == {"local/order": 1, "local/pay": 1}


@pytest.mark.parametrize("path", [GOOD, WORSE])
def test_a_saved_run_is_written_again_as_it_was_read(path: Path) -> None:
    written = msgspec.json.decode(msgspec.json.encode(load_run(path)))

    assert added_paths(json.loads(path.read_text()), written) == ADDED
    assert written["provenance"] is None


def test_a_saved_run_without_provenance_gives_a_report_that_says_so() -> None:
    page = render_report([load_run(WORSE).suite_run()])

    text = " ".join(re.sub("<[^>]*>", " ", page.partition("<main>")[2]).split())
    assert "✗ Failed: 2 of 3 tasks passed; 1 failed: shop/price-of-tea." in text
    assert f"Started unknown, saved {load_run(WORSE).saved_at} Versions hookline 0.1.0, Python unknown" in text
    assert "Model unknown Command unknown" in text


def test_two_saved_runs_are_compared() -> None:
    found = diff_runs(load_run(GOOD), load_run(WORSE))

    assert [(task.task, task.change, task.passed, task.score) for task in found.tasks] == [
        ("shop/price-of-tea", "worse", (True, False), (1.0, 0.75)),
        ("shop/order-tea", "changed", (True, True), (1.0, 1.0)),
        ("shop/milk-is-out", "changed", (True, True), (1.0, 1.0)),
    ]
    assert found.tasks[0].why == "nothing_failed: a tool call failed"
    assert (found.passed, found.tool_calls) == ((3, 2), (6, 6))


def test_the_command_line_compares_saved_runs() -> None:
    result = CliRunner().invoke(app, ["eval", "diff", str(GOOD), str(WORSE)])

    assert result.exit_code == 1
    assert "shop/price-of-tea passed in A and fails in B" in result.stdout


def test_a_run_of_today_is_the_same_as_the_saved_one(tmp_path: Path) -> None:
    path = save_run(tmp_path / "today.json", run_suite(), ["suite.yaml"])

    found = diff_runs(load_run(GOOD), load_run(path))

    assert [(task.change, task.identical, task.similarity) for task in found.tasks] == [("same", True, 1.0)] * 3


def test_a_run_is_saved_with_the_same_fields(tmp_path: Path) -> None:
    path = save_run(tmp_path / "today.json", run_suite(*load_faults(EVALUATIONS / "faults.yaml")), ["suite.yaml"])
    loaded = msgspec.structs.replace(load_run(path), version=1)
    saved = without_times(msgspec.json.decode(msgspec.json.encode(loaded, enc_hook=list)))
    stored = without_times(json.loads(WORSE.read_text()))
    for run in (saved, stored):
        run["savedAt"] = run["hookline"] = None
        for result in run["results"]:
            # How many handlers the runner itself adds is not part of the form.
            result["hookExecutions"] = result["operationId"] = None

    assert added_paths(stored, saved) == ADDED


def test_a_file_of_faults_gives_the_same_faults() -> None:
    down, failed, empty = load_faults(EVALUATIONS / "faults.yaml")

    assert (down.tool, down.name, repr(down.fault)) == ("*/price", "down", repr(DOWN))
    assert (failed.tool, failed.args) == ("local/order", {"item": "tea"})
    assert failed.fault == faults.FailedResult(content="out of tea")
    assert (empty.tool, empty.probability, empty.fault) == ("*/pay", 0.5, faults.EmptyResult())


def test_a_saved_run_says_which_version_wrote_it() -> None:
    run: SavedRun = load_run(GOOD)

    assert (run.format, run.version) == ("hookline-run", 1)
    assert run.hookline == read_json("evaluations/good.json")["hookline"]
