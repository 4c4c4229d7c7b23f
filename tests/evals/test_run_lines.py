"""The file of a run gets a line as each task ends, is read lazily, and says what is wrong with it."""

from __future__ import annotations

import json
import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.errors import HookUsageError
from hookline.evals import (
    RunFileError,
    RunResumeError,
    RunWriteError,
    SuiteRun,
    SuiteRunner,
    TaskResult,
    cases_of,
    load_run,
    save_run,
    stable_fields,
)
from hookline.evals.faults import FailedResult, FaultSpec
from hookline.evals.running import VARYING_FIELDS, StoredResults
from hookline.evals.suites import Task, UserSuite, asks, checks, says

from .shop import ask_for_tea, costly, order_tea, run_suite, tools


def teas(count: int) -> list[Task]:
    return [Task(**{**vars(ask_for_tea()), "id": f"tea-{number}"}) for number in range(count)]


def runner(tasks: list[Task], **options: object) -> SuiteRunner:
    suite = UserSuite("shop", tools=tools, tasks=tasks)
    return SuiteRunner(cases_of([suite]), **{"concurrency": 1, **options})  # type: ignore[arg-type]


def run(tasks: list[Task], **options: object) -> SuiteRun:
    return anyio.run(runner(tasks, **options).run)


def interrupt(tasks: list[Task], path: Path, after: int, *, backend: str = "asyncio", **options: object) -> None:
    """Run tasks, and cancel the run like Ctrl-C does once so many of them are done."""
    done: list[TaskResult] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:

            def take(result: TaskResult) -> None:
                done.append(result)
                if len(done) == after:
                    scope.cancel()

            await runner(tasks, save=path, on_result=take, **options).run()

    anyio.run(main, backend=backend)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def stable(results: object) -> list[object]:
    return [stable_fields(result) for result in results]  # type: ignore[attr-defined]


def test_each_result_is_in_the_file_as_soon_as_its_task_ends(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    seen: list[list[str]] = []

    run(teas(3), save=path, on_result=lambda result: seen.append([each.name for each in load_run(path).results]))

    assert seen == [
        ["shop/tea-0"],
        ["shop/tea-0", "shop/tea-1"],
        ["shop/tea-0", "shop/tea-1", "shop/tea-2"],
    ]


def test_the_first_line_plans_the_run_and_the_last_one_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    run(teas(2), save=path, repeat=2, seed=7, shuffle=1, targets=["shop.py"], made_by="a test")

    header, *results, end = map(json.loads, lines_of(path))
    assert (header["format"], header["version"], header["seed"], header["repeat"]) == ("hookline-run", 2, 7, 2)
    assert (header["targets"], header["provenance"]["madeBy"]) == (["shop.py"], "a test")
    assert header["provenance"]["seeds"] == {"faults": 7, "shuffle": 1}
    assert [each["result"]["attempt"] for each in results] == [1, 1, 2, 2]
    assert end["end"]["coverage"][0]["called"] == {"local/price": 4}
    assert (end["end"]["notRun"], end["end"]["stopped"]) == ([], "")


def test_a_run_that_is_killed_is_one_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(teas(3), save=path)
    path.write_bytes(b"".join(lines_of(path)[:2]))

    loaded = load_run(path)

    assert [each.name for each in loaded.results] == ["shop/tea-0"]
    assert loaded.not_run == ["shop/tea-1", "shop/tea-2"]
    assert loaded.stopped == "the run was killed, or it still runs"
    assert not loaded.suite_run().ok


def test_a_last_line_that_was_cut_off_is_dropped_and_said(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run(teas(2), save=path)
    path.write_bytes(b"".join(lines_of(path)[:3])[:-20])

    loaded = load_run(path)

    assert [each.name for each in loaded.results] == ["shop/tea-0"]
    assert loaded.dropped.startswith("its last line was cut off and is left out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run.jsonl"
    run(
        [*teas(3), order_tea()],
        save=path,
        repeat=2,
        seed=3,
        faults=[FaultSpec(tool="*/price", fault=FailedResult(), probability=0.5)],
    )
    return path


@settings(max_examples=25)
@given(cut=st.integers(0))
def test_a_file_that_ends_anywhere_is_completed_to_the_same_results(
    tmp_path_factory: pytest.TempPathFactory, whole: Path, cut: int
) -> None:
    data = whole.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "run.jsonl"
    path.write_bytes(data[: cut % (len(data) + 1)])
    kept = path.read_bytes().count(b"\n")
    ran: list[str] = []
    resumed = runner(
        [*teas(3), order_tea()],
        repeat=2,
        seed=3,
        faults=[FaultSpec(tool="*/price", fault=FailedResult(), probability=0.5)],
        resume=path,
        on_result=lambda result: ran.append(result.name),
    )

    if kept == 0:
        with pytest.raises(RunFileError, match="its first line was cut off"):
            anyio.run(resumed.run)
        return
    found = anyio.run(resumed.run)

    assert stable(found.results) == stable(load_run(whole).results) == stable(load_run(path).results)
    assert len(ran) == max(0, 8 - (kept - 1))
    assert found.coverage == load_run(whole).coverage == load_run(path).coverage
    assert load_run(path).not_run == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_interrupted_run_ends_its_file_and_is_continued(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "run.jsonl"
    tasks = teas(5)

    interrupt(tasks, path, 2, backend=backend)
    interrupted = load_run(path)
    resumed = anyio.run(runner(tasks, resume=path, made_by="again").run, backend=backend)

    assert (interrupted.stopped, interrupted.not_run) == (
        "the run was interrupted",
        ["shop/tea-2", "shop/tea-3", "shop/tea-4"],
    )
    assert (resumed.ok, len(resumed.results)) == (True, 5)
    assert [each.made_by for each in resumed.resumed] == ["again"]
    assert [each.made_by for each in load_run(path).resumed] == ["again"]
    assert resumed.duration_ms == pytest.approx(load_run(path).duration_ms)


def test_a_run_that_is_complete_runs_nothing_when_it_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = run(teas(2), save=path)
    before = path.read_bytes()

    again = run(teas(2), resume=path, on_result=lambda result: pytest.fail("a task ran again"))

    assert path.read_bytes() == before
    assert (again.results, again.resumed, again.coverage) == (first.results, [], first.coverage)


def test_a_run_may_be_continued_in_another_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    interrupt(teas(3), first, 1)
    before = first.read_bytes()

    resumed = run(teas(3), resume=first, save=second)

    assert first.read_bytes() == before
    assert len(resumed.results) == len(load_run(second).results) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": 8}, "its seed is 7, and the seed of this run is 8"),
        ({"mode": "strict"}, "its mode is 'spy', and the mode of this run is 'strict'"),
        ({"repeat": 2}, "its number of attempts per task is 1, and the number of attempts per task of this run is 2"),
        ({"faults": [FaultSpec(tool="*", fault=FailedResult())]}, "it was made with other faults"),
        ({"limit": 1}, "it has 'shop/tea-1', and this run has not"),
    ],
)
def test_another_run_is_not_continued(tmp_path: Path, options: dict[str, object], said: str) -> None:
    path = tmp_path / "run.jsonl"
    interrupt(teas(2), path, 1, seed=7)
    before = path.read_bytes()

    with pytest.raises(RunResumeError) as caught:
        run(teas(2), **{"seed": 7, "resume": path, **options})

    assert said in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert path.read_bytes() == before


def test_a_run_in_the_earlier_format_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"format": "hookline-run",\n "version": 1}')

    with pytest.raises(RunResumeError, match="version 1 of the format"):
        run(teas(1), resume=path)


def test_the_order_of_the_file_holds_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    interrupt(teas(5), path, 2, shuffle=4)

    resumed = run(teas(5), resume=path)

    planned = json.loads(lines_of(path)[0])["cases"]
    assert planned != sorted(planned)
    assert [each.name for each in resumed.results] == planned


def test_an_unfinished_run_is_renamed_when_its_name_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    interrupt(teas(2), path, 1)
    before = path.read_bytes()

    for _ in range(2):
        run(teas(1), save=path)  # the second one replaces a run that is finished

    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.jsonl", "run.jsonl.interrupted"]
    assert (tmp_path / "run.jsonl.interrupted").read_bytes() == before
    assert len(load_run(path).results) == 1


def test_a_file_that_a_run_is_being_written_to_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    open_run = runner(teas(1), save=path)
    open_run.open()

    for options in ({"save": path}, {"resume": path}):
        with pytest.raises(RunWriteError, match="another run is being written to it"):
            run(teas(1), **options)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let every file of this process be full at a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_the_run_and_keeps_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    with largest_file(5_000), pytest.raises(RunWriteError) as caught:
        run(teas(9), save=path)
    saved = load_run(path)
    resumed = run(teas(9), resume=path)

    assert f"The file has {len(saved.results)} results" in str(caught.value)
    assert 0 < len(saved.results) < 9
    assert (saved.dropped, len(resumed.results)) == ("", 9)


def test_results_are_read_when_they_are_needed_and_behave_like_a_list(tmp_path: Path) -> None:
    path = save_run(tmp_path / "run.jsonl", run_suite(teas(3)))

    found = load_run(path).results

    assert isinstance(found, StoredResults)
    assert (len(found), found[-1].name, [each.name for each in found[1:]]) == (
        3,
        "shop/tea-2",
        ["shop/tea-1", "shop/tea-2"],
    )
    assert found == list(found) == pickle.loads(pickle.dumps(found))
    assert found != list(found)[1:]
    assert found != "abc"
    with pytest.raises(IndexError):
        found[3]


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = save_run(tmp_path / "run.jsonl", run_suite(teas(2)))
    found = load_run(path).results
    os.truncate(path, 900)

    with pytest.raises(RunFileError, match="changed while it was read"):
        list(found)


def edit(path: Path, number: int, new: bytes | None) -> Path:
    """Write another line in the place of one, from 1; `None` for that line twice."""
    lines = lines_of(path)
    lines[number - 1 : number] = [lines[number - 1]] * 2 if new is None else [new]
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize(
    ("number", "new", "said"),
    [
        (2, None, "line 3: it has the task 'shop/tea-0' twice"),
        (2, b"{\n", "line 2 is not JSON"),
        (2, b'{"result": {"suite": "sh\xff"}}\n', "line 2 is not UTF-8"),
        (2, b"{}\n", "line 2 has neither a `result`, nor an `end`, nor `resumed`"),
        (2, b'{"result": 3}\n', "line 2: Expected `object | null`, got `int` - at `$.result`"),
        (2, b"[" * 100_000 + b"\n", "line 2: Expected `object`, got `array`"),
        (1, b'{"format": "hookline-run", "version": 2}\n', "line 1: Object missing required field"),
        (1, b'{"format": "hookline-run", "version": 3}\n', "its version is 3"),
    ],
)
def test_a_file_that_was_edited_by_hand_is_refused_with_the_line(
    tmp_path: Path, number: int, new: bytes | None, said: str
) -> None:
    path = edit(save_run(tmp_path / "run.jsonl", run_suite(teas(2))), number, new)

    with pytest.raises(RunFileError) as caught:
        load_run(path)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"taskId": "other"}, "line 2 is a result of 'shop/other', which its first line does not plan"),
        ({"attempt": 2}, "line 2 is a result of 'shop/tea-0' (attempt 2), which its first line does not plan"),
        ({"score": 1.5}, "line 2: the score of 'shop/tea-0' is 1.5"),
        ({"costUsd": -1}, "line 2: the cost of 'shop/tea-0' is -1.0"),
        ({"toolCalls": -1}, "line 2: 'shop/tea-0' has -1 tool calls"),
    ],
)
def test_a_result_that_cannot_be_is_refused_with_the_line(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    path = save_run(tmp_path / "run.jsonl", run_suite(teas(2)))
    line = json.loads(lines_of(path)[1])
    line["result"].update(fields)

    with pytest.raises(RunFileError) as caught:
        load_run(edit(path, 2, json.dumps(line).encode() + b"\n"))

    assert said in str(caught.value)


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = save_run(tmp_path / "run.jsonl", run_suite(teas(1)))
    path.write_text(path.read_text(), encoding="utf-16")

    with pytest.raises(RunFileError, match="it is not JSON"):
        load_run(path)


def test_an_attempt_meets_faults_of_its_own_and_the_same_ones_in_every_run() -> None:
    faults = [FaultSpec(tool="*/price", fault=FailedResult(), probability=0.5)]

    first, again = (run(teas(8), repeat=4, seed=1, faults=faults) for _ in range(2))

    struck = [[bool(call.fault) for call in each.calls] for each in first.results]
    by_attempt = [struck[place : place + 8] for place in range(0, 32, 8)]
    assert stable(first.results) == stable(again.results)
    assert len({str(each) for each in by_attempt}) == 4


def test_all_tasks_run_once_before_one_runs_again() -> None:
    order: list[tuple[str, int]] = []

    found = run(teas(2), repeat=3, on_result=lambda result: order.append((result.task_id, result.attempt)))

    assert order == [(f"tea-{number}", attempt) for attempt in (1, 2, 3) for number in (0, 1)]
    assert [(each.task_id, each.attempt) for each in found.results] == order
    assert (found.repeat, found.totals.tasks) == (3, 6)


def test_no_task_starts_once_the_money_is_spent(tmp_path: Path) -> None:
    tasks = [costly(each, 0.25) for each in teas(4)]  # half a dollar each

    stopped = run(tasks, max_cost=1.0, save=tmp_path / "run.jsonl")
    poorer = run(tasks, max_cost=1.0, resume=tmp_path / "run.jsonl")
    richer = run(tasks, max_cost=2.0, resume=tmp_path / "run.jsonl")

    assert [each.task_id for each in stopped.results] == ["tea-0", "tea-1"]
    assert stopped.not_run == poorer.not_run == ["shop/tea-2", "shop/tea-3"]
    assert stopped.stopped == "the tasks have cost 1 USD, and no more than 1 was to be spent"
    assert not stopped.ok
    assert (richer.not_run, richer.stopped, richer.ok) == ([], "", True)


def test_tasks_are_chosen_by_tag_shuffled_and_then_limited() -> None:
    tasks = [
        Task(**{**vars(each), "tags": ["even"] if number % 2 == 0 else ["odd", "rare"]})
        for number, each in enumerate(teas(6))
    ]
    suite = UserSuite("shop", tools=tools, tasks=tasks, tags=["all"])

    rare = anyio.run(SuiteRunner(cases_of([suite], tags=["rare"])).run)
    either = cases_of([suite], tags=["rare", "even"])
    one, two, other = (
        [name for _, name in SuiteRunner(cases_of([suite]), shuffle=seed, limit=3).cases] for seed in (1, 1, 2)
    )

    assert [each.task_id for each in rare.results] == ["tea-1", "tea-3", "tea-5"]
    assert [each.tags for each in rare.results] == [["all", "odd", "rare"]] * 3
    assert len(either) == 6
    assert sorted(one) == sorted(two)
    assert len(set(one)) == 3
    assert sorted(one) != sorted(other)


def test_shuffled_tasks_run_in_another_order_and_the_same_one_for_a_seed() -> None:
    orders = [[each.task_id for each in run(teas(6), shuffle=seed).results] for seed in (1, 1, 2)]

    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == sorted(orders[0]) != orders[0]


@pytest.mark.parametrize(
    "options",
    [
        {"repeat": 0},
        {"repeat": True},
        {"limit": 0},
        {"workers": 0},
        {"workers": 1},  # and no targets
        {"timeout": 0},
        {"timeout": float("nan")},
        {"timeout": "1"},
        {"max_cost": -1},
        {"max_cost": float("inf")},
        {"shuffle": "x"},
        {"mode": "record", "repeat": 2},  # and no folder
        {"tape_mode": "replay", "tapes": "tapes"},
        {"tape_mode": "all"},  # and no tapes
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(HookUsageError):
        runner(teas(1), **options)


def test_a_task_that_is_given_twice_is_refused() -> None:
    suite = UserSuite("shop", tools=tools, tasks=teas(2))

    with pytest.raises(HookUsageError, match="'shop/tea-0' is given twice"):
        SuiteRunner([(suite, "tea-0"), (suite, "tea-1"), (suite, "tea-0")])


def test_the_events_of_failed_tasks_are_kept_before_those_of_others() -> None:
    bad = [Task(**{**vars(each), "checks": [checks.output_contains("USD")]}) for each in teas(130)[100:]]

    found = run([*teas(100), *bad], concurrency=8)

    kept = [each.task_id for each in found.results if each.operation_id in found.operations]
    assert len(found.operations) == 100
    assert kept[-30:] == [each.id for each in bad]


def test_a_runner_keeps_nothing_of_the_events_of_other_tasks() -> None:
    made = runner(teas(150), concurrency=4)
    anyio.run(made.run)

    recorder = made._tasks._recorder
    assert recorder.events == []
    assert recorder.operations == {}


def test_a_result_may_have_any_number_and_text(tmp_path: Path) -> None:
    args = {"nan": float("nan"), "large": 10**30, "text": "\ud800\0"}
    task = Task(id="odd", prompt="\ud800", script=[asks("price", **args), says("\udfff")])

    found = run([task], save=tmp_path / "run.jsonl")

    assert repr(found.results[0].trajectory.steps[0].calls[0].args) == repr(args)
    assert repr(load_run(tmp_path / "run.jsonl").results[0]) == repr(found.results[0])


def test_the_fields_that_differ_between_equal_runs_are_the_stated_ones() -> None:
    talk = Task(id="talk", prompt="Hello!", turns=["And tea?"], script=[says("Hello."), *(ask_for_tea().script or [])])
    one, two = (msgspec.to_builtins(run([talk]).results[0]) for _ in range(2))

    differing = {"timeline" if path.startswith("timeline.") else path for path in differing_paths(one, two)}
    assert differing == set(VARYING_FIELDS)


def test_stable_fields_are_all_others() -> None:
    talk = Task(id="talk", prompt="Hello!", turns=["And tea?"], script=[says("Hello."), *(ask_for_tea().script or [])])
    one, two = (run([talk]).results[0] for _ in range(2))

    assert stable_fields(one) == stable_fields(two)
    assert set(msgspec.to_builtins(one)) - set(stable_fields(one)) == {
        path for path in VARYING_FIELDS if "[]" not in path
    }


def differing_paths(one: object, other: object, path: str = "") -> Iterator[str]:
    """Yield where two documents differ: `calls[].tool`."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            yield from differing_paths(one.get(name), other.get(name), f"{path}.{name}" if path else name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for item, another in zip(one, other, strict=True):
            yield from differing_paths(item, another, f"{path}[]")
    elif one != other:
        yield path
