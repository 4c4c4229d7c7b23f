"""Routes of approvals: the calls that wait for a person, and what the person decides."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response
from litestar.params import JSONBody
from sqlalchemy import select

from hookline.errors import StateFormatError
from hookline.runtime import Approve, OperationState, Reject
from hookline.server._access import Req, caller_of, parts_of
from hookline.server._audit import note_alone
from hookline.server._operation_routes import visible_operation
from hookline.server._parts import Parts
from hookline.server._routing import VISIBLE, Cursor, Id, Limit, TenantId, Words, paged, route
from hookline.store import Page, StoredOperation
from hookline.store._rows import state_of
from hookline.store._tables import decisions, operations

__all__ = ["APPROVAL_ROUTES", "Decided", "DecisionBody", "PendingApproval", "decide", "pending_approvals"]

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
        identifier: Where the tool comes from.
        api_name: The tool's name there.
        args: The very arguments that will run when it is approved.
        prompt: What a hook asks the person.
        waiting_since: Since when, in unix seconds.
    """

    operation_id: str
    tenant_id: str
    agent_id: str
    user_id: str
    tool_call_id: str
    identifier: str
    api_name: str
    args: dict[str, Any]
    prompt: str
    waiting_since: float


class DecisionBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a person decides about a call.

    Attributes:
        tool_call_id: The call.
        decision: `"approve"`: it runs. `"reject"`: it does not, and the run stops. `"rejectAndContinue"`: it does not,
            and the run goes on.
        reason: Why it is rejected; the model is told.
    """

    tool_call_id: CallId
    decision: Literal["approve", "reject", "rejectAndContinue"]
    reason: Reason = ""


class Decided(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A decision that is kept, for a worker to go on with.

    Attributes:
        operation_id: The run.
        tool_call_id: The call.
        decision: What was decided.
        pending: Calls of the run that wait still.
    """

    operation_id: str
    tool_call_id: str
    decision: Literal["approve", "reject", "rejectAndContinue"]
    pending: list[Words]


@route("GET", "/v1/approvals", scope="operations:read", summary="List calls that wait for a person", errors=[404])
async def list_approvals(
    request: Req, tenant_id: TenantId = None, cursor: Cursor = None, limit: Limit = 50
) -> Response[Page[PendingApproval]]:
    """Those of the newest operations first. The limit counts operations, of which each may have several calls."""
    parts, tenant = parts_of(request), caller_of(request).tenant(tenant_id)
    return paged(request, await pending_approvals(parts, tenant, cursor=cursor, limit=limit))


@route("POST", "/v1/operations/{id:str}/decisions", scope="approvals:decide", summary="Decide a call", errors=[409])
async def decide_call(request: Req, id: Id, data: JSONBody[DecisionBody]) -> Decided:  # noqa: A002
    """A worker goes on with the operation once all that it waits for is decided."""
    caller = caller_of(request)
    return await decide(parts_of(request), id, data, tenant_id=caller.tenant(), actor=caller.actor)


@route(
    "GET", "/v1/operations/{id:str}/approvals", scope="operations:read", summary="List calls of an operation that wait"
)
async def list_operation_approvals(request: Req, id: Id) -> list[PendingApproval]:  # noqa: A002
    """None, if it does not wait."""
    parts = parts_of(request)
    operation = await visible_operation(parts, caller_of(request), id)
    return await _pending(parts, [operation] if operation.status == "waiting_for_human" else [])


async def pending_approvals(
    parts: Parts, tenant_id: str | None, *, cursor: str | None, limit: int
) -> Page[PendingApproval]:
    """Calls that wait for a person, and about which nobody has decided.

    Args:
        parts: What the server is made of.
        tenant_id: Only those of this tenant.
        cursor: Where the part begins; that of the part before.
        limit: How many operations at most.
    """
    page = await parts.store.operations(tenant_id, "waiting_for_human", cursor=cursor, limit=limit)
    return Page(items=await _pending(parts, page.items), cursor=page.cursor)


async def decide(parts: Parts, id: str, body: DecisionBody, *, tenant_id: str | None, actor: str) -> Decided:  # noqa: A002
    """Keep what a person has decided.

    Args:
        parts: What the server is made of.
        id: The operation.
        body: What was decided.
        tenant_id: Only if the operation is this tenant's.
        actor: Who decided, for the audit.

    Raises:
        OperationNotFoundError: If there is no such operation.
        OperationFinishedError: If it does not wait for a person.
        DecisionError: If the call is not pending, or that is decided already.
    """
    call = body.tool_call_id
    decision: Approve | Reject = Approve(call)
    if body.decision != "approve":
        decision = Reject(call, reason=body.reason, and_continue=body.decision == "rejectAndContinue")
    state = await parts.store.decide(id, decision, by=actor, tenant_id=tenant_id)
    detail = {"toolCallId": call, "decision": body.decision}
    await note_alone(parts.store, state.tenant_id, actor, "approval.decide", id, detail=detail)
    open_calls = await _open(parts, {id: state})
    return Decided(operation_id=id, tool_call_id=call, decision=body.decision, pending=open_calls[id])


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
                states[row[0]] = state_of(*row)
    open_calls = await _open(parts, states)
    return [
        PendingApproval(
            operation_id=state.operation_id,
            tenant_id=state.tenant_id,
            agent_id=state.agent_id,
            user_id=state.user_id,
            tool_call_id=call.tool_call_id,
            identifier=call.identifier,
            api_name=call.api_name,
            args=call.args,
            prompt=call.prompt,
            waiting_since=(state.waiting_since_unix_nano or 0) / 1e9,
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


APPROVAL_ROUTES = [list_approvals, decide_call, list_operation_approvals]
