"""`hookline eval --tape`: record tools and model once, and replay both without anything."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from hookline.evals import load_run
from hookline.evals.tapes import ModelTape
from tests.adapters.provider import Exchange, Provider
from tests.cli.test_eval_models import MINI, MODEL, UNPRICED, provider, results_of, run, serve_price, suite
from tests.forks import fork_python, forking_python

__all__ = ["provider", "suite"]


def prices_asked() -> list[str]:
    path = Path("prices.log")
    return sorted(path.read_text().split()) if path.exists() else []


def record(suite: str, *further: str) -> None:
    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "record", *further)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("recording", "replaying"), [([], []), (["--workers", "2"], ["--workers", "1"])])
def test_a_recorded_run_needs_neither_tools_nor_the_model(
    suite: str,
    provider: Provider,
    recording: list[str],
    replaying: list[str],
) -> None:
    with fork_python("models"):  # the worker that replays is one that nobody has forked
        record(suite, *recording)
    asked, called = len(provider.exchanges), prices_asked()

    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "replay", *replaying, "--json")

    assert result.exit_code == 0, result.output
    assert (len(provider.exchanges), prices_asked()) == (asked, called) == (4, ["juice", "tea"])
    totals = json.loads(result.stdout)["runs"][0]["totals"]
    assert totals["replayedCalls"] == 4
    assert totals["replayedUsage"]["inputTokens"] == 4000
    assert totals["replayedUsage"]["costUsd"] > 0
    found = results_of(result)["tea", MODEL]
    assert found["output"] == "It is 4 EUR."
    assert found["tape"].endswith("/shop/tea.tape.yaml")


def test_a_replay_says_what_it_saved(suite: str, provider: Provider) -> None:
    record(suite)

    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "replay")

    assert "Tapes answered 4 model calls: saved 4,400 tokens, $0.0" in result.stdout


def test_without_a_mode_the_tape_is_a_cache(suite: str, provider: Provider) -> None:
    args = [suite, "--model", MODEL, "--tape", "tapes"]
    assert run(*args, "--task", "tea").exit_code == 0
    assert len(provider.exchanges) == 2

    result = run(*args, "--json")

    assert result.exit_code == 0
    assert len(provider.exchanges) == 4  # only those of the other task
    assert json.loads(result.stdout)["runs"][0]["totals"]["replayedCalls"] == 2
    assert prices_asked() == ["juice", "tea", "tea"]  # tools run


def test_replayed_calls_do_not_count_towards_the_limit_of_costs(suite: str, provider: Provider) -> None:
    record(suite)

    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "replay", "--max-cost", "0.000001", "--json")

    assert result.exit_code == 0, result.output
    assert len(results_of(result)) == 2


def test_a_question_that_was_not_recorded_fails_its_task_and_is_explained(suite: str, provider: Provider) -> None:
    record(suite)
    text = Path(suite).read_text()
    Path(suite).write_text(text.replace("What does tea cost?", "What does green tea cost?"))
    asked = len(provider.exchanges)

    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "replay", "--json")

    assert result.exit_code == 1
    assert len(provider.exchanges) == asked
    (miss,) = results_of(result)["tea", MODEL]["tapeMisses"]
    assert "The nearest recorded question is call 1 of 2" in miss
    assert '+  "content": "What does green tea cost?"' in miss
    assert results_of(result)["juice", MODEL]["tapeMisses"] == []


def test_models_and_attempts_have_tapes_of_their_own(suite: str, provider: Provider) -> None:
    args = [suite, "--model", MODEL, "--model", MINI, "--tape", "tapes", "--repeat", "2", "--task", "tea"]
    run(*args, "--mode", "record")
    asked = len(provider.exchanges)

    result = run(*args, "--mode", "replay", "--save", "run.jsonl")

    assert len(provider.exchanges) == asked == 6
    assert len({each.tape for each in load_run("run.jsonl").results}) == 4
    assert not any(each.tape_misses for each in load_run("run.jsonl").results), result.output
    assert {path.name for path in Path("tapes").rglob("*.yaml")} == {
        *("tea.yaml", "tea.attempt-2.yaml", "tea.tape.yaml", "tea.attempt-2.tape.yaml")
    }


def test_the_other_modes_of_tapes_can_be_chosen(suite: str, provider: Provider) -> None:
    args = [suite, "--model", MODEL, "--tape", "tapes", "--task", "tea"]
    for mode, asked in (("once", 2), ("once", 2), ("all", 4), ("rewrite", 6), ("none", 6), ("new_episodes", 6)):
        assert run(*args, "--tape-mode", mode).exit_code == 0
        assert len(provider.exchanges) == asked, mode
    assert "is for --tape" in run(suite, "--tape-mode", "all").stderr


def test_a_replay_without_tapes_is_refused(suite: str, provider: Provider) -> None:
    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "replay")

    assert result.exit_code == 2
    assert "there is no folder tapes" in result.stderr


def test_a_task_whose_tape_is_missing_fails_and_says_so(suite: str, provider: Provider) -> None:
    record(suite, "--task", "juice")

    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "replay", "--json")

    assert result.exit_code == 1
    (miss,) = results_of(result)["tea", MODEL]["tapeMisses"]
    assert "There is no file" in miss
    assert "tea.tape.yaml: record it first" in miss


def test_an_unreadable_tape_fails_its_task_alone(suite: str, provider: Provider) -> None:
    record(suite)
    (path,) = Path("tapes").rglob("tea.tape.yaml")
    path.write_text(path.read_text().replace("hookline_tape: 1", "hookline_tape: 9"))

    result = run(suite, "--model", MODEL, "--tape", "tapes", "--mode", "replay", "--json")

    assert result.exit_code == 1
    assert "its format version is 9, and this hookline reads 1" in results_of(result)["tea", MODEL]["error"]
    assert results_of(result)["juice", MODEL]["reason"] == "done"


TALKER = """\
suite: talk
tasks:
  - id: hello
    model: MODEL
    prompt: What does tea cost?
    checks: [{output_contains: EUR}]
"""


def test_a_task_that_calls_no_tool_is_recorded_and_replayed(
    provider: Provider, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("talk.yaml").write_text(TALKER.replace("MODEL", MINI))
    assert run("talk.yaml", "--tape", "tapes", "--mode", "record").exit_code == 0

    result = run("talk.yaml", "--tape", "tapes", "--mode", "replay")

    assert result.exit_code == 0, result.output
    assert len(provider.exchanges) == 1


JUDGED = """\
suite: judged
judge: {model: JUDGE}
tasks:
  - id: hello
    model: AGENT
    prompt: What does tea cost?
    turns: [And what does tea cost?]
    checks: [{judge: Is it friendly?}]
"""


def test_calls_of_judges_are_on_the_tape(provider: Provider, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("judged.yaml").write_text(JUDGED.replace("AGENT", MINI).replace("JUDGE", "openai-chat:gpt-5-nano"))
    args = ["judged.yaml", "--tape", "tapes", "--json"]
    first = run(*args, "--mode", "record")
    asked = len(provider.exchanges)

    again = run(*args, "--mode", "replay")

    assert asked > 2
    assert len(provider.exchanges) == asked
    before, after = (json.loads(each.stdout)["runs"][0]["results"][0] for each in (first, again))
    assert before["checks"] == after["checks"]
    assert before["output"] == after["output"]
    assert any(call.agent for call in ModelTape(path=after["tape"], mode="none").calls)


def test_a_tape_remembers_that_a_cost_is_unknown(suite: str, provider: Provider) -> None:
    args = [suite, "--model", UNPRICED, "--tape", "tapes"]
    run(*args, "--mode", "record")

    shown = run(*args, "--mode", "replay")
    document = json.loads(run(*args, "--mode", "replay", "--json").stdout)["runs"][0]

    assert "saved 4,400 tokens, cost unknown." in shown.stdout
    assert {each["costUsd"] for each in document["results"]} == {None}
    limited = run(*args, "--mode", "replay", "--max-cost", "1", "--concurrency", "1")
    assert limited.exit_code == 0, limited.output  # nobody is paid


def test_a_killed_run_leaves_whole_tapes_and_asks_only_what_is_missing(suite: str, provider: Provider) -> None:
    held = threading.Event()

    def hold_juice(exchange: Exchange) -> None:
        if "juice" in exchange.body["messages"][0]["content"]:
            held.set()
            exchange.wait_for_leave()
        else:
            serve_price(exchange)

    provider.script(hold_juice)
    args = [suite, "--model", MODEL, "--tape", "tapes", "--concurrency", "1"]
    command = [forking_python("models"), "-c", "from hookline.cli import main; main()", "eval", *args]
    with subprocess.Popen(command) as process:
        assert held.wait(60)
        process.kill()

    assert [path.name for path in Path("tapes").rglob("*.yaml")] == ["tea.tape.yaml"]
    provider.script(serve_price)
    assert run(*args).exit_code == 0
    assert len(provider.exchanges) == 2  # the task that was under way
    assert not [path for path in Path("tapes").rglob("*") if path.suffix == ".tmp"]
