"""Runs of pytest inside of pytest: a project of a user who tests an agent."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from xml.etree import ElementTree

# Imported here, since pytester drops from `sys.modules` what an inner run was the first to import.
import anyio._backends._asyncio
import anyio._backends._trio
import filelock
import jinja2
import pytest
import yaml

import hookline.evals.mocking._mocks
import hookline.evals.reports._session_report
import hookline.runtime
from tests.forks import fork_python

LOADED = (anyio, filelock, jinja2, yaml, hookline)

PLUGINS = {each.name for each in importlib.metadata.entry_points(group="pytest11")}

INSTALLED = "hookline" in PLUGINS

IMPORTED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
"""The pytest that is tested runs in this process, or in a fork, where hookline is there already."""

SHOP = '''
from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool

RAN = []


@tool
async def price(item: str) -> str:
    """Look up a price."""
    RAN.append(item)
    return f"{item} costs {len(item)} EUR"


@tool
async def order(item: str) -> str:
    """Order."""
    RAN.append(item)
    return f"ordered {item}"


def buyer(*items: str, then: tuple[str, ...] = ()) -> Agent:
    calls = [("price", item) for item in items] + [("order", item) for item in then]
    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name=name, args={"item": item}, tool_call_id=f"c{number}")])
        for number, (name, item) in enumerate(calls)
    ]
    return Agent(id="buyer", model=ScriptedModel([*turns, ModelResponse(content="done")]), tools=[price, order])


async def ask(agent, hooks):
    RAN.clear()
    result = await exec_agent(agent, "Ask for prices", hooks=hooks)
    return [message.content for message in result.messages if message.role == "tool"]
'''


class Project:
    """A folder with a user's tests, which are run by a pytest of their own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        pytester.makeini("[pytest]\n")
        self.write("shop.py", SHOP)

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def test(self, text: str, name: str = "test_agent.py", mark: str = "pytest.mark.anyio") -> Path:
        head = "import pytest\nfrom shop import RAN, ask, buyer, exec_agent\n"
        return self.write(name, f"{head}pytestmark = {mark}\n\n{text}")

    def run(self, *arguments: str, apart: bool = False, only: str = "anyio") -> pytest.RunResult:
        """Run pytest with the plugins that a test is about: those of others would only take time, up to 2 s each.

        To find them, or one that `-p` names, pytest reads the metadata of all packages, which takes half of the time.
        Where nothing else is about finding them, it is given their modules.
        """
        options = ["-W", "error", "-W", IMPORTED, "--strict-markers", "--strict-config", "-p", "no:cacheprovider"]
        if "-W" in arguments:  # the last one wins
            arguments = (*arguments, "-W", IMPORTED)
        if not apart and only == "anyio" and "no:hookline" not in arguments:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
                patch.setenv("PYTEST_PLUGINS", "anyio.pytest_plugin,hookline.pytest_plugin")
                return self.pytester.runpytest_inprocess(*options, *arguments, no_reraise_ctrlc=True)
        wanted = {"hookline", only, *(("xdist", "xdist.looponfail") if apart else ())}
        options += [word for name in sorted(PLUGINS - wanted) for word in ("-p", f"no:{name}")]
        options += [] if INSTALLED else ["-p", "hookline.pytest_plugin"]
        if only == "asyncio":
            options += ["-o", "asyncio_default_fixture_loop_scope=function"]
        if apart:
            with fork_python("pytest"):
                return self.pytester.runpytest_subprocess(*options, *arguments)
        return self.pytester.runpytest_inprocess(*options, *arguments, no_reraise_ctrlc=True)

    def properties(self, *arguments: str) -> dict[str, dict[str, str]]:
        """The JUnit properties of each test, after a run."""
        self.run("--junitxml=junit.xml", *arguments)
        return self.read_properties()

    def read_properties(self) -> dict[str, dict[str, str]]:
        return {
            str(case.get("name")): {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
            for case in ElementTree.parse(self.path / "junit.xml").iter("testcase")
        }


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    for variable in ("CI", "BUILD_NUMBER"):  # with these pytest repeats each failure whole in its summary
        monkeypatch.delenv(variable, raising=False)
    return Project(pytester)
