"""Equal calls that wait: find them, and decide about several of them with one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import Literal, TypeAlias

import msgspec

from hookline.errors import DecisionError, OperationFinishedError, OperationNotFoundError
from hookline.server._callers import Caller
from hookline.server._parts import ServerParts
from hookline.server._problems import ApiError
from hookline.server.routes import (
    ApprovalFilter,
    DecisionBody,
    MadeDecision,
    PendingApproval,
    find_decisions,
    find_pending_approvals,
    list_approvals_of,
    read_visible_operation,
    store_decision,
)
from hookline.store import StoredOperation

__all__ = [
    "MOST_CALLS",
    "ChosenCall",
    "DecisionResult",
    "count_equal_calls",
    "decide_about",
    "decide_about_each",
    "find_decision",
    "find_equal_calls",
    "make_equal_mark",
    "parse_decision",
]

MOST_CALLS = 100
"""Calls that one form lists at most."""
MOST_LOOKED_AT = 2000
BATCH_SIZE = 200

Problem: TypeAlias = Literal["", "decided", "changed", "gone", "missing"]


class ChosenCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that a form has chosen, as the person saw it."""

    operation_id: str
    tool_call_id: str
    seen: str


class DecisionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a decision about one call.

    Attributes:
        operation_id: The operation of the call.
        tool_call_id: The call.
        operation: The operation, if the caller may see it.
        made: The decision about the call, if there is one: the caller's, or another person's.
        problem: `""` if the caller's decision was stored; `"decided"` if another one was stored before, `"changed"` if
            the call is another one by now, `"gone"` if it no longer waits, `"missing"` without an operation.
    """

    operation_id: str
    tool_call_id: str
    operation: StoredOperation | None
    made: MadeDecision | None
    problem: Problem


def make_equal_mark(call: PendingApproval) -> str:
    """Return a mark that calls share which have the same agent, tool, arguments, question and asking hook."""
    same = [call.agent_id, call.toolset, call.tool_name, call.args, call.prompt, call.asked_by]
    return sha256(msgspec.json.encode(same, order="sorted")).hexdigest()[:32]


def count_equal_calls(calls: Iterable[PendingApproval]) -> Counter[str]:
    """Count calls by their mark."""
    return Counter(map(make_equal_mark, calls))


async def find_equal_calls(parts: ServerParts, caller: Caller, call: PendingApproval) -> list[PendingApproval]:
    """Find the calls that wait and equal a call, that one first: 100 at most, among the 2,000 newest operations.

    Args:
        parts: The parts of the server.
        caller: The caller, who sees the calls of their tenant only.
        call: One of the calls.
    """
    mark, found = make_equal_mark(call), [call]
    wanted = ApprovalFilter(tenant_id=caller.tenant(), agent_id=call.agent_id)
    cursor: str | None = None
    for _ in range(MOST_LOOKED_AT // BATCH_SIZE):
        page = await find_pending_approvals(parts, wanted, cursor=cursor, limit=BATCH_SIZE)
        first = call.operation_id, call.tool_call_id
        found += [
            each
            for each in page.items
            if (each.operation_id, each.tool_call_id) != first and make_equal_mark(each) == mark
        ]
        cursor = page.cursor
        if cursor is None or len(found) >= MOST_CALLS:
            break
    return found[:MOST_CALLS]


async def decide_about(
    parts: ServerParts, caller: Caller, operation_id: str, body: DecisionBody, *, mark: str | None = None
) -> DecisionResult:
    """Store a decision about one call, and say what became of it.

    The same decision of the same caller that is sent again, as by a double click, is no problem.

    Args:
        parts: The parts of the server.
        caller: Who decides.
        operation_id: The operation of the call.
        body: The decision.
        mark: Decide only if the call has this mark of `make_equal_mark`.

    Raises:
        ApiError: 404, if the caller may not see the operation; 409, if the call has another mark.
        StoreUnavailableError: If the database cannot be reached.
    """
    call = body.tool_call_id
    if mark is not None:
        waiting = await list_approvals_of(parts, await read_visible_operation(parts, caller, operation_id))
        if any(each.tool_call_id == call and make_equal_mark(each) != mark for each in waiting):
            raise ApiError(409, "changed", "One of the calls is not equal to the others.")
    problem: Problem = ""
    try:
        await store_decision(parts, operation_id, body, tenant_id=caller.tenant(), actor=caller.actor)
    except (DecisionError, OperationFinishedError):
        problem = "gone"
    operation = await read_visible_operation(parts, caller, operation_id)
    made = await find_decision(parts, caller, operation_id, call, body.seen)
    if problem:
        if made is not None:
            is_own = (made.decided_by, made.decision) == (caller.actor, body.decision)
            problem = "" if is_own else "decided"
        elif any(each.tool_call_id == call for each in await list_approvals_of(parts, operation)):
            problem = "changed"
    return DecisionResult(operation_id=operation_id, tool_call_id=call, operation=operation, made=made, problem=problem)


async def decide_about_each(
    parts: ServerParts, caller: Caller, chosen: Iterable[ChosenCall], decision: str, reason: str, mark: str
) -> list[DecisionResult]:
    """Store the same decision about each of several equal calls, one after the other.

    Args:
        parts: The parts of the server.
        caller: Who decides.
        chosen: The calls.
        decision: The decision.
        reason: Why the calls are rejected.
        mark: The mark that all calls must have.

    Raises:
        ApiError: 422, if the decision is invalid.
        StoreUnavailableError: If the database cannot be reached.
    """
    results: list[DecisionResult] = []
    for each in chosen:
        body = parse_decision(each.tool_call_id, decision, reason, each.seen)
        try:
            result = await decide_about(parts, caller, each.operation_id, body, mark=mark)
        except (ApiError, OperationNotFoundError) as error:
            refused: Problem = "changed" if isinstance(error, ApiError) and error.status == 409 else "missing"
            result = DecisionResult(
                operation_id=each.operation_id,
                tool_call_id=each.tool_call_id,
                operation=None,
                made=None,
                problem=refused,
            )
        results.append(result)
    return results


def parse_decision(call: str | None, decision: str | None, reason: str, seen: str) -> DecisionBody:
    """Check the fields of a decision.

    Raises:
        ApiError: 422, if one is invalid.
    """
    given = {"toolCallId": call, "decision": decision, "reason": reason, "seen": seen}
    try:
        return msgspec.convert(given, DecisionBody)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid", f"The decision is invalid: {error}.") from None


async def find_decision(
    parts: ServerParts,
    caller: Caller,
    id: str,  # noqa: A002
    call: str,
    seen: str | None,
) -> MadeDecision | None:
    """Find the decision about a call in the pause that a form has shown."""
    pause = (seen or "").partition(".")[0]
    if not (pause.isascii() and pause.isdigit()) or len(pause) > 20:
        return None
    about = (each for each in reversed(await find_decisions(parts, caller, id)) if each.tool_call_id == call)
    # A decision that is known from an event only has no pause; it was made after the pause began.
    return next(
        (each for each in about if each.pause == pause or (not each.pause and each.decided_at * 1e9 >= int(pause))),
        None,
    )
