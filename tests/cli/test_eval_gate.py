"""The gate on the command line: repeats, models, a baseline in git, a summary, and the exit code of "cannot tell"."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from hookline.cli._app import app
from hookline.evals.reports import save_run
from tests.evals.test_repeated_diff import STEADY, attempts, saved

SUITE = """\
suite: shop
tasks:
  - id: greet
    prompt: Say hello.
    script: [{say: ANSWER}]
    checks: [{output_contains: hello}]
"""

TOOLS = '''\
from hookline import tool

@tool(in_thread=False)
def look() -> str:
    """Look around."""
    return "nothing"

tools = [look]
'''


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["eval", *args])


def words(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with saved runs: one that is good, one that varies, one that is worse, and one with two models."""
    monkeypatch.chdir(tmp_path)
    models = [*attempts("tea", 1, 1, 1, 1, 1, model="large"), *attempts("tea", 0, 0, 0, 0, 0, model="small")]
    runs: dict[str, tuple[Sequence[Sequence[object]], list[str]]] = {
        "good": ([attempts("tea", 1, 1, 1, 1, 1), *STEADY], []),
        "noisy": ([attempts("tea", 1, 0, 1, 1, 1), *STEADY], []),
        "worse": ([attempts("tea", 0, 0, 0, 0, 0), *STEADY], []),
        "models": ([models], ["large", "small"]),
    }
    for name, (tasks, chosen) in runs.items():
        save_run(tmp_path / f"{name}.jsonl", saved(*tasks, models=chosen).suite_run())
    for name, answer in (("right", "hello"), ("wrong", "what?")):
        (tmp_path / f"{name}.yaml").write_text(SUITE.replace("ANSWER", answer))
    return tmp_path


@pytest.fixture
def repository(folder: Path) -> Path:
    """That folder, as a repository with a commit of its files, and without them in the working directory."""
    (folder / "evals").mkdir()
    (folder / "good.jsonl").rename(folder / "evals" / "good.jsonl")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "Runs"]):
        subprocess.run([*git, *command], check=True)
    (folder / "evals" / "good.jsonl").unlink()
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("good.jsonl worse.jsonl", 1, "✗ The run as a whole got worse, 0 higher, 1 lower."),
        ("worse.jsonl good.jsonl", 0, "✓ Better, 1 higher, 0 lower."),
        ("good.jsonl noisy.jsonl", 0, "? Cannot tell whether it got worse, 0 higher, 1 lower."),
        ("good.jsonl noisy.jsonl --fail-on-cannot-tell", 5, "it takes about 40 attempts of each task, or 71 tasks"),
        ("good.jsonl good.jsonl --fail-on-cannot-tell", 0, "✓ The same scores"),
        ("good.jsonl worse.jsonl --fail-on-cannot-tell", 1, "got worse"),
        ("models.jsonl --model large --model small", 1, "A: large B: small"),
        ("models.jsonl --model small --model large", 0, "✓ Better"),
        ("models.jsonl models.jsonl --model small", 0, "✓ The same scores"),
        ("models.jsonl models.jsonl", 2, "Run A has several models: large, small."),
        ("models.jsonl", 2, "Name a second run, or two models of this one"),
        ("models.jsonl --model large", 2, "Name a second run"),
        ("models.jsonl --model a --model b --model c", 2, "Two models at most can be compared."),
        ("good.jsonl good.jsonl good.jsonl", 2, "Two runs are compared; got 3"),
        ("good.jsonl worse.jsonl --summary missing/summary.md", 2, "there is no folder"),
        ("", 2, "Missing argument"),
    ],
)
def test_the_exit_code_and_the_verdict_of_a_comparison(folder: Path, arguments: str, code: int, said: str) -> None:
    result = run("diff", *arguments.split())

    assert (result.exit_code, said in words(result)) == (code, True), words(result)


def test_flaky_tasks_are_named_with_their_rates(folder: Path) -> None:
    assert "Flaky in B: shop/tea (4 of 5)." in words(run("diff", "good.jsonl", "noisy.jsonl"))


def test_json_has_the_test_and_the_figures_of_both_runs(folder: Path) -> None:
    document = json.loads(run("diff", "good.jsonl", "noisy.jsonl", "--json").stdout)

    assert (document["ok"], document["verdict"], document["cannotTell"]) == (True, "cannot tell", True)
    assert (document["flaky"], document["attempts"]) == (["shop/tea"], [45, 45])
    assert document["pairedTest"]["repeatsNeeded"] == 40
    assert [set(each["passHatK"]) for each in document["statistics"]] == [{"1", "2", "3", "4", "5"}] * 2
    assert document["tasks"][0]["passes"] == [5, 4]


def test_the_paired_test_can_be_asked_for_with_one_attempt_each(folder: Path) -> None:
    for name in ("right", "wrong"):
        run(f"{name}.yaml", "--save", f"{name}.jsonl")

    strict, tested = (run("diff", "right.jsonl", "wrong.jsonl", *more) for more in ([], ["--paired-test"]))

    assert (strict.exit_code, tested.exit_code) == (1, 0)
    assert "Cannot tell whether it got worse" in tested.output


def test_a_baseline_may_be_a_file_of_a_commit(repository: Path) -> None:
    named = run("diff", "--baseline", "main:evals/good.jsonl", "worse.jsonl")
    positional = run("diff", "HEAD:./evals/good.jsonl", "noisy.jsonl")

    assert (named.exit_code, positional.exit_code) == (1, 0), named.output + positional.output


def test_filters_of_git_such_as_those_of_large_files_apply_to_a_baseline(folder: Path) -> None:
    (folder / ".gitattributes").write_text("good.jsonl filter=zip\n")
    commands = (
        ["init", "-q", "-b", "main"],
        ["config", "filter.zip.clean", "gzip -cn"],
        ["config", "filter.zip.smudge", "gunzip -c"],
        ["add", ".gitattributes", "good.jsonl"],
        ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--no-gpg-sign", "-qm", "Runs"],
    )
    for command in commands:
        subprocess.run(["git", *command], check=True)

    stored = subprocess.run(["git", "show", "main:good.jsonl"], check=True, capture_output=True).stdout
    result = run("diff", "--baseline", "main:good.jsonl", "noisy.jsonl")

    assert stored.startswith(b"\x1f\x8b")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        ("main:evals/gone.jsonl", "path 'evals/gone.jsonl' does not exist in 'main'"),
        ("gone:evals/good.jsonl", "fetches all with `fetch-depth: 0`"),
        ("main:right.yaml", "main:right.yaml is not a saved run: it is not JSON"),
        ("--output=x:y", "a revision of git does not begin with '-'"),
        ("gone.jsonl", "No such file or directory"),
    ],
)
def test_a_baseline_that_does_not_exist_is_wrong_use(repository: Path, baseline: str, said: str) -> None:
    result = run("diff", f"--baseline={baseline}", "worse.jsonl")

    assert (result.exit_code, said in words(result)) == (2, True), words(result)
    assert run("right.yaml", f"--baseline={baseline}").exit_code == 2


def test_an_evaluation_is_compared_with_its_baseline_which_decides_the_exit_code(folder: Path) -> None:
    for name in ("right", "wrong"):
        run(f"{name}.yaml", "--save", f"{name}.jsonl")

    worse = run("wrong.yaml", "--baseline", "right.jsonl")
    still = run("wrong.yaml", "--baseline", "wrong.jsonl")
    better = run("right.yaml", "--baseline", "wrong.jsonl")

    assert [each.exit_code for each in (worse, still, better)] == [1, 0, 0]
    assert "Compared with the baseline right.jsonl, which decides the exit code" in words(worse)
    assert "shop/greet passed in A and fails in B" in words(worse)


def test_json_of_an_evaluation_has_its_figures_and_its_comparison(folder: Path) -> None:
    run("right.yaml", "--save", "right.jsonl")

    document = json.loads(run("wrong.yaml", "--baseline", "right.jsonl", "--json").stdout)

    assert document["runs"][0]["statistics"]["models"][0]["passed"]["mean"] == 0
    assert [each["worse"] for each in document["baseline"]] == [["shop/greet"]]


def test_the_options_of_a_comparison_need_a_baseline_that_the_run_does_not_overwrite(folder: Path) -> None:
    run("right.yaml", "--save", "right.jsonl")

    for arguments in (
        ["--paired-test"],
        ["--fail-on-cannot-tell"],
        ["--min-score=0"],
        ["--max-score-drop=mean:0"],
        ["--max-cost-increase=1"],
        ["--max-calls-increase=mean:10%"],
        ["--allow-missing"],
        ["--baseline=right.jsonl", "--save=./right.jsonl"],
        ["--baseline=right.jsonl", "--max-score-drop=2"],
    ):
        assert run("right.yaml", *arguments).exit_code == 2, arguments


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ([], 1),
        (["--max-score-drop=0.5"], 1),
        (["--max-score-drop=1"], 0),
        (["--max-score-drop=mean:1"], 0),
        (["--max-score-drop=1", "--min-score=0.5"], 1),
        (["--max-score-drop=1", "--max-calls-increase=0"], 1),
        (["--max-score-drop=1", "--max-calls-increase=1"], 0),
    ],
)
def test_the_limits_of_a_comparison_apply_to_an_evaluation_with_a_baseline(
    folder: Path, limits: list[str], code: int
) -> None:
    run("right.yaml", "--save", "right.jsonl")
    asking = SUITE.replace("[{say: ANSWER}]", "[{tool: look}, {say: what?}]").replace(
        "tasks:", "tools: MODULE:tools\ntasks:"
    )
    module = f"shop_{uuid4().hex}"  # Python keeps modules by their names
    (folder / "asking.yaml").write_text(asking.replace("MODULE", module))
    (folder / f"{module}.py").write_text(TOOLS)

    found = run("asking.yaml", "--baseline", "right.jsonl", *limits)

    assert found.exit_code == code, found.output


def test_tasks_of_the_baseline_may_be_missing_if_that_is_allowed(folder: Path) -> None:
    suite = SUITE.replace("ANSWER", "hello")
    (folder / "two.yaml").write_text(suite + suite.partition("tasks:\n")[2].replace("greet", "part"))
    run("two.yaml", "--save", "two.jsonl")

    assert run("right.yaml", "--baseline", "two.jsonl").exit_code == 1
    assert run("right.yaml", "--baseline", "two.jsonl", "--allow-missing").exit_code == 0


def test_a_summary_is_written_of_a_comparison_and_of_a_run(folder: Path) -> None:
    compared = run("diff", "good.jsonl", "worse.jsonl", "--summary", "diff.md")
    evaluated = run("wrong.yaml", "--summary", "run.md")

    assert (compared.exit_code, evaluated.exit_code) == (1, 1)
    assert (folder / "diff.md").read_text().startswith("### ✗ The run as a whole got worse")
    assert (folder / "run.md").read_text().startswith("### ✗ Failed: 0 of 1 task passed")
