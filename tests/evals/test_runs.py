"""A replay is the same as what was recorded, or says where it is not."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from hookline import BeforeToolCall, Hooks, OperationResult, tool
from hookline.errors import HookUsageError
from hookline.evals import Cassette, SuiteRun, cases_of, compare, record, replay
from hookline.evals.running import SuiteRunner
from hookline.evals.running._tasks import Case, cassette_file
from hookline.evals.suites import CassetteFolderError, Task, UserSuite, asks, says
from hookline.evals.suites.agentdojo import AgentDojoTask, load_suite

from .shop import ask_for_tea, order_tea, run_suite, tools


def test_a_replay_of_all_suites_equals_the_real_run_byte_for_byte(real: SuiteRun, replayed: SuiteRun) -> None:
    comparison = compare(real, replayed)

    assert comparison.same
    assert (comparison.tasks, comparison.tool_results) == (97, 339)
    for before, after in zip(real.results, replayed.results, strict=True):
        assert before.tool_results == after.tool_results
        assert before.output == after.output
        assert before.trajectory.encode() == after.trajectory.encode()


def test_a_replay_runs_no_real_tool_and_claims_no_utility(replayed: SuiteRun) -> None:
    totals = replayed.totals

    assert (totals.tool_calls, totals.mocked, totals.tools_run, totals.forbidden) == (339, 339, 0, 0)
    assert {result.utility for result in replayed.results} == {None}
    assert replayed.ok


def test_hook_time_is_measured_in_both_runs(real: SuiteRun, replayed: SuiteRun) -> None:
    for run in (real, replayed):
        for result in run.results:
            executions = run.operations[result.operation_id].executions
            assert result.hook_executions == len(executions) > 0
            assert result.hook_time_ms == pytest.approx(sum(each.execution.duration_ms for each in executions))


def test_results_come_in_the_order_in_which_tasks_were_asked_for(real: SuiteRun, cases: list[Case]) -> None:
    assert [result.name for result in real.results] == [f"{suite.name}/{task_id}" for suite, task_id in cases]


def test_without_recordings_a_replay_fails_its_calls_and_still_runs_no_tool(real: SuiteRun) -> None:
    cases = cases_of([load_suite("banking")], ["user_task_0"])
    blank = SuiteRun(mode="real", results=[], operations={}, cassettes={}, duration_ms=0.0)

    replayed = anyio.run(partial(replay, blank, cases))

    (result,) = replayed.results
    assert (result.mocked, result.failed, result.forbidden) == (2, 2, 0)
    assert all("The real tool was not run." in text for text in result.tool_results)
    recorded = anyio.run(partial(record, cases))
    assert {difference.what for difference in compare(recorded, replayed).differences} == {"tool result", "trajectory"}


def test_a_real_tool_that_a_replay_would_have_run_is_a_failure() -> None:
    suite = load_suite("banking")

    outcome = anyio.run(partial(suite.run_task, "user_task_0", forbid_tools=True))

    assert outcome.forbidden == outcome.result.tool_calls == 2
    assert outcome.tools_run == 0
    assert outcome.utility is None
    assert outcome.tool_results[0].startswith("ForbiddenToolError: The real tool 'banking/read_file' is forbidden")


def test_one_changed_byte_of_a_tool_result_is_found() -> None:
    cases = cases_of([load_suite("banking")], ["user_task_0", "user_task_1"])
    recorded = anyio.run(partial(record, cases))
    forger = Hooks("forger")

    @forger.on(BeforeToolCall, tool="banking/read_file")
    def forge(event: BeforeToolCall) -> None:
        original = recorded.results[0].tool_results[0]
        event.mock(original[:-1] + "~")

    forged = anyio.run(partial(record, cases, hooks=[forger]))
    differences = compare(recorded, forged).differences

    tampered = [each for each in differences if each.what == "tool result"]
    assert [each.task for each in tampered] == ["banking/user_task_0"]
    assert tampered[0].replayed.endswith("~")


def test_a_task_that_only_one_run_has_is_a_difference(real: SuiteRun, replayed: SuiteRun) -> None:
    shorter = SuiteRun(
        mode="replayed",
        results=replayed.results[1:],
        operations=replayed.operations,
        cassettes=replayed.cassettes,
        duration_ms=0.0,
    )

    assert [each.what for each in compare(real, shorter).differences] == ["missing task"]
    assert [each.what for each in compare(shorter, real).differences if each.what == "missing task"] == ["missing task"]


def test_a_task_with_false_utility_fails_its_run(real: SuiteRun) -> None:
    worse = msgspec.structs.replace(real.results[0], utility=False)

    assert real.results[0].ok
    assert not worse.ok


@pytest.mark.parametrize("concurrency", [1, 3, 200])
def test_any_concurrency_gives_the_same_results(real: SuiteRun, concurrency: int) -> None:
    cases = cases_of([load_suite("slack")])

    run = anyio.run(partial(record, cases, concurrency=concurrency))

    expected = [result.trajectory.encode() for result in real.results if result.suite == "slack"]
    assert [result.trajectory.encode() for result in run.results] == expected


def test_runs_work_on_trio_too() -> None:
    cases = cases_of([load_suite("banking")])

    recorded = anyio.run(partial(record, cases), backend="trio")
    replayed = anyio.run(partial(replay, recorded, cases), backend="trio")

    assert recorded.ok
    assert compare(recorded, replayed).same


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
def test_a_concurrency_that_is_no_positive_number_is_refused(concurrency: int) -> None:
    with pytest.raises(HookUsageError, match="concurrency"):
        anyio.run(partial(record, [], concurrency=concurrency))


def test_further_hooks_are_attached_to_every_operation() -> None:
    seen, hooks = set(), Hooks("mine")
    hooks.on(BeforeToolCall)(lambda event: seen.add(event.operation_id))

    run = anyio.run(partial(record, cases_of([load_suite("banking")]), hooks=[hooks]))

    assert seen == {result.operation_id for result in run.results}


def test_a_cassette_per_task_answers_that_task_alone(real: SuiteRun) -> None:
    assert all(isinstance(cassette, Cassette) for cassette in real.cassettes.values())
    assert {name: len(cassette) for name, cassette in real.cassettes.items()} == {
        result.name: result.tool_calls for result in real.results
    }


@pytest.mark.parametrize("mode", ["replay", "strict"])
def test_cassette_files_answer_all_tasks_byte_for_byte_with_the_real_tools_removed(
    recorded: SuiteRun, cases: list[Case], tapes: Path, mode: Any
) -> None:
    replayed = anyio.run(SuiteRunner(cases, mode=mode, cassettes=tapes).run)

    comparison = compare(recorded, replayed)
    assert comparison.same
    assert (comparison.tasks, comparison.tool_results) == (97, 339)
    assert (replayed.totals.mocked, replayed.totals.tools_run, replayed.totals.forbidden) == (339, 0, 0)
    assert replayed.ok


def test_every_task_has_a_cassette_file_of_its_own(recorded: SuiteRun, tapes: Path) -> None:
    assert len(list(tapes.glob("*/*.yaml"))) == 97
    assert recorded.results[0].cassette == str(tapes / "banking" / "user_task_0.yaml")


def test_recording_again_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    run_suite([ask_for_tea(), order_tea()], mode="record", cassettes=tmp_path)
    first = {path: path.read_bytes() for path in tmp_path.glob("*/*.yaml")}

    run_suite([ask_for_tea(), order_tea()], mode="record", cassettes=tmp_path)

    assert {path: path.read_bytes() for path in tmp_path.glob("*/*.yaml")} == first
    assert len(first) == 2


def test_a_task_that_was_never_recorded_says_so_and_runs_no_tool(tmp_path: Path) -> None:
    run_suite([ask_for_tea()], mode="record", cassettes=tmp_path)

    known, unknown = run_suite([ask_for_tea(), order_tea()], mode="replay", cassettes=tmp_path).results

    assert known.ok
    assert (unknown.ok, unknown.tools_run, unknown.forbidden) == (False, 0, 0)
    assert f"There is no file {tmp_path / 'shop' / 'order.yaml'}" in (unknown.failure or "")


def test_a_broken_cassette_fails_its_task_alone(tmp_path: Path) -> None:
    run_suite([ask_for_tea(), order_tea()], mode="record", cassettes=tmp_path)
    (tmp_path / "shop" / "tea.yaml").write_text("hookline_cassette: 1\ncalls: [")

    broken, whole = run_suite([ask_for_tea(), order_tea()], mode="replay", cassettes=tmp_path).results

    assert whole.ok
    assert "tea.yaml" in (broken.failure or "")
    assert (tmp_path / "shop" / "tea.yaml").read_text() == "hookline_cassette: 1\ncalls: ["


def test_a_task_may_name_its_own_cassette(tmp_path: Path) -> None:
    task = ask_for_tea(cassette=tmp_path / "own.yaml")

    run_suite([task], mode="record")
    replayed = run_suite([task], mode="replay")

    assert replayed.ok
    assert (tmp_path / "own.yaml").exists()


def test_a_mode_that_needs_cassettes_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(CassetteFolderError, match="none is given, and shop/tea names no cassette of its own"):
        run_suite([ask_for_tea()], mode="replay")
    with pytest.raises(CassetteFolderError, match="there is no folder"):
        run_suite([ask_for_tea()], mode="replay", cassettes=tmp_path / "none")


def test_names_that_no_file_system_has_get_files_of_their_own(tmp_path: Path) -> None:
    suite = UserSuite(
        "a/b", tools=tools, tasks=[Task(id=name, prompt="x") for name in ("../x", ".._x", "é", "x" * 300)]
    )

    files = [cassette_file(tmp_path, (suite, task_id)) for task_id in suite.task_ids]

    assert len(set(files)) == 4
    assert all(file.parent.parent == tmp_path and len(file.name) < 100 for file in files)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_broken_task_loses_nothing_of_the_others(backend: str) -> None:
    broken = Task(id="broken", prompt="Break.", model=lambda: 1 / 0)

    run = run_suite([ask_for_tea(), broken, order_tea()], backend=backend)

    assert [(each.task_id, each.ok) for each in run.results] == [("tea", True), ("broken", False), ("order", True)]
    assert run.results[1].failure == "the run ended with reason 'error': ZeroDivisionError: division by zero"
    assert run.results[1].prompt == "Break."


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_tool_that_calls_sys_exit_fails_and_loses_nothing_of_the_others(backend: str) -> None:
    @tool(in_thread=False)
    def leave() -> str:
        """Leave."""
        sys.exit(4)

    left = Task(id="left", prompt="x", script=[asks("leave"), says("done")])
    suite = UserSuite("exits", tools=[leave], tasks=[left, Task(id="next", prompt="x", script=[says("done")])])

    run = anyio.run(SuiteRunner(cases_of([suite]), concurrency=1).run, backend=backend)

    first, second = run.results
    assert (first.reason, first.failed, second.reason) == ("done", 1, "done")
    assert "'local/leave' called sys.exit(4), which would end the run" in first.tool_results[0]


def test_a_check_of_agentdojo_that_raises_is_a_failed_task_with_the_error_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: AgentDojoTask, result: OperationResult) -> bool:
        raise KeyError("gone")

    monkeypatch.setattr(AgentDojoTask, "utility", broken)

    outcome = anyio.run(partial(load_suite("banking").run_task, "user_task_0"))

    assert outcome.utility is False
    assert [check.why for check in outcome.checks] == ["the check itself failed with KeyError: 'gone'"]
    assert outcome.tools_run == 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_interrupted_run_keeps_what_was_done_and_names_the_rest(backend: str, tmp_path: Path) -> None:
    tasks = [Task(**{**vars(ask_for_tea()), "id": f"tea-{number}"}) for number in range(5)]
    cases = cases_of([UserSuite("shop", tools=tools, tasks=tasks)])

    async def main() -> SuiteRun:
        with anyio.CancelScope() as scope:
            stop = partial(lambda done, result: done.append(result) or (len(done) == 2 and scope.cancel()), [])
            runner = SuiteRunner(cases, mode="record", cassettes=tmp_path, concurrency=1, on_result=stop)
            await runner.run()
        return runner.so_far

    run = anyio.run(main, backend=backend)

    assert [each.task_id for each in run.results] == ["tea-0", "tea-1"]
    assert run.not_run == ["shop/tea-2", "shop/tea-3", "shop/tea-4"]
    assert not run.ok
    assert sorted(path.name for path in tmp_path.glob("*/*.yaml")) == ["tea-0.yaml", "tea-1.yaml"]
