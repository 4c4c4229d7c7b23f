"""Adapters whose framework is not installed here are left out, and named at the end; `make adapters` tests them all."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

MODULES = {
    "agent_framework": "agent_framework",
    "claude_agent_sdk": "claude_agent_sdk",
    "fastmcp": "fastmcp",
    "google_adk": "google.adk",
    "langchain": "langgraph",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "strands": "strands",
}
"""Folders of tests, and what each needs."""


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


MISSING = sorted(folder for folder, module in MODULES.items() if not installed(module))
collect_ignore = MISSING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING:
        terminalreporter.write_line(f"not installed here, so tested by `make adapters` alone: {', '.join(MISSING)}")
