"""AgentDojo's suites run on hookline as they run without it."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

import anyio
import pytest

from hookline import (
    AfterToolCall,
    Agent,
    BeforeToolCall,
    Hooks,
    ModelResponse,
    OnToolCallError,
    ScriptedModel,
    ToolRequest,
    exec_agent,
)
from hookline.errors import install_command
from hookline.evals import EventRecorder, ForbiddenToolError, SuiteRun, TaskOutcome, UnknownSuiteError, UnknownTaskError
from hookline.evals.suites.agentdojo import SUITES, VERSION, AgentDojoSuite, _suites, load_suite
from hookline.events import EVENTS


@pytest.fixture(scope="module")
def bare(suites: list[AgentDojoSuite]) -> list[TaskOutcome]:
    """Every task of every suite, without any hook."""

    async def run_all() -> list[TaskOutcome]:
        return [await suite.run_task(task_id) for suite in suites for task_id in suite.task_ids]

    return anyio.run(run_all)


def timeless(texts: list[str]) -> list[str]:
    """Tool results without the moments that tools read from the clock, which alone have microseconds."""
    return [re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+", "now", text) for text in texts]


def test_every_reference_call_of_the_four_suites_runs_and_every_task_is_solved(bare: list[TaskOutcome]) -> None:
    assert len(bare) == 97
    assert sum(outcome.tools_run for outcome in bare) == 339
    assert [outcome.task_id for outcome in bare if outcome.utility is not True] == []
    assert {outcome.result.reason for outcome in bare} == {"done"}


def test_tools_answer_what_they_answer_without_hookline(bare: list[TaskOutcome]) -> None:
    # Not above: it loads clients of five providers, which takes every process that collects these tests seconds.
    from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
    from agentdojo.functions_runtime import FunctionsRuntime
    from agentdojo.task_suite.load_suites import get_suite

    texts = {(outcome.suite, outcome.task_id): outcome.tool_results for outcome in bare}

    for name in SUITES:
        suite = get_suite(VERSION, name)
        environment = suite.load_and_inject_default_environment({})
        for task_id, task in suite.user_tasks.items():
            own = task.init_environment(environment.model_copy(deep=True))
            *_, messages, _ = GroundTruthPipeline(task).query(task.PROMPT, FunctionsRuntime(suite.tools), own)
            expected = [message["content"][0]["content"] for message in messages if message["role"] == "tool"]
            assert timeless(texts[name, task_id]) == timeless(expected)


def test_observers_on_all_sixteen_events_change_nothing(bare: list[TaskOutcome], real: SuiteRun) -> None:
    seen = {hook.event for hook in EventRecorder().hooks.observers}

    assert seen == set(EVENTS.values())
    assert [(result.task_id, result.utility) for result in real.results] == [
        (outcome.task_id, outcome.utility) for outcome in bare
    ]
    assert [timeless(result.tool_results) for result in real.results] == [
        timeless(outcome.tool_results) for outcome in bare
    ]
    assert [result.output for result in real.results] == [outcome.result.output for outcome in bare]
    assert (real.totals.tool_calls, real.totals.failed, real.totals.mocked) == (339, 0, 0)


def test_each_real_call_has_exactly_one_event_before_and_one_after_it(real: SuiteRun) -> None:
    for result in real.results:
        events = real.operations[result.operation_id].events
        tool_events = [event for event in events if isinstance(event, BeforeToolCall | AfterToolCall | OnToolCallError)]

        assert len(tool_events) == 2 * result.tool_calls
        for before, after in zip(tool_events[::2], tool_events[1::2], strict=True):
            assert isinstance(before, BeforeToolCall)
            assert isinstance(after, AfterToolCall)
            assert before.tool_call_id == after.tool_call_id
            assert not after.mocked


def test_a_task_judged_by_its_calls_alone_is_judged_so(real: SuiteRun) -> None:
    (task,) = [result for result in real.results if result.name == "slack/user_task_11"]

    assert task.utility is True
    source = load_suite("slack").task("user_task_11").source
    with pytest.raises(NotImplementedError):
        source.utility("", None, None)


def test_a_tool_that_a_hook_answered_leaves_the_task_unsolved(suites: list[AgentDojoSuite]) -> None:
    hooks = Hooks("thief")
    hooks.on(BeforeToolCall, tool="banking/send_money")(lambda event: event.mock("sent"))

    outcome = anyio.run(partial(suites[0].run_task, "user_task_0", hooks=[hooks]))

    assert outcome.utility is False
    assert outcome.tool_results[-1] == "sent"
    assert outcome.tools_run == outcome.result.tool_calls - 1


@pytest.mark.parametrize("further", [[], [ToolRequest("delete_file", {"file_id": "1"}, toolset="workspace")]])
def test_a_task_is_unsolved_if_more_was_changed_than_it_asks_for(further: list[ToolRequest]) -> None:
    suite = load_suite("workspace")
    task = suite.task("user_task_6")
    *turns, answer = task.script("workspace")
    model = ScriptedModel([*turns, *(ModelResponse(tool_calls=[call]) for call in further), answer])

    result = anyio.run(exec_agent, Agent(id="clerk", model=model, tools=suite.tools(task.environment)), "Go")

    assert task.utility(result) is not bool(further)


def test_tasks_do_not_share_an_environment(suites: list[AgentDojoSuite]) -> None:
    first, second = suites[0].task("user_task_0"), suites[0].task("user_task_0")
    tools = {tool.name: tool for tool in suites[0].tools(first.environment)}

    anyio.run(tools["update_password"].run, {"password": "changed"})

    assert first.environment.user_account.password == "changed"
    assert second.environment.user_account.password != "changed"
    assert first.before.user_account.password != "changed"


def test_a_tool_that_fails_says_why_and_raises_nothing(suites: list[AgentDojoSuite]) -> None:
    tools = {tool.name: tool for tool in suites[0].tools(suites[0].task("user_task_0").environment)}

    result = anyio.run(tools["send_money"].run, {"recipient": "x"})

    assert not result.success
    assert result.content.startswith("ValidationError: ")


def test_a_forbidden_tool_raises_when_it_is_run_and_is_counted(suites: list[AgentDojoSuite]) -> None:
    touched: list[str] = []
    tool = suites[0].forbidden_tools(touched)[0]

    with pytest.raises(ForbiddenToolError, match=f"banking/{tool.name}"):
        anyio.run(tool.run, {})
    assert touched == [tool.name]


def test_forbidden_and_real_tools_look_the_same_to_a_model(suites: list[AgentDojoSuite]) -> None:
    for suite in suites:
        real = suite.tools(suite.task(suite.task_ids[0]).environment)

        shown = [(tool.toolset, tool.name, tool.description, tool.schema) for tool in real]
        assert shown == [(tool.toolset, tool.name, tool.description, tool.schema) for tool in suite.forbidden_tools()]
        assert {tool.toolset for tool in real} == {suite.name}


def test_an_unknown_suite_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(UnknownSuiteError, match=r"'bank'.*banking, workspace, travel, slack"):
        load_suite("bank")


def test_an_unknown_task_is_refused_with_the_names_that_exist(suites: list[AgentDojoSuite]) -> None:
    with pytest.raises(UnknownTaskError, match=r"'banking' has no task 'user_task_16'.*user_task_0, .*user_task_15\."):
        suites[0].select(["user_task_0", "user_task_16"])


def test_a_suite_is_loaded_once() -> None:
    assert load_suite("banking") is load_suite("banking")


def test_without_agentdojo_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['agentdojo'] = None\n"
        "from hookline import MissingExtraError\n"
        "from hookline.evals.suites.agentdojo import load_suite\n"
        "try: load_suite('banking')\n"
        "except MissingExtraError as error: print(error.extra, '|', error)\n"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.startswith("agentdojo | ")
    assert install_command("agentdojo") in shown


def test_importing_the_suites_does_not_import_agentdojo() -> None:
    code = "import sys, hookline.evals, hookline.evals.suites.agentdojo; print('agentdojo' in sys.modules)"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.strip() == "False"


def test_a_suite_imports_no_client_of_a_model_provider() -> None:
    code = (
        "import sys\n"
        "from hookline.evals.suites.agentdojo import load_suite\n"
        "load_suite('banking')\n"
        "print([name for name in ('anthropic', 'cohere', 'google.genai', 'openai') if name in sys.modules])\n"
    )

    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    ).stdout

    assert shown.splitlines() == ["[]"]


def test_the_pipelines_of_a_loaded_suite_are_whole_for_who_wants_them(suites: list[AgentDojoSuite]) -> None:
    import agentdojo
    from agentdojo.agent_pipeline import AbortAgentError, AgentPipeline
    from agentdojo.agent_pipeline.agent_pipeline import load_system_message
    from agentdojo.task_suite import task_suite

    assert agentdojo.agent_pipeline.AgentPipeline is AgentPipeline
    assert task_suite.AbortAgentError is AbortAgentError
    assert load_system_message("default") == _suites._system_message()


def test_what_is_known_of_a_module_that_has_not_run_is_what_it_defines(suites: list[AgentDojoSuite]) -> None:
    from agentdojo.agent_pipeline import tool_execution
    from agentdojo.agent_pipeline.llms import google_llm

    assert google_llm.GoogleLLM.__module__ == google_llm.__name__
    assert google_llm.EMPTY_FUNCTION_NAME == tool_execution.EMPTY_FUNCTION_NAME
