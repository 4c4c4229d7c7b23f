"""A model judges tasks: its grade, its silence, its cost, and the hooks that its calls have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Hooks, ModelCall, ModelResponse, ScriptedModel, ToolRequest, Usage
from hookline.errors import AgentDefinitionError, HookUsageError
from hookline.evals import CheckResult, SimulatedUser, TaskResult, cases_of
from hookline.evals.judges import judge
from hookline.evals.judges._grading import question, read_grade
from hookline.evals.running import SuiteRunner
from hookline.evals.suites import FinishedTask, Task, UserSuite, asks, checks, says
from hookline.runtime import Message

from .shop import ask_for_tea, order_tea, run_suite, tools

BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])
COST = Usage(input_tokens=100, output_tokens=10, cost_usd=0.01)


def grader(
    *answers: str | int | Exception, name: str = "grader", asked: list[ModelCall] | None = None
) -> ScriptedModel:
    """A model that gives these answers in turn, the last one again and again; a number is a grade."""
    left = list(answers)

    def answer(call: ModelCall) -> ModelResponse:
        if asked is not None:
            asked.append(call)
        said = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(said, Exception):
            raise said
        text = f'{{"reason": "because {said}", "grade": {said}}}' if isinstance(said, int) else said
        return ModelResponse(content=text, usage=COST)

    return ScriptedModel(answer, name=name)


def judged(*answers: Any, backend: str = "asyncio", **options: Any) -> tuple[TaskResult, CheckResult]:
    check = judge("Says what tea costs.", **{"model": grader(*answers), **options})
    (result,) = run_suite([ask_for_tea(checks=[check])], backend=backend).results
    return result, result.checks[0]


@BOTH
@pytest.mark.parametrize(
    ("grade", "score", "passed"), [(1, 0.0, False), (3, 0.5, False), (4, 0.75, True), (5, 1.0, True)]
)
def test_a_grade_becomes_a_score_that_passes_from_the_threshold(
    grade: int, score: float, passed: bool, backend: str
) -> None:
    result, check = judged(grade, backend=backend)

    assert (check.score, check.passed, result.ok) == (score, passed, passed)
    assert check.judgement is not None
    assert (check.judgement.threshold, check.judgement.reason) == (0.75, f"because {grade}")
    assert check.why == ("" if passed else f"{score:.2f} is below 0.75: because {grade}")


def test_other_grades_and_thresholds_can_be_chosen() -> None:
    assert judged(2, grades=2, threshold=1)[1].passed
    assert judged(3, threshold=0.5)[1].passed
    assert not judged(1, grades=2, threshold=0.1)[1].passed


def test_the_model_reads_rubric_calls_results_and_expected_output_but_no_ids() -> None:
    asked: list[ModelCall] = []
    check = judge("Is polite.", model=grader(5, asked=asked))

    run_suite([ask_for_tea(checks=[check], expected_output="It costs 3 EUR.")])

    system, user = asked[0].messages
    assert "1 to 5" in system.content
    assert user.content == (
        "Rubric:\nIs polite.\n\n"
        'A correct final answer:\n"It costs 3 EUR."\n\n'
        "Conversation:\n"
        '{"role":"user","content":"What does tea cost?"}\n'
        '{"role":"assistant","calls":"local/price","args":{"item":"tea"}}\n'
        '{"tool":"local/price","result":"tea costs 3 EUR"}\n'
        '{"role":"assistant","content":"3 EUR"}'
    )


def test_a_judge_without_tools_reads_what_was_said_alone() -> None:
    asked: list[ModelCall] = []

    judged(5, model=grader(5, asked=asked), tools=False)

    assert "price" not in asked[0].messages[-1].content
    assert "3 EUR" in asked[0].messages[-1].content


@given(st.text())
def test_no_text_of_a_conversation_can_leave_its_line(text: str) -> None:
    spoken = [Message(role="user", content=text), Message(role="assistant", content=text)]

    asked = question("Be kind.", spoken)

    assert asked.isascii()
    assert len(asked.splitlines()) == 6


@pytest.mark.parametrize(
    ("answer", "score", "reason"),
    [
        ('{"grade": 3, "reason": "so so"}', 0.5, "so so"),
        ('```json\n{"grade": 5}\n```', 1.0, ""),
        ('Let me see {braces}. {"reason": "good", "grade": "4"}', 0.75, "good"),
        ('{"grade": 2.0, "reason": ["a", 1]}', 0.25, '["a",1]'),
        ('{"grade": 2} and again {"grade": 2, "reason": "x"}', 0.25, "x"),
        ('{"grade": 2} or rather {"grade": 5}', None, "several grades"),
        ('{"grade": 6}', None, "no whole number from 1 to 5: 6"),
        ('{"grade": 0}', None, "no whole number"),
        ('{"grade": 3.5}', None, "no whole number"),
        ('{"grade": true}', None, "no whole number"),
        ('{"grade": null}', None, "no whole number"),
        ('{"grade": "five"}', None, "no whole number"),
        ('{"score": 5}', None, "the answer is no grade"),
        ("I cannot help with that.", None, "no grade: 'I cannot help with that.'"),
        ("", None, "no grade: ''"),
        ("5", None, "no grade: '5'"),
        ("[" * 100_000, None, "no grade"),
        ('{"grade": ' * 10_000, None, "no grade"),
    ],
)
def test_a_grade_is_read_or_what_is_wrong_with_the_answer(answer: str, score: float | None, reason: str) -> None:
    grade = read_grade(answer, 5)

    assert grade.score == score
    assert reason in grade.reason
    assert len(grade.reason) < 500


@given(st.text() | st.from_regex(r'[\s\S]{0,20}\{"grade": ?[^}]{0,20}\}?[\s\S]{0,20}'))
def test_whatever_a_model_answers_is_a_score_or_no_verdict(answer: str) -> None:
    grade = read_grade(answer, 5)

    assert grade.score is None or 0 <= grade.score <= 1


@BOTH
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I won't.", 'the answer is no grade: "I won\'t."'),
        (RuntimeError("down"), "asking it ended with reason 'error': RuntimeError: down"),
    ],
)
def test_a_judge_that_refuses_or_fails_gives_no_verdict_and_fails_the_task(
    answer: str | Exception, why: str, backend: str
) -> None:
    result, check = judged(answer, backend=backend)

    assert (check.judged, check.passed, result.ok, result.score) == (False, False, False, None)
    assert check.why == why
    assert result.failure == f"judge: Says what tea costs.: not judged: {why}"


def test_a_judge_that_is_not_required_is_left_out_if_it_gives_no_verdict() -> None:
    optional = judge("Is polite.", model=grader("no idea"), required=False)

    alone, beside, wrong = run_suite(
        [
            ask_for_tea(checks=[optional]),
            Task(**{**vars(ask_for_tea(checks=[optional, checks.output_contains("3")])), "id": "beside"}),
            Task(**{**vars(ask_for_tea(checks=[optional, checks.output_contains("4")])), "id": "wrong"}),
        ]
    ).results

    assert (alone.utility, alone.ok, alone.score) == (None, True, None)
    assert (beside.utility, beside.score) == (True, 1.0)
    assert (wrong.utility, wrong.score) == (False, 0.0)


def test_a_run_in_which_judges_say_nothing_was_not_judged() -> None:
    run = run_suite([ask_for_tea(checks=[judge("Is polite.", model=grader("?"), required=False)])])

    assert run.not_judged == ["shop/tea"]
    assert not run.judged


def test_an_answer_without_a_grade_is_asked_for_again() -> None:
    asked: list[ModelCall] = []

    _, check = judged(model=grader("I like it!", 5, asked=asked))

    assert check.passed
    assert [message.role for message in asked[1].messages] == ["system", "user", "assistant", "user"]
    assert check.usage == COST + COST


def test_a_task_that_ended_badly_is_not_sent_to_the_judge() -> None:
    asked: list[ModelCall] = []
    broken = Task(
        id="broken",
        prompt="Hello",
        script=[asks("price", item="tea")],
        checks=[judge("x", model=grader(5, asked=asked))],
    )

    (result,) = run_suite([broken]).results

    assert asked == []
    assert (result.checks[0].judged, result.checks[0].why) == (False, "the run ended with reason 'error'")
    assert result.judge_usage == Usage()


def test_a_judge_that_asks_for_tools_for_ever_is_asked_once() -> None:
    asked: list[ModelCall] = []

    def ask_for_tools(call: ModelCall) -> ToolRequest:
        asked.append(call)
        return ToolRequest("delete", {})

    _, check = judged(model=ScriptedModel(ask_for_tools))

    assert (len(asked), check.why) == (1, "asking it ended with reason 'max_steps'")


def test_a_very_long_reason_is_cut() -> None:
    grade = read_grade(f'{{"grade": 4, "reason": "{"x" * 1_000_000}"}}', 5)

    assert (grade.score, len(grade.reason)) == (0.75, 2_000)


# Cost.


@BOTH
def test_tokens_and_cost_of_judges_are_apart_from_those_of_the_agent(backend: str) -> None:
    costly = [ModelResponse(content="3 EUR", usage=Usage(input_tokens=7, output_tokens=1, cost_usd=0.5))]
    task = Task(
        id="tea", prompt="Tea?", script=costly, checks=[judge("a", model=grader(5)), judge("b", model=grader(5))]
    )

    run = run_suite([task], backend=backend)

    (result,) = run.results
    assert (result.cost_usd, result.input_tokens, result.output_tokens) == (0.5, 7, 1)
    assert [check.usage for check in result.checks] == [COST, COST]
    assert result.judge_usage == run.totals.judge_usage == COST + COST
    assert result.total_cost_usd == pytest.approx(0.52)


def test_a_check_of_ones_own_is_counted_if_it_asks_a_model_even_if_it_fails() -> None:
    from hookline import Agent

    async def critic(task: FinishedTask) -> None:
        answer = await task.ask(Agent(id="critic", model=grader("bad")), task.output)
        raise AssertionError(answer.output)

    (result,) = run_suite([ask_for_tea(checks=[critic, checks.max_calls(3)])]).results

    assert (result.checks[0].why, result.checks[0].usage) == ("bad", COST)
    assert result.checks[1].usage is None
    assert result.judge_usage == COST


# Hooks.


def tape_of(kept: dict[str, ModelResponse]) -> Hooks:
    """A small tape of model calls, such as a run may have: answers known questions, and keeps new answers."""
    hooks = Hooks("tape", inherit=True)

    @hooks.around(ModelCall)
    async def play(call: ModelCall, call_next: Callable[[ModelCall], Any]) -> ModelResponse:
        key = f"{call.model} {[(message.role, message.content) for message in call.messages]}"
        if key not in kept:
            kept[key] = await call_next(call)
        return kept[key]

    return hooks


@BOTH
def test_hooks_that_sub_agents_inherit_see_the_calls_of_a_judge(backend: str) -> None:
    asked: list[ModelCall] = []
    kept: dict[str, ModelResponse] = {}
    tasks = [ask_for_tea(checks=[judge("Is polite.", model=grader(5, 1, asked=asked))])]

    first = run_suite(tasks, backend=backend, hooks=[tape_of(kept)])
    again = run_suite(tasks, backend=backend, hooks=[tape_of(kept)])

    assert [run.results[0].checks[0].score for run in (first, again)] == [1.0, 1.0]
    assert len(asked) == 1


def test_hooks_of_the_agent_and_those_that_are_not_inherited_do_not_see_them() -> None:
    seen: list[str] = []
    asked: list[ModelCall] = []
    watch = Hooks("watch")
    watch.before(ModelCall)(lambda call: seen.append(call.agent_id))

    run_suite([ask_for_tea(checks=[judge("x", model=grader(5, asked=asked))])], hooks=[watch])

    assert set(seen) == {"shop"}
    assert asked[0].agent_id == "judge"


def test_settings_reach_the_model() -> None:
    asked: list[ModelCall] = []

    judged(model=grader(5, asked=asked), settings={"temperature": 0})

    assert asked[0].settings == {"temperature": 0}


# Several models.


def panel(*answers: Any, **options: Any) -> CheckResult:
    models = [grader(answer, name=f"m{number}") for number, answer in enumerate(answers)]
    return judged(model=models, **options)[1]


@pytest.mark.parametrize(("combine", "score"), [("mean", 2 / 3), ("median", 1.0), ("min", 0.0)])
def test_the_scores_of_several_models_become_one(combine: str, score: float) -> None:
    check = panel(5, 1, 5, combine=combine)

    assert check.score == pytest.approx(score)
    assert check.judgement is not None
    assert [(each.model, each.score) for each in check.judgement.verdicts] == [("m0", 1.0), ("m1", 0.0), ("m2", 1.0)]
    assert check.judgement.reason == "m0: 1.00, because 5; m1: 0.00, because 1; m2: 1.00, because 5"
    assert check.usage == COST + COST + COST


def test_more_than_half_of_several_models_must_have_a_verdict() -> None:
    enough, too_few = panel(5, 5, "no"), panel(5, "no")

    assert (enough.judged, enough.passed, enough.score) == (True, True, 1.0)
    assert (too_few.judged, too_few.passed) == (False, False)
    assert too_few.why == "m1: no verdict, the answer is no grade: 'no'"


def test_a_model_that_is_asked_several_times_is_told_apart_by_the_agent() -> None:
    asked: list[ModelCall] = []
    one, other = grader(5, asked=asked), grader(5, name="other", asked=asked)

    judged(model=[one, one, other, one])

    assert [call.agent_id for call in asked] == ["judge", "judge-2", "judge", "judge-3"]


def test_a_mean_at_the_threshold_passes_in_spite_of_rounding() -> None:
    check = panel(4, 4, 4, 2, threshold=0.625)

    assert check.passed


def test_a_model_may_be_a_function_that_makes_one() -> None:
    assert judged(model=partial(grader, 5))[1].passed


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rubric": " "}, "A judge needs a rubric"),
        ({"model": []}, "needs a model"),
        ({"threshold": 2}, "`threshold` of a judge is a score from 0 to 1; got 2"),
        ({"threshold": True}, "`threshold`"),
        ({"grades": 1}, "`grades` of a judge is a whole number from 2 to 100"),
        ({"attempts": 0}, "`attempts`"),
        ({"combine": "vote"}, "`combine` of a judge is one of mean, median, min"),
        ({"settings": 7}, "`settings`"),
        ({"name": ""}, "`name`"),
        ({"model": lambda: 1 / 0}, "cannot be made: ZeroDivisionError"),
    ],
)
def test_invalid_arguments_are_refused_at_once(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(HookUsageError, match=told):
        judge(**{"rubric": "Is polite.", "model": grader(5), **wrong})


def test_an_unknown_model_is_refused_at_once() -> None:
    with pytest.raises(AgentDefinitionError, match="nobody:model"):
        judge("Is polite.", model="nobody:model")


# Checks of a whole suite.


def test_checks_of_a_suite_apply_to_every_task_after_its_own() -> None:
    suite = UserSuite(
        "shop",
        tools=tools,
        tasks=[ask_for_tea(checks=[checks.output_contains("3")]), order_tea()],
        checks=[judge("Is polite.", model=grader(5), name="polite"), checks.not_called("pay")],
    )

    tea, order = anyio.run(SuiteRunner(cases_of([suite])).run).results

    assert [check.name for check in tea.checks] == ["output contains '3'", "polite", "pay not called"]
    assert [check.name for check in order.checks] == ["polite", "pay not called"]


def test_the_models_of_a_suite_are_those_of_judges_and_users_too() -> None:
    task = ask_for_tea(checks=[judge("x", model=grader(5, name="mine"))])
    talk = Task(id="talk", prompt="", user=SimulatedUser(goal="Talk.", model="openai:gpt-5"))

    suite = UserSuite("shop", tools=tools, tasks=[task, talk], checks=[judge("y", model=grader(5, name="theirs"))])

    assert set(suite.models) == {"mine", "theirs", "scripted", "openai:gpt-5"}


def test_a_check_of_a_suite_that_names_an_unknown_tool_is_refused() -> None:
    with pytest.raises(
        HookUsageError, match=r"Task 'shop/\*', check 'ordr not called': no tool 'ordr'; did you mean order"
    ):
        UserSuite("shop", tools=tools, tasks=[order_tea()], checks=[checks.not_called("ordr")])


def test_limits_of_a_task_are_a_check() -> None:
    from hookline.evals import Limits

    kept, broken = run_suite(
        [ask_for_tea(limits=Limits(max_calls=1)), order_tea(limits=Limits(max_calls_per_tool={"order": 1}))]
    ).results

    assert [(check.name, check.passed) for check in kept.checks] == [("within limits", True)]
    assert broken.failure == "within limits: There were 2 calls of order; at most 1 is allowed."
    with pytest.raises(HookUsageError, match="the limits: no tool 'ordr'"):
        run_suite([order_tea(limits=Limits(max_calls_per_tool={"ordr": 1}))])


def test_faults_of_a_task_strike_that_task_alone() -> None:
    from hookline.evals import FaultSpec
    from hookline.evals.faults import FailedResult

    struck = ask_for_tea(faults=[FaultSpec(tool="price", fault=FailedResult("no price"))])
    results = run_suite([struck, Task(**{**vars(ask_for_tea()), "id": "other"})]).results

    assert [result.tool_results for result in results] == [["no price"], ["tea costs 3 EUR"]]


def test_the_expected_output_is_compared_where_a_task_has_one() -> None:
    contains, equals = checks.output_as_expected(), checks.output_as_expected("equals")
    said = [says("It costs 3 EUR.")]
    results = run_suite(
        [
            Task(id="good", prompt="?", script=said, checks=[contains], expected_output="3 EUR"),
            Task(id="not equal", prompt="?", script=said, checks=[equals], expected_output="3 EUR"),
            Task(id="none", prompt="?", script=said, checks=[contains]),
        ]
    ).results

    assert [result.utility for result in results] == [True, False, None]
    assert [result.expected_output for result in results] == ["3 EUR", "3 EUR", None]


def test_results_have_what_a_task_says_about_itself() -> None:
    suite = UserSuite(
        "shop",
        tools=tools,
        tags=["shop"],
        tasks=[ask_for_tea(tags=["price", "shop"], weight=2, metadata={"author": "ann"}), order_tea()],
    )

    tea, order = anyio.run(SuiteRunner(cases_of([suite])).run).results

    assert (tea.tags, tea.weight, tea.metadata) == (["shop", "price"], 2.0, {"author": "ann"})
    assert (order.tags, order.weight, order.metadata) == (["shop"], 1.0, {})
    assert suite.tags_of("tea") == ["shop", "price"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"weight": 0}, "`weight` of task 'x' is a number above 0"),
        ({"weight": float("inf")}, "`weight`"),
        ({"weight": True}, "`weight`"),
        ({"tags": "price"}, "has the tags 'price'; give a list"),
        ({"turns": "Hello"}, "`turns` of task 'x' is a list of texts"),
        ({"turns": 7}, "`turns` of task 'x' is a list of texts"),
        ({"limits": 7}, "`limits` of task 'x' is a Limits; got 7"),
        ({"metadata": [1]}, "`metadata` of task 'x' is a Mapping"),
        ({"expected_output": 3}, "`expected_output` of task 'x' is a str"),
        ({"stop": "bye", "turns": ["a"]}, "`stop` of task 'x' is a StopConditions"),
    ],
)
def test_an_invalid_task_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(HookUsageError, match=told):
        Task(**{"id": "x", "prompt": "Hello", **wrong})
