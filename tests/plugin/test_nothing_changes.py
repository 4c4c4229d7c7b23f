"""Whoever has hookline installed and does not test agents never notices the plugin."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .conftest import INSTALLED, Project


def test_the_plugin_imports_nothing_that_pytest_does_not_import_itself() -> None:
    code = """if True:
        import sys, pytest, contextlib, hashlib, typing, importlib
        before = set(sys.modules)
        import hookline.pytest_plugin
        print(*sorted(set(sys.modules) - before))
    """

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert loaded == ["hookline", "hookline.pytest_plugin"]


def printed(result: pytest.RunResult) -> list[str]:
    """What pytest printed, but for the list of plugins and how long it took."""
    lines = [line for line in result.outlines if not line.startswith("plugins:")]
    return [re.sub(r"in \d+\.\d\ds", "in a moment", line).strip("= ") for line in lines]


def test_tests_that_do_not_use_it_print_and_report_nothing_about_it(project: Project) -> None:
    project.write("test_plain.py", "def test_plain(): ...\n")

    result = project.run("-v", "--junitxml=junit.xml", f"--hookline-report={project.path / 'report.html'}")
    plain = project.run("-v")
    without = project.run("-v", "-p", "no:hookline", "-p", "no:hookline.pytest_plugin")

    result.assert_outcomes(passed=1)
    plain.assert_outcomes(passed=1)
    assert printed(plain) == printed(without)
    assert "hookline" not in (project.path / "junit.xml").read_text()
    assert "No test used hookline" in (project.path / "report.html").read_text()


def test_fixtures_of_the_same_names_in_a_project_win(project: Project) -> None:
    project.write(
        "conftest.py",
        "import pytest\n@pytest.fixture\ndef tool_mocks():\n    return 'mine'\n@pytest.fixture\ndef cassette():\n    return 'mine too'\n",
    )
    project.write(
        "test_own.py",
        """if True:
        import pytest

        @pytest.fixture
        def hooks():
            return "mine as well"

        def test_own(hooks, tool_mocks, cassette):
            assert (hooks, tool_mocks, cassette) == ("mine as well", "mine", "mine too")
        """,
    )

    result = project.run()

    result.assert_outcomes(passed=1)
    assert "hookline:" not in result.stdout.str()


def test_collecting_runs_and_writes_nothing(project: Project) -> None:
    project.test("@pytest.mark.tool_cassette\nasync def test_a(tool_mocks): ...")

    result = project.run("--collect-only", "-q", "--hookline-report=report.html")

    assert result.ret == 0
    assert sorted(path.name for path in project.path.iterdir() if not path.name.startswith("__")) == [
        "shop.py",
        "test_agent.py",
        "tox.ini",
    ]
    assert "hookline:" not in result.stdout.str()


def test_options_and_markers_explain_themselves(project: Project) -> None:
    shown = project.run("--help").stdout.str() + project.run("--markers").stdout.str()

    for word in ("--hookline-record", "--hookline-strict", "--hookline-seed", "--hookline-report"):
        assert word in shown
    assert "@pytest.mark.tool_cassette(name_or_path=None" in shown
    assert "@pytest.mark.tool_mocks(*, strict=None" in shown
    assert "hookline_cassette_dir" in shown


def test_fixtures_explain_themselves(project: Project) -> None:
    shown = project.run("--fixtures").stdout.str()

    for word in ("hooks", "tool_mocks", "event_recorder", "cassette"):
        assert f"{word} -- " in shown


@pytest.mark.parametrize("options", [("--hookline-record=often",), ("--hookline-seed=x",)])
def test_an_option_that_makes_no_sense_is_refused(project: Project, options: tuple[str, ...]) -> None:
    assert project.run(*options).ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.skipif(not INSTALLED, reason="the entry point is not installed")
def test_it_can_be_switched_off(project: Project) -> None:
    project.write("test_plain.py", "def test_plain(): ...\ndef test_needs_it(tool_mocks): ...\n")

    project.run("-p", "no:hookline").assert_outcomes(passed=1, errors=1)
