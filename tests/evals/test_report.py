"""The report is one file that needs nothing else, shows what ran, and trusts nothing that it shows."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path

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
from hookline.evals.reports._report import axis_label, duration, render_report, write_report
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
    """Takes a page apart: its tags, what they refer to, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.classes: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
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
        {"script": self.scripts, "style": self.styles}.get(self._inside, self.text).append(data)


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
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not any("url(" in style or "@import" in style for style in page.styles)
    assert not any("http" in script or "import" in script for script in page.scripts)


def test_it_forbids_the_browser_to_load_anything(real: SuiteRun) -> None:
    assert "content=\"default-src 'none';" in render_report([real])


def test_it_has_a_waterfall_for_every_operation_with_its_steps_calls_and_hooks(
    page: Page, real: SuiteRun, replayed: SuiteRun
) -> None:
    executions = sum(
        len(run.operations[each.operation_id].executions) for run in (real, replayed) for each in run.results
    )

    assert page.classes.count("side") == 2 * 97
    assert page.classes.count("bar step") == real.totals.steps + replayed.totals.steps
    assert page.classes.count("bar hook") == page.classes.count("bar tick") == executions
    # Each call has a bar in its waterfall and one in the overview.
    assert page.classes.count("bar tool") == 2 * 339
    assert page.classes.count("bar mock") == 2 * 339


def test_mocked_calls_differ_by_colour_pattern_and_label(page: Page) -> None:
    (style,) = [style for style in page.styles if ".bar.mock" in style]

    assert "repeating-linear-gradient" in style.partition(".bar.mock")[2].partition("}")[0]
    assert page.classes.count("tag mock") > 339
    assert "the tool did not run" in "".join(page.text)


def test_it_can_be_used_by_keyboard_and_in_the_dark(page: Page) -> None:
    assert page.tags.count("summary") == page.tags.count("details") > 97 * 2
    assert page.handlers == []
    assert any("prefers-color-scheme: dark" in style for style in page.styles)


def test_bars_stay_inside_of_their_track(page: Page) -> None:
    for style in page.styles:
        if style.startswith("left:min("):
            assert 0 <= float(style.removeprefix("left:min(").partition("%")[0]) <= 100


def test_totals_and_the_verdict_stand_on_top(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())

    assert "✓ Passed: 97 of 97 tasks; the replay gave the same results. Same results: 339 tool results" in text
    assert text.index("Passed: 97 of 97") < text.index("Started") < text.index("97/97")


def test_the_start_the_versions_the_model_and_the_call_that_made_the_run_stand_below_the_verdict(
    page: Page, real: SuiteRun
) -> None:
    text = " ".join(" ".join(page.text).split())

    started = datetime.fromisoformat(str(real.provenance.started_at))
    assert started.utcoffset() == timedelta(0)
    assert f"Started {started:%Y-%m-%dT%H:%M:%SZ} Versions hookline {version('hookline')}, " in text
    assert f"Python {platform.python_version()}, AgentDojo 0.1.35, AgentDojo suites v1.2.2 Model scripted" in text
    assert "Command hookline.evals.record()" in text


def test_a_report_of_a_loaded_run_lists_the_calls_and_says_what_is_unknown(tmp_path: Path) -> None:
    saved = load_run(save_run(tmp_path / "run.json", run_suite([ask_for_tea()], made_by="a test")))

    text = " ".join(" ".join(Page(render_report([saved.suite_run()])).text).split())

    assert f"saved {saved.saved_at}" in text
    assert "Command a test" in text
    assert "No waterfall: this run has no events. A saved run does not keep them. real local/price" in text


def test_a_failed_task_comes_first_and_is_shown_in_full() -> None:
    bad = order_tea(checks=[checks.output_contains("milk")])

    page = render_report([run_suite([ask_for_tea(), bad])])

    assert page.index(">order</span>") < page.index(">tea</span>")
    assert [part.partition(">")[0] for part in page.split('<details class="task')[1:]] == [' bad" open', '"']


def test_a_page_of_several_suites_that_passed_shows_their_names_alone(page: Page, real: SuiteRun) -> None:
    text = render_report([real])

    assert text.count('<details class="group">') == 4
    assert '<details class="group" open>' not in text
    assert '<details class="task" open>' not in text


def test_hostile_texts_are_shown_and_not_obeyed(hostile: str) -> None:
    shown = Page(hostile)

    assert shown.tags.count("script") == 1
    assert "img" not in shown.tags
    assert shown.references == shown.handlers == []
    assert "<script>alert" not in hostile
    assert "&lt;script&gt;alert" in hostile
    assert "{{ 7 * 7 }}" in hostile


def test_failures_of_tools_hooks_and_tasks_are_marked(hostile: str) -> None:
    shown = Page(hostile)
    text = " ".join(shown.text)

    assert "raised" in text
    assert "failed" in text
    assert "✗ check" in text
    assert "utility" not in text
    assert "task bad" in shown.classes
    assert shown.classes.count("bar tool bad") == 4
    assert "characters more" in text


def test_what_differs_is_shown_with_both_texts(real: SuiteRun, replayed: SuiteRun) -> None:
    other = msgspec.structs.replace(replayed.results[0], output="another <answer>")
    changed = SuiteRun(
        mode="replayed",
        results=[other, *replayed.results[1:]],
        operations=replayed.operations,
        cassettes=replayed.cassettes,
        duration_ms=1.0,
    )

    page = render_report([real, changed], compare(real, changed))

    assert Page(page).classes.count("io differs") == 1
    assert '<dd class="mono">another &lt;answer&gt;</dd>' in page


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
    suite = HostileSuite(tasks=200)
    cases = [(suite, task_id) for task_id in suite.select()]
    real = anyio.run(partial(record, cases))
    replayed = anyio.run(partial(replay, real, cases))

    written = write_report(tmp_path / "r.html", [real, replayed], compare(real, replayed))

    assert written.read_text(encoding="utf-8").count('<section class="side"') == 400


def test_an_empty_run_gives_a_page(tmp_path: Path) -> None:
    run = anyio.run(partial(record, []))

    assert "No task ran." in write_report(tmp_path / "r.html", [run]).read_text(encoding="utf-8")


def test_each_call_says_who_answered_it_and_what_struck_it(tmp_path: Path) -> None:
    def cheap(mocks: ToolMocks) -> None:
        mocks.tool("price", name="the-cheap-rule").returns("free")

    faults = [FaultSpec(tool="order", fault=EmptyResult(), name="the-empty-fault", probability=1.0)]
    run = run_suite([ask_for_tea(mocks=cheap), order_tea()], mode="record", cassettes=tmp_path, faults=faults, seed=5)

    shown = Page(render_report([run]))
    text = " ".join(" ".join(shown.text).split())

    assert shown.classes.count("tag mock") == 3  # the call, the hook that answered it, and the legend
    assert shown.classes.count("tag real") == 2
    assert "by mocks.answer , rule the-cheap-rule ; the tool did not run" in text
    assert "the-empty-fault injected" in text
    assert "Injected faults seed 5" in text


def test_a_denied_call_is_not_said_to_have_run_and_names_the_hook_that_denied_it() -> None:
    rules = Hooks("rules")
    rules.guard(ToolCall, id="never")(lambda call: Deny("not today"))

    shown = Page(render_report([run_suite([ask_for_tea()], hooks=[rules])]))
    text = " ".join(" ".join(shown.text).split())

    assert "denied by never ; the tool did not run" in text
    assert "tag real" not in shown.classes
    assert shown.classes.count("bar tool bad") == 2  # in the waterfall and in the overview


def test_sub_agents_have_bars_too() -> None:
    child = Agent(id="writer", model=ScriptedModel([ModelResponse(content="a poem")]))
    asks_child = ToolRequest(toolset="agent", tool_name="writer", args={"instruction": "write"}, tool_call_id="1")
    turns = [ModelResponse(tool_calls=[asks_child]), ModelResponse(content="done")]
    agent = Agent(id="poet", model=ScriptedModel(turns), sub_agents=[child])
    suite = UserSuite("poems", agent=agent, tasks=[Task(id="one", prompt="Write.")])

    shown = Page(render_report([anyio.run(partial(record, cases_of([suite])))]))

    assert "Sub-agent writer" in " ".join(shown.text)
    assert shown.classes.count("bar part") == 1


def test_a_refused_call_is_marked_and_its_task_failed() -> None:
    shown = Page(render_report([run_suite([ask_for_tea()], mode="strict")]))
    text = " ".join(shown.text)

    assert "refused" in text
    assert "✗ failed" in text
    assert "this run is strict" in text


def test_the_tools_of_a_suite_stand_there_called_or_not() -> None:
    shown = Page(render_report([run_suite([ask_for_tea(), order_tea()])]))
    text = " ".join(" ".join(shown.text).split())

    assert shown.classes.count("chip real") == 2 + 1  # one in the legend
    assert shown.classes.count("chip never") == 1 + 1
    assert "2 of 3 called" in text


def test_checks_stand_with_what_they_miss() -> None:
    run = run_suite([ask_for_tea(checks=[checks.output_contains("EUR"), checks.output_contains("<b>USD</b>")])])

    page = render_report([run])

    assert "output contains &#39;EUR&#39;" in page
    assert "the answer is &#39;3 EUR&#39;" in page
    assert "<b>USD" not in page


def test_an_interrupted_run_says_how_much_is_missing() -> None:
    run = run_suite([ask_for_tea()])
    run.not_run.extend(["shop/a", "shop/b"])

    assert "<b>! Interrupted:</b> 0 of 3 tasks passed; 2 did not run; 1 had no check." in render_report([run])


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


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.0123, "12.3 µs"), (0.99999, "1 ms"), (456.78, "457 ms"), (999.9, "1.00 s"), (1_234_567.0, "1234.57 s")],
)
def test_labels_of_an_axis_are_short(milliseconds: float, text: str) -> None:
    assert axis_label(milliseconds) == text
