"""`hookline eval` with runs that are saved, continued, chosen, repeated, limited and stopped."""

from __future__ import annotations

import io
import json
import signal
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from hookline.cli._app import app
from hookline.cli.eval._progress import RunProgress, describe_progress
from hookline.cli.eval._run_options import EvaluationOptions
from hookline.evals import load_run
from tests.commands import Command

SUITE = '''\
import anyio
from pathlib import Path
from hookline import ModelResponse, Usage, tool
from hookline.evals.suites import Task, UserSuite, asks, checks, says

HERE = Path(__file__).parent

@tool(in_thread=False)
async def go_on() -> str:
    """Go on whatever happens."""
    (HERE / "started").touch()
    while True:
        try:
            await anyio.sleep(0.01)
        except BaseException:
            (HERE / "cancelled").touch()

def task(number):
    answer = ModelResponse(content="done", usage=Usage(input_tokens=5, cost_usd=0.5 if number else 0.0))
    return Task(id=f"t{number}", prompt="Go.", script=[answer], checks=[checks.output_contains("done")],
                tags=["even" if number % 2 == 0 else "odd"])

stubborn = Task(id="stubborn", prompt="Go.", script=[asks("go_on"), says("done")], tags=["stubborn"])
suite = UserSuite("shop", tools=[go_on], tasks=[*map(task, range(4)), stubborn])
'''


@pytest.fixture
def suite(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SUITE)
    return str(tmp_path / "shop.py")


QUICK = ["--tag", "even", "--tag", "odd"]


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["eval", *args])


def tasks_of(result: Result) -> list[tuple[str, int]]:
    (document,) = json.loads(result.stdout)["runs"]
    return [(each["taskId"], each["attempt"]) for each in document["results"]]


def test_a_run_that_was_cut_off_is_continued_in_its_file(suite: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert run(suite, *QUICK, "--save", str(path)).exit_code == 0
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3])[:-10])

    resumed = run(suite, *QUICK, "--resume", str(path))

    assert resumed.exit_code == 0
    assert "the last line of" in resumed.stderr
    assert "was cut off and is left out" in resumed.stderr
    assert f"Saved run: {path}" in resumed.stdout.replace("\n", "")
    assert "; resumed 20" in " ".join(resumed.stdout.split())
    assert len(load_run(path).results) == 4


def test_a_file_of_another_run_is_a_wrong_use(suite: str, tmp_path: Path) -> None:
    path = str(tmp_path / "run.jsonl")
    run(suite, *QUICK, "--save", path)

    for options, said in (
        ([*QUICK, "--seed", "2"], "its seed is 0, and the seed of this run is 2"),
        (["--tag", "odd"], "it is a run of other tasks"),
        ([*QUICK, "--mode", "strict"], "its mode is 'spy'"),
    ):
        result = run(suite, *options, "--resume", path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
    assert run(suite, *QUICK, "--resume", str(tmp_path / "none.jsonl")).exit_code == 2


def test_tasks_are_chosen_shuffled_and_repeated(suite: str) -> None:
    odd = tasks_of(run(suite, "--tag", "odd", "--json"))
    twice = tasks_of(run(suite, "--tag", "odd", "--repeat", "2", "--json"))
    some = [tasks_of(run(suite, *QUICK, "--limit", "3", "--shuffle", seed, "--json")) for seed in ("1", "1", "2")]
    shown = run(suite, "--tag", "odd", "--repeat", "2").stdout

    assert odd == [("t1", 1), ("t3", 1)]
    assert twice == [("t1", 1), ("t3", 1), ("t1", 2), ("t3", 2)]
    assert some[0] == some[1] != some[2]
    assert len(some[0]) == 3
    assert "t3 2/2" in " ".join(shown.split())


def test_a_tag_that_no_task_has_is_a_wrong_use(suite: str) -> None:
    result = run(suite, "--tag", "green")

    assert (result.exit_code, result.stderr) == (
        2,
        "hookline: No task has the tag 'green'. Tags: even, odd, stubborn.\n",
    )


def test_a_run_that_has_spent_its_money_says_so_and_is_no_success(suite: str, tmp_path: Path) -> None:
    report, junit = tmp_path / "r.html", tmp_path / "j.xml"

    result = run(
        *(suite, *QUICK, "--max-cost", "1", "--concurrency", "1"),
        *("--report", str(report), "--junit", str(junit)),
    )

    reason = "the tasks have cost 1 USD, and no more than 1 was to be spent"
    assert result.exit_code == 1
    assert f"Interrupted: 3 of 4 tasks passed; 1 did not run; {reason}." in " ".join(result.stdout.split())
    assert reason in report.read_text()
    skipped = ElementTree.parse(junit).getroot().find(".//skipped")
    assert skipped is not None
    assert skipped.get("message") == reason


def test_every_output_names_when_by_what_and_with_what_it_was_made(suite: str, tmp_path: Path) -> None:
    names = {"--report": "r.html", "--junit": "j.xml", "--save": "s.jsonl", "--inspect": "i.json"}
    files = {option: tmp_path / name for option, name in names.items()}
    args = [suite, *QUICK, "--seed", "7", "--shuffle", "3"]

    shown = run(*args, *(each for option, path in files.items() for each in (option, str(path))))
    (document,) = json.loads(run(*args, "--json").stdout)["runs"]

    outputs = [" ".join(path.read_text().split()) for path in files.values()]
    commit = document["provenance"]["commit"]
    for text in (" ".join(shown.stdout.split()), *outputs, json.dumps(document["provenance"])):
        assert "20" in text
        for said in ("hookline eval", "scripted", "--shuffle 3", "0.1.0", commit):
            assert said in text.replace(" ", " "), said
    assert document["provenance"]["seeds"] == {"faults": 7, "shuffle": 3}
    assert document["provenance"]["startedAt"].endswith("Z")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--timeout", "0"], "a number of seconds above 0"),
        (["--timeout", "nan"], "a number of seconds above 0"),
        (["--max-cost", "-1"], "a number of US dollars from 0"),
        (["--mocked", "--repeat", "2"], "leave --repeat out"),
        (["--mocked", "--resume", "run.jsonl"], "leave --resume out"),
        (["--workers", "2", "--record", "events.jsonl"], "--record needs the events of this process"),
        (["--workers", "0"], "'--workers'"),
        (["--limit", "0"], "'--limit'"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(suite: str, args: list[str], said: str) -> None:
    result = run(suite, *args)

    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_a_time_limit_means_a_worker_unless_the_tasks_have_to_run_here() -> None:
    limited = EvaluationOptions(timeout=60)

    assert limited.choose_workers(hooked=False, mocked=False) == 1
    assert limited.choose_workers(hooked=True, mocked=False) is None
    assert limited.choose_workers(hooked=False, mocked=True) is None
    assert EvaluationOptions(timeout=60, workers=3).choose_workers(hooked=False, mocked=False) == 3
    assert EvaluationOptions().choose_workers(hooked=False, mocked=False) is None


def test_a_second_ctrl_c_ends_at_once_and_leaves_the_file(suite: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Command("eval", suite, "--save", str(path), "--concurrency", "1") as process:
        wait_for(tmp_path / "started")
        process.send_signal(signal.SIGINT)
        wait_for(tmp_path / "cancelled")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()

        assert (process.returncode, said) == (130, "hookline: ended at once\n")
    assert len(load_run(path).results) == 4
    assert run(suite, *QUICK, "--resume", str(path)).exit_code == 2


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_how_far_a_run_is_fits_into_a_line() -> None:
    line = describe_progress(done=312, total=1000, failed=4, cost_usd=0.31, seconds_left=130)
    first = describe_progress(done=0, total=3, failed=0, cost_usd=0, seconds_left=None)
    last = describe_progress(done=3, total=3, failed=0, cost_usd=0, seconds_left=0)

    assert line == "312 of 1,000 tasks done, 4 failed, 0.31 USD, about 2 min left"
    assert first == "0 of 3 tasks done, 0 failed"
    assert last == "3 of 3 tasks done, 0 failed"


@pytest.mark.parametrize("terminal", [False, True])
def test_where_a_bar_is_of_no_use_lines_say_how_far_a_run_is(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1" if terminal else "")  # CI servers that show colours count as terminals
    written = io.StringIO()

    with RunProgress(Console(file=written, force_terminal=terminal), every=0.001) as progress:
        progress.begin("real tools", total=3, done=2, cost_usd=0.5)
        limit = time.monotonic() + 60
        while "\n" not in written.getvalue():
            assert time.monotonic() < limit

    assert "hookline: 2 of 3 tasks done, 0 failed, 0.5 USD" in written.getvalue()
    assert "━" not in written.getvalue()
