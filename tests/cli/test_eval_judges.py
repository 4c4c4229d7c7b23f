"""`hookline eval judges` and `hookline eval schema`, and what `hookline eval` shows of judges and conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookline.cli._app import app
from hookline.evals.suites import suite_schema

MODELS = """
from hookline import ModelResponse, ScriptedModel, Usage


def _grade(call):
    said = call.messages[1].content
    grade = 5 if "good" in said else 4 if "fair" in said else 1
    text = "I am not sure." if "odd" in said else f'{{"reason": "r", "grade": {grade}}}'
    return ModelResponse(content=text, usage=Usage(input_tokens=90, output_tokens=10, cost_usd=0.01))


mild = ScriptedModel(_grade, name="mild")
harsh = ScriptedModel(lambda call: '{"grade": 1}' if "fair" in call.messages[1].content else _grade(call), name="harsh")
user = ScriptedModel(lambda call: ModelResponse(content="Bye [DONE]", usage=Usage(output_tokens=5, cost_usd=0.5)), name="user")
"""

SUITE = """\
suite: desk
judge: {model: [graders:mild, graders:harsh]}
checks: [{judge: {rubric: Is it right?, name: good}}]
tasks:
  - {id: "{answer}", matrix: {answer: [good, fair, bad, odd]}, prompt: Well?, script: [{say: "{answer}"}]}
  - {id: talk, prompt: Well?, user: {goal: Leave., model: graders:user}, script: [{say: good}]}
"""


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["eval", *args])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    module = f"graders_{abs(hash(tmp_path))}"
    (tmp_path / f"{module}.py").write_text(MODELS)
    (tmp_path / "desk.yaml").write_text(SUITE.replace("graders:", f"{module}:"))
    run("desk.yaml", "--save", "run.json")
    (tmp_path / "labels.csv").write_text(
        "task,label\ndesk/good,pass\ndesk/fair,pass\ndesk/bad,fail\ndesk/odd,fail\ndesk/gone,fail\n"
    )
    return tmp_path


def test_a_run_shows_the_cost_and_the_agreement_of_judges_and_the_cost_of_users(folder: Path) -> None:
    shown = run("desk.yaml")

    assert shown.exit_code == 1
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["judges", "1,100", "tokens,", "0.1100", "USD"] in lines
    assert ["simulated", "users", "5", "tokens,", "0.5000", "USD"] in lines
    assert "good: 2 models, alpha 0.72 over 4 tasks" in shown.stdout
    assert "desk/odd: good: not judged: mild: no verdict, the answer is no grade: 'I am not sure.'" in shown.stdout


def test_calibration_compares_with_labels_and_names_the_best_threshold(folder: Path) -> None:
    shown = run("judges", "calibrate", "run.json", "labels.csv")

    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["good:", "3", "labelled", "tasks"] in lines
    assert any(line[:3] == ["now", "0.75", "67%"] for line in lines)
    assert any(line[:3] == ["best", "0.38", "100%"] for line in lines)
    assert ["judge:", "pass", "1", "0"] in lines
    assert ["judge:", "fail", "1", "1"] in lines
    for note in (
        "3 labels are few: 30 or more give figures that mean something.",
        "1 labelled tasks have no verdict of the judge.",
        "1 judged tasks have no label.",
        "Not in the run: desk/gone.",
    ):
        assert note in shown.stdout


def test_calibration_as_json_has_every_figure(folder: Path) -> None:
    (found,) = json.loads(run("judges", "calibrate", "run.json", "labels.csv", "--json", "--check", "good").stdout)

    assert found["now"]["confusion"] == {"bothPass": 1, "judgePasses": 0, "personPasses": 1, "bothFail": 1}
    assert found["best"]["kappa"] == 1.0
    assert (found["labels"], found["notJudged"], found["unlabelled"], found["unknown"]) == (3, 1, 1, ["desk/gone"])


def test_a_sheet_can_be_filled_in_and_is_not_overwritten(folder: Path) -> None:
    made = run("judges", "sheet", "run.json", "sheet.csv", "--sample", "2")
    again = run("judges", "sheet", "run.json", "sheet.csv")

    assert (made.exit_code, made.stdout) == (
        0,
        "Wrote 2 tasks to sheet.csv. Write pass or fail into the column label.\n",
    )
    assert (folder / "sheet.csv").read_text().count("desk/") == 2
    assert again.exit_code == 2
    assert "somebody may have filled it in" in again.stderr


def test_agreement_is_shown_by_judge(folder: Path) -> None:
    shown = run("judges", "agreement", "run.json")
    (found,) = json.loads(run("judges", "agreement", "run.json", "--json").stdout)

    assert shown.exit_code == 0
    assert "mild 0.69, harsh 0.50" in shown.stdout
    assert (found["models"], found["tasks"], found["missing"]) == (["mild", "harsh"], 4, 2)


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["judges", "calibrate", "run.json", "none.csv"], 2, "none.csv: the file cannot be read"),
        (["judges", "calibrate", "none.json", "labels.csv"], 2, "none.json is not a saved run"),
        (["judges", "calibrate", "run.json", "labels.csv", "--check", "kind"], 2, "The run has no judge 'kind'"),
        (["judges", "calibrate", "run.json", "empty.csv"], 3, ""),
        (["desk.yaml", "--task", "none"], 2, "has no task 'none'"),
    ],
)
def test_what_is_wrong_is_told(folder: Path, args: list[str], code: int, told: str) -> None:
    (folder / "empty.csv").write_text("task,label\n")

    result = run(*args)

    assert result.exit_code == code
    assert told in result.stderr


def test_a_wrong_file_of_cases_is_told_with_its_line(folder: Path) -> None:
    (folder / "cases.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    (folder / "s.yaml").write_text('suite: s\ntasks: [{id: "{a}", cases: cases.jsonl, prompt: p}]\n')

    result = run("s.yaml")

    assert result.exit_code == 2
    assert result.stderr.startswith(f"hookline: {folder / 'cases.jsonl'}, line 2: the case has no 'a'")


def test_the_schema_is_printed_or_written(folder: Path) -> None:
    printed, written, refused = run("schema"), run("schema", "s.json"), run("schema", "none/s.json")

    assert json.loads(printed.stdout) == json.loads((folder / "s.json").read_text()) == suite_schema()
    assert written.stdout == "Wrote s.json.\n"
    assert refused.exit_code == 2
