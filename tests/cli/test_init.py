"""`hookline init` creates a project that runs, whose tests pass, and never overwrites a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from hookline.cli.init._init import PROJECT
from tests.cli.operated import run
from tests.docs.markdown import ROOT
from tests.forks import forking_python

# The plugins of others, which stand beside pytest here, take longer than all that is tested.
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "anyio", "-p", "hookline.pytest_plugin")


def start(folder: Path, *args: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """A program of the project, in its folder."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([python, *args], cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_the_project_runs_and_its_tests_pass(tmp_path: Path) -> None:
    folder = tmp_path / "a new" / "projekt ü"

    made = run("init", str(folder))
    ran = start(folder, "agent.py")
    tested = start(folder, *PYTEST, python=forking_python("pytest"))

    assert (made.exit_code, made.stderr) == (0, "")
    assert (ran.returncode, ran.stdout.splitlines()) == (
        0,
        [
            "tool:  Paid 40 EUR to Ann.",
            "tool:  Payments above 100 EUR are not allowed.",
            "agent: I paid Ann. The payment to Eve was denied.",
        ],
    ), ran.stderr
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout


def test_a_project_in_the_current_folder_is_said_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    made = run("init")

    assert made.stdout.endswith(
        "in this folder.\n\nRun the agent, then its tests:\n  python agent.py\n  python -m pytest -q\n"
    )


def test_without_pytest_the_command_that_installs_it_is_shown(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pytest'] = None; from hookline.cli import main; main()"

    made = start(tmp_path, "-c", program, "init", python=forking_python("hookline"))

    assert "  python agent.py\n  python -m pip install pytest\n  python -m pytest -q\n" in made.stdout


def test_the_suite_of_the_project_passes_and_fits_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", str(tmp_path))
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))

    done = run("eval", str(tmp_path / "evals.yaml"))
    sys.modules.pop("agent", None)

    assert done.exit_code == 0, done.output
    schema = json.loads((tmp_path / "suite.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((tmp_path / "evals.yaml").read_text()), schema)


def test_without_its_hook_the_test_of_the_project_fails(tmp_path: Path) -> None:
    run("init", str(tmp_path))
    agent = tmp_path / "agent.py"
    agent.write_text(agent.read_text().replace("> 100 else None", "> 10_000 else None"))

    tested = start(tmp_path, *PYTEST, python=forking_python("pytest"))

    assert tested.returncode == 1
    assert "1 failed" in tested.stdout


def test_the_project_is_in_order(tmp_path: Path) -> None:
    run("init", str(tmp_path))

    for args in (["check"], ["format", "--check"]):
        done = start(tmp_path, "-m", "ruff", *args, "--config", str(ROOT / "pyproject.toml"), "agent.py")
        assert done.returncode == 0, done.stdout
    assert len((tmp_path / "README.md").read_text().splitlines()) <= 12


@pytest.mark.parametrize("name", PROJECT)
def test_a_file_that_exists_is_not_overwritten_and_nothing_is_created(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")

    refused = run("init", str(tmp_path))

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"hookline: {tmp_path / name} cannot be written: it already exists")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(name, "mine")]


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "agent.py").symlink_to(tmp_path / "elsewhere.py")

    assert run("init", str(tmp_path)).exit_code == 2
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_folder_that_cannot_be_created_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    refused = run("init", str(tmp_path / "file" / "project"))

    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
