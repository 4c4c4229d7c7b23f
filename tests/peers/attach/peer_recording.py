"""A plugin of pytest that writes how each test ended, and which ran attached, into the file that a variable names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FOUND: dict[str, str] = {}
ATTACHED: set[str] = set()


def note_attached() -> None:
    """Note that the present test runs something with hooks."""
    if test := os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]:
        ATTACHED.add(test)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome != "passed" or FOUND.setdefault(report.nodeid, "passed") == "passed":
        FOUND[report.nodeid] = report.outcome


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        FOUND[report.nodeid] = "failed"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["HOOKLINE_PEERS_REPORT"]).write_text(json.dumps({"ended": FOUND, "attached": sorted(ATTACHED)}))
