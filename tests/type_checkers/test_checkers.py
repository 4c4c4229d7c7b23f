"""mypy and pyright refuse hooks that could not work, and accept all others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAMPLES = HERE / "samples.py"


def wrong_lines() -> set[int]:
    """Numbers of the lines right below a `# refused`."""
    lines = SAMPLES.read_text().splitlines()
    return {number + 2 for number, line in enumerate(lines) if line.strip() == "# refused"}


def errors_of_mypy() -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "-O", "json"]
    told = subprocess.run([*command, str(SAMPLES)], capture_output=True, text=True, cwd=HERE.parent.parent).stdout
    found = [json.loads(line) for line in told.splitlines()]
    return {each["line"]: each["message"] for each in found if each["severity"] == "error"}


def errors_of_pyright() -> dict[int, str]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(SAMPLES)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout)
    return {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in told["generalDiagnostics"]
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("errors", [errors_of_mypy, errors_of_pyright], ids=["mypy", "pyright"])
def test_a_checker_refuses_the_hooks_that_could_not_work_and_no_other(errors) -> None:  # type: ignore[no-untyped-def]
    found = errors()

    assert {line: message for line, message in found.items() if line not in wrong_lines()} == {}
    assert wrong_lines() - set(found) == set()
