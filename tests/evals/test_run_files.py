"""A run is saved as a file, read again as it was, and compared with another one."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import ModelResponse, ToolRequest
from hookline.evals import ReportError, SuiteRun
from hookline.evals.reports import SavedRun, diff_runs, load_run, save_run
from hookline.evals.suites import RunFileError, Task, asks, checks, says

from .shop import ask_for_tea, costly, order_tea, run_suite


def saved(*tasks: Task) -> SavedRun:
    return SavedRun.of(run_suite(tasks))


def test_a_saved_run_is_read_as_it_was(tmp_path: Path, real: SuiteRun) -> None:
    path = save_run(tmp_path / "run.json", real, ["agentdojo:all"])

    loaded = load_run(path)

    assert (loaded.mode, loaded.targets, loaded.not_run) == ("real", ["agentdojo:all"], [])
    assert [each.trajectory.encode() for each in loaded.results] == [each.trajectory.encode() for each in real.results]
    assert [each.tool_results for each in loaded.results] == [each.tool_results for each in real.results]
    assert [each.calls for each in loaded.results] == [each.calls for each in real.results]
    assert loaded.coverage == real.coverage
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(), max_size=30), number=st.integers() | st.floats(allow_nan=False))
def test_any_text_and_number_survives(tmp_path_factory: pytest.TempPathFactory, text: str, number: float) -> None:
    turn = ModelResponse(tool_calls=[ToolRequest(tool_name=f"x{text}", args={text: number}, tool_call_id="1")])
    run = run_suite([Task(id=f"t{text}", prompt=text, script=[turn, says(text)])])

    loaded = load_run(save_run(tmp_path_factory.mktemp("runs") / "run.json", run))

    assert loaded.results[0].output == run.results[0].output
    assert loaded.results[0].trajectory.encode() == run.results[0].trajectory.encode()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is not JSON"),
        ("[1, 2", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "its `format` is not 'hookline-run'"),
        ('{"format": "hookline-run", "version": 99}', "its version is 99, and this hookline reads 1 and 2"),
        ('{"format": "hookline-run", "version": 1}', "Object missing required field `hookline`"),
    ],
)
def test_what_is_no_saved_run_is_refused_with_the_reason(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)

    with pytest.raises(RunFileError) as caught:
        load_run(path)

    assert told in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_missing_file_and_a_wrong_field_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="No such file"):
        load_run(tmp_path / "none.json")
    path = save_run(tmp_path / "run.json", run_suite([ask_for_tea()]))
    path.write_text(path.read_text().replace('"steps":2', '"steps":"many"'))
    with pytest.raises(RunFileError, match=r"line 2: Expected `int`, got `str` - at `\$\.result\.steps`"):
        load_run(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="there is no folder"):
        save_run(tmp_path / "none" / "run.json", run_suite([]))


def test_a_name_that_no_file_can_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="File name too long"):
        save_run(tmp_path / ("x" * 300), run_suite([]))


def test_a_file_keeps_its_mode_its_links_and_its_long_name(tmp_path: Path) -> None:
    file, link = tmp_path / ("x" * 255), tmp_path / "latest.json"
    file.touch(mode=0o600)
    link.symlink_to(file)

    save_run(link, run_suite([]))

    assert link.is_symlink()
    assert load_run(file).results == []
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [link, file]


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        save_run(pipe, run_suite([]))

    assert json.loads(read.result().splitlines()[0])["format"] == "hookline-run"
    assert pipe.is_fifo()


def test_equal_runs_have_no_difference() -> None:
    diff = diff_runs(saved(ask_for_tea(), order_tea()), saved(ask_for_tea(), order_tea()))

    assert [task.change for task in diff.tasks] == ["same", "same"]
    assert all(task.identical for task in diff.tasks)
    assert (diff.worse, diff.similarity, diff.passed) == ([], 1.0, (2, 2))


def test_a_task_that_passed_and_fails_now_is_worse_and_says_why() -> None:
    passed, failed = checks.output_contains("EUR"), checks.output_contains("USD")

    diff = diff_runs(saved(ask_for_tea(checks=[passed])), saved(ask_for_tea(checks=[failed])))
    back = diff_runs(saved(ask_for_tea(checks=[failed])), saved(ask_for_tea(checks=[passed])))

    (task,) = diff.worse
    assert (task.passed, task.score) == ((True, False), (1.0, 0.0))
    assert "the answer is '3 EUR'" in task.why
    assert [each.change for each in back.tasks] == ["better"]


def test_other_calls_are_shown_side_by_side() -> None:
    other = Task(id="order", prompt="Order tea.", script=[asks("price", item="tea"), says("Ordered.")])

    (task,) = diff_runs(saved(order_tea()), saved(other)).tasks

    assert task.change == "changed"
    assert task.tool_calls == (2, 1)
    assert task.similarity == 0.0
    assert "local/price" in task.alignment


def test_another_answer_and_another_cost_are_changes_though_the_calls_are_equal() -> None:
    other = Task(id="tea", prompt="x", script=[asks("price", item="tea"), says("It costs 3 EUR")])

    (answer,) = diff_runs(saved(ask_for_tea()), saved(other)).tasks
    (cost,) = diff_runs(saved(costly(ask_for_tea(), 0.01)), saved(costly(ask_for_tea(), 0.02))).tasks

    assert (answer.change, answer.identical, answer.similarity) == ("changed", False, 1.0)
    assert (cost.change, cost.identical) == ("changed", True)
    assert cost.cost_usd == (pytest.approx(0.02), pytest.approx(0.04))


def test_tasks_that_only_one_run_has_are_new_or_gone() -> None:
    diff = diff_runs(saved(ask_for_tea()), saved(order_tea()))

    assert [(task.task, task.change, task.passed) for task in diff.tasks] == [
        ("shop/tea", "gone", (True, None)),
        ("shop/order", "new", (None, True)),
    ]
    assert [task.task for task in diff.worse] == ["shop/tea"]


def test_a_score_that_is_gone_is_worse_unless_a_recording_judges_instead(recorded: SuiteRun) -> None:
    unchecked = [msgspec.structs.replace(each, score=None, utility=None) for each in recorded.results]
    later = msgspec.structs.replace(SavedRun.of(recorded), results=unchecked)
    replayed = msgspec.structs.replace(later, mode="replay")

    assert {task.change for task in diff_runs(SavedRun.of(recorded), later).tasks} == {"worse"}
    assert {task.change for task in diff_runs(SavedRun.of(recorded), replayed).tasks} == {"same"}
