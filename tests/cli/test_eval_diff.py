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
    assert f"{path} is no saved run" in result.stderr
    assert result.stderr.count("\n") == 1


def test_one_run_alone_makes_no_sense(saved: tuple[str, str]) -> None:
    assert run("diff", saved[0]).exit_code == 2
