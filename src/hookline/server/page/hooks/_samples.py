"""Samples of dry runs: made up from the point of a hook, or a stored call."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from hookline._checks import tool_matcher
from hookline.errors import HookUsageError
from hookline.registry import POINTS, HookDefinition, build_sample, find_tool_globs
from hookline.server._callers import Req, caller_of
from hookline.server.page._context import context_of
from hookline.webhooks import to_camel

__all__ = ["first_sample", "parse_call", "write_sample"]

FILLED_IN = {"type", "operationId", "timeUnixNano", "agentId", "userId", "tenantId", "parentOperationId", "metadata"}
"""Fields of every event or call that are left out of a sample."""
TOOL = ("local", "search")
SET = re.compile(r"\[(?!!)(.)[^\]]*\]")


def first_sample(definition: HookDefinition) -> dict[str, Any]:
    """Return the fields of a sample for a definition, under their wire names, for people to edit.

    Args:
        definition: The definition to try out.
    """
    point = POINTS[definition.point]
    sample = build_sample(point, {}, definition.tenant_id)
    fields = _visible_fields(sample.subject)
    if point.has_tool:
        fields["identifier"], fields["apiName"] = _example_tool(next(iter(find_tool_globs(definition)), None))
    if point.name.endswith(".after"):
        fields["result"] = _visible_fields(sample.result)
    return fields


def _visible_fields(subject: object) -> dict[str, Any]:
    fields = {to_camel(name): value for name, value in msgspec.to_builtins(subject).items()}
    return {name: value for name, value in fields.items() if name not in FILLED_IN and value is not None}


def _example_tool(pattern: str | None) -> tuple[str, str]:
    """Return toolset and name of a tool that a glob matches, if one can be derived from it."""
    matches = tool_matcher(pattern)
    if pattern is None or matches is None:
        return TOOL
    text = SET.sub(r"\1", pattern).replace("?", "x")
    first, _, second = (part.replace("*", "") for part in text.partition("/"))
    for toolset, name in ((first, second), (TOOL[0], first), (first, TOOL[1])):
        tool = (toolset or TOOL[0], name or TOOL[1])
        if matches("/".join(tool)):
            return tool
    return TOOL


def parse_call(text: str) -> tuple[str, int]:
    """Parse a stored call as forms name it: the id of its operation, a colon, and the number of its event.

    Raises:
        HookUsageError: If it is none.
    """
    operation_id, _, number = text.rpartition(":")
    if not operation_id or re.fullmatch(r"\d{1,15}", number, re.ASCII) is None:
        raise HookUsageError("Choose one of the calls that are listed.")
    return operation_id, int(number)


async def write_sample(request: Req, definition: HookDefinition, call: tuple[str, int]) -> str:
    """Write a stored call, which the caller may see, as the sample of a dry run.

    Raises:
        ApiError: 403, if the key lacks the scope `operations:read`.
        DefinitionError: If the call is not stored any more, or does not fit the definition.
    """
    caller = caller_of(request)
    caller.demand("operations:read")
    visible = caller.tenant(definition.tenant_id or None)
    found = await context_of(request).parts.registry.stored_sample(definition, *call, tenant_id=visible)
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
