"""Where a test's cassette is, what is written when, and what happens to one that cannot be used."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from .conftest import SHOP, Project

MARKED = """
@pytest.mark.tool_cassette
async def test_prices(tool_mocks):
    tool_mocks.tool("local/order").returns("mocked")

    assert await ask(buyer("tea", then=("tea",)), [tool_mocks]) == ["tea costs 3 EUR", "mocked"]
"""


@pytest.fixture
def backend(project: Project) -> Project:
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    return project


def files(project: Project) -> list[str]:
    return sorted(path.relative_to(project.path).as_posix() for path in project.path.rglob("*.yaml"))


def test_a_marked_test_records_once_and_is_answered_by_its_file_from_then_on(backend: Project) -> None:
    backend.test(MARKED)

    first = backend.run()
    written = (backend.path / files(backend)[0]).read_bytes()
    second = backend.properties("--hookline-record=none")

    first.assert_outcomes(passed=1)
    first.stdout.fnmatch_lines(["hookline: 1 call mocked, 1 real, 0 refused; 1 cassette written"])
    assert files(backend) == ["cassettes/test_agent/test_prices.yaml"]
    assert second["test_prices"] == {
        "hookline_mocked": "2",
        "hookline_real": "0",
        "hookline_refused": "0",
        "hookline_faults": "0",
        "hookline_cassette": "cassettes/test_agent/test_prices.yaml",
    }
    assert (backend.path / files(backend)[0]).read_bytes() == written


def test_a_cassette_alone_is_attached_with_its_hooks_and_its_calls_are_counted(backend: Project) -> None:
    backend.test("async def test_a(cassette): await ask(buyer('tea', 'milk'), [cassette.hooks()])")

    first, second = backend.run(), backend.run()

    first.stdout.fnmatch_lines(["hookline: 0 calls mocked, 2 real, 0 refused; 1 cassette written"])
    second.stdout.fnmatch_lines(["hookline: 2 calls mocked, 0 real, 0 refused"])


def test_each_test_has_a_file_of_its_own_whatever_its_parameters(backend: Project) -> None:
    backend.test(
        """
IDS = ["a/b", "a-b", "../up", "été", "a:b", "x" * 300, "x" * 299 + "y", "a::b", "."]

@pytest.mark.tool_cassette
@pytest.mark.parametrize("item", IDS, ids=IDS)
class TestClass:
    async def test_prices(self, tool_mocks, item):
        await ask(buyer(item), [tool_mocks])

@pytest.mark.parametrize("item", [1, pytest.param(2, marks=pytest.mark.tool_cassette)])
async def test_some(tool_mocks, item):
    await ask(buyer("tea"), [tool_mocks])
"""
    )

    first = backend.run()
    second = backend.run("--hookline-record=none", "--hookline-strict", "-k", "TestClass")

    first.assert_outcomes(passed=11)
    assert len(files(backend)) == 10
    assert "cassettes/test_agent/test_some[2].yaml" in files(backend)
    assert "cassettes/test_agent/TestClass.test_prices[a-b].yaml" in files(backend)
    assert all(name.startswith("cassettes/test_agent/") for name in files(backend))
    second.stdout.fnmatch_lines(["hookline: 9 calls mocked, 0 real, 0 refused*"])


def test_a_name_or_a_path_puts_it_elsewhere(backend: Project) -> None:
    backend.test(
        """
from pathlib import Path

@pytest.mark.tool_cassette("shared")
async def test_name(tool_mocks): await ask(buyer("tea"), [tool_mocks])

@pytest.mark.tool_cassette("../tapes/shop")
async def test_path(tool_mocks): await ask(buyer("tea"), [tool_mocks])

@pytest.mark.tool_cassette(Path("here.yaml"))
async def test_file(tool_mocks): await ask(buyer("tea"), [tool_mocks])
""",
        name="inner/test_agent.py",
    )

    backend.run("-p", "no:pythonpath", f"--rootdir={backend.path}").assert_outcomes(passed=3)

    assert files(backend) == ["inner/cassettes/test_agent/shared.yaml", "inner/here.yaml", "tapes/shop.yaml"]


@pytest.mark.parametrize("absolute", [True, False])
def test_the_folder_of_cassettes_is_a_setting(backend: Project, tmp_path: Path, absolute: bool) -> None:
    folder = backend.path / "all" if absolute else Path("tapes")
    backend.test(MARKED, name="inner/test_agent.py")

    backend.run("-o", f"hookline_cassette_dir={folder}").assert_outcomes(passed=1)

    assert files(backend) == [f"{'all/inner' if absolute else 'inner/tapes'}/test_agent/test_prices.yaml"]


def test_what_a_marker_says_comes_before_the_option_and_the_project(backend: Project) -> None:
    backend.test(MARKED)
    backend.run()
    backend.test(
        """
@pytest.fixture(scope="session")
def cassette_options():
    return {"mode": "all", "matching": "sequential"}

@pytest.mark.tool_cassette(mode="none", ignore=["id"], hookline_unused_ok=True)
def test_marked(cassette): assert (cassette.mode, cassette.matching) == ("none", "sequential")

@pytest.mark.tool_cassette(hookline_unused_ok=True)
def test_unmarked(cassette): assert cassette.mode == EXPECTED
""",
        mark="[]",
    )
    given = backend.path / "test_agent.py"
    text = given.read_text()

    given.write_text(text.replace("EXPECTED", "'all'"))
    backend.run().assert_outcomes(passed=2)
    given.write_text(text.replace("EXPECTED", "'new_episodes'"))
    backend.run("--hookline-record=new_episodes").assert_outcomes(passed=2)


def test_a_failed_test_saves_what_it_recorded_and_nothing_else(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_cassette
async def test_recorded(tool_mocks):
    await ask(buyer("tea"), [tool_mocks])
    assert 0

@pytest.mark.tool_cassette
def test_nothing(tool_mocks): assert 0
"""
    )

    backend.run().assert_outcomes(failed=2)

    assert files(backend) == ["cassettes/test_agent/test_recorded.yaml"]


def test_what_was_recorded_before_an_interrupt_is_saved(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_cassette
async def test_a(tool_mocks):
    await ask(buyer("tea"), [tool_mocks])

@pytest.mark.tool_cassette
async def test_b(tool_mocks):
    await ask(buyer("tea"), [tool_mocks])
    pytest.exit("enough")
"""
    )

    backend.run("-x")

    assert len(files(backend)) == 2


def test_a_call_without_a_recording_is_refused_and_told(backend: Project) -> None:
    backend.test(MARKED)
    backend.run()
    backend.test(
        """
@pytest.mark.tool_cassette(allow_refused=True)
async def test_prices(tool_mocks):
    assert "No recording" in (await ask(buyer("gold"), [tool_mocks]))[0]
    assert RAN == []
"""
    )

    result = backend.run("-v", "--hookline-report=report.html")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "hookline: 0 calls mocked, 0 real, 1 refused; 1 call not recorded; 1 recording unused",
            '  cassettes/test_agent/test_prices.yaml: local/price with {"item":"tea"} is unused',
        ]
    )
    page = (backend.path / "report.html").read_text()
    assert "No recording in" in page
    assert re.search(r"<dt>Started</dt><dd><time datetime=\"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\">", page)
    assert f"hookline {version('hookline')}, Python " in page
    assert f"pytest {pytest.__version__}" in page
    assert re.search("<dt>Command</dt><dd><code>pytest .*--hookline-report=report.html</code>", page)


def test_a_broken_cassette_is_an_error_that_names_the_line_and_is_left_as_it_is(backend: Project) -> None:
    backend.test(MARKED)
    broken = backend.write("cassettes/test_agent/test_prices.yaml", "hookline: 1\ncalls: [\n  what\n: }\n")
    before = broken.read_bytes()

    result = backend.run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*The cassette *test_prices.yaml, line * cannot be used: *"])
    assert "During handling" not in result.stdout.str()
    assert "pytest_plugin.py" not in result.stdout.str()
    assert broken.read_bytes() == before


def test_a_cassette_that_cannot_be_written_is_an_error_at_the_end_of_its_test(backend: Project) -> None:
    backend.test(f"{MARKED}    open('cassettes', 'w').close()  # a file where the folder is to be")

    result = backend.run()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*The cassette *test_prices.yaml cannot be written: *"])


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_cassette_in_a_folder_that_is_read_only_is_an_error_at_the_end_of_its_test(backend: Project) -> None:
    backend.test(MARKED)
    (backend.path / "cassettes").mkdir(mode=0o500)

    result = backend.run()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*test_prices.yaml cannot be written: *ermission*"])


def test_two_tests_do_not_rewrite_one_cassette(backend: Project) -> None:
    backend.test(
        """
pytestmark = [pytest.mark.anyio, pytest.mark.tool_cassette("shared")]

async def test_first(tool_mocks): await ask(buyer("tea"), [tool_mocks])
async def test_second(tool_mocks): await ask(buyer("milk"), [tool_mocks])
"""
    )

    added = backend.run("--hookline-record=new_episodes")
    rewritten = backend.run("--hookline-record=rewrite", "--hookline-report=report.html")

    added.assert_outcomes(passed=2)
    rewritten.assert_outcomes(passed=1, errors=1)
    rewritten.stdout.fnmatch_lines(["*shared.yaml is rewritten by test_agent.py::test_first; *"])


def test_the_same_test_collected_twice_has_one_cassette(backend: Project) -> None:
    backend.test(MARKED)

    backend.run("test_agent.py", "test_agent.py", "--keep-duplicates").assert_outcomes(passed=2)

    assert len(files(backend)) == 1


def test_secrets_reach_neither_the_cassette_nor_the_page(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_cassette
async def test_prices(tool_mocks): await ask(buyer("sk-abcdefghijklmnop1234567890"), [tool_mocks])

async def test_fails(tool_mocks, event_recorder):
    await ask(buyer("ACME"), [event_recorder.hooks])
    raise ValueError("no ACME with password=hunter2")
"""
    )
    backend.write(
        "conftest.py",
        """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def cassette_options():
    return {"redact": lambda text: text.replace("ACME", "[customer]")}
""",
    )

    backend.run("--hookline-report=report.html").assert_outcomes(passed=1, failed=1)

    page = (backend.path / "report.html").read_text()
    assert "abcdefghijklmnop" not in (backend.path / files(backend)[0]).read_text()
    assert not [secret for secret in ("abcdefghijklmnop", "ACME", "hunter2") if secret in page]
    assert "no [customer] with password=[redacted]" in page


def test_a_call_that_a_cassette_could_not_answer_is_refused_although_a_recorder_saw_it_too(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_cassette(mode="none")
async def test_prices(cassette, event_recorder):
    await ask(buyer("tea"), [cassette.hooks(), event_recorder.hooks])
"""
    )

    backend.run().stdout.fnmatch_lines(["hookline: 0 calls mocked, 0 real, 1 refused; 1 call not recorded"])


@pytest.mark.parametrize(
    ("options", "passed", "said"),
    [
        (
            ("-W", "default"),
            True,
            "*StaleRecordingWarning: cassettes/test_agent/test_prices.yaml: the schema of local/p*",
        ),
        (
            ("-W", "error"),
            False,
            "*StaleRecordingWarning: cassettes/test_agent/test_prices.yaml: the schema of local/p*",
        ),
        (("--hookline-strict",), False, "*had no answer*"),
    ],
)
def test_recordings_of_a_tool_whose_schema_has_changed_are_named(
    backend: Project, options: tuple[str, ...], passed: bool, said: str
) -> None:
    backend.test("@pytest.mark.tool_cassette\nasync def test_prices(tool_mocks): await ask(buyer('tea'), [tool_mocks])")
    backend.run().assert_outcomes(passed=1)
    backend.write("shop.py", SHOP.replace("price(item: str)", "price(item: str, currency: str = 'EUR')"))

    result = backend.run(*options)

    outcomes = result.parseoutcomes()
    assert ("errors" in outcomes or "failed" in outcomes) is not passed
    result.stdout.fnmatch_lines([said])
    result.stdout.fnmatch_lines(["*`currency` is new*"])
