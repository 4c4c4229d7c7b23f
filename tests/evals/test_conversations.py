"""Conversations: scripted turns, simulated users, why they end, and what checks, mocks and cassettes see of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from hookline import Agent, Hooks, ModelCall, ModelResponse, ScriptedModel, ToolRequest, Usage, tool
from hookline.errors import HookUsageError
from hookline.evals import Limits, SuiteRun, TaskResult, ToolMocks, cases_of, compare, inspect_log, record, replay
from hookline.evals.conversations import SimulatedUser, StopConditions
from hookline.evals.faults import FaultSpec, RateLimit
from hookline.evals.judges import judge
from hookline.evals.running import SuiteRunner
from hookline.evals.suites import FinishedTask, Task, UserSuite, checks, says

BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def clerk(**options: Any) -> Agent:
    """An agent that asks for the order until it is told one, and then looks it up."""
    looked: list[str] = []

    @tool(in_thread=False)
    def track(order: str) -> str:
        """Find out where an order is."""
        looked.append(order)
        return f"{order} has been asked for {len(looked)} times"

    def answer(call: ModelCall) -> str | ToolRequest | ModelResponse:
        last = call.messages[-1]
        if last.role == "tool":
            return ModelResponse(content=last.content, usage=Usage(input_tokens=1, cost_usd=0.5))
        word = last.content.split()[-1]
        return ToolRequest("track", {"order": word}) if word.startswith("A-") else "Which order?"

    return Agent(id="clerk", model=ScriptedModel(answer, name="clerk"), tools=[track], **options)


def player(*messages: str | Exception, seen: list[ModelCall] | None = None) -> SimulatedUser:
    left = list(messages)

    def say(call: ModelCall) -> ModelResponse:
        if seen is not None:
            seen.append(call)
        said = left.pop(0)
        if isinstance(said, Exception):
            raise said
        return ModelResponse(content=said, usage=Usage(input_tokens=10, output_tokens=1, cost_usd=0.25))

    return SimulatedUser(goal="Find order A-1.", persona="In a hurry.", model=ScriptedModel(say, name="player"))


def run(*tasks: Task, backend: str = "asyncio", suite: dict[str, Any] | None = None, **options: Any) -> SuiteRun:
    made = UserSuite("desk", agent=clerk, tasks=tasks, **(suite or {}))
    return anyio.run(partial(SuiteRunner(cases_of([made]), **options).run), backend=backend)


def talk(backend: str = "asyncio", suite: dict[str, Any] | None = None, **task: Any) -> TaskResult:
    (result,) = run(Task(**{"id": "talk", "prompt": "", **task}), backend=backend, suite=suite).results
    return result


@BOTH
def test_scripted_turns_are_operations_of_one_conversation(backend: str) -> None:
    result = talk(backend, prompt="Where is my order?", turns=["It is A-1", "And A-2"])

    assert [(turn.user, turn.output) for turn in result.turns] == [
        ("Where is my order?", "Which order?"),
        ("It is A-1", "A-1 has been asked for 1 times"),
        ("And A-2", "A-2 has been asked for 2 times"),
    ]
    assert result.conversation_end == "turns"
    assert len({turn.operation_id for turn in result.turns}) == 3
    assert result.operation_id == result.turns[0].operation_id
    assert (result.steps, result.tool_calls, result.cost_usd, result.input_tokens) == (5, 2, 1.0, 2)
    assert result.output == "A-2 has been asked for 2 times"
    assert result.tool_results == ["A-1 has been asked for 1 times", "A-2 has been asked for 2 times"]
    assert [call.tool_name for call in result.trajectory.calls] == ["track", "track"]
    assert len(result.calls) == 2


def test_an_inspect_log_has_the_messages_of_all_turns_in_order() -> None:
    run_of_two = run(Task(id="talk", prompt="Where?", turns=["A-1"]), Task(id="one", prompt="Hello"))

    talked, one = inspect_log(run_of_two)["samples"]

    assert [(message["role"], message["content"]) for message in talked["messages"]] == [
        ("user", "Where?"),
        ("assistant", "Which order?"),
        ("user", "A-1"),
        ("assistant", ""),
        ("tool", "A-1 has been asked for 1 times"),
        ("assistant", "A-1 has been asked for 1 times"),
    ]
    assert [message["role"] for message in one["messages"]] == ["user", "assistant"]


def test_a_task_with_one_prompt_has_no_turns() -> None:
    result = talk(prompt="Hello")

    assert (result.turns, result.conversation_end) == ([], "")


@BOTH
def test_a_simulated_user_leads_the_conversation_until_it_is_done(backend: str) -> None:
    seen: list[ModelCall] = []

    result = talk(backend, user=player("Where is it?", "A-1", "Thanks! [DONE]", seen=seen))

    assert [(turn.user, turn.output) for turn in result.turns] == [
        ("Where is it?", "Which order?"),
        ("A-1", "A-1 has been asked for 1 times"),
        ("Thanks!", ""),
    ]
    assert (result.conversation_end, result.prompt) == ("user", "Where is it?")
    assert result.user_usage == Usage(input_tokens=30, output_tokens=3, cost_usd=0.75)
    assert (result.cost_usd, result.total_cost_usd) == (0.5, 1.25)
    system, *messages = seen[2].messages
    assert "Who you are: In a hurry.\nWhat you want: Find order A-1." in system.content
    assert [(message.role, message.content) for message in messages] == [
        ("user", "Write your first message."),
        ("assistant", "Where is it?"),
        ("user", "Which order?"),
        ("assistant", "A-1"),
        ("user", "A-1 has been asked for 1 times"),
    ]


def test_a_simulated_user_may_follow_a_prompt_and_say_nothing_at_the_end() -> None:
    result = talk(prompt="Where is it?", user=player("A-1", "[DONE]"))

    assert [turn.user for turn in result.turns] == ["Where is it?", "A-1"]


def test_hooks_that_sub_agents_inherit_see_the_simulated_user() -> None:
    seen: list[str] = []
    watch = Hooks("watch", inherit=True)
    watch.before(ModelCall)(lambda call: seen.append(call.agent_id))

    run(Task(id="talk", prompt="", user=player("Hello", "[DONE]")), hooks=[watch])

    assert seen == ["user", "clerk", "user"]


# Why conversations end.


@BOTH
@pytest.mark.parametrize(
    ("stop", "end", "turns"),
    [
        (StopConditions(max_turns=2), "max_turns", 2),
        (StopConditions(phrase="WHICH order"), "phrase", 1),
        (StopConditions(phrase="no such text"), "turns", 3),
        (StopConditions(check=checks.called("track")), "check", 2),
        (StopConditions(max_turns=1, phrase="which"), "phrase", 1),
    ],
)
def test_a_conversation_ends_by_what_comes_first(stop: StopConditions, end: str, turns: int, backend: str) -> None:
    result = talk(backend, prompt="Where is it?", turns=["A-1", "A-2"], stop=stop)

    assert (result.conversation_end, len(result.turns)) == (end, turns)


def test_a_simulated_user_has_ten_turns_unless_the_task_says_otherwise() -> None:
    endless = SimulatedUser(goal="Talk.", model=ScriptedModel(lambda call: "and?"))

    assert len(talk(user=endless).turns) == 10
    assert len(talk(user=endless, stop=StopConditions(max_turns=12)).turns) == 12


def test_a_simulated_user_is_on_the_tape_and_is_not_asked_again(tmp_path: Path) -> None:
    seen: list[ModelCall] = []
    first = run(Task(id="talk", prompt="", user=player("Where is it?", "A-1", "[DONE]", seen=seen)), tapes=tmp_path)
    asked = len(seen)
    again = run(Task(id="talk", prompt="", user=player(seen=seen)), tapes=tmp_path, tape_mode="none")

    assert asked == len(seen) > 0
    [before], [after] = first.results, again.results
    assert [turn.user for turn in after.turns] == [turn.user for turn in before.turns]
    assert (after.error, after.conversation_end) == (before.error, before.conversation_end)


def test_the_usage_of_a_judge_that_stops_a_conversation_is_counted() -> None:
    content = judge(
        "ends", model=ScriptedModel(lambda call: ModelResponse(content='{"grade": 5}', usage=Usage(cost_usd=2)))
    )

    result = talk(prompt="Hi", turns=["A-1"], stop=StopConditions(check=content))

    assert (result.conversation_end, len(result.turns), result.judge_usage.cost_usd) == ("check", 1, 2)


@BOTH
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (RuntimeError("down"), "asking its model ended with reason 'error': RuntimeError: down"),
        ("  ", "its model wrote an empty message"),
    ],
)
def test_a_simulated_user_that_fails_ends_the_task_with_an_error_that_says_so(
    said: str | Exception, why: str, backend: str
) -> None:
    later = talk(backend, user=player("Hello", said))
    at_once = talk(backend, user=player(said))

    for result in (later, at_once):
        assert (result.ok, result.reason) == (False, "error")
        assert (
            result.error
            == f"SimulatedUserError: The simulated user could not go on: {why}. The agent is not to blame; run the task again."
        )
    assert (later.conversation_end, len(later.turns), later.user_usage.cost_usd) == (
        "reason",
        1,
        0.25 * (1 + (said == "  ")),
    )


def test_a_user_that_is_done_before_it_begins_is_an_error() -> None:
    assert "nothing to say at the beginning" in (talk(user=player("[DONE]")).error or "")


def test_a_turn_that_does_not_end_well_ends_the_conversation() -> None:
    result = talk(prompt="one", turns=["two", "three"], script=[says("1")])

    assert (result.conversation_end, len(result.turns), result.reason) == ("reason", 2, "error")


def test_a_check_can_be_about_the_end() -> None:
    result = talk(
        prompt="Hi",
        turns=["A-1"],
        checks=[checks.conversation_ended("turns"), checks.conversation_ended("user", "phrase")],
    )

    assert [check.passed for check in result.checks] == [True, False]
    assert result.checks[1].why == "it ended by turns"
    with pytest.raises(HookUsageError, match="A conversation ends by turns, max_turns"):
        checks.conversation_ended("later")  # type: ignore[arg-type]


# What checks see.


def test_checks_see_the_whole_conversation() -> None:
    seen: list[FinishedTask] = []

    result = talk(
        prompt="Where is it?",
        turns=["A-1", "Thanks"],
        checks=[
            seen.append,
            checks.called("track", {"order": "A-1"}, times=1),
            checks.max_steps(4),
            checks.max_calls(1),
            checks.output_equals("Which order?"),
            checks.any_output_contains("asked for 1"),
        ],
        limits=Limits(max_steps=4, max_calls=1, max_cost_usd=0.5),
    )

    assert [check.failure for check in result.checks if not check.passed] == []
    (task,) = seen
    assert task.outputs == ["Which order?", "A-1 has been asked for 1 times", "Which order?"]
    assert [(message.role, message.content) for message in task.conversation] == [
        ("user", "Where is it?"),
        ("assistant", "Which order?"),
        ("user", "A-1"),
        ("assistant", ""),
        ("tool", "A-1 has been asked for 1 times"),
        ("assistant", "A-1 has been asked for 1 times"),
        ("user", "Thanks"),
        ("assistant", "Which order?"),
    ]


def test_limits_add_up_the_cost_of_all_turns() -> None:
    result = talk(prompt="A-1", turns=["A-2"], limits=Limits(max_cost_usd=0.75, max_tokens=1))

    assert result.failure == (
        "within limits: There were 2 tokens; at most 1 is allowed. It cost 1 USD; at most 0.75 USD are allowed."
    )


def test_a_judge_reads_the_whole_conversation() -> None:
    asked: list[str] = []

    def grade(call: ModelCall) -> str:
        asked.append(call.messages[-1].content)
        return '{"grade": 5}'

    talk(prompt="Where?", turns=["A-1"], checks=[judge("x", model=ScriptedModel(grade))])

    assert '"Where?"' in asked[0]
    assert '"A-1"' in asked[0]
    assert "asked for 1 times" in asked[0]


# Mocks, faults and cassettes.


def test_sequences_of_mocks_go_on_from_turn_to_turn() -> None:
    def rules(mocks: ToolMocks) -> None:
        mocks.tool("track").sequence(["one", "two", "three"])

    result = talk(prompt="A-1", turns=["A-1", "A-2"], mocks=rules)

    assert result.tool_results == ["one", "two", "three"]


def test_a_fake_keeps_its_state_from_turn_to_turn() -> None:
    class Desk:
        def __init__(self) -> None:
            self.count = 0

        def track(self, order: str) -> str:
            self.count += 1
            return f"fake {self.count}"

    result = talk(prompt="A-1", turns=["A-1"], mocks=lambda mocks: mocks.fake(Desk))

    assert result.tool_results == ["fake 1", "fake 2"]


def test_a_rate_limit_counts_the_calls_of_all_turns() -> None:
    limit = FaultSpec(tool="track", fault=RateLimit(calls=1, per_seconds=60, raises=False))

    result = talk(prompt="A-1", turns=["A-1"], faults=[limit])

    assert [call.fault for call in result.calls] == [None, "rate_limit"]


def test_faults_are_drawn_for_each_call_of_a_conversation_anew() -> None:
    spec = FaultSpec(tool="track", fault=RateLimit(calls=1, per_seconds=60), probability=0.5)
    tasks = [Task(id=f"t{number}", prompt="A-1", turns=["A-1"] * 3, faults=[spec]) for number in range(4)]

    patterns = {tuple(call.fault is None for call in result.calls) for result in run(*tasks).results}

    assert len(patterns) > 1
    assert any(len(set(pattern)) > 1 for pattern in patterns)


@BOTH
def test_a_conversation_is_recorded_and_replayed_call_by_call(tmp_path: Path, backend: str) -> None:
    task = Task(id="talk", prompt="A-1", turns=["A-1", "A-1"])

    recorded = run(task, backend=backend, mode="record", cassettes=tmp_path).results[0]
    replayed = run(task, backend=backend, mode="replay", cassettes=tmp_path).results[0]
    in_memory = run(task, backend=backend, mode="real").results[0]

    expected = [f"A-1 has been asked for {count} times" for count in (1, 2, 3)]
    assert recorded.tool_results == replayed.tool_results == in_memory.tool_results == expected
    assert recorded.tools_run == 3
    assert (replayed.tools_run, replayed.mocked, replayed.ok) == (0, 3, True)


def test_a_conversation_that_was_recorded_in_memory_is_replayed_with_the_same_results() -> None:
    cases = cases_of([UserSuite("desk", agent=clerk, tasks=[Task(id="talk", prompt="A-1", turns=["A-1", "A-2"])])])

    real = anyio.run(partial(record, cases))
    replayed = anyio.run(partial(replay, real, cases))

    assert compare(real, replayed).same
    assert (replayed.results[0].mocked, replayed.results[0].tools_run) == (3, 0)


def test_a_replay_with_one_call_more_than_recorded_is_refused(tmp_path: Path) -> None:
    run(Task(id="talk", prompt="A-1", turns=["A-1"]), mode="record", cassettes=tmp_path)

    (result,) = run(Task(id="talk", prompt="A-1", turns=["A-1", "A-1"]), mode="replay", cassettes=tmp_path).results

    assert [call.outcome for call in result.calls] == ["mocked", "mocked", "refused"]


def test_a_scripted_model_plays_all_turns() -> None:
    result = talk(prompt="a", turns=["b"], script=[says("one"), says("two")])

    assert [turn.output for turn in result.turns] == ["one", "two"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"prompt": "x", "turns": ["y"], "user": player("z")}, "turns and a simulated user; leave one out"),
        ({"prompt": "x", "stop": StopConditions(max_turns=1)}, "stop conditions, but neither turns nor"),
        ({"prompt": "x", "turns": ["a", ""]}, "`turns` of task 'talk' is a list of texts"),
    ],
)
def test_tasks_that_contradict_themselves_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(HookUsageError, match=told):
        Task(id="talk", **wrong)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: StopConditions(max_turns=0), "`max_turns` is a whole number from 1; got 0"),
        (lambda: StopConditions(phrase=7), "`phrase` is a text"),  # type: ignore[arg-type]
        (lambda: StopConditions(check=7), "`check` is a function"),  # type: ignore[arg-type]
        (lambda: SimulatedUser(goal=" ", model="x"), "`goal` of a simulated user is a text"),
        (lambda: SimulatedUser(goal="x", model="x", settings=7), "`settings`"),  # type: ignore[arg-type]
    ],
)
def test_invalid_users_and_stop_conditions_are_refused(make: Any, told: str) -> None:
    with pytest.raises(HookUsageError, match=told):
        make()


def test_a_stop_condition_that_names_an_unknown_tool_is_refused() -> None:
    with pytest.raises(HookUsageError, match="no tool 'trak'; did you mean track"):
        run(Task(id="talk", prompt="x", turns=["y"], stop=StopConditions(check=checks.called("trak"))))
