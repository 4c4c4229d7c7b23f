"""A command imports what it needs when it is called: the help of all commands imports none of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from hookline.cli import _app
from hookline.cli._app import app

LARGE = {
    "agentdojo",
    "alembic",
    "hookline.evals.running",
    "hookline.registry",
    "hookline.runtime",
    "hookline.server",
    "hookline.store",
    "opentelemetry",
    "opentelemetry.sdk",
    "rich",
    "sqlalchemy",
    "starlette",
}
"""Modules and packages that take long to import."""
EVALUATING = {"hookline.evals.running", "hookline.runtime", "opentelemetry", "rich"}

ROOT: Any = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("--help", set[str]()),
        ("nonsense", set[str]()),
        ("hooks list --help", {"rich"}),
        ("worker --help", {"rich"}),
        ("eval --help", EVALUATING),
    ],
)
def test_a_command_imports_only_what_it_needs(line: str, needed: set[str]) -> None:
    # Without the collector of garbage, which would look through all that is imported for a fifth of the time.
    code = (
        "import atexit, gc, sys; gc.disable(); atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from hookline.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=False)

    assert done.returncode == (2 if line == "nonsense" else 0)
    imported = set(done.stderr.split())
    assert "hookline.cli._app" in imported
    assert LARGE & imported <= needed


@pytest.mark.parametrize("command", _app.COMMANDS, ids=lambda command: command.name)
def test_what_the_help_lists_is_what_a_command_says_of_itself(command: Any) -> None:
    loaded = ROOT.get_command(None, command.name)

    assert command.get_short_help_str(200) == loaded.get_short_help_str(200)
    assert loaded.name == command.name


def test_each_command_is_loaded_once() -> None:
    assert ROOT.get_command(None, "hooks") is ROOT.get_command(None, "hooks")
