"""The names that a model uses for the tools of a run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from hookline._checks import quote
from hookline.errors import HookUsageError
from hookline.runtime import Tool, tool

__all__ = ["AnyTools", "ToolNames", "collect_tools"]

AnyTools = Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]]
"""Tools as `wrap` takes them: functions and `Tool`s, or by the names that the model calls them."""

_tools: WeakKeyDictionary[Callable[..., Any], dict[str | None, Tool]] = WeakKeyDictionary()
"""Tools by their function, and by the name that was given for them."""

_INVALID = re.compile(r"[^a-zA-Z0-9_-]")


class ToolNames:
    """The tools of a run, by the names that the model uses.

    A local tool keeps its name; any other is named `toolset__name`.

    Args:
        tools: The tools by name.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools
        self._names = {(each.toolset, each.name): name for name, each in tools.items()}

    def identify(self, name: str) -> tuple[str, str]:
        """Return the toolset and the name of a tool; an unknown tool counts as local."""
        found = self.tools.get(name)
        return (found.toolset, found.name) if found is not None else ("local", name)

    def name(self, toolset: str, name: str) -> str:
        """Return the name by which the model calls a tool."""
        return self._names.get((toolset, name)) or wire_name(toolset, name)


def wire_name(toolset: str, name: str) -> str:
    """Return a tool name with only the characters that providers allow."""
    name = name if toolset == "local" else f"{toolset}__{name}"
    return name if name.isidentifier() and name.isascii() else _INVALID.sub("_", name)


def collect_tools(tools: AnyTools) -> ToolNames:
    """Return the tools of `wrap(tools=...)`.

    Raises:
        HookUsageError: If an entry is not a tool, or if two tools have the same name.
        AgentDefinitionError: If the parameters of a function cannot be described to a model.
    """
    given: object = tools
    if callable(given) or isinstance(given, str) or not isinstance(given, list | dict | Iterable):
        raise HookUsageError(
            f"`tools` takes a list of functions, or a mapping from names to functions; got {quote(tools)}. "
            "Write tools=[search, pay]."
        )
    found: dict[str, Tool] = {}
    entries: Iterable[tuple[str | None, Any]] = (
        tools.items() if isinstance(tools, dict | Mapping) else [(None, each) for each in tools]
    )
    for name, entry in entries:
        made = _make_tool(name, entry)
        wired = wire_name(made.toolset, made.name)
        if wired in found:
            raise HookUsageError(
                f"Two tools are named {wired!r}, so the model could not tell them apart. Name one of them with "
                "tool(fn, name=...), or give a mapping from names to functions."
            )
        found[wired] = made
    return ToolNames(found)


def _make_tool(name: str | None, entry: Any) -> Tool:
    if isinstance(entry, Tool):
        return entry if name in (None, entry.name) else msgspec.structs.replace(entry, name=name)
    if not callable(entry):
        raise HookUsageError(
            f"A tool is a function or a `Tool`; got {quote(entry)}. Give the JSON Schemas of your tools to the client, "
            "as before, and the functions to `tools=`; or use `run.tools`, which are the schemas of the functions."
        )
    return _tool_of(entry, name)


def _tool_of(function: Callable[..., Any], name: str | None) -> Tool:
    """Return the tool for a function; kept, because describing a function takes long.

    Args:
        function: The function.
        name: The name for the model; the function's name unless given.
    """
    if not inspect.isfunction(function):  # a bound method is another object each time, and would be gone at once
        return tool(function, name=name)
    kept = _tools.setdefault(function, {})
    if name not in kept:
        kept[name] = tool(function, name=name)
    return kept[name]
