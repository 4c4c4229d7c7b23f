"""Who a chat is with: an agent by its import path or file, or one that is put together on the command line."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hookline._phase import PhaseHook
from hookline.cli.errors import ChatArgumentError
from hookline.errors import HooklineError, MissingExtraError, message_of
from hookline.evals.suites import ImportProblem, import_object
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor, hook_batch
from hookline.runtime import Agent, ToolSource

__all__ = ["Wanted", "agent_of", "hooks_of"]

DEFAULT_NAME = "agent"
"""What an agent is called in its module unless a name is given; and an agent that has no module."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the command line says of an agent.

    Attributes:
        target: Its import path or file; `None` to put one together.
        model: The name of its model, in place of that which it has.
        servers: Its further MCP servers, each as `name=command` or `name=url`.
        instructions: Its system message, in place of that which it has.
    """

    target: str | None = None
    model: str | None = None
    servers: Sequence[str] = ()
    instructions: str | None = None


def agent_of(wanted: Wanted) -> Agent:
    """The agent that the command line describes.

    Raises:
        ChatArgumentError: If a part of it cannot be used.
        MissingExtraError: If what it needs is not installed.
    """
    if wanted.target is None and wanted.model is None:
        raise ChatArgumentError("hookline chat", "it needs an agent (agent.py:name), or a model (--model openai:gpt-5)")
    agent = None if wanted.target is None else _loaded(wanted.target)
    changes: dict[str, Any] = {}
    if wanted.servers:
        changes["tools"] = [*(agent.tools if agent else ()), *(_server(each) for each in wanted.servers)]
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


def hooks_of(paths: Sequence[str]) -> list[AnyHook]:
    """The hooks that import paths name: bundles, lists of bundles, or functions that make them.

    Raises:
        ChatArgumentError: If one names something else.
    """
    found: list[AnyHook] = []
    for path in paths:
        argument = f"--hooks {path}"
        value = _named(argument, path, "hooks")
        if not isinstance(value, Hooks | Hook | Interceptor | PhaseHook) and callable(value):
            value = _made(argument, value)
        try:
            found += hook_batch(value if isinstance(value, list | tuple) else [value])
        except HooklineError as error:
            raise ChatArgumentError(argument, str(error)) from error
    return found


def _loaded(target: str) -> Agent:
    argument = f"agent {target}"
    value = _named(argument, target, DEFAULT_NAME)
    if not isinstance(value, Agent) and callable(value):
        value = _made(argument, value)
    if not isinstance(value, Agent):
        raise ChatArgumentError(argument, f"it is no Agent, nor a function that makes one, but {value!r:.100}")
    return value


def _named(argument: str, target: str, default: str) -> Any:
    """What is found at `package.module:name` or `folder/file.py:name`; the name may be left out."""
    place, _, name = target.rpartition(":")
    if not place or not re.fullmatch(r"[\w.]+", name) or name.endswith(".py"):
        place, name = target, default
    folder, module = Path.cwd(), place
    if place.endswith(".py"):
        file = Path(place)
        if not file.is_file():
            raise ChatArgumentError(argument, f"there is no file {place}")
        folder, module = file.absolute().parent, file.stem
    try:
        return import_object(f"{module}:{name}", folder)
    except ImportProblem as problem:
        raise ChatArgumentError(argument, str(problem)) from problem.__cause__


def _made(argument: str, make: Any) -> Any:
    if inspect.iscoroutinefunction(make):
        raise ChatArgumentError(argument, "it is an async function; make the agent in a plain one")
    try:
        return make()
    except MissingExtraError:
        raise
    except Exception as error:
        raise ChatArgumentError(argument, f"calling it fails: {type(error).__name__}: {message_of(error)}") from error


def _server(text: str) -> ToolSource:
    """An MCP server. Errors tell its name only: a command or a URL may hold a token."""
    name, _, where = (part.strip() for part in text.partition("="))
    if not name or not where or re.search(r"[\s/:]", name):
        raise ChatArgumentError("--mcp", "it is written name='command with arguments' or name=http://host:port/path")
    from hookline.adapters.mcp import mcp_server

    try:
        if where.startswith(("http://", "https://")):
            return mcp_server(name, url=where)
        return mcp_server(name, command=shlex.split(where, posix=os.name != "nt"))
    except MissingExtraError:
        raise
    except ValueError as error:
        raise ChatArgumentError(f"--mcp {name}", str(error)) from error
