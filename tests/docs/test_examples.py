"""The examples run as they are and print what stands beside them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from hookline import HookType

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
