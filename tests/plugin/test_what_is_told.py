"""What the plugin tells of the tests: a line at the end, JUnit properties, and a page."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hookline.errors import install_command
from hookline.evals.reports._session_report import render_session_report
from hookline.evals.reports._sessions import (
    CassetteUse,
    SessionCall,
    TestRecord,
    decode_record,
    encode_record,
    summary_of,
)

from .conftest import Project

HOSTILE = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\"'&{{ 7 * 7 }}\ud800"

AGENT = """
from hookline.evals.faults import FailedResult, Timeout

async def test_mixed(tool_mocks):
    tool_mocks.tool("local/price", {"item": "tea"}, name="tea").returns("free")
    tool_mocks.fault("local/order", FailedResult("sold out"))
    await ask(buyer("tea", "milk", then=("tea",)), [tool_mocks])

@pytest.mark.tool_mocks(strict=True)
async def test_strict(tool_mocks):
    await ask(buyer("gold"), [tool_mocks])
    assert False, "it was <refused>"

async def test_recorded(event_recorder, hooks):
    from hookline import BeforeToolCall

    @hooks.on(BeforeToolCall, tool="*/order")
    def answer(event):
        event.mock("ordered")

    await ask(buyer("milk", then=("milk",)), [hooks, event_recorder.hooks])

async def test_plain(): ...
"""


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def backend(project: Project) -> Project:
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    return project


def test_one_line_at_the_end_says_what_happened(backend: Project) -> None:
    backend.test(AGENT)

    result = backend.run("--hookline-seed=7")

    result.assert_outcomes(passed=3, failed=1)
    told = [line for line in result.outlines if line.startswith("hookline:")]
    assert told == ["hookline: seed 7", "hookline: 3 calls mocked, 2 real, 1 refused; 1 fault struck (seed 7)"]


def test_junit_properties_are_those_of_tests_that_use_the_fixtures(backend: Project) -> None:
    backend.test(AGENT)

    properties = backend.properties()

    counts = {"hookline_mocked": "2", "hookline_real": "1", "hookline_refused": "0", "hookline_faults": "1"}
    assert properties["test_mixed"] == counts
    assert properties["test_strict"]["hookline_refused"] == "1"
    assert properties["test_recorded"]["hookline_mocked"] == "1"
    assert properties["test_plain"] == {}


def test_the_page_shows_every_call_with_who_answered_it(backend: Project) -> None:
    backend.test(AGENT)

    result = backend.run("--hookline-report=report.html")

    result.stdout.fnmatch_lines([f"hookline: the report is {backend.path / 'report.html'}"])
    page = Page((backend.path / "report.html").read_text())
    text = " ".join(page.text.split())
    assert "1 of 3 tests failed; 1 other test did not use hookline" in text
    for shown in ('{"item":"tea"}', "local/price", "failed_result", "AssertionError: it was <refused>", "test.answer"):
        assert shown in text
    assert page.links == []


def test_the_page_escapes_whatever_it_shows() -> None:
    call = SessionCall(
        path=HOSTILE, args=HOSTILE, call_index=2, step_index=0, outcome="mocked", rule=HOSTILE, fault=HOSTILE
    )
    tape = CassetteUse(path=HOSTILE, mode=HOSTILE, unused=[HOSTILE], misses=[HOSTILE])
    record = TestRecord(nodeid=f"{HOSTILE}::{HOSTILE}", outcome="failed", message=HOSTILE, calls=[call], cassette=tape)

    page = Page(render_session_report([decode_record(encode_record(record))], tests=1))

    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert page.links == []
    assert "49" not in page.text
    assert "alert(1)" in page.text


def test_the_page_is_the_same_in_whatever_order_the_tests_ran() -> None:
    records = [TestRecord(nodeid=f"test_{name}.py::test_{line}", line=line) for name in "ab" for line in range(3)]

    assert render_session_report(records) == render_session_report(records[::-1])


@pytest.mark.parametrize("where", ["missing/report.html", "."])
def test_a_page_that_cannot_be_written_stops_the_run_before_the_first_test(project: Project, where: str) -> None:
    project.test("def test_a(): ...")

    result = project.run(f"--hookline-report={where}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --hookline-report: The report cannot be written to *"])


def test_a_page_without_its_extra_stops_the_run_before_the_first_test(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookline.evals.reports import _report

    _report.load_template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)

    result = project.run("--hookline-report=report.html")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --hookline-report: " in result.stderr.str()
    assert install_command("cli") in result.stderr.str()


def test_a_page_that_can_no_longer_be_written_at_the_end_fails_the_run(project: Project) -> None:
    (project.path / "reports").mkdir()
    project.test("import os\ndef test_a(tool_mocks): os.rmdir('reports')")

    result = project.run("--hookline-report=reports/report.html")

    assert result.ret != 0
    result.stdout.fnmatch_lines(["hookline: The report cannot be written to *"])


def test_a_run_that_is_interrupted_reports_the_tests_that_ended(project: Project) -> None:
    project.test(
        """
def test_a(tool_mocks): ...
def test_b(tool_mocks): raise KeyboardInterrupt
def test_c(tool_mocks): ...
"""
    )

    result = project.run("--hookline-report=report.html")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    text = Page((project.path / "report.html").read_text()).text
    assert "test_a" in text
    assert "test_c" not in text


def test_each_outcome_is_told_apart(project: Project) -> None:
    project.test(
        """
@pytest.fixture
def broken():
    yield
    raise OSError("at teardown")

def test_passed(tool_mocks): ...
def test_failed(tool_mocks): assert 0
def test_error(tool_mocks, broken): ...
def test_skipped(tool_mocks): pytest.skip("not now")
@pytest.mark.xfail
def test_xfailed(tool_mocks): assert 0
@pytest.mark.xfail
def test_xpassed(tool_mocks): ...
""",
        mark="[]",
    )

    project.run("--hookline-report=report.html")

    words = Page((project.path / "report.html").read_text()).text.split()
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        assert words[words.index(f"test_{outcome}") - 1] == outcome


def test_recordings_that_a_failed_test_might_have_asked_for_do_not_count_as_unused(tmp_path: Path) -> None:
    def record(outcome: str, *unused: str) -> TestRecord:
        tape = CassetteUse(path="a.yaml", mode="once", unused=list(unused))
        return TestRecord(nodeid="a", outcome=outcome, cassette=tape)

    assert "1 recording unused" in summary_of([record("passed", "x", "y"), record("passed", "y", "z")])
    assert "unused" not in summary_of([record("passed", "x"), record("failed", "x")])


@pytest.mark.parametrize("options", [[], ["--hookline-report=report.html"]])
def test_arguments_that_nobody_can_write_down_do_not_end_the_session(backend: Project, options: list[str]) -> None:
    backend.test(
        """
async def test_big(tool_mocks):
    tool_mocks.tool("price").returns("ok")
    await ask(buyer(10**5000), [tool_mocks])
"""
    )

    result = backend.run(*options)

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["hookline: 1 call mocked, 0 real, 0 refused"])
    if options:
        assert "cannot be shown: ValueError" in (backend.path / "report.html").read_text()


def test_a_redaction_that_fails_does_not_end_the_session(backend: Project) -> None:
    backend.test("def test_fails(tool_mocks, event_recorder): assert 0, 'secret: x'")
    backend.write("conftest.py", (backend.path / "conftest.py").read_text() + REDACTION_THAT_FAILS)

    backend.run("--hookline-report=report.html").assert_outcomes(failed=1)

    assert "cannot be shown: ZeroDivisionError" in (backend.path / "report.html").read_text()


REDACTION_THAT_FAILS = """
@pytest.fixture(scope="session")
def cassette_options():
    return {"redact": lambda text: 1 / 0}
"""
