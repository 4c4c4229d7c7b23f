"""The report is one file that needs nothing else, shows what ran, and trusts nothing that it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import subprocess
import sys
import zlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from hookline import (
    Agent,
    BeforeToolCall,
    Deny,
    Hook,
    HookDispatcher,
    Hooks,
    ModelResponse,
    OperationStore,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.errors import install_command
from hookline.evals import ReportError, SuiteRun, TaskOutcome, ToolMocks, cases_of, compare, record, replay
from hookline.evals.faults import EmptyResult, FaultSpec
from hookline.evals.reports import load_run, save_run
from hookline.evals.reports._report import duration, render_report, write_report
from hookline.evals.reports._report_rows import LEAN_FROM
from hookline.evals.suites import Task, UserSuite, checks

from .shop import ask_for_tea, order_tea, run_suite

HOSTILE = (
    "</script><script>alert('pwned')</script><img src=http://evil.example/x onerror=alert(1)>\"'&{{ 7 * 7 }}\ud800"
)


class HostileSuite:
    """A suite in which every text that can be shown is an attack."""

    name = "hostile"

    def __init__(self, tasks: int = 1) -> None:
        self.tasks = tasks

    def select(self, names: Iterable[str] = ()) -> list[str]:
        return [f"task_{number} {HOSTILE}" for number in range(self.tasks)]

    async def run_task(
        self,
        task_id: str,
        *,
        hooks: Iterable[Hooks | Hook] = (),
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        forbid_tools: bool = False,
    ) -> TaskOutcome:
        @tool(in_thread=False)
        def speak(text: str) -> ToolResult:
            return ToolResult(content=HOSTILE * 200, success=False)

        @tool(in_thread=False)
        def crash() -> str:
            raise RuntimeError(HOSTILE)

        callings = [
            ToolRequest(tool_name="speak", args={"text": "</script>" + HOSTILE[:-1]}, tool_call_id="1"),
            ToolRequest(tool_name="crash", tool_call_id="2"),
        ]
        turns = [ModelResponse(tool_calls=callings, content=HOSTILE), ModelResponse(content=HOSTILE)]
        agent = Agent(id="a", model=ScriptedModel(turns), tools=[speak, crash])
        result = await exec_agent(agent, "go", hooks=hooks, dispatcher=dispatcher, store=store)
        return TaskOutcome(
            suite=self.name,
            task_id=task_id,
            prompt=HOSTILE,
            result=result,
            utility=None if forbid_tools else False,
            tools_run=2,
            forbidden=0,
        )


class Page(HTMLParser):
    """Takes a page apart: its tags, what they refer to, the text of each kind of element, and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.classes: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.data: dict[str, str] = {}
        self._inside = ""
        self._id = ""
        self.feed(text)
        self.rows: list[dict[str, Any]] = json.loads(self.data["rows"])["rows"]
        chunks = [json.loads(zlib.decompress(base64.b64decode(self.data[f"chunk-{number}"]))) for number in self.chunks]
        self.details: list[dict[str, Any]] = [chunks[row["detail"][0]][row["detail"][1]] for row in self.rows]
        self.sides: list[dict[str, Any]] = [side for detail in self.details for side in detail["sides"]]

    @property
    def chunks(self) -> range:
        return range(len(self.data) - 1)

    def bars(self, kind: str) -> list[dict[str, Any]]:
        found = [bar for side in self.sides if side["timeline"] for bar in side["timeline"]["bars"]]
        return [bar for bar in found if bar["kind"] == kind]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self._id = dict(attrs).get("id") or ""
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster", "formaction", "background"):
                self.references.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "class":
                self.classes.append(value or "")
            if name == "style":
                self.styles.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script" and self._id:
            self.data[self._id] = data
            return
        {"script": self.scripts, "style": self.styles}.get(self._inside, self.text).append(data)


def words_of(page: Page) -> str:
    return " ".join(" ".join(page.text).split())


@pytest.fixture(scope="module")
def page(real: SuiteRun, replayed: SuiteRun) -> Page:
    return Page(render_report([real, replayed], compare(real, replayed)))


@pytest.fixture(scope="module")
def hostile() -> str:
    suite = HostileSuite()
    cases = [(suite, task_id) for task_id in suite.select()]
    hooks = Hooks(HOSTILE)

    @hooks.on(BeforeToolCall, id=HOSTILE)
    def broken(event: BeforeToolCall) -> None:
        raise ValueError(HOSTILE)

    run = anyio.run(partial(record, cases, hooks=[hooks]))
    return render_report([run])


def test_it_refers_to_nothing_outside_of_itself(page: Page) -> None:
    assert page.references == []
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not any("url(" in style or "@import" in style for style in page.styles)
    assert not any("http" in script or "import(" in script for script in page.scripts)


def test_it_forbids_the_browser_to_load_anything_and_to_run_any_other_script(real: SuiteRun) -> None:
    text = render_report([real])
    (script,) = Page(text).scripts

    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\"" in text


def test_it_has_a_waterfall_for_every_operation_with_its_steps_calls_and_hooks(
    page: Page, real: SuiteRun, replayed: SuiteRun
) -> None:
    executions = sum(result.hook_executions for run in (real, replayed) for result in run.results)
    left_out = sum(side["timeline"]["leftOut"] for side in page.sides)

    assert len(page.sides) == 2 * 97
    assert len(page.bars("step")) == real.totals.steps + replayed.totals.steps
    assert len(page.bars("hook")) + left_out == executions
    assert len(page.bars("tool")) == 2 * 339
    assert all(bar["call"] is not None for bar in page.bars("tool"))


def test_a_call_stands_with_its_arguments_its_result_and_who_answered_it(page: Page) -> None:
    [detail] = [each for row, each in zip(page.rows, page.details, strict=True) if row["task"] == "user_task_3"][:1]
    real, replayed = detail["sides"]

    assert [call["outcome"] for call in real["calls"]] == ["real"] * len(real["calls"])
    assert [call["outcome"] for call in replayed["calls"]] == ["mocked"] * len(real["calls"])
    assert [call["args"] for call in real["calls"]] == [call["args"] for call in replayed["calls"]]
    assert '"recipient"' in real["calls"][-1]["args"]
    assert all(call["result"] for call in real["calls"])


def test_it_can_be_used_in_the_dark(page: Page) -> None:
    assert page.handlers == []
    assert any("prefers-color-scheme: dark" in style for style in page.styles)


def test_totals_and_the_verdict_stand_on_top(page: Page) -> None:
    text = words_of(page)

    assert "✓ Passed: 97 of 97 tasks; the replay gave the same results. Same results: 339 tool results" in text
    assert text.index("Passed: 97 of 97") < text.index("Tasks passed 97 of 97") < text.index("Started")


def test_the_date_the_versions_and_the_command_follow_the_verdict(page: Page, real: SuiteRun) -> None:
    opening = words_of(page).partition("Tasks passed")[0]

    assert str(real.provenance.started_at) in opening
    assert f"hookline {version('hookline')}, Python {platform.python_version()}, " in opening
    assert "hookline.evals.record()" in opening


def test_the_start_the_versions_the_model_and_the_call_that_made_the_run_stand_at_the_end(
    page: Page, real: SuiteRun
) -> None:
    text = words_of(page)

    started = datetime.fromisoformat(str(real.provenance.started_at))
    assert started.utcoffset() == timedelta(0)
    assert f"Started {started:%Y-%m-%dT%H:%M:%SZ} Versions hookline {version('hookline')}, " in text
    assert f"Python {platform.python_version()}, AgentDojo 0.1.35, AgentDojo suites v1.2.2 Model ground-truth" in text
    assert "Command hookline.evals.record()" in text


def test_a_report_of_a_loaded_run_has_its_waterfalls_and_says_when_it_was_saved(tmp_path: Path) -> None:
    saved = load_run(save_run(tmp_path / "run.json", run_suite([ask_for_tea()], made_by="a test")))

    shown = Page(render_report([saved.suite_run()]))

    assert f"saved {saved.saved_at}" in words_of(shown)
    assert "Command a test" in words_of(shown)
    assert [bar["label"] for bar in shown.bars("tool")] == ["local/price"]


def test_a_result_without_a_timeline_still_has_its_calls() -> None:
    run = run_suite([ask_for_tea()])
    old = replace(run, results=[msgspec.structs.replace(each, timeline=None) for each in run.results])

    [side] = Page(render_report([old])).sides

    assert side["timeline"] is None
    assert [(call["tool"], call["result"]) for call in side["calls"]] == [("local/price", "tea costs 3 EUR")]


def test_failed_tasks_come_first_with_the_reason_in_one_line() -> None:
    bad = order_tea(checks=[checks.output_contains("milk\nand sugar")])

    shown = Page(render_report([run_suite([ask_for_tea(), bad])]))

    assert [(row["task"], row["result"]) for row in shown.rows] == [("order", "failed"), ("tea", "not judged")]
    assert shown.rows[0]["why"].startswith("output contains 'milk\\nand sugar': the answer is ")
    assert "\n" not in shown.rows[0]["why"]
    assert json.loads(shown.data["rows"])["opened"] == 1


def test_attempts_of_a_task_share_a_row_and_one_that_fails_at_times_is_flaky() -> None:
    run = run_suite([ask_for_tea(checks=[checks.output_contains("EUR")])])
    [first] = run.results
    second = msgspec.structs.replace(first, attempt=2, utility=False, score=0.0)

    shown = Page(render_report([replace(run, results=[first, second])]))

    [row] = shown.rows
    assert (row["result"], row["attempts"], row["passed"], row["score"]) == ("flaky", 2, 1, 0.5)
    assert [side["attempt"] for side in shown.sides] == [1, 2]


def test_models_have_rows_of_their_own() -> None:
    run = run_suite([ask_for_tea(checks=[checks.output_contains("EUR")])])
    [one] = run.results
    results = [msgspec.structs.replace(one, model=model) for model in ("small", "large")]

    shown = Page(render_report([replace(run, results=results)]))

    assert [row["model"] for row in shown.rows] == ["small", "large"]
    assert "small, large" in words_of(shown)


def test_a_page_of_many_results_leaves_out_the_hooks_of_those_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_suite([ask_for_tea(checks=[checks.output_contains("EUR")])])
    [one] = run.results
    many = [msgspec.structs.replace(one, task_id=f"tea-{number}") for number in range(LEAN_FROM)]
    bad = msgspec.structs.replace(one, task_id="bad", utility=False)

    shown = Page(render_report([replace(run, results=[*many, bad])]))

    assert {bar["kind"] for bar in shown.sides[0]["timeline"]["bars"]} == {"step", "tool", "hook"}
    assert {bar["kind"] for bar in shown.sides[1]["timeline"]["bars"]} == {"step", "tool"}
    assert shown.sides[1]["timeline"]["leftOut"] == one.hook_executions


def test_hostile_texts_are_data_and_not_obeyed(hostile: str) -> None:
    shown = Page(hostile)

    assert len(shown.scripts) == 1
    assert "img" not in shown.tags
    assert shown.references == shown.handlers == []
    assert "<script>alert" not in hostile
    assert shown.details[0]["prompt"] == HOSTILE
    assert "{{ 7 * 7 }}" in shown.sides[0]["output"]


def test_failures_of_tools_hooks_and_tasks_are_marked(hostile: str) -> None:
    shown = Page(hostile)
    [side] = shown.sides

    assert {bar["status"] for bar in shown.bars("tool")} == {"failed", "raised"}
    assert "failed" in {bar["status"] for bar in shown.bars("hook")}
    assert shown.rows[0]["result"] == side["result"] == "failed"
    assert "characters more" in side["calls"][0]["result"]


def test_what_differs_is_shown_with_both_texts(real: SuiteRun, replayed: SuiteRun) -> None:
    other = msgspec.structs.replace(replayed.results[0], output="another <answer>")
    changed = SuiteRun(
        mode="replayed",
        results=[other, *replayed.results[1:]],
        operations=replayed.operations,
        cassettes=replayed.cassettes,
        duration_ms=1.0,
    )

    shown = Page(render_report([real, changed], compare(real, changed)))

    assert (shown.rows[0]["task"], shown.rows[0]["result"]) == (other.task_id, "differs")
    assert shown.rows[0]["why"] == "The output differs in the replay."
    [difference] = shown.details[0]["differences"]
    assert difference["replayed"] == "another <answer>"


def test_a_missing_task_is_told(real: SuiteRun, replayed: SuiteRun) -> None:
    shorter = SuiteRun(
        mode="replayed",
        results=replayed.results[1:],
        operations=replayed.operations,
        cassettes=replayed.cassettes,
        duration_ms=1.0,
    )

    page = render_report([real, shorter], compare(real, shorter))

    assert "96 of 97 tasks passed; 1 gave different results in the replay: banking/user_task_0." in page
    assert "Different results: 1 difference in 97 tasks" in page


def test_hundreds_of_operations_with_texts_that_no_encoding_knows_are_written(tmp_path: Path) -> None:
    suite = HostileSuite(tasks=100)
    cases = [(suite, task_id) for task_id in suite.select()]
    real = anyio.run(partial(record, cases))
    replayed = anyio.run(partial(replay, real, cases))

    written = write_report(tmp_path / "r.html", [real, replayed], compare(real, replayed))

    assert len(Page(written.read_text(encoding="utf-8")).sides) == 200


def test_an_empty_run_gives_a_page(tmp_path: Path) -> None:
    run = anyio.run(partial(record, []))

    assert "No task ran." in write_report(tmp_path / "r.html", [run]).read_text(encoding="utf-8")


def test_each_call_says_who_answered_it_and_what_struck_it(tmp_path: Path) -> None:
    def cheap(mocks: ToolMocks) -> None:
        mocks.tool("price", name="the-cheap-rule").returns("free")

    faults = [FaultSpec(tool="order", fault=EmptyResult(), name="the-empty-fault", probability=1.0)]
    run = run_suite([ask_for_tea(mocks=cheap), order_tea()], mode="record", cassettes=tmp_path, faults=faults, seed=5)

    shown = Page(render_report([run]))

    calls = [call for side in shown.sides for call in side["calls"]]
    assert [call["outcome"] for call in calls] == ["mocked", "real", "real"]
    assert (calls[0]["by"], calls[0]["rule"]) == ("mocks.answer", "the-cheap-rule")
    assert [call.get("fault") for call in calls] == [None, "the-empty-fault", "the-empty-fault"]
    assert "Injected faults seed 5" in words_of(shown)


def test_a_denied_call_names_the_hook_that_denied_it() -> None:
    rules = Hooks("rules")
    rules.guard(ToolCall, id="never")(lambda call: Deny("not today"))

    shown = Page(render_report([run_suite([ask_for_tea()], hooks=[rules])]))

    assert [bar["status"] for bar in shown.bars("tool")] == ["denied"]
    assert shown.sides[0]["calls"][0]["by"] == "never"


def test_sub_agents_have_bars_too() -> None:
    child = Agent(id="writer", model=ScriptedModel([ModelResponse(content="a poem")]))
    asks_child = ToolRequest(toolset="agent", tool_name="writer", args={"instruction": "write"}, tool_call_id="1")
    turns = [ModelResponse(tool_calls=[asks_child]), ModelResponse(content="done")]
    agent = Agent(id="poet", model=ScriptedModel(turns), sub_agents=[child])
    suite = UserSuite("poems", agent=agent, tasks=[Task(id="one", prompt="Write.")])

    shown = Page(render_report([anyio.run(partial(record, cases_of([suite])))]))

    assert [bar["label"] for bar in shown.bars("agent")] == ["Sub-agent writer"]


def test_a_refused_call_is_marked_and_its_task_failed() -> None:
    shown = Page(render_report([run_suite([ask_for_tea()], mode="strict")]))

    assert shown.sides[0]["calls"][0]["outcome"] == "refused"
    assert shown.rows[0]["result"] == "failed"
    assert "this run is strict" in shown.rows[0]["why"]


def test_the_tools_of_a_suite_stand_there_called_or_not() -> None:
    shown = Page(render_report([run_suite([ask_for_tea(), order_tea()])]))

    assert shown.classes.count("chip real") == 2 + 1  # one in the legend
    assert shown.classes.count("chip never") == 1 + 1
    assert "2 of 3 called" in words_of(shown)


def test_checks_stand_with_what_they_miss() -> None:
    run = run_suite([ask_for_tea(checks=[checks.output_contains("EUR"), checks.output_contains("<b>USD</b>")])])

    page = render_report([run])

    assert [(check["passed"], check["why"]) for check in Page(page).sides[0]["checks"]] == [
        (True, ""),
        (False, "the answer is '3 EUR'"),
    ]
    assert "<b>USD" not in page


def test_an_interrupted_run_says_how_much_is_missing() -> None:
    run = run_suite([ask_for_tea()])
    run.not_run.extend(["shop/a", "shop/b"])

    assert "<b>! Interrupted:</b> 0 of 3 tasks passed; 2 did not run; 1 had no verdict." in render_report([run])


def test_a_report_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    run = run_suite([ask_for_tea()])
    before = write_report(tmp_path / "r.html", [run]).read_bytes()
    broken = msgspec.structs.replace(run.results[0], checks=None)  # type: ignore[type-var]

    with pytest.raises(TypeError):
        write_report(tmp_path / "r.html", [replace(run, results=[broken])])

    assert (tmp_path / "r.html").read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["r.html"]


def test_a_path_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path, real: SuiteRun) -> None:
    with pytest.raises(ReportError, match="there is no folder"):
        write_report(tmp_path / "missing" / "r.html", [real])
    with pytest.raises(ReportError, match="it is a folder"):
        write_report(tmp_path, [real])


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from hookline import MissingExtraError\n"
        "from hookline.evals.reports._report import render_report\n"
        "try: render_report([])\n"
        "except MissingExtraError as error: print(error)\n"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert install_command("cli") in shown


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0.0, "0.0 µs"), (0.0123, "12.3 µs"), (4.5678, "4.57 ms"), (1234.0, "1.23 s")]
)
def test_times_are_shown_in_a_fitting_unit(milliseconds: float, text: str) -> None:
    assert duration(milliseconds) == text
