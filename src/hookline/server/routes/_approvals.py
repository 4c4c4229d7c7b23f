"""Routes of approvals: the calls that wait for a person, and what the person decides."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response
from litestar.params import JSONBody
from sqlalchemy import select

from hookline._checks import tool_matcher
from hookline.errors import StateFormatError
from hookline.runtime import OperationState, decision_of
from hookline.server._audit import note_alone
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._parts import Parts, parts_of
from hookline.server.routes._operations import visible_operation
from hookline.server.routes._shared import VISIBLE, Cursor, Id, Limit, TenantId, Words, paged, route
from hookline.store import (
    Page,
    StoredDecision,
    StoredOperation,
    api_keys,
    cursor_after,
    decisions,
    decode_state,
    make_seen_token,
    operations,
)

__all__ = [
    "APPROVAL_ROUTES",
    "ApprovalFilter",
    "Decided",
    "DecisionBody",
    "MadeDecision",
    "PendingApproval",
    "approvals_of",
    "decide",
    "decider_of",
    "decisions_about",
    "pending_approvals",
]

MOST_LOOKED_AT = 2000
"""Operations that are looked at for one part of a filtered list; the next part goes on where it ends."""

Reason = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$")]
CallId = Annotated[str, msgspec.Meta(min_length=1, max_length=400, pattern=VISIBLE)]


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call that waits for a person.

    Attributes:
        operation_id: The run.
        tenant_id: For whom it runs.
        agent_id: The agent.
        user_id: The user for whom it runs.
        tool_call_id: The call, to be named in the decision.
        toolset: Where the tool comes from.
        tool_name: The tool's name there.
        args: The very arguments that will run when it is approved.
        prompt: What a hook asks the person.
        waiting_since: Since when, in unix seconds.
        seen: Names the call as it is now. Sent back with the decision, it makes sure that what runs is what was shown.
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
    waiting_since: float
    seen: str


class DecisionBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a person decides about a call.

    Attributes:
        tool_call_id: The call.
        decision: `"approve"`: the call runs. `"reject"` (reject and stop): it does not run, and the run stops.
            `"rejectAndContinue"` (reject and continue): it does not run, the model is told why, and the run goes on.
        reason: Why it is rejected; the model is told.
        seen: The `seen` of the call that the person looked at. If the call is another one by now, with other arguments
            or of a later pause, the decision is refused with 409. Left out, whatever waits under that id is decided.
    """

    tool_call_id: CallId
    decision: Literal["approve", "reject", "rejectAndContinue"]
    reason: Reason = ""
    seen: Annotated[str, msgspec.Meta(max_length=80, pattern=VISIBLE)] | None = None


class Decided(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A decision that is kept, for a worker to go on with.

    Attributes:
        operation_id: The run.
        tool_call_id: The call.
        decision: What was decided.
        decided_by: Who decided: `"key:<id>"`.
        pending: Calls of the run that wait still.
    """

    operation_id: str
    tool_call_id: str
    decision: Literal["approve", "reject", "rejectAndContinue"]
    decided_by: str
    pending: list[Words]


class MadeDecision(StoredDecision, frozen=True, kw_only=True, rename="camel"):
    """A decision that a person has made about a call of an operation.

    Attributes:
        decided_by_name: The name of that API key, if the caller may see it; else `""`.
    """

    decided_by_name: str = ""


class ApprovalFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the calls that wait are wanted.

    Attributes:
        tenant_id: Those of this tenant; `None` for those of all.
        agent_id: Those of this agent; `None` for those of all.
        tool: Those of tools that this glob matches; without a `/` it is about the name alone.
        waiting_seconds: Those that wait for that long at least.
    """

    tenant_id: str | None = None
    agent_id: str | None = None
    tool: str | None = None
    waiting_seconds: float = 0.0


@route("GET", "/v1/approvals", scope="operations:read", summary="List calls that wait for a person", errors=[404])
async def list_approvals(
    request: Req, tenant_id: TenantId = None, cursor: Cursor = None, limit: Limit = 50
) -> Response[Page[PendingApproval]]:
    """Those of the newest operations first. The limit counts operations, of which each may have several calls."""
    parts, tenant = parts_of(request), caller_of(request).tenant(tenant_id)
    wanted = ApprovalFilter(tenant_id=tenant)
    return paged(request, await pending_approvals(parts, wanted, cursor=cursor, limit=limit))


@route("POST", "/v1/operations/{id:str}/decisions", scope="approvals:decide", summary="Decide a call", errors=[409])
async def decide_call(request: Req, id: Id, data: JSONBody[DecisionBody]) -> Decided:  # noqa: A002
    """A worker goes on with the operation once all that it waits for is decided."""
    caller = caller_of(request)
    return await decide(parts_of(request), id, data, tenant_id=caller.tenant(), actor=caller.actor)


@route(
    "GET",
    "/v1/operations/{id:str}/decisions",
    scope="operations:read",
    summary="List the decisions about an operation",
)
async def list_decisions(request: Req, id: Id) -> list[MadeDecision]:  # noqa: A002
    """The oldest first, and who made each of them. The events that tell of decisions name nobody."""
    parts, caller = parts_of(request), caller_of(request)
    await visible_operation(parts, caller, id)
    return await decisions_about(parts, caller, id)


@route(
    "GET", "/v1/operations/{id:str}/approvals", scope="operations:read", summary="List calls of an operation that wait"
)
async def list_operation_approvals(request: Req, id: Id) -> list[PendingApproval]:  # noqa: A002
    """None, if it does not wait."""
    parts = parts_of(request)
    return await approvals_of(parts, await visible_operation(parts, caller_of(request), id))


async def approvals_of(parts: Parts, operation: StoredOperation) -> list[PendingApproval]:
    """List the calls of one operation that wait for a person, and about which nobody has decided.

    Args:
        parts: What the server is made of.
        operation: The operation, which the caller may see.
    """
    return await _pending(parts, [operation] if operation.status == "waiting_for_human" else [])


async def pending_approvals(
    parts: Parts, wanted: ApprovalFilter, *, cursor: str | None, limit: int
) -> Page[PendingApproval]:
    """List calls that wait for a person, and about which nobody has decided.

    Args:
        parts: What the server is made of.
        wanted: Which of them.
        cursor: Where the part begins; that of the part before.
        limit: How many operations at most.
    """
    filtered = wanted.tool is not None or wanted.waiting_seconds > 0
    now = await parts.store.now() if filtered else 0.0
    found: list[PendingApproval] = []
    operations_found = looked_at = 0
    while True:
        page = await parts.store.operations(
            wanted.tenant_id, "waiting_for_human", agent_id=wanted.agent_id, cursor=cursor, limit=limit
        )
        calls = _fitting(await _pending(parts, page.items), wanted, now)
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


def _fitting(calls: Iterable[PendingApproval], wanted: ApprovalFilter, now: float) -> list[PendingApproval]:
    """Select calls by what the database cannot select: their tools, and how long they wait."""
    matches = tool_matcher(wanted.tool) or bool
    latest = now - wanted.waiting_seconds if wanted.waiting_seconds > 0 else math.inf
    return [call for call in calls if matches(f"{call.toolset}/{call.tool_name}") and call.waiting_since <= latest]


async def decisions_about(parts: Parts, caller: Caller, id: str) -> list[MadeDecision]:  # noqa: A002
    """List the decisions about an operation, with the names of the keys with which they were made.

    A key of the system has a name that only those may see who see all.

    Args:
        parts: What the server is made of.
        caller: Who looks, and may see the operation.
        id: The operation.
    """
    found = await parts.store.decisions_of(id)
    ids = {each.decided_by.removeprefix("key:") for each in found if each.decided_by.startswith("key:")}
    query = select(api_keys.c.id, api_keys.c.name).where(api_keys.c.id.in_(ids))
    if not caller.sees_all:
        query = query.where(api_keys.c.tenant_id == caller.tenant_id)
    names: dict[str, str] = {}
    if ids:
        async with parts.store.reading() as connection:
            names = {f"key:{row[0]}": row[1] for row in await connection.execute(query)}
    return [
        MadeDecision(**msgspec.structs.asdict(each), decided_by_name=names.get(each.decided_by, "")) for each in found
    ]


def decider_of(made: MadeDecision) -> str:
    """Say who made a decision, to be read after the word *by*."""
    kind, _, name = made.decided_by.partition(":")
    if not made.decided_by:
        return "somebody who was not named"
    if kind == "key":
        return f"{made.decided_by_name} (API key {name})" if made.decided_by_name else f"API key {name}"
    if kind == "cli":
        return f"{name or 'somebody'} on the command line"
    return made.decided_by


async def decide(parts: Parts, id: str, body: DecisionBody, *, tenant_id: str | None, actor: str) -> Decided:  # noqa: A002
    """Keep what a person has decided.

    Args:
        parts: What the server is made of.
        id: The operation.
        body: What was decided.
        tenant_id: Only if the operation is this tenant's.
        actor: Who decided; kept with the decision, and in the audit.

    Raises:
        OperationNotFoundError: If there is no such operation.
        OperationFinishedError: If it does not wait for a person.
        DecisionError: If the call is not pending, that is decided already, or it is not as it was seen.
    """
    call = body.tool_call_id
    decision = decision_of(body.decision, call, body.reason)
    state = await parts.store.decide(id, decision, by=actor, tenant_id=tenant_id, seen=body.seen)
    detail = {"toolCallId": call, "decision": body.decision}
    await note_alone(parts.store, state.tenant_id, actor, "approval.decide", id, detail=detail)
    open_calls = await _open(parts, {id: state})
    return Decided(operation_id=id, tool_call_id=call, decision=body.decision, decided_by=actor, pending=open_calls[id])


async def _pending(parts: Parts, waiting: list[StoredOperation]) -> list[PendingApproval]:
    if not waiting:
        return []
    ids = [each.operation_id for each in waiting]
    query = select(operations.c.operation_id, operations.c.format, operations.c.state).where(
        operations.c.operation_id.in_(ids), operations.c.status == "waiting_for_human"
    )
    states: dict[str, OperationState] = {}
    async with parts.store.reading() as connection:
        for row in await connection.execute(query):
            with contextlib.suppress(StateFormatError):  # it waits for who can read it
                states[row[0]] = decode_state(*row)
    open_calls = await _open(parts, states)
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
            waiting_since=(state.waiting_since_unix_nano or 0) / 1e9,
            seen=make_seen_token(state, call),
        )
        for id in ids  # noqa: A001
        if (state := states.get(id)) is not None
        for call in state.pending
        if call.tool_call_id in open_calls[id]
    ]


async def _open(parts: Parts, states: dict[str, OperationState]) -> dict[str, list[str]]:
    """The calls of states about which nobody has decided, by operation."""
    query = select(decisions.c.operation_id, decisions.c.pause, decisions.c.tool_call_id).where(
        decisions.c.operation_id.in_(list(states))
    )
    async with parts.store.reading() as connection:
        known = {tuple(row) for row in await connection.execute(query)}
    return {
        id: [
            call.tool_call_id
            for call in state.pending
            if call.tool_call_id not in state.decisions
            and (id, state.waiting_since_unix_nano or 0, call.tool_call_id) not in known
        ]
        for id, state in states.items()  # noqa: A001
    }


APPROVAL_ROUTES = [list_approvals, decide_call, list_decisions, list_operation_approvals]
