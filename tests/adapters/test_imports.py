"""Who imports an adapter loads its framework, and none of the others."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .conftest import MISSING, MODULES

OTHERS = {
    "agents",
    "agent_framework",
    "claude_agent_sdk",
    "fastmcp",
    "google.adk",
    "langgraph",
    "pydantic_ai",
    "strands",
}


@pytest.mark.parametrize("adapter", sorted(set(MODULES) - set(MISSING)))
def test_importing_an_adapter_loads_no_other_framework(adapter: str) -> None:
    # Without the collector of garbage, which would look through all that is imported for a third of the time.
    code = f"import gc; gc.disable(); import sys, hookline.adapters.{adapter}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert OTHERS.intersection(loaded) == {MODULES[adapter]}


@pytest.mark.parametrize("adapter", MISSING)
def test_an_adapter_without_its_framework_says_what_to_install(adapter: str) -> None:
    code = f"import hookline.adapters.{adapter}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    # The line names the package or, as in a checkout, the folder that hookline was installed from.
    assert re.search(rf"MissingExtraError: .*pip install .*\[{adapter.replace('_', '-')}\]", done.stderr)
