"""What a test gets from the fixtures, whoever runs it."""

from __future__ import annotations

import pytest

from .conftest import Project

MOCKED = """
{mark}
async def test_mocked(hooks, tool_mocks, event_recorder):
    from hookline import AfterToolCall
    seen = []

    @hooks.on(AfterToolCall)
    def note(event):
        seen.append(event.content)

    tool_mocks.tool("local/price").returns("free")

    assert await ask(buyer("tea"), [hooks, tool_mocks, event_recorder.hooks]) == ["free"]
    assert seen == ["free"]
    assert RAN == []
    assert [call.outcome for call in tool_mocks.calls] == ["mocked"]
    assert len(event_recorder.operations) == 1
"""


def test_they_work_with_anyio_on_both_backends(project: Project) -> None:
    project.test(MOCKED.format(mark=""))

    result = project.run("-v")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_mocked?asyncio? PASSED*", "*test_mocked?trio? PASSED*"])
    result.stdout.fnmatch_lines(["hookline: 2 calls mocked, 0 real, 0 refused"])


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_they_work_with_pytest_asyncio(project: Project, mode: str) -> None:
    project.test(MOCKED.format(mark="@pytest.mark.asyncio" if mode == "strict" else ""), mark="[]")

    result = project.run(f"--asyncio-mode={mode}", only="asyncio")

    result.assert_outcomes(passed=1)


def test_they_work_in_unittest_classes_and_in_doctests(project: Project) -> None:
    project.test(
        """
import asyncio, unittest

@pytest.mark.tool_mocks(strict=True, allow_refused=True)
class TestBuyer(unittest.IsolatedAsyncioTestCase):
    @pytest.fixture(autouse=True)
    def give(self, tool_mocks):
        self.mocks = tool_mocks

    async def test_refused(self):
        answers = await ask(buyer("tea"), [self.mocks])

        self.assertEqual([call.outcome for call in self.mocks.calls], ["refused"])


def doctested():
    '''
    >>> mocks = getfixture("tool_mocks")
    >>> mocks.tool("local/price").returns("free").hits
    0
    >>> asyncio.run(ask(buyer("tea"), [mocks]))
    ['free']
    '''
""",
        mark="[]",
    )

    result = project.run("--doctest-modules")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["hookline: 1 call mocked, 0 real, 1 refused"])


def test_each_test_has_mocks_of_its_own_and_nothing_outlives_it(project: Project) -> None:
    project.test(
        """
import gc, weakref
LEFT = []

@pytest.mark.parametrize("number", range(3))
async def test_alone(tool_mocks, event_recorder, hooks, number):
    from hookline.signals import hook_executed

    gc.collect()
    assert [ref() for ref in LEFT] == [None] * len(LEFT)
    assert len(hook_executed.receivers) == 1
    assert not tool_mocks.rules and not tool_mocks.calls and not event_recorder.operations
    LEFT.extend(map(weakref.ref, [tool_mocks, event_recorder, hooks]))
    tool_mocks.tool("local/price").returns(str(number))

    assert await ask(buyer("tea"), [tool_mocks, event_recorder.hooks, hooks]) == [str(number)]
"""
    )

    project.run().assert_outcomes(passed=6)


def test_what_a_test_says_of_itself_comes_before_the_options(project: Project) -> None:
    project.test(
        """
SEEN = {}

async def outcomes(mocks):
    await ask(buyer("tea"), [mocks])
    return [call.outcome for call in mocks.calls]

@pytest.mark.tool_mocks(allow_refused=True)
async def test_options(tool_mocks):
    assert await outcomes(tool_mocks) == ["refused"]

@pytest.mark.tool_mocks(strict=False)
class TestClass:
    async def test_of_the_class(self, tool_mocks):
        assert await outcomes(tool_mocks) == ["real"]

    @pytest.mark.tool_mocks(strict=True, seed=3, allow_refused=True)
    async def test_of_the_test(self, tool_mocks):
        assert await outcomes(tool_mocks) == ["refused"]
"""
    )

    result = project.run("--hookline-strict", "--hookline-seed=7")

    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["hookline: strict, seed 7", "hookline: 0 calls mocked, 2 real, 4 refused"])


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        (
            "tool_mocks(moed=1)",
            "tool_mocks of test_agent.py::test_bad cannot be understood: it got an unexpected *moed*",
        ),
        ("tool_cassette(3)", "tool_cassette of *: name_or_path is a name or a path; got 3."),
        ("tool_cassette('/')", "tool_cassette of *: name_or_path is a name or a path; got '/'."),
        ("tool_cassette(mode=3)", "`mode` of a Cassette is one of *"),
        ("tool_mocks(strict=3)", "tool_mocks of *: strict is True or False; got 3."),
        ("tool_mocks(seed='x')", "tool_mocks of *: seed is a whole number; got 'x'."),
        ("tool_mocks(allow_refused=1)", "tool_mocks of *: allow_refused is True or False; got 1."),
        (
            "tool_cassette(hookline_unused_ok='yes')",
            "tool_cassette of *: hookline_unused_ok is True or False; got 'yes'.",
        ),
        ("tool_cassette(ignore='date')", "`ignore` of a Cassette is a list of fields*"),
        ("tool_cassette(mode='often')", "`mode` of a Cassette is one of *"),
    ],
)
def test_a_marker_that_makes_no_sense_is_an_error_of_its_test_alone(project: Project, marker: str, said: str) -> None:
    project.test(f"@pytest.mark.{marker}\ndef test_bad(tool_mocks): ...\n\ndef test_good(tool_mocks): ...\n")

    result = project.run()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"*{said}"])
    assert "During handling" not in result.stdout.str()
