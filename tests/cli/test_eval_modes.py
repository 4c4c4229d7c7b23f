"""`hookline eval` in its modes, with faults, and with the files that it writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from hookline.cli._app import app
from hookline.evals import load_run
from tests.signals import default_signals

EXAMPLE = str(Path(__file__).parents[2] / "docs" / "examples" / "own_suite" / "shop.yaml")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["eval", *args])


def document(*args: str) -> dict[str, object]:
    return json.loads(run(*args, "--json").stdout)["runs"][0]


@pytest.fixture
def tapes(tmp_path: Path) -> str:
    folder = str(tmp_path / "tapes")
    assert run(EXAMPLE, "--mode", "record", "--cassettes", folder).exit_code == 0
    return folder


def test_spy_runs_the_real_tools() -> None:
    totals = document(EXAMPLE, "--mode", "spy")["totals"]

    assert (totals["toolsRun"], totals["mocked"]) == (4, 2)


def test_record_writes_a_cassette_a_task_and_replay_needs_no_tool(tapes: str) -> None:
    replayed = document(EXAMPLE, "--mode", "replay", "--cassettes", tapes)

    assert sorted(path.name for path in Path(tapes).glob("shop/*.yaml")) == [
        "milk-is-out.yaml",
        "order-tea.yaml",
        "price-of-tea.yaml",
    ]
    assert (replayed["mode"], replayed["ok"]) == ("replay", True)
    assert (replayed["totals"]["toolsRun"], replayed["totals"]["mocked"]) == (0, 6)
    assert {call["outcome"] for result in replayed["results"] for call in result["calls"]} == {"mocked"}


def test_a_replay_that_misses_names_the_nearest_recording_and_fails(tapes: str) -> None:
    file = Path(tapes, "shop", "price-of-tea.yaml")
    file.write_text(file.read_text().replace("item: tea", "item: coffee"))

    result = run(EXAMPLE, "--mode", "replay", "--cassettes", tapes)

    assert result.exit_code == 1
    assert 'local/price was recorded with {"item":"coffee"}' in result.stdout


def test_a_replay_names_tools_that_have_changed_and_strict_refuses_them(tapes: str) -> None:
    edited = 0
    for file in Path(tapes).glob("shop/*.yaml"):  # as if `count` had been text when this was recorded
        recorded = file.read_text()
        if "count: integer" in recorded:
            edited += 1
            earlier = re.sub(r"(count: )integer(.*\n(?:    .*\n)*  schema: blake2b:)\w+", r"\1string\g<2>0", recorded)
            file.write_text(earlier)

    replayed = run(EXAMPLE, "--mode", "replay", "--cassettes", tapes)
    strict = run(EXAMPLE, "--mode", "strict", "--cassettes", tapes)

    change = "`count` was string (optional) and is integer (optional)"
    text = " ".join(replayed.stdout.split())
    assert (replayed.exit_code, strict.exit_code) == (0, 1)
    assert f"! stale recordings ({edited} calls): the schema of local/order has changed since it was" in text
    assert change in text
    assert change in " ".join(strict.stdout.split())


def test_a_failing_replay_does_not_end_with_a_green_line(tmp_path: Path) -> None:
    suite = tmp_path / "shop.yaml"
    suite.write_text(
        "suite: s\ntasks: [{id: a, prompt: p, script: [{say: never}], checks: [{output_equals: so it is}]}]\n"
    )

    result = run(str(suite), "--mocked")

    assert result.exit_code == 1
    assert "✓ (a)" not in result.stdout
    assert "(a) and (b) produced the same results, the failures too" in result.stdout


def test_strict_refuses_what_no_rule_and_no_cassette_answers(tapes: str) -> None:
    alone = run(EXAMPLE, "--mode", "strict")
    taped = run(EXAMPLE, "--mode", "strict", "--cassettes", tapes)

    assert (alone.exit_code, taped.exit_code) == (1, 0)
    assert "No mock answers local/price" in alone.stdout
    assert "The nearest rule is 'no-card'" in alone.stdout


def test_faults_strike_in_the_same_way_with_the_same_seed(tmp_path: Path) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text("faults: [{tool: '*', fault: failed_result, probability: 0.5}]\n")

    first, again, other = (
        document(EXAMPLE, "--faults", str(faults), "--seed", seed, "--concurrency", concurrency)["faults"]
        for seed, concurrency in (("1", "1"), ("1", "8"), ("3", "8"))
    )
    shown = run(EXAMPLE, "--faults", str(faults), "--seed", "1").stdout

    assert first == again != other
    assert "failed_result" in shown
    assert "seed 1" in shown


def test_tools_that_nobody_called_are_named() -> None:
    result = run("agentdojo:banking", "--task", "user_task_0")

    text = " ".join(result.stdout.split())
    assert "banking: 2 of 11 tools called; never: get_iban, schedule_transaction, update_scheduled_transaction" in text
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_every_file_that_is_asked_for_is_written_and_named(tmp_path: Path) -> None:
    names = {
        "--report": "r.html",
        "--junit": "j.xml",
        "--save": "s.json",
        "--inspect": "i.json",
        "--messages": "m.json",
    }
    args = [each for option, name in names.items() for each in (option, str(tmp_path / name))]

    result = run(EXAMPLE, *args)

    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
    assert all(str(tmp_path / name) in result.stdout for name in names.values())
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("tests") == "3"
    assert '"task":"order-tea"' in (tmp_path / "r.html").read_text(encoding="utf-8")
    messages = json.loads((tmp_path / "m.json").read_text())
    assert set(messages) == {"shop/price-of-tea", "shop/order-tea", "shop/milk-is-out"}
    assert messages["shop/price-of-tea"][0] == {"role": "user", "content": "What does tea cost?"}
    assert len(json.loads((tmp_path / "i.json").read_text())["samples"]) == 3


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([EXAMPLE, "--mode", "replay"], "needs a folder of cassettes: none is given"),
        ([EXAMPLE, "--mode", "replay", "--cassettes", "/no/such"], "there is no folder /no/such"),
        ([EXAMPLE, "--task", "coffee"], "no task 'coffee'. Tasks: price-of-tea, order-tea, milk-is-out"),
        (["nowhere.yaml"], "nowhere.yaml: there is no such file"),
        ([EXAMPLE, "--faults", "nowhere.yaml"], "the file cannot be read"),
        ([EXAMPLE, "--junit", "/no/such/j.xml"], "there is no folder /no/such"),
        ([EXAMPLE, "--save", "/"], "it is a folder"),
        ([EXAMPLE, "--inspect", "log.txt"], "must end in .eval or .json"),
    ],
)
def test_misuse_is_told_in_one_line(args: list[str], told: str) -> None:
    result = run(*args)

    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        [EXAMPLE, "--mode", "replay", "--mocked"],
        [EXAMPLE, "--cassettes", "tapes"],
        [EXAMPLE, "--mode", "sideways"],
        [EXAMPLE, "--seed", "x"],
        [],
    ],
)
def test_options_that_contradict_each_other_are_refused(args: list[str]) -> None:
    assert run(*args).exit_code == 2


def test_usage_and_help_call_the_command_by_what_one_types() -> None:
    assert "Usage: hookline eval [OPTIONS]" in CliRunner().invoke(app, ["eval"], prog_name="hookline").stderr
    help_text = CliRunner().invoke(app, ["eval", "--help"], prog_name="hookline").stdout
    assert "Usage: hookline eval [OPTIONS]" in help_text
    assert "eval diff A B" in help_text


def test_options_may_stand_before_the_suite() -> None:
    assert run("--task", "price-of-tea", EXAMPLE).exit_code == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["attack", "agentdojo:bank"], "There is no suite 'agentdojo:bank'"),
        (
            ["attack", "agentdojo:all", "--policy", "hope"],
            "There is no policy of attacks named 'hope'; there are: 'no guard'",
        ),
    ],
)
def test_an_attack_that_makes_no_sense_is_told_in_one_line(args: list[str], told: str) -> None:
    result = run(*args)

    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def test_after_ctrl_c_the_files_have_what_was_done(tmp_path: Path) -> None:
    # The interrupt is sent from inside, at a moment that is known: when the second task is done.
    code = (
        "import os, signal\n"
        "from hookline.cli import main; from hookline.cli.eval._progress import RunProgress\n"
        "moments = iter([0, signal.SIGINT])\n"
        "RunProgress.advance = lambda *args: os.kill(os.getpid(), next(moments, 0))\n"
        "main()\n"
    )
    args = ["eval", EXAMPLE, "--concurrency", "1", "--save", "s.json", "--junit", "j.xml", "--report", "r.html"]

    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        preexec_fn=default_signals,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )

    saved = load_run(tmp_path / "s.json")
    assert done.returncode == 128 + signal.SIGINT
    assert done.stdout == ""
    assert done.stderr.endswith("hookline: interrupted\n")
    assert [each.task_id for each in saved.results] == ["price-of-tea", "order-tea"]
    assert saved.not_run == ["shop/milk-is-out"]
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("skipped") == "1"
    assert "1 did not run" in (tmp_path / "r.html").read_text(encoding="utf-8")
