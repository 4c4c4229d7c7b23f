"""What the servers of forked processes import before they fork."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import distributions

__all__ = ["import_hookline", "import_libraries", "import_models", "import_pytest"]


def import_hookline() -> None:
    """Import what programs, `hookline` commands and processes of the contract of engines need."""
    _import("aiosqlite", "asyncpg", "opentelemetry.sdk.trace")
    _import("hookline.builtin", "hookline.delivery", "hookline.otel", "hookline.registry", "hookline.store")
    _import("jinja2", "opentelemetry.exporter.otlp.proto.http.trace_exporter", "rich", "uvicorn", "yaml")
    _import("hookline.cli.chat", "hookline.cli.eval", "hookline.cli.operate", "hookline.cli.trace._span_tree")
    _import("hookline.adapters.mcp", "hookline.evals.suites", "hookline.hosts", "hookline.server")
    _import("dbos", "hookline.relay", "nats")


def import_libraries() -> None:
    """Import the libraries that the tests import, but nothing of hookline: its modules are imported as in any process."""
    _import(
        "agent_framework._middleware",
        "agent_hooks.ctk",
        "agents.mcp.server",
        "agents.realtime",
        "agents.testing",
        "aiohttp",
        "aiosqlite",
        "alembic.command",
    )
    _import(
        "anthropic",
        "asyncpg",
        "cryptography.x509",
        "dbos",
        "dirty_equals",
        "fastmcp.client.client",
        "fastmcp.server.middleware",
        "filelock",
    )
    _import(
        "genai_prices", "hypothesis", "importlinter", "jsonschema", "langchain.agents", "litestar", "nats", "openai"
    )
    _import("opentelemetry.exporter.otlp.proto.http._log_exporter", "opentelemetry.instrumentation.httpx")
    _import("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.util.genai.handler")
    _import("playwright.sync_api", "psutil", "pydantic_ai.models.openai", "pytest", "sqlalchemy.ext.asyncio")
    _import("sqlalchemy.dialects.postgresql.asyncpg", "trio.testing", "typer.testing", "uvicorn")
    for distribution in distributions():
        if any(point.group == "pytest11" for point in distribution.entry_points):
            for name in {file.parts[0].removesuffix(".py") for file in distribution.files or ()} & {*sys.modules}:
                # Or pytest would warn that a package with a plugin was imported before it could rewrite its assertions.
                sys.modules[name].__doc__ = "PYTEST_DONT_REWRITE"


def import_models() -> None:
    """Import the models of OpenAI's protocols, and load a suite of AgentDojo."""
    _import("anyio.to_process", "hookline.adapters.models", "hookline.cli.eval", "pydantic_ai.models.openai")
    from hookline.evals.suites.agentdojo import load_suite

    load_suite("banking")


def import_pytest() -> None:
    """Import pytest with the plugins that processes of tests use."""
    _import("anyio.pytest_plugin", "hookline.evals.faults", "hookline.pytest_plugin", "xdist.plugin")


def _import(*modules: str) -> None:
    for module in modules:
        with suppress(ImportError):  # `make adapters` has environments without some of them
            import_module(module)
