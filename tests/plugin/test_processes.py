"""Tests in several processes: the same faults as in one, one report of all, and no cassette loses what it holds."""

from __future__ import annotations

from .conftest import Project

FAULTY = """
import json
from hookline.evals.faults import FailedResult, Timeout

@pytest.mark.parametrize("number", range(12))
async def test_faulty(tool_mocks, request, number):
    tool_mocks.tool("*").returns("ok")
    tool_mocks.fault("*/price", FailedResult("no"), probability=0.5)
    tool_mocks.fault("*/price", Timeout(seconds=5), probability=0.2)
    await ask(buyer(*"abcdef"), [tool_mocks])
    struck = [[strike.fault, strike.call_index] for strike in tool_mocks.faults_struck]
    request.node.user_properties.append(("struck", json.dumps(struck)))
"""

SHARED = """
import anyio, pathlib

@pytest.mark.tool_cassette("../shared")
async def test_shared(tool_mocks, worker_id):
    await ask(buyer("tea"), [tool_mocks])
    pathlib.Path(f"{worker_id}.began").touch()
    with anyio.fail_after(20):
        while len(list(pathlib.Path().glob("*.began"))) < 2:
            await anyio.sleep(0.01)
"""

BACKEND = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""

BACKWARDS = """
def pytest_collection_modifyitems(items):
    items.reverse()
"""

SPREAD = ("-n2", "--dist=loadfile", "--no-loadscope-reorder")
"""The first file goes to one process, the second to the other."""


def test_what_several_processes_do_is_the_same_and_nothing_is_lost(project: Project) -> None:
    project.write("conftest.py", BACKEND)
    project.test(FAULTY, name="one/test_faulty.py")
    alone = project.properties("--hookline-seed=7", "one")
    others = project.properties("--hookline-seed=8", "one")
    project.test(SHARED, name="one/test_a.py")
    project.test(SHARED, name="one/test_b.py")

    result = project.run(
        *SPREAD, "--hookline-seed=7", "--junitxml=junit.xml", "--hookline-report=report.html", apart=True
    )
    split = project.read_properties()
    project.write("conftest.py", BACKEND + BACKWARDS)
    backwards = project.properties("--hookline-seed=7", "one/test_faulty.py")

    assert len(alone) == 12
    assert len({test["struck"] for test in alone.values()}) > 6
    assert alone == backwards == {name: test for name, test in split.items() if "faulty" in name}
    assert alone != others

    result.assert_outcomes(passed=14, errors=1)
    result.stdout.fnmatch_lines(["*was not saved: *shared.yaml has changed since it was read*"])
    result.stdout.fnmatch_lines(["hookline: * mocked, 2 real, 0 refused; * faults struck (seed 7); 1 cassette written"])
    assert (project.path / "shared.yaml").read_text().count("EUR") == 1
    assert (project.path / "report.html").read_text().count('<details class="task') == 14
