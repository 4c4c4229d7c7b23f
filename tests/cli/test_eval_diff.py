"""`hookline eval diff A B`: what changed between two saved runs, and whether it got worse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookline.cli._app import app

SUITE = """\
suite: shop
tasks:
  - id: greet
    prompt: Say hello.
    script: [{say: ANSWER}]
    checks: [{output_contains: hello}]
  - id: leave
    prompt: Say goodbye.
    script: [{say: goodbye}]
"""


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["eval", *args])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, str]:
    """A run that is right, and one that is not."""
    files = []
    for name, answer in (("good", "hello"), ("bad", "what?")):
        suite, target = tmp_path / f"{name}.yaml", tmp_path / f"{name}.json"
        suite.write_text(SUITE.replace("ANSWER", answer))
        run(str(suite), "--save", str(target))
        files.append(str(target))
    return files[0], files[1]


def test_a_task_that_fails_now_makes_it_exit_with_one(saved: tuple[str, str]) -> None:
    good, bad = saved

    result = run("diff", good, bad)

    assert result.exit_code == 1
    assert "shop/greet passed in A and fails in B: output contains 'hello': the answer is 'what?'" in result.stdout
    assert "✗ 1 task got worse" in result.stdout
    assert "1.00 → 0.00" in result.stdout


def test_a_task_that_passes_now_is_no_failure(saved: tuple[str, str]) -> None:
    good, bad = saved

    result = run("diff", bad, good)

    assert result.exit_code == 0
    assert "✓ Nothing got worse, 1 better." in result.stdout


def test_equal_runs_have_nothing_to_show(saved: tuple[str, str]) -> None:
    result = run("diff", saved[0], saved[0])

    assert result.exit_code == 0
    assert "shop/" not in result.stdout
    assert "of 2 of 2 tasks are equal byte for byte" in " ".join(result.stdout.split())


def test_json_has_all_of_it_and_nothing_else_is_printed(saved: tuple[str, str]) -> None:
    result = run("diff", *saved, "--json")

    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (document["ok"], document["worse"]) == (False, ["shop/greet"])
    assert [(task["task"], task["change"]) for task in document["tasks"]] == [
        ("shop/greet", "worse"),
        ("shop/leave", "same"),
    ]
    assert document["passed"] == [2, 1]


@pytest.mark.parametrize("text", [None, "", "{}", "not json"])
def test_a_file_that_is_no_run_is_told_in_one_line(tmp_path: Path, saved: tuple[str, str], text: str | None) -> None:
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)

    result = run("diff", saved[0], str(path))

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path} is not a saved run" in result.stderr
    assert result.stderr.count("\n") == 1


def test_one_run_alone_makes_no_sense(saved: tuple[str, str]) -> None:
    assert run("diff", saved[0]).exit_code == 2


def changed(path: str, **fields: object) -> str:
    """A copy of a saved run whose first task has other figures."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    lines[1]["result"].update(fields)
    copy = Path(path).with_suffix(".changed.json")
    copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(copy)


def said(result: Result) -> str:
    return " ".join(result.stdout.split())


def test_a_task_that_is_gone_fails_the_gate_unless_that_is_allowed(saved: tuple[str, str], tmp_path: Path) -> None:
    run(str(tmp_path / "good.yaml"), "--task", "greet", "--save", str(tmp_path / "less.json"))

    gone = run("diff", saved[0], str(tmp_path / "less.json"))
    allowed = run("diff", saved[0], str(tmp_path / "less.json"), "--allow-missing")

    assert (gone.exit_code, allowed.exit_code) == (1, 0)
    assert "✗ shop/leave ran in A and is missing in B" in gone.stdout
    assert "Nothing got worse" not in gone.stdout
    assert "✓ Nothing got worse than allowed, 0 better. But 1 task is missing." in said(allowed)


def test_runs_without_a_common_task_are_no_success(saved: tuple[str, str]) -> None:
    header = json.loads(Path(saved[0]).read_text().splitlines()[0])
    empty = Path(saved[0]).with_name("empty.json")
    empty.write_text(json.dumps({**header, "cases": []}) + "\n")

    assert run("diff", saved[0], str(empty)).exit_code == 1
    for args in ([str(empty), saved[0]], [str(empty), str(empty)], [saved[0], str(empty), "--allow-missing"]):
        result = run("diff", *args)
        assert result.exit_code == 3
        assert "✗ Nothing was compared: A and B have no task in common." in said(result)


def test_a_score_that_falls_fails_the_gate_unless_it_may(saved: tuple[str, str]) -> None:
    worse = changed(saved[0], score=0.5)

    assert run("diff", saved[0], worse).exit_code == 1
    assert run("diff", saved[0], worse, "--max-score-drop", "0.4").exit_code == 1
    assert run("diff", saved[0], worse, "--max-score-drop", "0.5").exit_code == 0
    assert run("diff", saved[0], worse, "--max-score-drop", "mean:0.5").exit_code == 0
    assert run("diff", saved[0], worse, "--max-score-drop", "mean:0.4").exit_code == 1
    assert run("diff", saved[0], worse, "--max-score-drop", "1", "--min-score", "0.6").exit_code == 1


def test_a_rising_cost_is_told_and_fails_the_gate_where_it_has_a_limit(saved: tuple[str, str]) -> None:
    dearer = changed(saved[0], costUsd=27.0, toolCalls=3)

    told = run("diff", saved[0], dearer)

    assert told.exit_code == 0
    assert "But 1 task costs more money, by 27 USD in all, 1 task makes more calls, 3 in all." in said(told)
    assert "✓ Nothing got worse," not in said(told)
    assert run("diff", saved[0], dearer, "--max-cost-increase", "10%").exit_code == 1
    assert run("diff", saved[0], dearer, "--max-calls-increase", "2").exit_code == 1
    assert run("diff", saved[0], dearer, "--max-calls-increase", "3").exit_code == 0


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--min-score", "80%", "a score is a number from 0 to 1"),
        ("--max-score-drop", "mean:", "a score is a number from 0 to 1"),
        ("--max-cost-increase", "-1", "an increase is a number from 0"),
        ("--max-cost-increase", "nan", "an increase is a number from 0"),
        ("--max-calls-increase", "task:3", "an increase is a number from 0"),
    ],
)
def test_a_limit_that_is_none_is_a_wrong_use(saved: tuple[str, str], option: str, value: str, told: str) -> None:
    result = run("diff", *saved, f"{option}={value}")

    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())


def test_a_limit_is_given_once_for_tasks_and_once_for_the_mean(saved: tuple[str, str]) -> None:
    both = run("diff", *saved, "--max-score-drop", "1", "--max-score-drop", "mean:0.4")
    twice = run("diff", *saved, "--max-score-drop", "1", "--max-score-drop", "0.4")

    assert (both.exit_code, twice.exit_code) == (1, 2)
    assert "It is set twice for each task" in twice.stderr


def test_a_saved_run_that_names_a_task_twice_is_a_wrong_use(saved: tuple[str, str]) -> None:
    header, greet, leave, end = Path(saved[0]).read_text().splitlines(keepends=True)
    Path(saved[1]).write_text(header + greet + leave + greet + end)

    result = run("diff", *saved)

    assert result.exit_code == 2
    assert "it has the task 'shop/greet' twice" in result.stderr
