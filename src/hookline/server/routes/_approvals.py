"""Routes of approvals: list the calls that wait for a person, and store the person's decisions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter
from sqlalchemy import select

from hookline._checks import tool_matcher
from hookline.errors import StateFormatError
from hookline.runtime import Action, OperationState, decision_of
from hookline.server._actors import describe_actor, find_key_names
from hookline.server._audit import write_audit_alone
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._parts import ServerParts, parts_of
from hookline.server.routes._operations import read_visible_operation
from hookline.server.routes._shared import (
    VISIBLE,
    Cursor,
    Id,
    Limit,
    OperationId,
    Since,
    TenantId,
    Until,
    Words,
    page_response,
    route,
)
from hookline.store import (
    DecisionFilter,
    DecisionRecord,
    Page,
    StoredDecision,
    StoredOperation,
    cursor_after,
    decision_cursor,
    decisions,
    decode_head,
    head_columns,
    make_seen_token,
    operations,
)

__all__ = [
    "APPROVAL_ROUTES",
    "ApprovalFilter",
    "Decided",
    "DecidedCall",
    "DecidedFilter",
    "DecisionBody",
    "MadeDecision",
    "PendingApproval",
    "count_waiting_calls",
    "describe_decider",
    "find_all_decisions",
    "find_decisions",
    "find_pending_approvals",
    "list_approvals_of",
    "store_decision",
]

MOST_LOOKED_AT = 2000
"""Operations that are read for one page of a filtered list at most; the next page continues there."""
MOST_SEARCHED = 1000
"""Decisions in which one page of a search looks for words at most; the next page continues there."""
BATCH_SIZE = 500
MOST_COUNTED = 50
"""Waiting operations whose calls are counted at most."""

LONGEST_AUDITED_REASON = 1000

Reason = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$")]
Kind = Annotated[Action | None, QueryParameter(description="Return only decisions of this kind.")]
AgentId = Annotated[
    str | None,
    QueryParameter(name="agentId", max_length=400, pattern=VISIBLE, description="Return only those of this agent."),
]
DecidedBy = Annotated[
    str | None,
    QueryParameter(
        name="decidedBy", max_length=400, pattern=VISIBLE, description="Return only those of this person: `key:<id>`."
    ),
]
SearchText = Annotated[
    str | None,
    QueryParameter(
        max_length=400,
        pattern=VISIBLE,
        description="Return only those that contain all of these words: in the tool, arguments, reason or names.",
    ),
]
CallId = Annotated[str, msgspec.Meta(min_length=1, max_length=400, pattern=VISIBLE)]


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call that waits for a person.

    Attributes:
        operation_id: The id of the operation.
        tenant_id: The tenant for whom the operation runs.
        agent_id: The agent that runs.
        user_id: The user for whom the operation runs.
        tool_call_id: The id of the call, to be sent with the decision.
        toolset: The toolset of the tool.
        tool_name: The name of the tool in its toolset.
        args: The arguments of the call. If it is approved, it runs with exactly these.
        prompt: The question to the person, if a hook asked.
        asked_by: The id of the hook that asks; `""` if the tool always needs approval, or the hook is not known.
        waiting_since: When the pause began, in unix seconds.
        seen: A token of the call as shown. Send it with the decision, so that only this call can run.
    """

    operation_id: str
    tenant_id: str
    agent_id: str
    user_id: str
    tool_call_id: str
    toolset: str = msgspec.field(name="identifier")
    tool_name: str = msgspec.field(name="apiName")
    args: dict[str, Any]
    prompt: str
    asked_by: str = ""
    waiting_since: float
    seen: str


class DecisionBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A person's decision about a call.

    Attributes:
        tool_call_id: The id of the call.
        decision: `"approve"`: the call runs. `"reject"` (reject and stop): the call does not run, and the run stops.
            `"rejectAndContinue"` (reject and continue): the call does not run, the model reads the reason, and the run
            continues.
        reason: Why the call is rejected. The model reads it.
        seen: The `seen` of the call that the person saw. If the call has changed since then, the server returns 409.
            Without `seen`, the decision applies to the call that waits under this id now.
    """

    tool_call_id: CallId
    decision: Literal["approve", "reject", "rejectAndContinue"]
    reason: Reason = ""
    seen: Annotated[str, msgspec.Meta(max_length=80, pattern=VISIBLE)] | None = None


class Decided(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stored decision.

    Attributes:
        operation_id: The id of the operation.
        tool_call_id: The id of the call.
        decision: The decision.
        decided_by: Who decided: `"key:<id>"`.
        pending: Ids of the operation's calls that still wait for a decision.
    """

    operation_id: str
    tool_call_id: str
    decision: Literal["approve", "reject", "rejectAndContinue"]
    decided_by: str
    pending: list[Words]


class MadeDecision(StoredDecision, frozen=True, kw_only=True, rename="camel"):
    """A decision about a call of an operation, with the name of the key that made it.

    Attributes:
        decided_by_name: The name of the API key, if the caller may see it; else `""`.
    """

    decided_by_name: str = ""


class DecidedCall(DecisionRecord, frozen=True, kw_only=True, rename="camel"):
    """A decision about a call, with the operation that it is about and the name of the key that made it.

    Attributes:
        decided_by_name: The name of the API key, if the caller may see it; else `""`.
    """

    decided_by_name: str = ""


class DecidedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of decisions: what the database can filter, and what is looked for in the decisions that it finds.

    Attributes:
        stored: What the database filters.
        decision: Only decisions of this kind.
        text: Only decisions that contain each of these words in the tool, arguments, reason, operation, agent, user or
            name of who decided, in upper or lower case.
    """

    stored: DecisionFilter
    decision: Action | None = None
    text: str | None = None

    def matches(self, made: DecidedCall) -> bool:
        """Return whether a decision matches what the database does not filter."""
        if self.decision not in (None, made.decision):
            return False
        if not self.text:
            return True
        its = (f"{made.toolset}/{made.tool_name}", made.reason, made.operation_id, made.agent_id, made.user_id)
        args = msgspec.json.encode(made.args).decode()
        whole = "\n".join((*its, args, made.tenant_id, made.decided_by, made.decided_by_name)).casefold()
        return all(word in whole for word in self.text.casefold().split())


class ApprovalFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of waiting calls.

    Attributes:
        tenant_id: Only calls of this tenant; `None` for all.
        agent_id: Only calls of this agent; `None` for all.
        tool: Only calls of tools that this glob matches; without a `/`, it matches names of tools.
        waiting_seconds: Only calls that have waited for at least this time.
    """

    tenant_id: str | None = None
    agent_id: str | None = None
    tool: str | None = None
    waiting_seconds: float = 0.0


@route("GET", "/v1/approvals", scope="operations:read", summary="List waiting calls", errors=[404])
async def list_approvals(
    request: Req, tenant_id: TenantId = None, cursor: Cursor = None, limit: Limit = 50
) -> Response[Page[PendingApproval]]:
    """List waiting calls, newest operations first. `limit` counts operations, not calls."""
    parts, tenant = parts_of(request), caller_of(request).tenant(tenant_id)
    wanted = ApprovalFilter(tenant_id=tenant)
    return page_response(request, await find_pending_approvals(parts, wanted, cursor=cursor, limit=limit))


@route("GET", "/v1/decisions", scope="operations:read", summary="List decisions of all operations", errors=[404])
async def list_all_decisions(
    request: Req,
    tenant_id: TenantId = None,
    agent_id: AgentId = None,
    operation_id: OperationId = None,
    decided_by: DecidedBy = None,
    decision: Kind = None,
    text: SearchText = None,
    since: Since = None,
    until: Until = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response[Page[DecidedCall]]:
    """List the stored decisions about calls, newest first, and who made them.

    Words and kinds are looked for in 1,000 decisions for each page. Then a page may be short and still have a cursor.
    """
    caller = caller_of(request)
    stored = DecisionFilter(
        tenant_id=caller.tenant(tenant_id),
        agent_id=agent_id,
        operation_id=operation_id,
        decided_by=decided_by,
        since=since,
        until=until,
    )
    wanted = DecidedFilter(stored=stored, decision=decision, text=text)
    return page_response(
        request, await find_all_decisions(parts_of(request), caller, wanted, cursor=cursor, limit=limit)
    )


@route(
    "POST", "/v1/operations/{id:str}/decisions", scope="approvals:decide", summary="Decide about a call", errors=[409]
)
async def decide_call(request: Req, id: Id, data: JSONBody[DecisionBody]) -> Decided:  # noqa: A002
    """Approve or reject a call. A worker resumes the operation when all of its waiting calls are decided."""
    caller = caller_of(request)
    return await store_decision(parts_of(request), id, data, tenant_id=caller.tenant(), actor=caller.actor)


@route(
    "GET",
    "/v1/operations/{id:str}/decisions",
    scope="operations:read",
    summary="List decisions of an operation",
)
async def list_decisions(request: Req, id: Id) -> list[MadeDecision]:  # noqa: A002
    """List the decisions about an operation, oldest first, and who made them."""
    parts, caller = parts_of(request), caller_of(request)
    await read_visible_operation(parts, caller, id)
    return await find_decisions(parts, caller, id)


@route(
    "GET", "/v1/operations/{id:str}/approvals", scope="operations:read", summary="List waiting calls of an operation"
)
async def list_operation_approvals(request: Req, id: Id) -> list[PendingApproval]:  # noqa: A002
    """List the waiting calls of an operation. The list is empty if the operation does not wait."""
    parts = parts_of(request)
    return await list_approvals_of(parts, await read_visible_operation(parts, caller_of(request), id))


async def list_approvals_of(parts: ServerParts, operation: StoredOperation) -> list[PendingApproval]:
    """List the waiting calls of an operation that are not decided yet.

    Args:
        parts: The parts of the server.
        operation: The operation, which the caller may see.
    """
    return await _read_pending(parts, [operation] if operation.status == "waiting_for_human" else [])


async def find_pending_approvals(
    parts: ServerParts, wanted: ApprovalFilter, *, cursor: str | None, limit: int
) -> Page[PendingApproval]:
    """Find waiting calls that are not decided yet.

    Args:
        parts: The parts of the server.
        wanted: The filter.
        cursor: The cursor of the page before; `None` for the first page.
        limit: Number of operations at most.
    """
    filtered = wanted.tool is not None or wanted.waiting_seconds > 0
    now = await parts.store.now() if filtered else 0.0
    found: list[PendingApproval] = []
    operations_found = looked_at = 0
    while True:
        page = await parts.store.operations(
            wanted.tenant_id, "waiting_for_human", agent_id=wanted.agent_id, cursor=cursor, limit=limit
        )
        calls = _filter_calls(await _read_pending(parts, page.items), wanted, now)
        for place, each in enumerate(page.items):
            its = [call for call in calls if call.operation_id == each.operation_id]
            found += its
            operations_found += bool(its)
            if filtered and operations_found == limit and (place + 1 < len(page.items) or page.cursor is not None):
                return Page(items=found, cursor=cursor_after(each))
        looked_at += len(page.items)
        cursor = page.cursor
        if cursor is None or not filtered or looked_at >= MOST_LOOKED_AT:
            return Page(items=found, cursor=cursor)


async def count_waiting_calls(
    parts: ServerParts, tenant_id: str | None, agent_id: str | None = None
) -> tuple[int, bool]:
    """Count the calls that wait for a person, and return whether there are more than were counted.

    Args:
        parts: The parts of the server.
        tenant_id: Only calls of this tenant.
        agent_id: Only calls of this agent.
    """
    page = await parts.store.operations(tenant_id, "waiting_for_human", agent_id=agent_id, limit=MOST_COUNTED)
    return len(await _read_pending(parts, page.items)), page.cursor is not None


def _filter_calls(calls: Iterable[PendingApproval], wanted: ApprovalFilter, now: float) -> list[PendingApproval]:
    """Filter calls by tool and waiting time, which the database cannot do."""
    matches = tool_matcher(wanted.tool) or bool
    latest = now - wanted.waiting_seconds if wanted.waiting_seconds > 0 else math.inf
    return [call for call in calls if matches(f"{call.toolset}/{call.tool_name}") and call.waiting_since <= latest]


async def find_decisions(parts: ServerParts, caller: Caller, id: str) -> list[MadeDecision]:  # noqa: A002
    """List the decisions about an operation, with the names of the keys that made them.

    The name of a key of another tenant is shown only to callers who see all tenants.

    Args:
        parts: The parts of the server.
        caller: The caller, who may see the operation.
        id: The id of the operation.
    """
    found = await parts.store.decisions_of(id)
    names = await _name_deciders(parts, caller, {each.decided_by for each in found})
    return [
        MadeDecision(**msgspec.structs.asdict(each), decided_by_name=names.get(each.decided_by, "")) for each in found
    ]


async def _name_deciders(parts: ServerParts, caller: Caller, deciders: set[str]) -> dict[str, str]:
    tenant_id = None if caller.sees_all else caller.tenant_id
    return await parts.store.read(partial(find_key_names, actors=deciders, tenant_id=tenant_id))


async def find_all_decisions(
    parts: ServerParts, caller: Caller, wanted: DecidedFilter, *, cursor: str | None, limit: int
) -> Page[DecidedCall]:
    """Find stored decisions of all operations, newest first, with the names of the keys that made them.

    Args:
        parts: The parts of the server.
        caller: The caller, who may see the operations.
        wanted: The filter.
        cursor: The cursor of the page before; `None` for the first page.
        limit: Number of decisions at most.
    """
    found: list[DecidedCall] = []
    looked_at = 0
    is_searched = bool(wanted.text) or wanted.decision is not None
    while True:
        # A search reads more at a time. Each decision ends a page, so that the next page continues after it.
        page = await parts.store.decisions(wanted.stored, cursor=cursor, limit=BATCH_SIZE if is_searched else limit)
        names = await _name_deciders(parts, caller, {each.decided_by for each in page.items})
        for place, each in enumerate(page.items):
            made = DecidedCall(**msgspec.structs.asdict(each), decided_by_name=names.get(each.decided_by, ""))
            if wanted.matches(made):
                found.append(made)
                if len(found) == limit:
                    more = place + 1 < len(page.items) or page.cursor is not None
                    return Page(items=found, cursor=decision_cursor(each) if more else None)
        looked_at += len(page.items)
        cursor = page.cursor
        if cursor is None or looked_at >= MOST_SEARCHED:
            return Page(items=found, cursor=cursor)


def describe_decider(made: MadeDecision | DecidedCall) -> str:
    """Describe who made a decision, to be read after the word *by*."""
    return describe_actor(made.decided_by, made.decided_by_name)


async def store_decision(
    parts: ServerParts,
    id: str,  # noqa: A002
    body: DecisionBody,
    *,
    tenant_id: str | None,
    actor: str,
) -> Decided:
    """Store a person's decision, and write it into the audit log.

    Args:
        parts: The parts of the server.
        id: The id of the operation.
        body: The decision.
        tenant_id: Accept the decision only if the operation is this tenant's.
        actor: Who decided.

    Raises:
        OperationNotFoundError: If there is no such operation.
        OperationFinishedError: If the operation does not wait for a person.
        DecisionError: If the call is not pending, is decided already, or has changed since the person saw it.
    """
    call = body.tool_call_id
    decision = decision_of(body.decision, call, body.reason)
    state = await parts.store.decide(id, decision, by=actor, tenant_id=tenant_id, seen=body.seen)
    about = next(each for each in state.pending if each.tool_call_id == call)
    detail = {"toolCallId": call, "decision": body.decision, "tool": f"{about.toolset}/{about.tool_name}"}
    if body.reason:
        detail["reason"] = body.reason[:LONGEST_AUDITED_REASON]
    await write_audit_alone(parts.store, state.tenant_id, actor, "approval.decide", id, detail=detail)
    open_calls = await _find_undecided(parts, {id: state})
    return Decided(operation_id=id, tool_call_id=call, decision=body.decision, decided_by=actor, pending=open_calls[id])


async def _read_pending(parts: ServerParts, waiting: list[StoredOperation]) -> list[PendingApproval]:
    if not waiting:
        return []
    ids = [each.operation_id for each in waiting]
    query = select(*head_columns).where(operations.c.operation_id.in_(ids), operations.c.status == "waiting_for_human")
    states: dict[str, OperationState] = {}
    for row in await parts.store.read_rows(query):
        with contextlib.suppress(StateFormatError):  # a newer version of hookline has written it
            states[row[0]] = decode_head(row)
    open_calls = await _find_undecided(parts, states)
    return [
        PendingApproval(
            operation_id=state.operation_id,
            tenant_id=state.tenant_id,
            agent_id=state.agent_id,
            user_id=state.user_id,
            tool_call_id=call.tool_call_id,
            toolset=call.toolset,
            tool_name=call.tool_name,
            args=call.args,
            prompt=call.prompt,
            asked_by=call.asked_by,
            waiting_since=(state.waiting_since_unix_nano or 0) / 1e9,
            seen=make_seen_token(state, call),
        )
        for id in ids  # noqa: A001
        if (state := states.get(id)) is not None
        for call in state.pending
        if call.tool_call_id in open_calls[id]
    ]


async def _find_undecided(parts: ServerParts, states: dict[str, OperationState]) -> dict[str, list[str]]:
    """Find the ids of pending calls that are not decided yet, by operation."""
    query = select(decisions.c.operation_id, decisions.c.pause, decisions.c.tool_call_id).where(
        decisions.c.operation_id.in_(list(states))
    )
    known = {tuple(row) for row in await parts.store.read_rows(query)}
    return {
        id: [
            call.tool_call_id
            for call in state.pending
            if call.tool_call_id not in state.decisions
            and (id, state.waiting_since_unix_nano or 0, call.tool_call_id) not in known
        ]
        for id, state in states.items()  # noqa: A001
    }


APPROVAL_ROUTES = [list_approvals, list_all_decisions, decide_call, list_decisions, list_operation_approvals]
