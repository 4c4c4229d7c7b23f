"""`CallMatches`: which of the last day's stored calls a definition is for, and stored calls as samples of dry runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import monotonic, time
from typing import Any, NamedTuple

import anyio
import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline._checks import tool_matcher
from hookline.calls import Call, CompactCall, SubAgentCall, ToolCall
from hookline.dialects import DIALECTS, host_tool_name, matches
from hookline.events import HookType
from hookline.registry._definition import HookDefinition, Point, point_of
from hookline.registry._errors import DefinitionError
from hookline.store import (
    OperationLineage,
    RecentEvent,
    SqlStore,
    read_event,
    read_events_after,
    read_lineages,
    read_operation_sums,
    read_recent_events,
    read_recent_operations,
)
from hookline.webhooks import Webhook

__all__ = [
    "CallMatches",
    "MatchedCall",
    "MatchedTool",
    "RecentCalls",
    "UnmatchedCalls",
    "read_stored_sample",
]

PERIOD = 86_400.0
"""Seconds before now in which calls are counted."""
MOST_CALLS = 10_000
"""Calls that are looked at, the newest."""
LEISURE = 20.0
"""Calls are kept for this many times the time that it took to read them, so that reading takes 5 % of it at most."""
MOST_KEPT = 50
MOST_TOOLS = 12
SHOWN_CALLS = 20
AFTER_CALL = (HookType.AFTER_TOOL_CALL, HookType.ON_TOOL_CALL_ERROR)
NEAR = 200
"""Results of tool calls that are searched for that of a call."""
EVENT_OF_CALL: Mapping[type[Call], str] = {
    ToolCall: HookType.BEFORE_TOOL_CALL.value,
    SubAgentCall: HookType.BEFORE_CALL_AGENT.value,
    CompactCall: HookType.BEFORE_COMPACT.value,
}
"""The types of events that tell of a call, for the calls that have one."""
SUMS = {
    "AgentCall": "operations",
    "StepCall": "steps",
    "beforeStep": "steps",
    "afterStep": "steps",
    "ModelCall": "llm_calls",
}
"""The columns of operations that count a kind of call, or the events of each."""


TOOLS_IN_CONFIG = {"require-approval": "tools", "deny-tools": "tools", "limit-calls": "tool"}
"""Where the built-in handlers that are for some tools only name them, in globs."""


def find_tool_globs(definition: HookDefinition) -> list[str]:
    """Return the globs of the tools that a definition is for, which the `config` of some handlers has; `[]` for all."""
    if definition.tool is not None:
        return [definition.tool]
    given = definition.config.get(TOOLS_IN_CONFIG.get(definition.handler or "", ""))
    globs = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return [glob for glob in globs if isinstance(glob, str) and glob]


class MatchedTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool that was called.

    Attributes:
        tool: Its toolset and name: `"bank/pay"`.
        count: How many calls of it were looked at.
        matches: Whether the definition is for it.
    """

    tool: str
    count: int
    matches: bool


class UnmatchedCalls(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Calls that a definition is not for.

    Attributes:
        reason: Why it is not for them: `"of other tools"`.
        count: How many of the calls that were looked at.
    """

    reason: str
    count: int


class MatchedCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stored call or event that a definition is for.

    Attributes:
        operation_id: The id of the operation.
        number: The number of the event there, from 1.
        tenant_id: The tenant of the operation.
        agent_id: The agent.
        tool: Toolset and name of the tool, for a call of a tool; else `""`.
        at: When it happened, in unix seconds.
    """

    operation_id: str
    number: int
    tenant_id: str
    agent_id: str
    tool: str = ""
    at: float


class CallMatches(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which of the last day's calls a definition is for, whether it is enabled or not.

    The tools are those of its `tool`, or in the `config` of `require-approval`, `deny-tools` and `limit-calls`. Its
    `environments` are not looked at, since no call is stored with its environment.

    Attributes:
        point: The point of the definition.
        since: The beginning of the day, in unix seconds.
        counted: Whether such calls are stored at all. Requests and writes to memory are not.
        looked_at: Number of calls at that point that were looked at.
        matched: How many of them the definition is for.
        is_complete: Whether all calls since then were looked at; else the newest 10,000.
        tools: For a point of tools: those that it is for, then others, each with the most called first.
        calls: The newest calls that the definition is for.
        unmatched: Why it is not for the others, with the most frequent reason first.
    """

    point: str
    since: float
    counted: bool = True
    looked_at: int = 0
    matched: int = 0
    is_complete: bool = True
    tools: list[MatchedTool] = []
    calls: list[MatchedCall] = []
    unmatched: list[UnmatchedCalls] = []


class CallGroup(NamedTuple):
    """What calls that are counted together have in common.

    Attributes:
        tool: Toolset and name of their tool; `""` where there is none.
        tenant_id: Their tenant.
        lineage: Their operation among those that called it; `None` where calls are not counted by operation.
    """

    tool: str
    tenant_id: str
    lineage: OperationLineage | None = None


class CallCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The last day's calls at a point, counted by tool and tenant, or also by operation.

    Attributes:
        since: The beginning of the day, in unix seconds.
        counted: Whether such calls are stored at all.
        is_complete: Whether these are all calls since then; else the newest 10,000.
        counts: The number of calls of each group.
        newest: The newest 20 calls of each group with it, the newest first.
    """

    since: float
    counted: bool = True
    is_complete: bool = True
    counts: Mapping[CallGroup, int] = {}
    newest: Sequence[tuple[CallGroup, MatchedCall]] = ()


WantedCalls = tuple[str, str | None, bool]
"""The name of a point, the tenant, and whether calls are counted by operation."""


class RecentCalls:
    """Reads the last day's calls at points, and keeps them for 20 times as long as it took to read them.

    Those who want the same calls at once share one reading.

    Args:
        store: The store of the operations.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._kept: dict[WantedCalls, tuple[float, CallCounts]] = {}
        self._locks: dict[WantedCalls, anyio.Lock] = {}

    async def match(self, definition: HookDefinition, tenant_id: str | None) -> CallMatches:
        """Count the calls that a definition is for.

        Args:
            definition: A checked definition, which need not be stored.
            tenant_id: Only calls of this tenant; `None` for all tenants.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        point = point_of(definition)
        tenant_id, by_operation = definition.tenant_id or tenant_id, definition.scope is not None
        return _match(definition, point, await self._find_calls(point, tenant_id, by_operation=by_operation))

    async def _find_calls(self, point: Point, tenant_id: str | None, *, by_operation: bool) -> CallCounts:
        key = (point.name, tenant_id, by_operation)
        lock = self._locks.setdefault(key, anyio.Lock())
        try:
            async with lock:
                began = monotonic()
                self._kept = {each: kept for each, kept in self._kept.items() if kept[0] >= began}
                kept_until, calls = self._kept.pop(key, (0.0, None))
                if calls is None:
                    calls = await _read_calls(self._store, point, tenant_id, by_operation=by_operation)
                    ended = monotonic()
                    kept_until = ended + LEISURE * (ended - began)
                self._kept[key] = kept_until, calls
        finally:
            if not lock.statistics().tasks_waiting:
                self._locks.pop(key, None)
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return calls


def _match(definition: HookDefinition, point: Point, calls: CallCounts) -> CallMatches:
    matchers = [tool_matcher(glob) for glob in find_tool_globs(definition)] if point.has_tool else []
    tools: Counter[str] = Counter()
    for group, count in calls.counts.items():
        tools[group.tool] += count
    is_meant = _build_host_test(definition) if point.has_tool else None
    is_for = {
        tool: (not matchers or any(test is None or test(tool) for test in matchers))
        and (is_meant is None or is_meant(tool))
        for tool in tools
    }
    reasons = {group: _find_reason(definition, group, is_for) for group in calls.counts}
    unmatched: Counter[str] = Counter()
    for group, count in calls.counts.items():
        unmatched[reasons[group]] += count
    matched = unmatched.pop("", 0)
    ordered = sorted(tools.items(), key=lambda each: (not is_for[each[0]], -each[1])) if point.has_tool else []
    newest = (call for group, call in calls.newest if not reasons[group])
    return CallMatches(
        point=point.name,
        since=calls.since,
        counted=calls.counted,
        looked_at=tools.total(),
        matched=matched,
        is_complete=calls.is_complete,
        tools=[MatchedTool(tool=tool, count=count, matches=is_for[tool]) for tool, count in ordered[:MOST_TOOLS]],
        calls=list(islice(newest, SHOWN_CALLS)),
        unmatched=[UnmatchedCalls(reason=reason, count=count) for reason, count in unmatched.most_common()],
    )


def _find_reason(definition: HookDefinition, group: CallGroup, is_for: Mapping[str, bool]) -> str:
    """Return why a definition is not for a group of calls; `""` if it is."""
    tenant, scope = group.tenant_id, definition.scope
    if not is_for[group.tool]:
        return "of other tools"
    if tenant in definition.except_tenants or (definition.tenants and tenant not in definition.tenants):
        return "of other tenants"
    if scope is None or group.lineage is None:
        return ""
    if not scope.has_agent(group.lineage.agent_ids):
        return "of other agents"
    if not scope.has_tag(group.lineage.tags):
        return "of operations with other tags" if group.lineage.tags else "of operations without tags"
    if not scope.has_operation(group.lineage.root_operation_id):
        return f"of operations that are not among the {scope.percent:g} %"
    return ""


def _build_host_test(definition: HookDefinition) -> Callable[[str], bool] | None:
    """Return a test of `toolset/tool_name` for the matcher of another dialect; `None` if the definition has none."""
    spoken: HookDefinition | Webhook = definition.webhook or definition
    dialect = DIALECTS.get(spoken.dialect)
    if dialect is None:
        return None

    def is_meant(tool: str) -> bool:
        toolset, _, name = tool.partition("/")
        return matches(dialect, spoken.matcher, host_tool_name(dialect, toolset, name))

    return is_meant


class _EventHead(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str = ""
    toolset: str = msgspec.field(default="", name="identifier")
    tool_name: str = msgspec.field(default="", name="apiName")


_read_head = msgspec.json.Decoder(_EventHead).decode


async def _read_calls(store: SqlStore, point: Point, tenant_id: str | None, *, by_operation: bool) -> CallCounts:
    since = time() - PERIOD
    column, type_ = SUMS.get(point.name.partition(".")[0]), _event_type(point)
    async with store.reading() as connection:
        if column is not None and by_operation:
            return await _read_operations(connection, column, tenant_id, since=since)
        if column is not None:
            sums, is_complete = await read_operation_sums(connection, tenant_id, since=since, most=MOST_CALLS)
            counts = {CallGroup("", each.tenant_id): int(getattr(each, column)) for each in sums}
            return CallCounts(since=since, is_complete=is_complete, counts=counts)
        if type_ is None:
            return CallCounts(since=since, counted=False)
        found, is_complete = await read_recent_events(connection, type_, tenant_id, since=since, most=MOST_CALLS)
        lineages = await read_lineages(connection, {each.operation_id for each in found}) if by_operation else {}
    return _count_calls(found, point, lineages, since=since, is_complete=is_complete)


async def _read_operations(
    connection: AsyncConnection, column: str, tenant_id: str | None, *, since: float
) -> CallCounts:
    """Count calls by operation that are counted in a column of operations."""
    found, is_complete = await read_recent_operations(connection, tenant_id, since=since, most=MOST_CALLS)
    lineages = await read_lineages(connection, [each.operation_id for each in found])
    counts: Counter[CallGroup] = Counter()
    for each in found:
        group = CallGroup("", each.tenant_id, lineages[each.operation_id])
        counts[group] += 1 if column == "operations" else int(getattr(each, column))
    return CallCounts(since=since, is_complete=is_complete, counts=counts)


def _count_calls(
    found: Sequence[RecentEvent],
    point: Point,
    lineages: Mapping[str, OperationLineage],
    *,
    since: float,
    is_complete: bool,
) -> CallCounts:
    counts: Counter[CallGroup] = Counter()
    newest: list[tuple[CallGroup, MatchedCall]] = []
    for event in found:
        head = _read_head(event.wire)
        tool = f"{head.toolset}/{head.tool_name}" if point.has_tool else ""
        group = CallGroup(tool, event.tenant_id, lineages.get(event.operation_id))
        counts[group] += 1
        if counts[group] <= SHOWN_CALLS:
            call = MatchedCall(
                operation_id=event.operation_id,
                number=event.number,
                tenant_id=event.tenant_id,
                agent_id=head.agent_id,
                tool=tool,
                at=event.time_unix_nano / 1e9,
            )
            newest.append((group, call))
    return CallCounts(since=since, is_complete=is_complete, counts=counts, newest=newest)


def _event_type(point: Point) -> str | None:
    if point.event is not None:
        return point.event.hook_type.value
    return None if point.call is None else EVENT_OF_CALL.get(point.call)


async def read_stored_sample(
    store: SqlStore,
    definition: HookDefinition,
    operation_id: str,
    number: int,
    tenant_id: str | None,
) -> dict[str, Any]:
    """Read a stored call or event as the sample of a dry run.

    Args:
        store: The store of the operations.
        definition: The definition that is tried out.
        operation_id: The id of the operation.
        number: The number of the event, from 1; for a hook of tool calls, that of a `beforeToolCall`.
        tenant_id: Only if it is this tenant's; `None` for any tenant's.

    Raises:
        DefinitionError: If there is no such event, it is another tenant's, or it does not fit the definition's point.
        StoreUnavailableError: If the database cannot be reached.
    """
    point = point_of(definition)
    type_ = _event_type(point)
    async with store.reading() as connection:
        event = await read_event(connection, operation_id, number) if 0 < number < 2**63 else None
        if event is None or tenant_id not in (None, event.tenant_id):
            raise DefinitionError("invalid", "$.call", "this call is not stored, or not any more; choose another one")
        fields: dict[str, Any] = msgspec.json.decode(event.wire)
        if point.call not in (None, ToolCall) or fields.get("type") != type_:
            raise DefinitionError("invalid", "$.call", f"it is no {type_ or point.name}; choose a call of this point")
        following: list[RecentEvent] = []
        if point.name == "ToolCall.after":
            following = await read_events_after(connection, operation_id, number, AFTER_CALL, most=NEAR)
    if point.call is ToolCall:
        known = {field.encode_name for field in msgspec.structs.fields(ToolCall)}
        fields = {name: value for name, value in fields.items() if _call_name(name) in known}
    for each in following:
        after = msgspec.json.decode(each.wire)
        if after.get("toolCallId") == fields.get("toolCallId"):
            failed = "error" in after
            content = after["error"] if failed else after.get("content", "")
            fields["result"] = {"content": content, "success": not failed and bool(after.get("success"))}
            break
    return fields


def _call_name(wire: str) -> str:
    """Return the name that a field of an event has in a `ToolCall`."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in wire)
