"""The view of tool calls that wait for a person, and what the person decides about them."""

from __future__ import annotations

import msgspec
from litestar import Response, get, post
from litestar.response import Stream

from hookline.errors import DecisionError, OperationFinishedError
from hookline.server._callers import Req, caller_of, not_found
from hookline.server._problems import ApiError
from hookline.server.page._frame import Frame, frame_of, own_place
from hookline.server.page._operations import MOST_MARKS, mark_of, pictures
from hookline.server.routes import (
    ApprovalFilter,
    DecisionBody,
    MadeDecision,
    approvals_of,
    decide,
    decisions_about,
    event_stream,
    pending_approvals,
    visible_operation,
)
from hookline.store import StoredOperation

__all__ = ["ROUTES"]

OPERATIONS = 50
FILTERS = ("tenant", "agent", "tool", "age")
AGES = {"600": "10 minutes", "3600": "an hour", "86400": "a day", "604800": "a week"}
"""Seconds that a call waits at least, and what they are called."""
LONGEST_FILTER = 400


@get("/approvals", opt={"scope": "operations:read"})
async def shown(request: Req) -> Response[str]:
    """Show the tool calls that wait for a person."""
    frame = frame_of(request)
    asked = _asked(request)
    page = await pending_approvals(frame.parts, _wanted(request, asked), cursor=asked["cursor"], limit=OPERATIONS)
    known = {
        "tenant": sorted({each.tenant_id for each in page.items if each.tenant_id}),
        "agent": sorted({each.agent_id for each in page.items}),
        "tool": sorted({f"{each.toolset}/{each.tool_name}" for each in page.items}),
    }
    return frame.page(
        request,
        "approvals.html",
        page=page,
        asked=asked,
        is_filtered=any(asked[name] for name in FILTERS),
        known=known,
        ages=[(seconds, f"{name} or longer") for seconds, name in _ages(asked["age"]).items()],
        back=frame.place(request),
        seen=".".join(mark_of(each) for each in page.items),
        is_live=asked["cursor"] is None and len(page.items) <= MOST_MARKS,
    )


@get("/approvals/live", opt={"scope": "operations:read"})
async def news(request: Req) -> Stream:
    """Tell how many calls wait that the list does not show. It never changes by itself.

    Nobody is to approve what has just moved under the button.
    """
    frame, wanted = frame_of(request), _wanted(request, _asked(request))
    there = set(request.query_params.get("seen", "").split("."))

    async def picture() -> str:
        page = await pending_approvals(frame.parts, wanted, cursor=None, limit=OPERATIONS)
        more = sum(mark_of(each) not in there for each in page.items)
        return frame.text(request, "approvals_news.html", more=more, asked=_asked(request))

    await picture()  # what is refused is refused before the answer begins
    return event_stream(request, pictures(request, picture))


@post("/approvals", opt={"scope": "approvals:decide"})
async def decided(request: Req) -> Response[str]:
    """Decide about one call: the one that the form shows, if it is still the same and nobody was quicker."""
    frame, caller = frame_of(request), caller_of(request)
    fields = await frame.fields(request)
    given = {
        "toolCallId": fields.get("call"),
        "decision": fields.get("decision"),
        "reason": fields.get("reason", ""),
        "seen": fields.get("seen", ""),
    }
    try:
        body = msgspec.convert(given, DecisionBody)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid", f"The decision cannot be used: {error}.") from None
    id = fields.get("operation", "")  # noqa: A001
    try:
        await decide(frame.parts, id, body, tenant_id=caller.tenant(), actor=caller.actor)
    except (DecisionError, OperationFinishedError):
        operation = await visible_operation(frame.parts, caller, id)
        made = await _made(frame, request, id, body.tool_call_id, body.seen)
        # The same form twice, as by a double click, is the same decision.
        if made is None or (made.decided_by, made.decision) != (caller.actor, body.decision):
            return await _refusal(frame, request, operation, body, made, back=fields.get("back", ""))
    query = {"operation": id, "call": body.tool_call_id, "seen": body.seen or ""}
    return frame.to(request, "/approvals/decided", **query, back=own_place(fields.get("back", "")))


@get("/approvals/decided", opt={"scope": "operations:read"})
async def outcome(request: Req) -> Response[str]:
    """Tell what was decided about a call, and by whom. There is nothing to press here by mistake."""
    frame, caller = frame_of(request), caller_of(request)
    id, call, seen, back = (request.query_params.get(name, "") for name in ("operation", "call", "seen", "back"))  # noqa: A001
    operation = await visible_operation(frame.parts, caller, id)
    made = await _made(frame, request, id, call, seen)
    if made is None:
        raise not_found("Nobody has decided about such a call.")
    return frame.page(request, "decided.html", made=made, operation=operation, back=own_place(back), problem=None)


async def _refusal(
    frame: Frame, request: Req, operation: StoredOperation, body: DecisionBody, made: MadeDecision | None, *, back: str
) -> Response[str]:
    """Refuse a form that shows what is not so any more, and say what became of the call."""
    waiting = {each.tool_call_id: each for each in await approvals_of(frame.parts, operation)}
    if made is not None:
        problem = "decided"
    elif body.tool_call_id in waiting:
        problem = "changed"
    else:
        problem = "gone"
    return frame.page(
        request,
        "decided.html",
        status=409,
        made=made,
        operation=operation,
        back=own_place(back),
        problem=problem,
        chosen=body,
    )


async def _made(frame: Frame, request: Req, id: str, call: str, seen: str | None) -> MadeDecision | None:  # noqa: A002
    """Find the decision about a call in the very pause in which a form has shown it."""
    pause = (seen or "").partition(".")[0]
    if not (pause.isascii() and pause.isdigit()) or len(pause) > 20:
        return None
    found = await decisions_about(frame.parts, caller_of(request), id)
    about = (each for each in reversed(found) if each.tool_call_id == call)
    # Of a decision that only an event tells of, the pause is not known; it came after that began.
    return next(
        (each for each in about if each.pause == pause or (not each.pause and each.decided_at * 1e9 >= int(pause))),
        None,
    )


def _ages(asked: str | None) -> dict[str, str]:
    """Return the ages that can be chosen, with the one that an address has asked for."""
    return AGES if asked is None or asked in AGES else {asked: f"{asked} seconds"} | AGES


def _asked(request: Req) -> dict[str, str | None]:
    """Return what the address asks for."""
    return {name: request.query_params.get(name) or None for name in (*FILTERS, "cursor")}


def _wanted(request: Req, asked: dict[str, str | None]) -> ApprovalFilter:
    """Return which calls are wanted.

    Raises:
        ApiError: 422, if a part of the filter makes no sense; 404, if it is about somebody else's tenant.
    """
    if any(len(value or "") > LONGEST_FILTER for name, value in asked.items() if name in FILTERS):
        raise ApiError(422, "invalid", f"A filter has {LONGEST_FILTER} characters at most.")
    age = asked["age"] or "0"
    if not (age.isascii() and age.isdigit()) or len(age) > 10:
        raise ApiError(422, "invalid", "The age is a number of seconds.")
    return ApprovalFilter(
        tenant_id=caller_of(request).tenant(asked["tenant"]),
        agent_id=asked["agent"],
        tool=asked["tool"],
        waiting_seconds=float(age),
    )


ROUTES = [shown, news, decided, outcome]
