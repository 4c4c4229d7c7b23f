"""Names of tools in checks, expectations and mocks: one that there is not would never match, and so never fail."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hookline import Agent, ModelResponse, ScriptedModel, Tool, ToolRequest, tool
from hookline.cli._app import app
from hookline.errors import HookUsageError
from hookline.evals import CheckResult
from hookline.evals.running import SuiteRunner, cases_of
from hookline.evals.suites import (
    Expected,
    SuiteFileError,
    Task,
    ToolNameError,
    UserSuite,
    checks,
    load_suite_file,
    says,
)
from hookline.evals.suites.checks import Check
from tests.evals.shop import ask_for_tea, run_suite, tools

NAMES = ("price", "order", "pay")

SUITE = """\
suite: shop
tools: tests.evals.shop:tools
tasks:
  - id: tea
    prompt: What does tea cost?
    script: [{say: 3 EUR}]
    mocks:
      - {tool: MOCK, returns: paid}
    expected:
      mode: subset
      calls:
        - price
        - tool: EXPECTED
          args: {item: tea}
    checks:
      - output_contains: EUR
      - not_called: CHECK
      - max_calls: {count: 3, tool: LIMIT}
"""
FINE = {"MOCK": "pay", "EXPECTED": "order", "CHECK": "order", "LIMIT": "local/*"}


class Source:
    """A source whose tools are known when it is open, as those of an MCP server are."""

    toolset = "bank"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[list[Tool]]:
        @tool(in_thread=False)
        def transfer(amount: int) -> str:
            return f"sent {amount}"

        yield [Tool(name="transfer", toolset="bank", description="", schema=transfer.schema, run=transfer.run)]


def helped(*calls: ToolRequest, sources: tuple[Source, ...] = ()) -> Agent:
    """An agent with a tool of its own, and a sub-agent with another one."""
    own, order, _ = tools()
    helper = Agent(id="helper", model=ScriptedModel([ModelResponse(content="helped")]), tools=[order])
    turns = [ModelResponse(tool_calls=[call]) for call in calls]
    script = ScriptedModel([*turns, ModelResponse(content="done")])
    return Agent(id="boss", model=script, tools=[own, *sources], sub_agents=[helper])


def suite_of(agent: Agent, *given: Check, **further: Any) -> UserSuite:
    return UserSuite("shop", agent=lambda: agent, tasks=[Task(id="tea", prompt="?", checks=given, **further)])


def told(check: Check, agent: Agent) -> CheckResult:
    """What a check comes to in a run of an agent."""

    async def run() -> CheckResult:
        outcome = await suite_of(agent, check).run_task("tea")
        return outcome.checks[-1]

    return anyio.run(run)


def written(tmp_path: Path, **names: str) -> Path:
    text = SUITE
    for place, name in {**FINE, **names}.items():
        text = text.replace(place, name)
    (tmp_path / "suite.yaml").write_text(text)
    return tmp_path / "suite.yaml"


def test_a_file_whose_names_are_right_is_read(tmp_path: Path) -> None:
    assert load_suite_file(written(tmp_path)).select() == ["tea"]


@pytest.mark.parametrize(
    ("place", "name", "said"),
    [
        ("CHECK", "ordr", "line 17: no tool 'ordr'; did you mean order?"),
        ("CHECK", "local/ordr", "line 17: no tool 'local/ordr'; did you mean local/order?"),
        ("CHECK", "bank/order", "line 17: no tool 'bank/order'; did you mean local/order?"),
        ("CHECK", "weather", "line 17: no tool 'weather'; the tools are price, order, pay."),
        ("CHECK", '"*/ord?r?"', "line 17: no tool '*/ord?r?'; did you mean order?"),
        ("LIMIT", "prize", "line 18: no tool 'prize'; did you mean price?"),
        ("EXPECTED", "local/ordr", "line 13: no tool 'ordr'; did you mean order?"),
        ("EXPECTED", "ordr", "line 13: no tool 'ordr'; did you mean order?"),
        ("MOCK", "pai", "line 8: no tool 'pai'; did you mean pay?"),
    ],
)
def test_a_misspelt_name_in_a_file_is_a_wrong_use_with_its_line(
    tmp_path: Path, place: str, name: str, said: str
) -> None:
    path = written(tmp_path, **{place: name})

    done = CliRunner().invoke(app, ["eval", str(path)])

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"hookline: {path}, {said}\n"


def test_the_line_is_that_of_what_is_wrong_where_a_name_is_right_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "suite: x\nagent: tests.evals.test_tool_names:helped\ntasks:\n  - id: a\n    prompt: p\n"
        "    mocks: [{tool: order, returns: x}]\n    checks:\n      - not_called: price\n      - not_called: order\n"
    )

    with pytest.raises(SuiteFileError, match=r"line 9: no tool 'order': a sub-agent has it"):
        load_suite_file(path)


def test_a_source_that_gives_no_tool_has_none_to_check() -> None:
    class Empty(Source):
        @asynccontextmanager
        async def open(self) -> AsyncIterator[list[Tool]]:
            yield []

    assert not told(checks.not_called("transfer"), helped(sources=(Empty(),))).passed


def test_a_file_without_tools_has_no_check_of_a_tool(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("suite: x\ntasks:\n  - {id: a, prompt: p, script: [{say: hi}], checks: [{not_called: ordr}]}\n")

    with pytest.raises(SuiteFileError, match=r"line 3: no tool 'ordr'; the agent has no tools\."):
        load_suite_file(path)


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({"checks": [checks.called("prise")]}, "Task 'shop/tea', check 'prise called': no tool 'prise'; did you mean"),
        ({"expected": Expected(calls=["prise"])}, "Task 'shop/tea', the expected calls: no tool 'prise'"),
        ({"expected": Expected(calls=["price"], tools={"odrer": "ignore"})}, "the expected calls: no tool 'odrer'"),
    ],
)
def test_a_misspelt_name_in_python_is_refused_when_the_suite_is_made(further: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolNameError) as refused:
        UserSuite("shop", tools=tools, tasks=[ask_for_tea(**further)])

    assert said in str(refused.value)
    assert isinstance(refused.value, HookUsageError)


def test_a_call_that_only_says_a_name_is_of_whichever_tool_has_it() -> None:
    asked = ToolRequest(tool_name="transfer", args={"amount": 1}, tool_call_id="")
    named = Tool(name="transfer", toolset="bank", description="", schema={"type": "object"}, run=tools()[0].run)

    suite = UserSuite("shop", tools=[named], tasks=[Task(id="a", prompt="?", expected=Expected(calls=[asked]))])

    assert suite.task_ids == ["a"]


@given(
    st.sampled_from(NAMES) | st.text(st.characters(codec="utf-8", exclude_characters="*?[/"), min_size=1, max_size=8)
)
def test_a_name_is_refused_exactly_if_no_tool_has_it(name: str) -> None:
    task = ask_for_tea(checks=[checks.not_called(name)])
    if name in NAMES:
        assert UserSuite("shop", tools=tools, tasks=[task]).task_ids == ["tea"]
        return

    with pytest.raises(ToolNameError) as refused:
        UserSuite("shop", tools=tools, tasks=[task])

    assert repr(name) in str(refused.value)


def test_tools_of_a_source_are_looked_for_once_it_is_open() -> None:
    agent = helped(sources=(Source(),))

    assert told(checks.not_called("bank/transfer"), agent).passed
    assert told(checks.not_called("transfer"), agent).passed
    for wrong in ("transfr", "bank/transfr"):
        missed = told(checks.not_called(wrong), agent)
        assert (missed.passed, missed.score) == (False, 0.0)
        assert missed.why.startswith(f"no tool {wrong!r}; did you mean ")


def test_a_name_that_no_source_can_have_is_refused_before_any_is_open() -> None:
    with pytest.raises(ToolNameError, match="no tool 'local/transfer'"):
        suite_of(helped(sources=(Source(),)), checks.not_called("local/transfer"))


def test_a_sub_agent_is_a_tool_whose_calls_are_counted() -> None:
    asked = ToolRequest(toolset="agent", tool_name="helper", args={"instruction": "help"}, tool_call_id="t")

    assert told(checks.called("agent/helper", {"instruction": "help"}, times=1), helped(asked)).passed
    assert not told(checks.not_called("agent/helper"), helped(asked)).passed
    assert not told(checks.max_calls(0, "agent/*"), helped(asked)).passed
    assert told(checks.max_calls(0), helped(asked)).passed
    assert told(checks.not_called("agent/helper"), helped()).passed


def test_a_tool_of_a_sub_agent_may_be_mocked_but_its_calls_are_not_those_of_the_task() -> None:
    class Mocking:
        tool_patterns = ("order",)

        def __call__(self, mocks: object) -> None: ...

    assert suite_of(helped(), mocks=Mocking()).task_ids == ["tea"]
    with pytest.raises(
        ToolNameError, match="no tool 'order': a sub-agent has it, whose calls are not those of the task"
    ):
        suite_of(helped(), checks.not_called("order"))


def test_rules_for_tools_of_sources_and_sub_agents_are_not_said_to_match_nothing(
    recwarn: pytest.WarningsRecorder,
) -> None:
    def rules(mocks: Any) -> None:
        mocks.tool("bank/transfer").returns("sent")
        mocks.tool("order").returns("ordered")

    suite = suite_of(helped(sources=(Source(),)), checks.max_steps(1), mocks=rules)

    assert anyio.run(SuiteRunner(cases_of([suite]), mode="spy").run).ok
    assert not [each for each in recwarn if "never match" in str(each.message)]


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
def test_a_check_whose_score_is_none_has_failed(score: float) -> None:
    def judge(task: object) -> CheckResult:
        return CheckResult(name="judge", passed=True, score=score)

    (result,) = run_suite([Task(id="a", prompt="?", script=[says("hi")], checks=[judge])]).results

    assert (result.ok, result.score) == (False, 0.0)
    assert "a score is a number from 0 to 1" in (result.failure or "")
