"""Tools that hooks have changed, over a pause: what is kept of them, and what they are afterwards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from hookline.calls import ToolCall, ToolCalling, ToolSpec
from hookline.runtime._agent import AGENT_IDENTIFIER, Agent
from hookline.runtime._state import OfferedTool
from hookline.runtime._tools import Tool

__all__ = ["as_calling", "found_offered", "jsonable", "keep_here", "kept", "offered_again"]


def kept(agent: Agent, offered: Sequence[ToolSpec]) -> list[OfferedTool]:
    """What can be stored of the tools that hooks have left: not their functions."""
    return [
        OfferedTool(
            identifier=tool.identifier,
            name=tool.name,
            description=tool.description,
            schema=tool.schema,
            needs_approval=isinstance(tool, Tool) and tool.needs_approval is not False,
            own=not isinstance(tool, Tool) or _runs(agent.find(as_calling(tool))) == tool.run,
        )
        for tool in offered
    ]


_here: OrderedDict[str, list[ToolSpec]] = OrderedDict()
"""The tools that hooks gave to operations which wait for a person, by the name that the state has for them, as long as
this process lives: functions do not travel with the state."""

REMEMBERED = 1000
"""Of how many operations that is kept."""


def keep_here(offer: str, offered: list[ToolSpec], *, waiting: bool) -> None:
    """Remember the tools of an operation while it waits."""
    if not waiting:
        _here.pop(offer, None)
    else:
        _here[offer] = offered
        while len(_here) > REMEMBERED:
            _here.popitem(last=False)


def offered_again(agent: Agent, offer: str, offered: Sequence[OfferedTool] | None) -> list[ToolSpec] | None:
    """The tools of an operation that goes on.

    In another process than the one that paused it, one whose function is not the agent's is only a name: the model is
    told that it is unknown, rather than that another function is run in its place. One that needed approval needs it
    again.
    """
    if offered is None:
        return None
    here = _here.get(offer)
    if here is not None:
        return here
    tools: list[ToolSpec] = []
    for spec in offered:
        found = agent.find(as_calling(spec))
        if not spec.own or not isinstance(found, Tool):
            tools.append(spec)
            continue
        approval = found.needs_approval if found.needs_approval is not False else spec.needs_approval
        tools.append(
            msgspec.structs.replace(found, description=spec.description, schema=spec.schema, needs_approval=approval)
        )
    return tools


def found_offered(agent: Agent, offered: Sequence[ToolSpec], calling: ToolCalling | ToolCall) -> Tool | Agent | None:
    """The tool or sub-agent that is to be called, if hooks have left it among what the model is offered."""
    for spec in offered:
        if spec.name == calling.api_name and calling.identifier in (spec.identifier, "local"):
            if isinstance(spec, Tool):
                return spec
            return agent.find(as_calling(spec)) if not isinstance(spec, OfferedTool) or spec.own else None
        if calling.api_name == f"{AGENT_IDENTIFIER}/{spec.name}" and spec.identifier == AGENT_IDENTIFIER:
            return agent.find(calling)
    return None


def as_calling(spec: ToolSpec) -> ToolCalling:
    """A model's call of a tool, to look it up by."""
    return ToolCalling(identifier=spec.identifier, api_name=spec.name, tool_call_id="")


def jsonable(metadata: dict[str, Any]) -> dict[str, Any]:
    """What JSON can carry of what hooks have noted."""
    if not metadata:
        return {}
    carried = {}
    for key, value in metadata.items():
        try:
            carried[key] = msgspec.json.decode(msgspec.json.encode({key: value}))[key]
        except (TypeError, ValueError, RecursionError, KeyError):
            continue
    return carried


def _runs(found: object) -> object:
    return found.run if isinstance(found, Tool) else None
