"""Views of tool calls that wait for a person, and of the person's decisions."""

from __future__ import annotations

import msgspec
from litestar import Response, get, post
from litestar.response import Stream

from hookline.errors import DecisionError, OperationFinishedError
from hookline.server._callers import Req, caller_of, not_found_error
from hookline.server._problems import ApiError
from hookline.server.page._context import PageContext, context_of, validate_place
from hookline.server.page._operations import MOST_MARKS, call_mark, stream_renderings
from hookline.server.routes import (
    ApprovalFilter,
    DecisionBody,
    MadeDecision,
    find_decisions,
    find_pending_approvals,
    list_approvals_of,
    read_visible_operation,
    store_decision,
    stream_response,
)
from hookline.store import StoredOperation

__all__ = ["ROUTES"]

OPERATIONS = 50
FILTERS = ("tenant", "agent", "tool", "age")
AGES = {"600": "10 minutes", "3600": "an hour", "86400": "a day", "604800": "a week"}
"""Choices of the filter by age: seconds that a call has waited at least, and their names."""
LONGEST_FILTER = 400


@get("/approvals", opt={"scope": "operations:read"})
async def show_approvals(request: Req) -> Response[str]:
    """Show the tool calls that wait for a person."""
    context = context_of(request)
    asked = _parse_query(request)
    page = await find_pending_approvals(
        context.parts, _build_filter(request, asked), cursor=asked["cursor"], limit=OPERATIONS
    )
    known = {
        "tenant": sorted({each.tenant_id for each in page.items if each.tenant_id}),
        "agent": sorted({each.agent_id for each in page.items}),
        "tool": sorted({f"{each.toolset}/{each.tool_name}" for each in page.items}),
    }
    return context.render_page(
        request,
        "approvals.html",
        page=page,
        asked=asked,
        is_filtered=any(asked[name] for name in FILTERS),
        known=known,
        ages=[(seconds, f"{name} or longer") for seconds, name in _age_choices(asked["age"]).items()],
        back=context.current_place(request),
        seen=".".join(call_mark(each) for each in page.items),
        is_live=asked["cursor"] is None and len(page.items) <= MOST_MARKS,
    )


@get("/approvals/live", opt={"scope": "operations:read"})
async def stream_news(request: Req) -> Stream:
    """Stream how many waiting calls the list does not show.

    The list itself never changes by itself, so that nobody approves a call that has just moved under the button.
    """
    context, wanted = context_of(request), _build_filter(request, _parse_query(request))
    there = set(request.query_params.get("seen", "").split("."))

    async def render() -> str:
        page = await find_pending_approvals(context.parts, wanted, cursor=None, limit=OPERATIONS)
        more = sum(call_mark(each) not in there for each in page.items)
        return context.render(request, "approvals_news.html", more=more, asked=_parse_query(request))

    await render()  # raises a refusal before the response has started
    return stream_response(request, stream_renderings(request, render))


@post("/approvals", opt={"scope": "approvals:decide"})
async def decide_call(request: Req) -> Response[str]:
    """Decide about the call that the form shows, if it is still the same and not decided yet."""
    context, caller = context_of(request), caller_of(request)
    fields = await context.read_form(request)
    given = {
        "toolCallId": fields.get("call"),
        "decision": fields.get("decision"),
        "reason": fields.get("reason", ""),
        "seen": fields.get("seen", ""),
    }
    try:
        body = msgspec.convert(given, DecisionBody)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid", f"The decision is invalid: {error}.") from None
    id = fields.get("operation", "")  # noqa: A001
    try:
        await store_decision(context.parts, id, body, tenant_id=caller.tenant(), actor=caller.actor)
    except (DecisionError, OperationFinishedError):
        operation = await read_visible_operation(context.parts, caller, id)
        made = await _find_decision(context, request, id, body.tool_call_id, body.seen)
        # The same form sent twice, as by a double click, is the same decision.
        if made is None or (made.decided_by, made.decision) != (caller.actor, body.decision):
            return await _render_refusal(context, request, operation, body, made, back=fields.get("back", ""))
    query = {"operation": id, "call": body.tool_call_id, "seen": body.seen or ""}
    return context.redirect(request, "/approvals/decided", **query, back=validate_place(fields.get("back", "")))


@get("/approvals/decided", opt={"scope": "operations:read"})
async def show_decision(request: Req) -> Response[str]:
    """Show the decision about a call, and who made it. This view has no buttons that could be pressed by mistake."""
    context, caller = context_of(request), caller_of(request)
    id, call, seen, back = (request.query_params.get(name, "") for name in ("operation", "call", "seen", "back"))  # noqa: A001
    operation = await read_visible_operation(context.parts, caller, id)
    made = await _find_decision(context, request, id, call, seen)
    if made is None:
        raise not_found_error("There is no decision about this call.")
    return context.render_page(
        request, "decided.html", made=made, operation=operation, back=validate_place(back), problem=None
    )


async def _render_refusal(
    context: PageContext,
    request: Req,
    operation: StoredOperation,
    body: DecisionBody,
    made: MadeDecision | None,
    *,
    back: str,
) -> Response[str]:
    """Refuse a form that is out of date, and show what became of the call."""
    waiting = {each.tool_call_id: each for each in await list_approvals_of(context.parts, operation)}
    if made is not None:
        problem = "decided"
    elif body.tool_call_id in waiting:
        problem = "changed"
    else:
        problem = "gone"
    return context.render_page(
        request,
        "decided.html",
        status=409,
        made=made,
        operation=operation,
        back=validate_place(back),
        problem=problem,
        chosen=body,
    )


async def _find_decision(
    context: PageContext,
    request: Req,
    id: str,  # noqa: A002
    call: str,
    seen: str | None,
) -> MadeDecision | None:
    """Find the decision about a call in the pause that a form has shown."""
    pause = (seen or "").partition(".")[0]
    if not (pause.isascii() and pause.isdigit()) or len(pause) > 20:
        return None
    found = await find_decisions(context.parts, caller_of(request), id)
    about = (each for each in reversed(found) if each.tool_call_id == call)
    # A decision that is known from an event only has no pause; it was made after the pause began.
    return next(
        (each for each in about if each.pause == pause or (not each.pause and each.decided_at * 1e9 >= int(pause))),
        None,
    )


def _age_choices(asked: str | None) -> dict[str, str]:
    """Return the choices of the filter by age, with the one in the address if it is another."""
    return AGES if asked is None or asked in AGES else {asked: f"{asked} seconds"} | AGES


def _parse_query(request: Req) -> dict[str, str | None]:
    """Read the filter and the cursor from the address."""
    return {name: request.query_params.get(name) or None for name in (*FILTERS, "cursor")}


def _build_filter(request: Req, asked: dict[str, str | None]) -> ApprovalFilter:
    """Build the filter of the list.

    Raises:
        ApiError: 422, if a part of the filter is invalid; 404, if it names another tenant than the key's.
    """
    if any(len(value or "") > LONGEST_FILTER for name, value in asked.items() if name in FILTERS):
        raise ApiError(422, "invalid", f"A filter can have at most {LONGEST_FILTER} characters.")
    age = asked["age"] or "0"
    if not (age.isascii() and age.isdigit()) or len(age) > 10:
        raise ApiError(422, "invalid", "The age must be a number of seconds.")
    return ApprovalFilter(
        tenant_id=caller_of(request).tenant(asked["tenant"]),
        agent_id=asked["agent"],
        tool=asked["tool"],
        waiting_seconds=float(age),
    )


ROUTES = [show_approvals, stream_news, decide_call, show_decision]
