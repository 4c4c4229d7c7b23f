"""A call that nothing could answer fails its test at the end, and so do mocks and a cassette that were in no run."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Project

RECORDED = """
@pytest.mark.tool_cassette({mark})
async def test_it(cassette):
    await ask(buyer("{item}"), [cassette.hooks()])
"""
STRICT = """
@pytest.mark.tool_mocks({mark})
async def test_it(tool_mocks):
    tool_mocks.tool("order").returns("ordered")
    await ask(buyer("tea"), [tool_mocks])
"""
ELSEWHERE = """
@pytest.mark.{mark}
async def test_it({fixture}):
    {rules}
    assert await ask(buyer("tea"), []) == ["tea costs 3 EUR"]
"""
LIFTED = "@pytest.mark.*(allow_refused=True)."


@pytest.fixture
def backend(project: Project) -> Project:
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    return project


def recorded(project: Project) -> None:
    """Leave a cassette that knows of tea."""
    project.test(RECORDED.format(mark="", item="tea"))
    project.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("options", [(), ("--hookline-record=none",), ("--hookline-record=none", "--hookline-strict")])
def test_a_miss_of_a_cassette_that_may_not_record_fails_the_test(backend: Project, options: tuple[str, ...]) -> None:
    recorded(backend)
    backend.test(RECORDED.format(mark="", item="silk"))

    result = backend.run(*options)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_it*",
            "1 tool call of this test had no answer, and the model was told that the call failed:",
            '  No recording in * answers local/price with {"item":"silk"}*',
            '  -  "item": "tea"',
            f"Answer it with a rule or a recording, or expect it: {LIFTED}",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "pytest_plugin.py" not in result.stdout.str()


def test_a_miss_may_be_expected(backend: Project) -> None:
    recorded(backend)
    backend.test(RECORDED.format(mark="allow_refused=True", item="silk"))

    backend.run("--hookline-record=none").assert_outcomes(passed=1)


@pytest.mark.parametrize(("mark", "options"), [("strict=True", ()), ("", ("--hookline-strict",))])
def test_a_call_that_strict_mocks_refuse_fails_the_test_unless_that_is_expected(
    backend: Project, mark: str, options: tuple[str, ...]
) -> None:
    backend.test(STRICT.format(mark=mark))
    refused = backend.run(*options)
    backend.test(STRICT.format(mark=f"{mark}{', ' if mark else ''}allow_refused=True"))
    expected = backend.run(*options)

    refused.assert_outcomes(passed=1, errors=1)
    refused.stdout.fnmatch_lines(['  local/price with {"item":"tea"} (step 0): no rule answers it', f"*{LIFTED}"])
    expected.assert_outcomes(passed=1)


def test_a_rule_that_cannot_answer_fails_the_test_though_nothing_is_strict(backend: Project) -> None:
    backend.test(
        """
async def test_it(tool_mocks):
    tool_mocks.tool("price", name="once").sequence(["free"], then="error")
    await ask(buyer("tea", "milk"), [tool_mocks])

async def test_meant(tool_mocks):
    tool_mocks.tool("price").raises(ZeroDivisionError("meant"))
    await ask(buyer("tea"), [tool_mocks])
"""
    )

    result = backend.run()

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", "*: rule 'once' could not answer it"])


def test_a_miss_that_went_through_mocks_is_told_once(backend: Project) -> None:
    recorded(backend)
    backend.test(
        """
@pytest.mark.tool_cassette(mode="none", allow_refused=False)
async def test_it(tool_mocks):
    await ask(buyer(*"abcdefg"), [tool_mocks])
"""
    )

    result = backend.run()

    result.stdout.fnmatch_lines(["7 tool calls of this test had no answer*", "  and 2 more", "Answer it with*"])
    assert result.stdout.str().count('answers local/price with {"item":"a"}') == 1


def test_secrets_stay_out_of_what_is_told(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_mocks(strict=True)
async def test_it(tool_mocks):
    await ask(buyer("password: hunter2"), [tool_mocks])
"""
    )

    assert "hunter2" not in backend.run().stdout.str()


def test_a_test_that_failed_for_another_reason_keeps_it_and_shows_what_was_refused_beside_it(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_mocks(strict=True)
async def test_it(tool_mocks):
    await ask(buyer("tea"), [tool_mocks])
    assert RAN == ["tea"], "the tool was to run"

async def test_unused(tool_mocks):
    tool_mocks.tool("price").returns("free")
    assert await ask(buyer("tea"), []) == ["free"]
"""
    )

    result = backend.run()

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*AssertionError: the tool was to run*", "*hookline: tool calls that were refused*", "*local/price with*"]
    )


def test_tests_that_are_skipped_or_expected_to_fail_are_left_alone(backend: Project) -> None:
    backend.test(
        """
pytestmark = [pytest.mark.anyio, pytest.mark.tool_mocks(strict=True)]

async def test_skipped(tool_mocks):
    tool_mocks.tool("order").returns("x")
    pytest.skip("not now")

@pytest.mark.xfail
async def test_expected_to_fail(tool_mocks):
    await ask(buyer("tea"), [tool_mocks])
    assert 0

@pytest.mark.xfail
async def test_passes_though(tool_mocks):
    await ask(buyer("tea"), [tool_mocks])
"""
    )

    backend.run().assert_outcomes(skipped=1, xfailed=2, xpassed=1)


def test_an_expected_exception_hides_no_refused_call(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_mocks(strict=True)
async def test_it(tool_mocks):
    with pytest.raises(LookupError):
        await ask(buyer("tea"), [tool_mocks])
        raise LookupError
"""
    )

    backend.run().assert_outcomes(passed=1, errors=1)


@pytest.mark.parametrize(
    ("mark", "fixture", "rules", "said"),
    [
        ("tool_mocks", "tool_mocks", 'tool_mocks.tool("price").returns("free")', "`tool_mocks` has 1 rule, and no"),
        (
            "tool_mocks",
            "tool_mocks",
            "from hookline.evals.faults import Timeout; tool_mocks.fault('price', Timeout(5)); tool_mocks.fault('*', Timeout(5))",
            "`tool_mocks` has 2 rules, and no",
        ),
        ("tool_cassette", "", "", "The test has a cassette, and no"),
        ("anyio", "cassette", "cassette.hooks()", "The test has a cassette, and no"),
        ("tool_cassette", "tool_mocks", "", "The test has a cassette, and no"),
    ],
)
def test_what_was_asked_for_and_given_to_no_run_fails_the_test_unless_it_is_meant(
    backend: Project, mark: str, fixture: str, rules: str, said: str
) -> None:
    text = ELSEWHERE.replace("{fixture}", fixture).replace("{rules}", rules or "...")
    backend.test(text.replace("{mark}", mark))
    unused = backend.run()
    meant = "tool_mocks" if "rule" in said else "tool_cassette"
    backend.test(text.replace("{mark}", f"{meant}(hookline_unused_ok=True)"))
    allowed = backend.run()

    unused.assert_outcomes(passed=1, errors=1)
    unused.stdout.fnmatch_lines([f"{said}*operation had it*@pytest.mark.{meant}(hookline_unused_ok=True)."])
    allowed.assert_outcomes(passed=1)


def test_mocks_and_cassettes_in_runs_that_call_no_tool_have_been_used(backend: Project) -> None:
    backend.test(
        """
from hookline import AgentSession
from hookline.evals import ToolMocks

async def test_mocks(tool_mocks):
    tool_mocks.tool("price").returns("free")
    await ask(buyer(), [tool_mocks])

async def test_in_a_session(tool_mocks):
    tool_mocks.tool("price").returns("free")
    async with AgentSession(buyer(), hooks=[tool_mocks]) as session:
        await session.run("hi")

@pytest.mark.parametrize("half", ["hooks", "recorder", "player"])
async def test_cassette(cassette, half):
    await ask(buyer(), [getattr(cassette, half)()])

@pytest.mark.tool_cassette
async def test_cassette_of_mocks(tool_mocks):
    await ask(buyer(), [tool_mocks])

async def test_cassette_of_own_mocks(cassette):
    await ask(buyer(), [ToolMocks(cassette=cassette)])

async def test_mocks_without_rules(tool_mocks):
    await ask(buyer("tea"), [])
"""
    )

    backend.run().assert_outcomes(passed=8)


def test_a_player_that_misses_is_heard_too(backend: Project) -> None:
    backend.test(
        """
async def test_it(cassette):
    await ask(buyer("tea"), [cassette.player()])
"""
    )

    backend.run().assert_outcomes(passed=1, errors=1)


def test_parameters_classes_and_processes_make_no_difference(backend: Project) -> None:
    backend.test(
        """
@pytest.mark.tool_mocks(strict=True)
class TestClass:
    @pytest.mark.parametrize("item", ["tea", "gold"])
    async def test_it(self, tool_mocks, item):
        tool_mocks.tool("price", {"item": "tea"}).returns("free")
        await ask(buyer(item), [tool_mocks])

    @pytest.mark.tool_mocks(strict=True, allow_refused=True)
    async def test_expected(self, tool_mocks):
        await ask(buyer("gold"), [tool_mocks])
"""
    )

    alone = backend.run("--junitxml=junit.xml", "--hookline-report=report.html")
    text = Path(backend.path / "junit.xml").read_text()
    spread = backend.run("-n2", apart=True)

    for result in (alone, spread):
        result.assert_outcomes(passed=3, errors=1)
        result.stdout.fnmatch_lines(["*ERROR at teardown of TestClass.test_it?gold?*"])
    assert 'errors="1"' in text
    assert "had no answer" in (backend.path / "report.html").read_text()


def test_fixtures_that_are_only_set_up_are_not_judged(backend: Project) -> None:
    backend.test(ELSEWHERE.format(mark="anyio", fixture="tool_mocks", rules='tool_mocks.tool("price").returns("x")'))
    backend.write(
        "conftest.py",
        "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
        "@pytest.fixture\ndef tool_mocks(tool_mocks):\n    tool_mocks.tool('price').returns('x')\n    return tool_mocks\n",
    )

    assert "ERROR" not in backend.run("--setup-only").stdout.str()
    backend.run().assert_outcomes(passed=1, errors=1)
