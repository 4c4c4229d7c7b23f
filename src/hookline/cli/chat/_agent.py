"""Make the agent of a chat: load it from an import path or a file, or build it from options."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookline.cli.errors import ChatArgumentError
from hookline.errors import HooklineError, MissingExtraError, message_of
from hookline.evals.suites import ImportProblem, import_target
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor, hook_batch
from hookline.phases import PhaseHook
from hookline.runtime import Agent, ToolSource

__all__ = ["AgentArguments", "load_hooks", "make_agent"]

DEFAULT_NAME = "agent"
"""The name to look up in a module unless one is given, and the id of an agent that is built from options."""


@dataclass(frozen=True, kw_only=True)
class AgentArguments:
    """The arguments of a command that describe an agent.

    Attributes:
        target: Its import path or file; `None` to build one.
        model: The name of its model, in place of its own.
        servers: Further MCP servers, each as `name=command` or `name=url`.
        instructions: Its system message, in place of its own.
    """

    target: str | None = None
    model: str | None = None
    servers: Sequence[str] = ()
    instructions: str | None = None


def make_agent(wanted: AgentArguments) -> Agent:
    """Return the agent that the arguments describe.

    Raises:
        ChatArgumentError: If a part of it cannot be used.
        MissingExtraError: If what it needs is not installed.
    """
    if wanted.target is None and wanted.model is None:
        raise ChatArgumentError("hookline chat", "name an agent (agent.py:name) or a model (--model openai:gpt-5)")
    agent = None if wanted.target is None else _load_agent(wanted.target)
    changes: dict[str, Any] = {}
    if wanted.servers:
        changes["tools"] = [*(agent.tools if agent else ()), *(_make_server(each) for each in wanted.servers)]
    if wanted.instructions is not None:
        changes["instructions"] = wanted.instructions
    if wanted.model is not None:
        changes["model"] = wanted.model
    try:
        return replace(agent, **changes) if agent else Agent(id=DEFAULT_NAME, **changes)
    except MissingExtraError:
        raise
    except HooklineError as error:
        raise ChatArgumentError(f"--model {wanted.model}" if wanted.model else "the agent", str(error)) from error


def load_hooks(paths: Sequence[str]) -> list[AnyHook]:
    """Return the hooks that import paths name: bundles, lists of bundles, or functions that make them.

    Raises:
        ChatArgumentError: If one names something else.
    """
    found: list[AnyHook] = []
    for path in paths:
        argument = f"--hooks {path}"
        value = _import_value(argument, path, "hooks")
        if not isinstance(value, Hooks | Hook | Interceptor | PhaseHook) and callable(value):
            value = _call_factory(argument, value)
        try:
            found += hook_batch(value if isinstance(value, list | tuple) else [value])
        except HooklineError as error:
            raise ChatArgumentError(argument, str(error)) from error
    return found


def _load_agent(target: str) -> Agent:
    argument = f"agent {target}"
    value = _import_value(argument, target, DEFAULT_NAME)
    if not isinstance(value, Agent) and callable(value):
        value = _call_factory(argument, value)
    if not isinstance(value, Agent):
        raise ChatArgumentError(argument, f"it must be an Agent or a function that returns one; got {value!r:.100}")
    return value


def _import_value(argument: str, target: str, default: str) -> Any:
    """Import the value at `package.module:name` or `folder/file.py:name`; the name may be left out."""
    try:
        return import_target(target, default)
    except ImportProblem as problem:
        raise ChatArgumentError(argument, str(problem)) from problem.__cause__


def _call_factory(argument: str, make: Any) -> Any:
    if inspect.iscoroutinefunction(make):
        raise ChatArgumentError(argument, "it is an async function; create the agent in a plain function")
    try:
        return make()
    except MissingExtraError:
        raise
    except Exception as error:
        raise ChatArgumentError(argument, f"calling it raised {type(error).__name__}: {message_of(error)}") from error


def _make_server(text: str) -> ToolSource:
    """Return the MCP server that an option names. Errors say its name only: a command or a URL may hold a token."""
    name, _, where = (part.strip() for part in text.partition("="))
    if not name or not where or re.search(r"[\s/:]", name):
        raise ChatArgumentError("--mcp", "write name='command with arguments' or name=http://host:port/path")
    from hookline.adapters.mcp import mcp_server

    try:
        if where.startswith(("http://", "https://")):
            return mcp_server(name, url=where)
        return mcp_server(name, command=shlex.split(where, posix=os.name != "nt"))
    except MissingExtraError:
        raise
    except ValueError as error:
        raise ChatArgumentError(f"--mcp {name}", str(error)) from error
