"""The examples run as they are and print what stands beside them."""

from __future__ import annotations

import re
import subprocess
import sys

import anyio
import pytest

from hookline import HookType
from hookline.evals import SuiteRunner, cases_of
from hookline.evals.suites import load_suite_file

from .markdown import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "all_sixteen_events.py"
EXPECTED = EXAMPLE.with_suffix(".txt").read_text()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_all_sixteen_events_prints_exactly_what_stands_beside_it(backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), "--backend", backend],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout == EXPECTED
    assert done.returncode == 0


def test_all_sixteen_events_occur_in_it() -> None:
    printed = set(re.findall(r"^ *(\w+) ", EXPECTED, re.MULTILINE))

    assert {kind.value for kind in HookType} <= printed


def test_the_customer_service_suite_passes_offline_in_at_most_50_lines_of_code() -> None:
    folder = ROOT / "docs" / "examples" / "customer_service"
    suite = load_suite_file(folder / "support.yaml")

    runs = [anyio.run(SuiteRunner(cases_of([suite]), seed=seed).run) for seed in range(3)]

    lines = [line for file in sorted(folder.iterdir()) if file.is_file() for line in file.read_text().splitlines()]
    assert len([line for line in lines if line.strip()]) <= 50
    for run in runs:
        assert len(run.results) == 12
        assert [result.failure for result in run.results if not result.ok] == []
        assert all(result.checks[-1].judgement is not None or result.checks[-2].judgement for result in run.results)
        assert any(check.name == "trajectory (in_order)" for result in run.results for check in result.checks)
        assert run.faults
        assert any(len(result.turns) > 1 for result in run.results)
