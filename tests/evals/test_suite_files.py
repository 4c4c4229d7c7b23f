"""A suite of one's own, in YAML or Python: it runs, judges, and says where its file is wrong."""

from __future__ import annotations

import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from hookline import Agent, ScriptedModel, ToolRequest
from hookline.errors import HookUsageError
from hookline.evals import SuiteRun, UnknownSuiteError, UnknownTaskError, cases_of
from hookline.evals.running import SuiteRunner
from hookline.evals.suites import (
    Expected,
    FinishedTask,
    SuiteFileError,
    Task,
    UserSuite,
    asks,
    checks,
    find_suites,
    load_suite_file,
    says,
)

from .shop import ask_for_tea, order_tea, run_suite, tools

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "own_suite"

HEAD = "suite: shop\ntools: {tools}:tools\ntasks:\n  - id: tea\n    prompt: What does tea cost?\n"


def run(path: Path, **options: Any) -> SuiteRun:
    return anyio.run(SuiteRunner(cases_of([load_suite_file(path)]), **options).run)


def written(folder: Path, text: str) -> Path:
    """The file, beside tools whose module has a name of its own."""
    module = f"tools_of_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text("tools = []\nnothing = None\n")
    path = folder / "suite.yaml"
    path.write_text(text.replace("{tools}", module))
    return path


@pytest.mark.parametrize("name", ["shop.yaml", "shop_suite.py"])
def test_the_documented_examples_pass_all_their_checks(name: str) -> None:
    result = run(EXAMPLES / name)

    assert [(each.name, each.failure) for each in result.results if not each.ok] == []
    assert len(result.results) >= 2
    assert all(each.score == 1.0 for each in result.results)


def test_the_documented_examples_can_be_recorded_and_replayed_without_their_tools(tmp_path: Path) -> None:
    recorded = run(EXAMPLES / "shop.yaml", mode="record", cassettes=tmp_path)
    replayed = run(EXAMPLES / "shop.yaml", mode="replay", cassettes=tmp_path)

    assert replayed.ok
    assert replayed.totals.tools_run == replayed.totals.forbidden == 0
    assert [each.tool_results for each in replayed.results] == [each.tool_results for each in recorded.results]


def test_every_task_gets_tools_with_a_state_of_their_own() -> None:
    twice = [order_tea(), Task(**{**vars(order_tea()), "id": "again"})]

    results = run_suite(twice).results

    assert [each.tool_results for each in results] == [["3 tea left", "2 tea left"]] * 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_rules_of_a_task_answer_that_task_alone_and_in_every_mode(backend: str) -> None:
    def cheap(mocks: Any) -> None:
        mocks.tool("price", name="cheap").returns("tea is free")

    mocked, real = run_suite([ask_for_tea(mocks=cheap), order_tea()], backend=backend).results

    assert mocked.tool_results == ["tea is free"]
    assert [(call.outcome, call.rule) for call in mocked.calls] == [("mocked", "cheap")]
    assert {(call.outcome, call.rule) for call in real.calls} == {("real", None)}


def test_an_agent_of_ones_own_keeps_its_model_unless_a_task_has_a_script() -> None:
    def agent() -> Agent:
        return Agent(id="seller", model=ScriptedModel([says("I sell tea.")]), tools=tools())

    suite = UserSuite("shop", agent=agent, tasks=[Task(id="own", prompt="Hello"), ask_for_tea()])

    own, scripted = anyio.run(SuiteRunner(cases_of([suite])).run).results

    assert (own.output, scripted.output) == ("I sell tea.", "3 EUR")


def test_tools_of_sub_agents_are_watched_and_forbidden_too() -> None:
    asked = Agent(id="clerk", model=ScriptedModel([asks("price", item="tea"), says("3 EUR")]), tools=tools())
    chief = Agent(id="chief", model=ScriptedModel([]), sub_agents=[asked])
    script = [asks("agent/clerk", instruction="price of tea"), says("done")]
    suite = UserSuite("firm", agent=chief, tasks=[Task(id="ask", prompt="Ask", script=script)])

    outcome = anyio.run(partial(suite.run_task, "ask", forbid_tools=True))

    assert outcome.forbidden == 1


def test_a_trajectory_that_is_nearly_right_has_a_score_and_shows_both_sides() -> None:
    expected = Expected(calls=[("order", {"item": "tea"}), ("order", {"item": "milk"})], mode="strict")

    (result,) = run_suite([order_tea(expected=expected)]).results

    assert not result.ok
    assert result.score == 0.75
    assert "milk" in (result.failure or "")


@pytest.mark.parametrize(
    ("check", "passed", "score", "why"),
    [
        (checks.output_contains("EUR"), True, 1.0, ""),
        (checks.output_contains("USD"), False, 0.0, "the answer is '3 EUR'"),
        (checks.output_equals("3 EUR"), True, 1.0, ""),
        (checks.output_equals("3"), False, 0.0, "the answer is '3 EUR'"),
        (checks.output_matches(r"^\d+ EUR$"), True, 1.0, ""),
        (checks.output_matches("^EUR"), False, 0.0, "the answer is '3 EUR'"),
        (checks.called("price", {"item": "tea"}, times=1), True, 1.0, ""),
        (checks.called("price", {"item": "milk"}), False, 0.0, "it was called 0 times so; calls: local/price"),
        (checks.called("price", times=2), False, 0.0, "it was called 1 times so; calls: local/price"),
        (checks.not_called("order"), True, 1.0, ""),
        (checks.not_called("pri*"), False, 0.0, "it was called 1 times, first with {'item': 'tea'}"),
        (checks.not_called("*/pri*"), False, 0.0, "it was called 1 times, first with {'item': 'tea'}"),
        (checks.max_calls(1), True, 1.0, ""),
        (checks.max_calls(0), False, 0.0, "there were 1: local/price"),
        (checks.max_calls(0, "order"), True, 1.0, ""),
        (checks.max_steps(1), False, 0.0, "there were 2"),
        (lambda task: None, True, 1.0, ""),
        (lambda task: 0.5, False, 0.5, "only 0.50 of 1"),
        (lambda task: False, False, 0.0, ""),
        (lambda task: 7, False, 0.0, "a number from 0 to 1; this one gave 7"),
        (lambda task: 1 / 0, False, 0.0, "the check itself failed with ZeroDivisionError"),
        (lambda task: pytest.fail("too dear"), False, 0.0, "the check itself failed with Failed: too dear"),
        (lambda task: sys.exit(0), False, 0.0, "the check itself failed with SystemExit: 0"),
    ],
)
def test_a_check_is_content_or_says_what_it_misses(check: Any, passed: bool, score: float, why: str) -> None:
    (result,) = run_suite([ask_for_tea(checks=[check])]).results

    (told,) = result.checks
    assert (told.passed, told.score) == (passed, score)
    assert why in told.why
    assert result.ok is passed


def test_async_checks_and_assertions_count(capsys: pytest.CaptureFixture[str]) -> None:
    async def waits(task: FinishedTask) -> bool:
        await anyio.lowlevel.checkpoint()
        return task.tool_results == ["tea costs 3 EUR"]

    def asserts(task: FinishedTask) -> None:
        assert not task.calls, "there are calls"

    (result,) = run_suite([ask_for_tea(checks=[waits, asserts])]).results

    assert [check.passed for check in result.checks] == [True, False]
    assert "there are calls" in result.checks[1].why


def test_a_check_can_tell_that_no_tool_could_run(tmp_path: Path) -> None:
    seen: list[bool] = []
    task = ask_for_tea(checks=[lambda task: seen.append(task.tools_forbidden)])

    run_suite([task], mode="record", cassettes=tmp_path)
    run_suite([task], mode="replay", cassettes=tmp_path)

    assert seen == [False, True]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", 1, "the suite is a mapping; got nothing"),
        ("suite: [\n", 2, "not YAML"),
        ("- suite", 1, "the suite is a mapping"),
        ("suite: shop\n", 1, "the suite needs `tasks`"),
        ("suite: 7\ntasks: []\n", 1, "`suite` is a text; got 7"),
        ("suite: shop\ntoolz: x\ntasks: []\n", 2, "the suite has no key `toolz`; it takes `suite`, `tools`, `agent`"),
        ("suite: shop\ntools: shop\ntasks: []\n", 2, "an import path is written package.module:name; got 'shop'"),
        ("suite: shop\ntools: no_such_module_x:tools\ntasks: []\n", 2, "there is no module 'no_such_module_x'"),
        ("suite: shop\ntools: '{tools}:none'\ntasks: []\n", 2, "has no 'none'"),
        ("suite: shop\nsuite: shop\n", 2, "`suite` is given twice"),
        ("suite: shop\ntasks: 7\n", 2, "`tasks` is a list; got 7"),
        ("suite: shop\ntasks:\n  - id: a\n", 3, "a task needs `prompt`"),
        ("suite: shop\ntasks:\n  - 7\n", 3, "a task is a mapping; got 7"),
        (HEAD + "    scripts: []\n", 6, "a task has no key `scripts`; it takes `id`, `prompt`"),
        (HEAD + "    script:\n      - {}\n", 7, "a turn needs `say`"),
        (HEAD + "    script:\n      - {tool: price, arg: {}}\n", 7, "a turn has no key `arg`"),
        (HEAD + "    script:\n      - {tool: price, args: tea}\n", 7, "`args` is a mapping; got 'tea'"),
        (HEAD + "    script: []\n    model: '{tools}:nothing'\n", 7, "has a `script`, which is its model"),
        (HEAD + "    mocks:\n      - {tool: price}\n", 7, "a mock has one answer, one of returns, raises"),
        (HEAD + "    mocks:\n      - {tool: price, returns: 1, fails: x}\n", 7, "got `returns` and `fails`"),
        (HEAD + "    mocks:\n      - {tool: price, raises: Nope}\n", 7, "a built-in exception"),
        (HEAD + "    mocks:\n      - {tool: price, sequence: []}\n", 7, "A sequence of answers needs at least one"),
        (HEAD + "    mocks:\n      - {tool: price, args_mode: some, returns: 1}\n", 7, "`args_mode` is one of exact"),
        (HEAD + "    expected: {call: []}\n", 6, "`expected` needs `calls`"),
        (HEAD + "    expected: {calls: [], mode: loose}\n", 6, "`mode` is one of strict, in_order"),
        (HEAD + "    checks: [{outputs: x}]\n", 6, "a check has no kind `outputs`; it is one of output_contains"),
        (HEAD + "    checks: [output_contains]\n", 6, "a check is a mapping with one key"),
        (HEAD + "    checks: [{output_contains: 3}]\n", 6, "this check takes a text; got 3"),
        (HEAD + "    checks: [{output_matches: '('}]\n", 6, "is not a regular expression"),
        (HEAD + "    checks: [{max_calls: many}]\n", 6, "this check takes a whole number from 0; got 'many'"),
        (HEAD + "    checks: [{python: '{tools}:nothing'}]\n", 6, "is not a function of the finished task"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path: Path, text: str, line: int, told: str) -> None:
    path = written(tmp_path, text)

    with pytest.raises(SuiteFileError) as caught:
        load_suite_file(path)

    assert told in str(caught.value)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_module_of_the_folder_that_another_one_hides_is_told(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("tools = []\n")
    (tmp_path / "suite.yaml").write_text("suite: shop\ntools: json:tools\ntasks: []\n")

    with pytest.raises(SuiteFileError, match="hidden by another module 'json'"):
        load_suite_file(tmp_path / "suite.yaml")


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "  - id: tea\n    prompt: again\n")

    with pytest.raises(SuiteFileError, match="two tasks 'tea'"):
        load_suite_file(path)


@pytest.mark.parametrize(
    ("code", "line", "told"),
    [
        ("x = 1\n", None, "it defines no `suite`"),
        ("suite = 7\n", None, "its `suite` is 7, which is not a suite"),
        ("x = 1\n1 / 0\n", 2, "running it fails: ZeroDivisionError"),
        ("def broken(:\n", 1, "running it fails: SyntaxError"),
        ("\nraise SystemExit(0)\n", 2, "running it fails: SystemExit: 0"),
        ("import no_such_module_y\n", 1, "running it fails: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_in_a_python_file_is_told(tmp_path: Path, code: str, line: int | None, told: str) -> None:
    path = tmp_path / "broken_suite.py"
    path.write_text(code)

    with pytest.raises(SuiteFileError) as caught:
        load_suite_file(path)

    assert told in str(caught.value)
    assert caught.value.line == line


def test_a_missing_file_and_an_unknown_name_are_refused(tmp_path: Path) -> None:
    for name in ("none.yaml", f"{'x' * 300}.yaml"):
        with pytest.raises(SuiteFileError, match="there is no such file"):
            find_suites(str(tmp_path / name))
    with pytest.raises(UnknownSuiteError, match=r"agentdojo:all, FILE\.yaml, FILE\.py"):
        find_suites("banking")


def test_all_of_agentdojo_has_one_name() -> None:
    assert [suite.name for suite in find_suites("agentdojo:all")] == ["banking", "workspace", "travel", "slack"]


def test_a_suite_tells_its_tools_prompts_and_ground_truth() -> None:
    expected = Expected(calls=[("local/price", {"item": "tea"}), "order"])
    suite = UserSuite("shop", tools=tools, tasks=[ask_for_tea(expected=expected), order_tea()])

    assert [spec.name for spec in suite.tool_specs] == ["price", "order", "pay"]
    assert suite.prompt("tea") == "What does tea cost?"
    assert suite.ground_truth("tea")[0] == ToolRequest(
        toolset="local", tool_name="price", args={"item": "tea"}, tool_call_id=""
    )
    assert suite.ground_truth("order") == []
    with pytest.raises(UnknownTaskError):
        suite.prompt("coffee")
    with pytest.raises(HookUsageError, match="leave `tools` out"):
        UserSuite("shop", tools=tools, agent=Agent(id="a", model=ScriptedModel([])), tasks=[])
    with pytest.raises(HookUsageError, match="arguments for one tool by name; give several calls as ToolRequests"):
        asks("price", "order", item="tea")


def test_agentdojo_is_a_suite_like_any_other(suites: list[Any]) -> None:
    banking = suites[0]

    truth = banking.ground_truth("user_task_0")

    assert [f"{call.toolset}/{call.tool_name}" for call in truth] == ["banking/read_file", "banking/send_money"]
    assert banking.prompt("user_task_0").startswith("Can you please pay the bill")
    assert len(banking.tool_specs) == 11
