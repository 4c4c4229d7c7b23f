"""A replay is the same as what was recorded, or says where it is not."""

from __future__ import annotations

from functools import partial

import anyio
import msgspec
import pytest

from hookline import BeforeToolCall, Hooks
from hookline.errors import HookUsageError
from hookline.evals import Cassette, SuiteRun, cases_of, compare, record, replay
from hookline.evals.runner import Case
from hookline.evals.suites.agentdojo import load_suite


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
