"""The `hookline` command, through its real entry."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookline.cli._app import app
from hookline.cli.eval._evaluation import Evaluation, evaluate, find_suite
from hookline.errors import install_command
from tests.signals import default_signals

HOOKLINE = str(Path(sys.executable).with_name("hookline"))


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run([HOOKLINE, "demo"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done, folder


def test_the_demo_shows_that_both_runs_are_the_same(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, _ = demo
    text = " ".join(done.stdout.split())

    # A slow machine sees how far the tasks are.
    assert (done.returncode, [line for line in done.stderr.splitlines() if " tasks done, " not in line]) == (0, [])
    assert "(a) and (b) produced the same results: 117 tool results" in text
    assert "no real tools ran in (b)" in text
    assert "checks passed 56/56 -" in text
    assert "✓ Passed: 56 of 56 tasks; the replay gave the same results." in done.stdout.splitlines()
    assert "mocked 0 117" in text
    assert done.stdout.count("user_task_") == 56


def test_the_demo_opens_with_six_short_runs_that_end_as_they_should(
    demo: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, _ = demo

    story = [line.strip() for line in done.stdout.partition("Now two AgentDojo")[0].splitlines()]
    assert [line[3:] for line in story if line[:1].isdigit()] == [
        *("A denial", "A mock", "A fault", "An approval", "A resume", "An attack")
    ]
    for told in (
        'The model reads: "deleting files is not allowed"',
        'No network is needed; the model reads: "3 results"',
        'The model reads a TimeoutError, asks again, and reads: "3 results"',
        'The person approves, and exactly that call runs: "refunded 40 for A7"',
        'After the approval another process resumes it: "refunded 40 for A7", done.',
        "Without hooks the attacker gets it; with PromptInjectionScan, nothing.",
    ):
        assert told in story


def test_the_demo_writes_its_report_where_it_runs(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = demo

    assert f"Report: {folder / 'hookline-demo.html'}" in done.stdout
    assert (folder / "hookline-demo.html").read_text(encoding="utf-8").count('"task":"user_task_') == 56


def test_the_demo_says_how_to_see_its_runs_in_a_viewer(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, _ = demo

    assert "pip install arize-phoenix\n  phoenix serve\n" in done.stdout
    assert done.stdout.endswith("hookline demo --otlp-endpoint http://127.0.0.1:6006\n")


def test_the_demo_fits_into_eighty_columns(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, _ = demo

    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("Report: ")) <= 80
    assert "…" not in done.stdout


def test_eval_runs_a_suite_and_shows_each_task() -> None:
    result = run("eval", "agentdojo:slack")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[1] == "✓ Passed: 21 of 21 tasks."
    assert "checks passed 21/21" in " ".join(result.stdout.split()).replace("│", "")
    assert result.stdout.count("user_task_") == 21


def test_the_report_of_eval_has_its_command_quoted_and_without_secrets(tmp_path: Path) -> None:
    report = tmp_path / "a report.html"
    options = [
        "--task",
        "user_task_0",
        "--report",
        str(report),
        "--otlp-endpoint",
        "http://me:hidden@127.0.0.1:9/x?api_key=hidden",
    ]

    run("eval", "agentdojo:banking", *options)

    page = html.unescape(report.read_text(encoding="utf-8"))
    assert f"hookline eval agentdojo:banking --task user_task_0 --report '{report}'" in page
    assert "127.0.0.1:9/x?api_key=" in page
    assert "hidden@" not in page
    assert "=hidden" not in page


def test_eval_prints_json_and_nothing_else() -> None:
    result = run("eval", "agentdojo:banking", "--mocked", "--json", "--concurrency", "3")

    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (document["ok"], document["same"], document["differences"]) == (True, True, [])
    real, replayed = document["runs"]
    assert (real["mode"], replayed["mode"]) == ("real", "replayed")
    assert (real["totals"]["useful"], real["totals"]["toolCalls"], real["totals"]["toolsRun"]) == (16, 33, 33)
    assert (replayed["totals"]["mocked"], replayed["totals"]["toolsRun"], replayed["totals"]["forbidden"]) == (33, 0, 0)
    assert [each["toolResults"] for each in real["results"]] == [each["toolResults"] for each in replayed["results"]]
    assert all(each["hookTimeMs"] > 0 for each in real["results"])


def test_eval_runs_the_chosen_tasks_once_each_in_the_given_order() -> None:
    tasks = ["--task", "user_task_3", "--task", "user_task_1", "--task", "user_task_3"]

    document = json.loads(run("eval", "agentdojo:banking", *tasks, "--json").stdout)

    assert [each["taskId"] for each in document["runs"][0]["results"]] == ["user_task_3", "user_task_1"]
    assert document["same"] is None


def test_eval_writes_a_report(tmp_path: Path) -> None:
    target = tmp_path / "report.html"

    result = run("eval", "agentdojo:banking", "--task", "user_task_0", "--report", str(target), "--json")

    assert json.loads(result.stdout)["report"] == str(target)
    assert '"suite":"banking","task":"user_task_0"' in target.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["agentdojo:bank"], "'agentdojo:bank'. Suites: agentdojo:banking, agentdojo:workspace, "),
        (["banking"], "Suites: agentdojo:banking"),
        (["agentdojo:banking", "--task", "user_task_99"], "no task 'user_task_99'. Tasks: user_task_0, user_task_1, "),
        (["agentdojo:banking", "--report", "/no/such/folder/r.html"], "there is no folder /no/such/folder"),
        (["agentdojo:banking", "--report", "/"], "it is a folder"),
    ],
)
def test_a_wrong_name_is_told_in_one_line_on_stderr(args: list[str], told: str) -> None:
    result = run("eval", *args)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert told in result.stderr
    assert result.stderr.startswith("hookline: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [["eval"], ["eval", "agentdojo:banking", "--concurrency", "0"], ["nonsense"]])
def test_a_command_that_makes_no_sense_exits_with_two(args: list[str]) -> None:
    result = run(*args)

    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_a_task_that_fails_its_check_gives_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = find_suite("agentdojo:banking")
    monkeypatch.setattr(type(suite.task("user_task_0").source), "GROUND_TRUTH_OUTPUT", "I do not know.")
    monkeypatch.setattr(type(suite.task("user_task_1").source), "GROUND_TRUTH_OUTPUT", "I do not know.")

    result = run("eval", "agentdojo:banking", "--task", "user_task_1")

    assert result.exit_code == 1
    assert "✗ real tools: banking/user_task_1: the suite's own check failed" in result.stdout


def test_help_and_version_are_given() -> None:
    for args in (["--help"], ["demo", "--help"], ["eval", "--help"], ["trace", "--help"]):
        assert run(*args).exit_code == 0
    version = run("--version")

    assert version.exit_code == 0
    assert version.stdout.startswith("hookline ")


@pytest.mark.parametrize("package", ["typer", "rich", "jinja2"])
def test_without_the_extra_it_says_what_to_install(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from hookline.cli import main; main()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert install_command("cli") in done.stderr


def test_without_agentdojo_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['agentdojo'] = None; from hookline.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", code, "eval", "agentdojo:banking"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert install_command("agentdojo") in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    # The interrupt is sent from inside, at a moment that is known: when the first task is done.
    code = (
        "import os, signal\n"
        "from hookline.cli import main; from hookline.cli.eval._progress import RunProgress\n"
        "once = iter([signal.SIGINT])\n"
        "RunProgress.advance = lambda *args: [os.kill(os.getpid(), sent) for sent in once]\n"
        "main()\n"
    )
    says_hello = "prompt: hi, script: [{say: hello}], checks: [{output_contains: hello}]"
    tasks = "".join(f"  - {{id: task{number}, {says_hello}}}\n" for number in range(50))
    (tmp_path / "shop.yaml").write_text(f"suite: shop\ntasks:\n{tasks}")

    done = subprocess.run(
        [sys.executable, "-c", code, "eval", "shop.yaml", "--concurrency", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        preexec_fn=default_signals,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )

    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "hookline: interrupted\n"
    assert done.stdout == ""


def test_a_difference_makes_an_evaluation_fail() -> None:
    from rich.console import Console

    from hookline.evals import Comparison, Difference

    suite = find_suite("agentdojo:banking")
    good = evaluate(Console(stderr=True), ["agentdojo:banking"], [(suite, "user_task_0")], mocked=True, concurrency=1)
    difference = Difference(task="banking/user_task_0", what="output", real="a", replayed="b")
    comparison = Comparison(tasks=1, tool_results=2, differences=[difference])

    bad = Evaluation(targets=good.targets, runs=good.runs, comparison=comparison)

    assert good.ok
    assert not bad.ok
    assert json.loads("".join(bad.json_parts(None)))["differences"][0]["what"] == "output"
