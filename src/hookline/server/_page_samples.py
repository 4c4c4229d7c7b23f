"""The sample that stands in the form of a dry run: of the hook's point, and of a tool that it is for."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from hookline._checks import tool_matcher
from hookline.registry import POINTS, HookDefinition, sample_of

__all__ = ["first_sample"]

FILLED_IN = {"type", "operationId", "timeUnixNano", "agentId", "userId", "tenantId", "parentOperationId", "metadata"}
"""What every event or call has, and nobody needs to see."""
TOOL = ("local", "search")
SET = re.compile(r"\[(?!!)(.)[^\]]*\]")


def first_sample(definition: HookDefinition) -> dict[str, Any]:
    """Fields of an event or call that a definition takes, under their names on the wire, for people to change.

    Args:
        definition: What is to be tried out.
    """
    point = POINTS[definition.point]
    sample = sample_of(point, {}, definition.tenant_id)
    fields = _shown(sample.subject)
    if point.has_tool:
        fields["identifier"], fields["apiName"] = _tool(definition.tool)
    if point.name.endswith(".after"):
        fields["result"] = _shown(sample.result)
    return fields


def _shown(subject: object) -> dict[str, Any]:
    fields = {_camel(name): value for name, value in msgspec.to_builtins(subject).items()}
    return {name: value for name, value in fields.items() if name not in FILLED_IN and value is not None}


def _tool(pattern: str | None) -> tuple[str, str]:
    """The identifier and the name of a tool that a glob takes, as far as one can be made of it."""
    matches = tool_matcher(pattern)
    if pattern is None or matches is None:
        return TOOL
    text = SET.sub(r"\1", pattern).replace("?", "x")
    first, _, second = (part.replace("*", "") for part in text.partition("/"))
    for identifier, name in ((first, second), (TOOL[0], first), (first, TOOL[1])):
        tool = (identifier or TOOL[0], name or TOOL[1])
        if matches("/".join(tool)):
            return tool
    return TOOL


def _camel(name: str) -> str:
    return re.sub(r"_(.)", lambda found: found[1].upper(), name)
