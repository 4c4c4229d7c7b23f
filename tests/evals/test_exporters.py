"""Runs in the forms that agentevals and Inspect AI read; what they really accept is frozen here."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hookline import Agent, Hooks, ModelResponse, OperationResult, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.errors import HookUsageError
from hookline.evals import (
    EventRecorder,
    RecordedOperation,
    ReportError,
    TaskResult,
    agentevals_messages,
    inspect_log,
    write_inspect_log,
)
from hookline.evals.running import CheckResult
from hookline.evals.trajectories import Trajectory, TrajectoryStep
from hookline.events import ToolOutcome

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


async def run() -> tuple[OperationResult, RecordedOperation]:
    @tool(in_thread=False)
    def price(item: str) -> str:
        return f"{item} is free"

    turns = [
        ModelResponse(
            content="I look.",
            tool_calls=[
                ToolRequest(tool_name="price", args={"item": "tea"}, tool_call_id="t1"),
                ToolRequest(tool_name="price", args="{bad", tool_call_id="t2"),
            ],
        ),
        ModelResponse(content="Free."),
    ]
    recorder = EventRecorder()
    agent = Agent(id="a", model=ScriptedModel(turns), tools=[price], instructions="Be brief.")
    result = await exec_agent(agent, "What is tea?", hooks=[Hooks("none"), recorder.hooks])
    return result, recorder.only


# agentevals.

ASKED: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "price", "arguments": '{"item": "tea"}'}},
            {"id": "t2", "type": "function", "function": {"name": "price", "arguments": '"{bad"'}},
        ],
    },
    {"role": "tool", "content": "tea is free", "tool_call_id": "t1"},
]


async def test_the_messages_of_a_result_are_all_there() -> None:
    result, _ = await run()

    messages = agentevals_messages(result)

    assert messages[:4] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is tea?"},
        *ASKED,
    ]
    assert [message["role"] for message in messages[4:]] == ["tool", "assistant"]
    assert messages[-1] == {"role": "assistant", "content": "Free."}


async def test_a_recorded_operation_gives_the_same_messages_but_what_was_asked() -> None:
    result, recorded = await run()

    assert agentevals_messages(recorded) == agentevals_messages(recorded.trajectory) == agentevals_messages(result)[2:]


async def test_the_prompt_comes_first_where_it_is_given() -> None:
    result, recorded = await run()

    assert agentevals_messages(recorded, prompt="What is tea?") == agentevals_messages(result)[1:]


async def test_a_tool_may_be_named_by_its_path() -> None:
    _, recorded = await run()

    assert agentevals_messages(recorded, paths=True)[0]["tool_calls"][0]["function"]["name"] == "local/price"


def test_an_expected_trajectory_has_the_form_of_a_run() -> None:
    expected = Trajectory.of_calls([("bank/send", {"to": "ann"}), ("log", {})])

    assert agentevals_messages(expected, paths=True) == [
        _asking("call_0_0", "bank/send", '{"to": "ann"}'),
        {"role": "tool", "content": "", "tool_call_id": "call_0_0"},
        _asking("call_1_0", "log", "{}"),
        {"role": "tool", "content": "", "tool_call_id": "call_1_0"},
        {"role": "assistant", "content": ""},
    ]


def _asking(name: str, path: str, arguments: str) -> dict[str, Any]:
    function = {"name": path, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": name, "type": "function", "function": function}]}


@pytest.mark.parametrize("call", ["bank/send", ("bank/send", {"to": object()})])
def test_arguments_that_cannot_be_written_are_refused(call: Any) -> None:
    with pytest.raises(HookUsageError, match=r"The arguments of bank/send cannot be written"):
        agentevals_messages(Trajectory.of_calls([call]))


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each) | st.text() | each)
)
@settings(max_examples=30, deadline=None)
def test_law_arguments_come_back_from_their_text(value: object) -> None:
    (asking, *_) = agentevals_messages(Trajectory.of_calls([("t/x", {"value": value})]))

    assert json.loads(asking["tool_calls"][0]["function"]["arguments"]) == {"value": value}


# Inspect AI.


@dataclass(frozen=True, kw_only=True)
class Run:
    results: list[TaskResult] = field(default_factory=list)
    mode: str = "record"
    duration_ms: float = 2_000.0


async def row(**changed: Any) -> TaskResult:
    _, recorded = await run()
    plain = TaskResult(
        suite="shop",
        task_id="task_0",
        prompt="What is tea?",
        operation_id="op_1",
        utility=True,
        reason="done",
        error=None,
        steps=2,
        tool_calls=2,
        mocked=0,
        failed=1,
        tools_run=1,
        forbidden=0,
        hook_executions=9,
        hook_time_ms=0.5,
        duration_ms=1_500.0,
        tool_results=[],
        output="Free.",
        trajectory=recorded.trajectory,
    )
    return structs.replace(plain, **changed)


async def test_a_log_has_what_inspect_asks_for() -> None:
    log = inspect_log(Run(results=[await row()]), created=NOON, model="openai/gpt-4o")

    version = log["eval"].pop("packages")["hookline"]
    assert version
    assert {key: value for key, value in log.items() if key != "samples"} == {
        "version": 2,
        "status": "success",
        "eval": {
            "created": "2026-01-02T11:59:58+00:00",
            "task": "shop",
            "task_id": "shop",
            "task_version": 0,
            "dataset": {"name": "shop", "samples": 1, "sample_ids": ["shop/task_0"]},
            "model": "openai/gpt-4o",
            "config": {"epochs": 1},
            "metadata": {"mode": "record"},
        },
        "plan": {"name": "plan", "steps": []},
        "results": {
            "total_samples": 1,
            "completed_samples": 1,
            "scores": [
                {
                    "name": "passed",
                    "scorer": "passed",
                    "scored_samples": 1,
                    "unscored_samples": 0,
                    "metrics": {
                        "mean": {"name": "mean", "value": 1.0},
                        "stderr": {"name": "stderr", "value": 0.0},
                    },
                }
            ],
        },
        "stats": {
            "started_at": "2026-01-02T11:59:58+00:00",
            "completed_at": "2026-01-02T12:00:00+00:00",
            "model_usage": {},
        },
    }


async def test_a_sample_has_messages_scores_and_figures() -> None:
    (sample,) = inspect_log(Run(results=[await row()]))["samples"]

    refusal = sample["messages"][3].pop("content")
    assert sample == {
        "id": "shop/task_0",
        "epoch": 1,
        "input": "What is tea?",
        "target": "",
        "messages": [
            {"role": "user", "content": "What is tea?", "source": "input"},
            {
                "role": "assistant",
                "content": "I look.",
                "source": "generate",
                "tool_calls": [
                    {"id": "t1", "function": "price", "type": "function", "arguments": {"item": "tea"}},
                    {
                        "id": "t2",
                        "function": "price",
                        "type": "function",
                        "arguments": {},
                        "parse_error": "These arguments are not a JSON object: {bad",
                    },
                ],
            },
            {"role": "tool", "content": "tea is free", "tool_call_id": "t1", "function": "price"},
            {
                "role": "tool",
                "tool_call_id": "t2",
                "function": "price",
                "error": {"type": "unknown", "message": refusal},
            },
            {"role": "assistant", "content": "Free.", "source": "generate"},
        ],
        "output": {
            "model": "none/none",
            "choices": [{"message": {"role": "assistant", "content": "Free."}, "stop_reason": "stop"}],
            "completion": "Free.",
        },
        "scores": {"passed": {"value": 1.0, "answer": "Free.", "explanation": ""}},
        "model_usage": {},
        "metadata": {
            "suite": "shop",
            "task_id": "task_0",
            "tags": [],
            "operation_id": "op_1",
            "reason": "done",
            "steps": 2,
            "tool_calls": 2,
            "mocked": 0,
            "failed": 1,
            "tools_run": 1,
            "forbidden": 0,
            "cost_usd": 0.0,
            "hook_executions": 9,
            "hook_time_ms": 0.5,
        },
        "total_time": 1.5,
        "uuid": "op_1",
    }


async def test_there_is_one_scorer_for_each_kind_of_check_however_many_checks_there_are() -> None:
    def checks(number: int) -> list[CheckResult]:
        return [
            CheckResult(name=f"output contains {number}", passed=True, score=1.0, kind="output_contains"),
            CheckResult(name="output contains tea", passed=False, score=0.0, why="it says no", kind="output_contains"),
            CheckResult(name="polite", passed=False, score=0.5, why="too short"),
        ]

    rows = [await row(task_id=f"task_{number}", utility=False, checks=checks(number)) for number in range(20)]
    rows.append(await row(task_id="unjudged", utility=None))

    log = inspect_log(Run(results=rows))

    assert log["samples"][0]["scores"] == {
        "passed": {
            "value": 0.0,
            "answer": "Free.",
            "explanation": "output contains tea: it says no; polite: too short",
        },
        "output_contains": {
            "value": 0.5,
            "explanation": "passed: output contains 0\nfailed: output contains tea: it says no",
            "metadata": {"checks": ["output contains 0", "output contains tea"]},
        },
        "polite": {
            "value": 0.5,
            "explanation": "failed: polite: too short",
            "metadata": {"checks": ["polite"]},
        },
    }
    assert log["samples"][-1]["scores"] == {}
    assert [(each["name"], each["scored_samples"], each["unscored_samples"]) for each in log["results"]["scores"]] == [
        ("passed", 20, 1),
        ("output_contains", 20, 1),
        ("polite", 20, 1),
    ]


async def test_attempts_are_epochs_and_their_means_are_what_counts() -> None:
    rows = [
        await row(task_id=task, attempt=attempt, utility=passed)
        for task, results in (("a", (True, False, False, True)), ("b", (True,) * 4))
        for attempt, passed in enumerate(results, 1)
    ]

    log = inspect_log(Run(results=rows))

    assert [(each["id"], each["epoch"]) for each in log["samples"][:4]] == [("shop/a", n) for n in range(1, 5)]
    assert log["eval"]["config"] == {"epochs": 4}
    assert (log["eval"]["dataset"]["samples"], log["results"]["total_samples"]) == (2, 8)
    (score,) = log["results"]["scores"]
    assert (score["reducer"], score["scored_samples"]) == ("mean", 2)
    assert {name: metric["value"] for name, metric in score["metrics"].items()} == {"mean": 0.75, "stderr": 0.25}
    (reduction,) = log["reductions"]
    assert reduction["samples"] == [{"sample_id": "shop/a", "value": 0.5}, {"sample_id": "shop/b", "value": 1.0}]


async def test_tokens_costs_and_targets_are_there_by_model() -> None:
    used = {"input_tokens": 7, "output_tokens": 2, "cost_usd": 0.25}
    rows = [await row(model=model, target=["free"], **used) for model in ("openai:gpt-5", "other:x")]

    log = inspect_log(Run(results=[*rows, *rows[:1]]))

    assert [each["id"] for each in log["samples"]][:2] == ["shop/task_0 [openai/gpt-5]", "shop/task_0 [other/x]"]
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9, "total_cost": 0.25}
    assert log["samples"][0]["model_usage"] == {"openai/gpt-5": usage}
    assert log["samples"][0]["target"] == "free"
    assert log["stats"]["model_usage"]["openai/gpt-5"] == {name: value * 2 for name, value in usage.items()}
    assert log["stats"]["model_usage"]["other/x"] == usage
    assert inspect_log(Run(results=rows[:1]))["eval"]["model"] == "openai/gpt-5"
    assert inspect_log(Run(results=[structs.replace(rows[0], target=["a", "b"])]))["samples"][0]["target"] == ["a", "b"]


async def test_a_run_that_failed_is_a_sample_with_an_error() -> None:
    log = inspect_log(Run(results=[await row(reason="error", error="Boom: no", utility=False)]))

    assert log["samples"][0]["error"] == {"message": "Boom: no", "traceback": "", "traceback_ansi": ""}
    assert log["samples"][0]["scores"]["passed"]["value"] == 0.0
    assert (log["status"], log["results"]["completed_samples"]) == ("success", 0)


def test_a_run_without_tasks_is_an_empty_log() -> None:
    log = inspect_log(Run())

    assert (log["eval"]["task"], log["samples"], log["results"]["scores"]) == ("hookline", [], [])


async def test_a_log_is_written_as_one_file_that_any_reader_of_json_opens(tmp_path: Path) -> None:
    odd = TrajectoryStep(
        content="half a \ud83d smile",
        calls=[ToolRequest(tool_name="x", args={"big": 10**30, "when": NOON}, tool_call_id="t")],
        results=[ToolOutcome(toolset="local", tool_name="x", tool_call_id="t", content="ß", success=True)],
    )
    trajectory = Trajectory(steps=[odd], output="", reason="done")

    path = write_inspect_log(tmp_path / "log.json", Run(results=[await row(trajectory=trajectory)]), task="mine")

    log = json.loads(path.read_bytes().decode("utf-8", errors="strict"))
    assert log["eval"]["task"] == "mine"
    assert log["samples"][0]["messages"][1]["content"] == "half a ? smile"
    assert log["samples"][0]["messages"][1]["tool_calls"][0]["arguments"] == {"big": 10**30, "when": repr(NOON)}
    assert list(tmp_path.iterdir()) == [path]


async def test_both_formats_say_the_same(tmp_path: Path) -> None:
    rows = [await row(task_id=f"task/{number}", attempt=attempt) for number in range(3) for attempt in (1, 2)]
    run = Run(results=rows)

    document = json.loads(write_inspect_log(tmp_path / "log.json", run, created=NOON).read_bytes())
    with zipfile.ZipFile(write_inspect_log(tmp_path / "log.eval", run, created=NOON)) as archive:
        files = {name: json.loads(archive.read(name)) for name in archive.namelist()}

    assert len(files) == len(rows) + 4
    assert document == json.loads(json.dumps(inspect_log(run, created=NOON)))
    samples = [files.pop(f"samples/{each.name}_epoch_{each.attempt}.json") for each in rows]
    assert {**files["header.json"], "reductions": files["reductions.json"], "samples": samples} == document
    assert files["_journal/start.json"] == {name: document[name] for name in ("version", "eval", "plan")}
    assert [(each["id"], each["epoch"]) for each in files["summaries.json"]] == [
        (each.name, each.attempt) for each in rows
    ]


async def test_results_are_read_one_by_one_and_only_iterated(tmp_path: Path) -> None:
    only = await row()

    class Lazy:
        def __iter__(self) -> Any:
            return iter([only, structs.replace(only, task_id="other")])

    for name in ("log.json", "log.eval"):
        assert write_inspect_log(tmp_path / name, Run(results=Lazy())).exists()  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "why"), [("log.txt", "not .json"), ("nowhere/log.json", "No such file")])
def test_a_log_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ReportError, match=why):
        write_inspect_log(tmp_path / name, Run())

    assert list(tmp_path.iterdir()) == []
