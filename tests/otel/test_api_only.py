"""The library needs OpenTelemetry's API alone, and what does not trace needs not even that."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from pathlib import Path

import hookline
from tests.tables import for_each

SOURCE = Path(hookline.__file__).parent
NOT_THE_API = ("sdk", "exporter", "instrumentation", "util.genai", "semconv", "proto", "distro")


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Every module that a file imports, wherever in it, also by name and for type checkers only.

    Most files have none of the words that the tests look for, and are not parsed.
    """
    found: set[str] = set()
    text = path.read_text()
    if "opentelemetry" not in text and "otel" not in text:
        return frozenset()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("opentelemetry."):
            found.add(node.value)  # for `importlib` and the like
    return frozenset(found)


def is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def is_more_than_the_api(name: str) -> bool:
    return any(is_of(name, f"opentelemetry.{part}") for part in NOT_THE_API)


def loaded_by(code: str) -> list[str]:
    """The modules of OpenTelemetry that a fresh process has loaded after some code."""
    code += "\nimport json, sys; print(json.dumps([name for name in sys.modules if name.partition('.')[0] == 'opentelemetry']))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    return list(json.loads(done.stdout))


def imports_outside_of(*folders: str) -> dict[str, frozenset[str]]:
    """What each module imports that is in none of some folders of the package."""
    paths = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    assert "runtime/_run.py" in paths
    return {name: imported(path) for name, path in paths.items() if Path(name).parts[0] not in folders}


CONTRACT = "evals/adapter_contract/_runs.py"
"""Looks at the spans of an adapter's runs, for which it needs the SDK, and only when that clause is checked."""


RESIDENT = "hosts/_policy.py"
"""Belongs to the resident process of a coding agent, a program as the command line is, which may export its traces."""


def test_no_module_outside_of_the_command_line_imports_more_than_the_api() -> None:
    everything = imports_outside_of("cli")
    del everything[CONTRACT], everything[RESIDENT]

    assert "opentelemetry.trace" in everything["otel/_tracing.py"]
    for module, names in everything.items():
        assert [name for name in names if is_more_than_the_api(name)] == [], module


def test_no_module_outside_of_the_telemetry_and_the_command_line_imports_opentelemetry() -> None:
    everything = imports_outside_of("otel", "cli")
    del everything[CONTRACT], everything[RESIDENT]

    for module, names in everything.items():
        assert [name for name in names if is_of(name, "opentelemetry") or is_of(name, "hookline.otel")] == [], module


@for_each(
    "name",
    ["hookline", "hookline.runtime", "hookline.evals", "hookline.builtin", "hookline.phases", "hookline.signals"],
)
def test_whoever_does_not_trace_loads_nothing_of_opentelemetry(name: str) -> None:
    assert loaded_by(f"import {name}") == []


def test_a_run_without_telemetry_loads_nothing_of_opentelemetry() -> None:
    code = """
import asyncio
from hookline import Agent, AfterStep, Hooks, ModelResponse, ScriptedModel, exec_agent
hooks = Hooks("h")
hooks.on(AfterStep, id="x")(lambda event: None)
asyncio.run(exec_agent(Agent(id="a", model=ScriptedModel([ModelResponse(content="done")])), "go", hooks=[hooks]))
"""

    assert loaded_by(code) == []


WITHOUT_SDK = """
import sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.semconv")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotInstalled())

import asyncio, logging
from hookline import Agent, ModelResponse, ScriptedModel, exec_agent
from hookline.otel import MetricsHooks, RunContextFilter, TracingHooks
logging.basicConfig(level=logging.DEBUG)
logging.disable(logging.DEBUG)
hooks = [TracingHooks(capture_content=True, hook_spans=True), MetricsHooks()]
result = asyncio.run(exec_agent(Agent(id="a", model=ScriptedModel([ModelResponse(content="done")])), "go", hooks=hooks))
assert result.reason == "done", result
"""


def test_the_telemetry_works_where_no_sdk_is_installed_and_loads_nothing_but_the_api() -> None:
    loaded = loaded_by(WITHOUT_SDK)

    assert "opentelemetry.trace" in loaded
    assert [name for name in loaded if is_more_than_the_api(name)] == []
