"""`hookline eval cassettes check`: what is printed, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hookline.cli._app import app

TOOLS = """
from pathlib import Path
from hookline import tool

def tools():
    @tool(in_thread=False, read_only=True)
    def price(item: str) -> dict:
        return {"item": item, "eur": len(item), "checked_at": %(now)s}

    @tool(in_thread=False)
    def pay(amount: int%(more)s) -> str:
        Path(__file__).with_name("paid").write_text("x")
        return "paid"

    return [price, pay]
"""

SUITE = """
suite: shop
tools: stale_tools:tools
tasks:
  - id: tea
    prompt: Buy tea.
    script:
      - {tool: price, args: {item: tea}}
      - {tool: pay, args: {amount: 3}}
      - say: done
    checks: [{called: pay}]
"""


class Project:
    """A suite in a folder, with cassettes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suite = str(folder / "shop.yaml")
        (folder / "shop.yaml").write_text(SUITE)
        self.write()
        recorded = self.run("eval", self.suite, "--mode", "record", "--cassettes", str(folder / "tapes"))
        assert recorded.exit_code == 0, recorded.output
        (folder / "paid").unlink()

    def write(self, *, now: int = 1, more: str = "") -> None:
        (self.folder / "stale_tools.py").write_text(TOOLS % {"now": now, "more": more})
        sys.modules.pop("stale_tools", None)

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(app, list(args))

    def check(self, *args: str) -> Result:
        return self.run("eval", "cassettes", "check", self.suite, "--cassettes", str(self.folder / "tapes"), *args)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files that change within a second have one time
    yield Project(tmp_path)
    sys.modules.pop("stale_tools", None)
    sys.path[:] = [each for each in sys.path if each != str(tmp_path)]


def words(result: Result) -> str:
    return " ".join(result.stdout.split())


def test_fresh_recordings_exit_with_0_and_no_tool_runs(project: Project) -> None:
    result = project.check()

    assert (result.exit_code, result.stderr) == (0, "")
    assert words(result) == "✓ Fresh: 2 recordings in 1 cassette; no tool has changed."
    assert not (project.folder / "paid").exists()


def test_a_changed_tool_exits_with_1_and_is_named(project: Project) -> None:
    project.write(more=", currency: str = 'EUR'")

    result = project.check()

    assert result.exit_code == 1
    assert "✗ Stale: 1 of 2 recordings in 1 cassette are of tools that have changed or are gone." in words(result)
    assert "✗ local/pay has changed since" in words(result)
    assert "`currency` is new (shop/tea)" in words(result)


def test_live_calls_only_tools_that_are_read_only(project: Project) -> None:
    project.write(now=2)

    shape, value = project.check("--live"), project.check("--live", "--fail-on", "value")
    ignored = project.check("--live", "--fail-on", "value", "--ignore", "checked_at")

    assert [each.exit_code for each in (shape, value, ignored)] == [0, 1, 0]
    change = 'shop/tea: local/price with {"item":"tea"}: value changed, `checked_at`: 1 → 2'
    assert f"! {change}" in words(shape)
    assert f"✗ {change}" in words(value)
    assert "local/pay: it is not declared as read-only; if it changes nothing, confirm it with --tool" in words(shape)
    assert "1 called again, none with another answer." in words(ignored)
    assert not (project.folder / "paid").exists()


def test_a_tool_that_is_confirmed_is_called(project: Project) -> None:
    result = project.check("--live", "--tool", "pay")

    assert result.exit_code == 0
    assert "2 called again, none with another answer" in words(result)
    assert (project.folder / "paid").exists()


def test_json_has_everything(project: Project) -> None:
    project.write(now=2, more=", currency: str = 'EUR'")
    (project.folder / "tapes" / "shop" / "old.yaml").write_text("hookline_cassette: 1\ncalls: []\n")

    document = json.loads(project.check("--live", "--json").stdout)

    report = document["report"]
    (cassette,) = report["cassettes"]
    assert (document["ok"], document["judged"]) == (False, True)
    assert [(tool["tool"], tool["status"]) for tool in cassette["tools"]] == [
        ("local/pay", "changed"),
        ("local/price", "same"),
    ]
    assert cassette["repeated"][0]["differences"][0]["kind"] == "value changed"
    assert [Path(path).name for path in report["orphans"]] == ["old.yaml"]


def test_recordings_without_schemas_exit_with_3(project: Project) -> None:
    (file,) = (project.folder / "tapes").glob("shop/*.yaml")
    text = file.read_text()
    file.write_text(text[: text.index("tools:")] + text[text.index("calls:") :])

    result = project.check()

    assert result.exit_code == 3
    assert "! Nothing could be compared: 2 recordings in 1 cassette." in words(result)
    assert "its schema was not recorded; record it again (shop/tea)" in words(result)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--tool", "pay"), "--tool and --ignore are for --live."),
        (("--live", "--tool", "pey"), "There is no recording of a tool 'pey'"),
        (("--live", "--tool", "*"), "names each tool in full"),
        (("--cassettes", "nowhere"), "there is no folder nowhere"),
        (("--task", "coffee"), "has no task 'coffee'"),
        (("--live", "--ignore", ""), "`ignore` is a list of fields"),
    ],
)
def test_wrong_use_exits_with_2(project: Project, args: tuple[str, ...], said: str) -> None:
    result = project.check(*args)

    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not (project.folder / "paid").exists()


def test_a_broken_cassette_exits_with_2_and_names_its_line(project: Project) -> None:
    (project.folder / "tapes" / "shop" / "tea.yaml").write_text("hookline_cassette: 1\ncalls: 3\n")

    result = project.check()

    assert result.exit_code == 2
    assert "line 2 cannot be used: `calls` is a list; got 3" in " ".join(result.stderr.split())
