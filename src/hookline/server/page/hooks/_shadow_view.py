"""`read_shadow_view`: what a shadow hook would have done in the last day, beside what was done, with examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time
from typing import Any

import msgspec
from sqlalchemy import select

from hookline.events import HookType
from hookline.registry import ExecutionRow, HookDefinition, HookRun, Statistic
from hookline.server._callers import Caller
from hookline.server._parts import ServerParts
from hookline.store import SqlStore, events

__all__ = ["ShadowExample", "ShadowGroup", "ShadowView", "read_shadow_view"]

DAY = 86_400
GROUPS = 8
"""Tools, and agents, that the page shows."""
EXAMPLES = 8
"""Examples that the page shows."""
LOOKED_AT = 200
"""Executions in which examples are looked for."""
MOST_EVENTS = 2000
"""Events of an operation in which a call is looked for."""
LONGEST_ARGS = 400
AROUND_CALL = (HookType.BEFORE_TOOL_CALL, HookType.AFTER_TOOL_CALL, HookType.ON_TOOL_CALL_ERROR)


class ShadowExample(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a shadow hook would have denied, asked about, or changed.

    Attributes:
        row: The row of the log.
        run: The execution of the hook.
        tool: The tool; `""` if the call is not known.
        args: The arguments, as JSON; `""` if they are not known, or the caller may not read operations.
        was: What happened to the call instead; `""` if it is not known.
    """

    row: ExecutionRow
    run: HookRun
    tool: str = ""
    args: str = ""
    was: str = ""


class ShadowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a shadow hook would have done about the calls of a tool or of an agent.

    Attributes:
        name: The tool or the agent, in words.
        counts: Its statistics.
    """

    name: str
    counts: Statistic


class ShadowView(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook in shadow mode would have done in the last day.

    Attributes:
        counts: Its statistics; `None` if it judged no call.
        examples: The newest calls that it would not have let pass, or in which it failed.
        by_tool: The tools with most decisions; empty if no call was about a tool.
        by_agent: The agents with most decisions; empty if no call was an agent's.
    """

    counts: Statistic | None
    examples: list[ShadowExample] = []
    by_tool: list[ShadowGroup] = []
    by_agent: list[ShadowGroup] = []


async def read_shadow_view(parts: ServerParts, caller: Caller, definition: HookDefinition) -> ShadowView | None:
    """Read what a definition would have done; `None` if it is enforced, and was not in shadow mode either.

    Args:
        parts: The parts of the server.
        caller: Who asks: only calls of its tenant are counted and shown.
        definition: The definition.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    log, tenant_id = parts.log, definition.tenant_id or caller.tenant()
    found = await log.statistics(tenant_id, hook_id=definition.id, since=time() - DAY)
    counts = next((each for each in found if each.shadow), None)
    if counts is None:
        return ShadowView(counts=None) if definition.mode == "shadow" else None
    by_tool = await log.statistics(tenant_id, hook_id=definition.id, since=time() - DAY, by="tool")
    by_agent = await log.statistics(tenant_id, hook_id=definition.id, since=time() - DAY, by="agent")
    page = await log.logs(tenant_id, hook_id=definition.id, status="shadow", since=time() - DAY, limit=LOOKED_AT)
    examples = [
        ShadowExample(row=row, run=run, tool=row.tool)
        for row in page.items
        for run in row.executions
        if run.hook_id == definition.id and run.status == "shadow" and (run.decision or run.error)
    ][:EXAMPLES]
    if "operations:read" in caller.scopes:
        examples = [await _add_call(parts.store, each) for each in examples]
    return ShadowView(
        counts=counts,
        examples=examples,
        by_tool=_groups_of([("further tools" if each.tool == "*" else each.tool, each) for each in by_tool]),
        by_agent=_groups_of([("further agents" if each.agent_id == "*" else each.agent_id, each) for each in by_agent]),
    )


def _groups_of(found: Sequence[tuple[str | None, Statistic]]) -> list[ShadowGroup]:
    """Return the groups in which a hook judged in shadow mode, those with most decisions first."""
    groups = [ShadowGroup(name=name, counts=counts) for name, counts in found if name and counts.shadow]
    return sorted(groups, key=lambda each: (-_decisions_of(each.counts), -each.counts.shadow, each.name))[:GROUPS]


def _decisions_of(counts: Statistic) -> int:
    """Return how many calls a hook would not have let pass as they were, or failed in."""
    decided = counts.shadow_denied + counts.shadow_asked + counts.shadow_mocked + counts.shadow_changed
    return decided + counts.shadow_continued + counts.shadow_failed


async def _add_call(store: SqlStore, example: ShadowExample) -> ShadowExample:
    """Add the tool, the arguments and the outcome of the call of an example, if its events are stored."""
    wanted = example.row.tool_call_id
    if wanted is None:
        return example
    query = (
        select(events.c.type, events.c.wire)
        .where(
            events.c.operation_id == example.row.operation_id, events.c.type.in_([str(each) for each in AROUND_CALL])
        )
        .order_by(events.c.number)
        .limit(MOST_EVENTS)
    )
    tool, args, was = example.tool, "", ""
    async with store.reading() as connection:
        for kind, wire in await connection.execute(query):
            event: dict[str, Any] = msgspec.json.decode(wire)
            if event.get("toolCallId") != wanted:
                continue
            if kind == HookType.BEFORE_TOOL_CALL:
                tool = f"{event.get('identifier', '')}/{event.get('apiName', '')}"
                args = _shorten(msgspec.json.encode(event.get("args", {})).decode())
            else:
                was = _outcome_of(kind, event)
    return msgspec.structs.replace(example, tool=tool, args=args, was=was)


def _outcome_of(kind: str, event: Mapping[str, Any]) -> str:
    """Say what happened to a call, by the event of its end."""
    by = event.get("answeredBy")
    if event.get("mocked"):
        return f"{by} answered it"
    if by:
        return f"{by} denied it"
    return "it failed" if kind == HookType.ON_TOOL_CALL_ERROR else "it ran"


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_ARGS else f"{text[:LONGEST_ARGS]}…"
