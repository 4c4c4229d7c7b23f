"""Verdicts on runs are `gen_ai.evaluation.result` events of the root span, and log records in its context."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, exec_agent
from hookline.evals import SuiteRunner, cases_of
from hookline.evals.suites import Expected, Task, UserSuite, asks, checks, says
from hookline.instrumentation import EvaluationResult, await_verdicts, awaited_verdicts
from hookline.runtime import tool

from .capture import Sink

pytestmark = pytest.mark.anyio

EVENT = "gen_ai.evaluation.result"


def events(sink: Sink) -> dict[str, list[dict[str, Any]]]:
    """The verdicts on each span, by its name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for span in sink.spans:
        for event in span.events:
            if event.name == EVENT:
                found.setdefault(span.name, []).append(dict(event.attributes or {}))
    return found


def polite(task: object) -> float:
    return 0.25


@tool(in_thread=False)
def price(item: str) -> str:
    return "3 EUR"


def suite(*tasks: Task) -> UserSuite:
    tea = Task(
        id="tea",
        prompt="What does tea cost?",
        script=[asks("price", item="tea"), says("It costs 4 EUR.")],
        expected=Expected(calls=["price"]),
        checks=[checks.output_contains("3 EUR"), checks.output_contains("costs"), polite],
    )
    return UserSuite("shop", tools=[price], tasks=tasks or [tea])


async def run_suite(sink: Sink, made: UserSuite, **options: Any) -> Any:
    return await SuiteRunner(cases_of([made]), hooks=[sink.tracing(**options)]).run()


async def test_a_suite_puts_a_verdict_per_check_on_the_span_of_the_operation() -> None:
    sink = Sink()

    run = await run_suite(sink, suite())

    ((where, found),) = events(sink).items()
    assert where == "invoke_agent shop"
    assert found == [
        {
            "gen_ai.evaluation.name": "passed",
            "gen_ai.evaluation.score.value": 0.0,
            "gen_ai.evaluation.score.label": "fail",
        },
        {
            "gen_ai.evaluation.name": "trajectory",
            "gen_ai.evaluation.score.value": 1.0,
            "gen_ai.evaluation.score.label": "pass",
            "hookline.evaluation.check": "trajectory (in_order)",
        },
        {
            "gen_ai.evaluation.name": "output_contains",
            "gen_ai.evaluation.score.value": 0.0,
            "gen_ai.evaluation.score.label": "fail",
            "hookline.evaluation.check": "output contains '3 EUR'",
        },
        {
            "gen_ai.evaluation.name": "output_contains",
            "gen_ai.evaluation.score.value": 1.0,
            "gen_ai.evaluation.score.label": "pass",
            "hookline.evaluation.check": "output contains 'costs'",
        },
        {
            "gen_ai.evaluation.name": "polite",
            "gen_ai.evaluation.score.value": 0.25,
            "gen_ai.evaluation.score.label": "fail",
        },
    ]
    root = next(span for span in sink.spans if span.name == where)
    assert root.attributes is not None
    assert root.attributes["hookline.operation.id"] == run.results[0].operation_id


async def test_each_verdict_is_a_log_record_in_the_context_of_that_span_too() -> None:
    sink = Sink()

    await run_suite(sink, suite())

    root = next(span for span in sink.spans if span.name == "invoke_agent shop")
    records = [each for each in sink.logs if each.event_name == EVENT]
    assert len(records) == 5
    assert root.context is not None
    assert {(each.trace_id, each.span_id) for each in records} == {(root.context.trace_id, root.context.span_id)}
    assert [dict(each.attributes)["gen_ai.evaluation.name"] for each in records][:2] == ["passed", "trajectory"]


async def test_reasons_quote_the_run_so_they_are_recorded_only_with_content() -> None:
    without, with_content = Sink(), Sink()

    await run_suite(without, suite())
    await run_suite(with_content, suite(), capture_content="SPAN_AND_EVENT")

    assert b"4 EUR" not in without.exported()
    (found,) = events(with_content).values()
    assert found[2]["gen_ai.evaluation.explanation"] == "the answer is 'It costs 4 EUR.'"
    assert "gen_ai.evaluation.explanation" not in found[1]
    logged = [dict(each.attributes) for each in with_content.logs if each.event_name == EVENT]
    assert logged[2]["gen_ai.evaluation.explanation"] == "the answer is 'It costs 4 EUR.'"


async def test_the_span_ends_when_the_run_ended_and_its_events_lie_within_it() -> None:
    sink = Sink()
    late: list[int] = []

    def check(task: Any) -> None:
        late.append(task.recorded.events[-1].time_unix_nano)

    made = suite(Task(id="a", prompt="?", script=[asks("price", item="tea"), says("done")], checks=[check]))
    await run_suite(sink, made)

    root = next(span for span in sink.spans if span.name == "invoke_agent shop")
    assert root.end_time == late[0]
    assert [event.timestamp for event in root.events if event.name == EVENT] == [late[0]] * 2


async def test_a_task_that_nothing_judges_has_no_verdict_and_one_that_breaks_has_failed() -> None:
    sink = Sink()

    def broken(call: Any) -> ModelResponse:
        raise RuntimeError("the model is down")

    made = suite(
        Task(id="unjudged", prompt="?", script=[says("hi")]),
        Task(id="broken", prompt="?", model=ScriptedModel([broken]), checks=[checks.max_steps(5)]),
    )
    await run_suite(sink, made)

    (found,) = events(sink).values()
    assert [(each["gen_ai.evaluation.name"], each["gen_ai.evaluation.score.label"]) for each in found] == [
        ("passed", "fail"),
        ("max_steps", "pass"),
    ]
    assert len([span for span in sink.spans if span.name == "invoke_agent shop"]) == 2


async def test_a_suite_that_raises_leaves_no_span_open() -> None:
    sink = Sink()
    made = suite(Task(id="a", prompt="?", script=[says("hi")]))
    run_task = made.run_task

    async def raising(*args: Any, **options: Any) -> Any:
        await run_task(*args, **options)
        raise RuntimeError("after the run")

    made.run_task = raising  # type: ignore[method-assign]
    run = await run_suite(sink, made)

    assert run.results[0].error == "RuntimeError: after the run"
    assert events(sink) == {}
    assert [span.name for span in sink.spans].count("invoke_agent shop") == 1


async def test_a_sub_agent_has_no_verdict_of_its_own_and_ends_before_its_caller() -> None:
    sink = Sink()
    guide = Agent(id="guide", model=ScriptedModel(["left"]))
    call = ToolRequest("guide", {"instruction": "where?"}, toolset="agent")
    boss = Agent(id="boss", model=ScriptedModel([]), sub_agents=[guide])
    task = Task(id="a", prompt="?", script=[asks(call), says("done")], checks=[checks.max_steps(5)])

    await run_suite(sink, UserSuite("shop", agent=boss, tasks=[task]))

    assert list(events(sink)) == ["invoke_agent boss"]
    assert sink.parent(sink.one("invoke_agent guide")) is not None
    sink.assert_whole()
    assert sink.losses() == {}


async def test_where_agents_have_no_spans_the_log_records_are_all() -> None:
    sink = Sink()

    await run_suite(sink, suite(), agent_spans=False)

    assert events(sink) == {}
    assert len([each for each in sink.logs if each.event_name == EVENT]) == 5


async def test_a_sampled_out_run_has_no_verdicts_and_no_error() -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    sink = Sink(sampler=ALWAYS_OFF)

    run = await run_suite(sink, suite())

    assert run.results[0].error is None
    assert (sink.spans, [each for each in sink.logs if each.event_name == EVENT]) == ([], [])


# Verdicts of one's own.


def agent() -> Agent:
    return Agent(id="a", model=ScriptedModel(["hello"]))


VERDICT = EvaluationResult(name="polite", score=0.9, label="pass", explanation="it says hello")


async def test_anybody_may_judge_a_run_whose_verdict_is_awaited() -> None:
    sink = Sink()

    with await_verdicts() as verdicts:
        result = await exec_agent(agent(), "hi", hooks=[sink.tracing()])
        before = [span.name for span in sink.spans]
        verdicts.give(result.operation_id, [VERDICT])

    assert "invoke_agent a" not in before
    assert events(sink) == {
        "invoke_agent a": [
            {
                "gen_ai.evaluation.name": "polite",
                "gen_ai.evaluation.score.value": 0.9,
                "gen_ai.evaluation.score.label": "pass",
            }
        ]
    }
    assert awaited_verdicts() is None


async def test_a_run_that_has_ended_gets_its_verdict_as_a_log_record() -> None:
    sink = Sink()
    tracing = sink.tracing()
    result = await exec_agent(agent(), "hi", hooks=[tracing])

    known = tracing.record_evaluation(result.operation_id, [VERDICT, EvaluationResult(name="odd", score=float("nan"))])

    (root,) = [span for span in sink.spans if span.name == "invoke_agent a"]
    records = [each for each in sink.logs if each.event_name == EVENT]
    assert known
    assert root.context is not None
    assert [each.span_id for each in records] == [root.context.span_id] * 2
    assert "gen_ai.evaluation.score.value" not in dict(records[1].attributes)
    assert not tracing.record_evaluation("nobody", [VERDICT])


async def test_a_verdict_that_never_comes_ends_the_span_with_the_block() -> None:
    sink = Sink()

    with pytest.raises(KeyError), await_verdicts():
        await exec_agent(agent(), "hi", hooks=[sink.tracing()])
        raise KeyError("judge")

    assert [span.name for span in sink.spans].count("invoke_agent a") == 1
    assert events(sink) == {}


async def test_the_suite_s_recording_is_the_same_with_and_without_telemetry(tmp_path: Path) -> None:
    run = partial(SuiteRunner, cases_of([suite()]), mode="record")

    plain = await run(cassettes=tmp_path / "a").run()
    traced = await run(cassettes=tmp_path / "b", hooks=[Sink().tracing()]).run()

    assert plain.results[0].trajectory == traced.results[0].trajectory
    files = [next((tmp_path / name).glob("*/*.yaml")).read_text() for name in ("a", "b")]
    assert files[0] == files[1]
