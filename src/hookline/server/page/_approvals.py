"""Views of tool calls that wait for a person, and of the decisions that were made."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import msgspec
from litestar import Response, get, post
from litestar.response import Stream

from hookline.errors import StateFormatError
from hookline.runtime import Action
from hookline.server._callers import Req, caller_of, not_found_error
from hookline.server._problems import ApiError
from hookline.server.page._audit import PERIODS, parse_time_range
from hookline.server.page._context import PageContext, context_of, validate_place
from hookline.server.page._equal_calls import (
    ChosenCall,
    DecisionResult,
    count_equal_calls,
    decide_about,
    decide_about_each,
    find_decision,
    find_equal_calls,
    make_equal_mark,
    parse_decision,
)
from hookline.server.page._forms import read_choices, read_form
from hookline.server.page._hook_names import find_hook_names
from hookline.server.page._operations import MOST_MARKS, call_mark, stream_renderings
from hookline.server.routes import (
    ApprovalFilter,
    DecidedFilter,
    DecisionBody,
    PendingApproval,
    count_waiting_calls,
    find_all_decisions,
    find_pending_approvals,
    list_approvals_of,
    read_visible_operation,
    stream_response,
)
from hookline.store import DecisionFilter

__all__ = ["ROUTES"]

OPERATIONS = 50
FILTERS = ("tenant", "agent", "tool", "age")
AGES = {"600": "10 minutes", "3600": "an hour", "86400": "a day", "604800": "a week"}
"""Choices of the filter by age: seconds that a call has waited at least, and their names."""
LONGEST_FILTER = 400
ROWS = 100
DECIDED_FILTERS = ("text", "decision", "by", "agent", "operation", "tenant", "within", "from", "to")
ACTIONS: tuple[Action, ...] = get_args(Action)
LAST_MESSAGES, LONGEST_MESSAGE = 20, 4000
MOST_HOOKS = 20
"""Hooks whose names are looked up for one view at most."""
READS = {"scope": "operations:read"}


@get("/approvals", opt=READS)
async def show_approvals(request: Req) -> Response[str]:
    """Show the tool calls that wait for a person."""
    context, caller = context_of(request), caller_of(request)
    asked = _parse_query(request)
    page = await find_pending_approvals(
        context.parts, _build_filter(request, asked), cursor=asked["cursor"], limit=OPERATIONS
    )
    equal = count_equal_calls(page.items)
    return context.render_page(
        request,
        "approvals/queue.html",
        page=page,
        asked=asked,
        is_filtered=any(asked[name] for name in FILTERS),
        tenants=await context.known_tenants(caller),
        agents=sorted({*await context.known_agents(caller, asked["tenant"]), *(each.agent_id for each in page.items)}),
        tools=sorted({f"{each.toolset}/{each.tool_name}" for each in page.items}),
        ages=[(seconds, f"{name} or longer") for seconds, name in _age_choices(asked["age"]).items()],
        back=context.current_place(request),
        seen=".".join(call_mark(each) for each in page.items),
        is_live=asked["cursor"] is None and len(page.items) <= MOST_MARKS,
        equal={each.seen + each.operation_id: equal[make_equal_mark(each)] for each in page.items},
        hook_names=await find_hook_names(context.parts, caller, caller.tenant()),
    )


@get("/approvals/live", opt=READS)
async def stream_news(request: Req) -> Stream:
    """Stream how many waiting calls the list does not show.

    The list itself never changes by itself, so that nobody approves a call that has just moved under the button.
    """
    context, wanted = context_of(request), _build_filter(request, _parse_query(request))
    first_page = partial(find_pending_approvals, context.parts, wanted, cursor=None, limit=OPERATIONS)
    there = set(request.query_params.get("seen", "").split("."))

    async def render() -> str:
        page = await context.shared.get(("approvals", wanted), first_page)
        more = sum(call_mark(each) not in there for each in page.items)
        return context.render(request, "approvals/news.html", more=more, asked=_parse_query(request))

    await render()  # raises a refusal before the response has started
    return stream_response(request, stream_renderings(request, render))


@get("/approvals/count.json", opt=READS)
async def count_approvals(request: Req) -> dict[str, Any]:
    """Return the number of waiting calls as the navigation shows it: `{"calls": 3, "shown": "3"}`."""
    count, more = await count_waiting_calls(context_of(request).parts, caller_of(request).tenant())
    return {"calls": count, "shown": f"{count}+" if more else str(count)}


@get("/approvals/conversation", opt=READS)
async def show_conversation(request: Req) -> Response[str]:
    """Show the last messages of the conversation of an operation, as a part of another view."""
    context = context_of(request)
    operation = await read_visible_operation(
        context.parts, caller_of(request), request.query_params.get("operation", "")
    )
    try:
        state = await context.parts.store.load(operation.operation_id)
    except StateFormatError:
        state = None
    messages = [] if state is None else state.messages
    return context.render_page(
        request,
        "approvals/conversation.html",
        operation=operation,
        messages=messages[-LAST_MESSAGES:],
        earlier=max(0, len(messages) - LAST_MESSAGES),
        longest=LONGEST_MESSAGE,
    )


@post("/approvals", opt={"scope": "approvals:decide"})
async def decide_call(request: Req) -> Response[str]:
    """Decide about the call that the form shows, if it is still the same and not decided yet."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    body = parse_decision(fields.get("call"), fields.get("decision"), fields.get("reason", ""), fields.get("seen", ""))
    result = await decide_about(context.parts, caller, fields.get("operation", ""), body)
    if result.problem:
        return _render_refusal(context, request, result, body, back=fields.get("back", ""))
    query = {"operation": result.operation_id, "call": body.tool_call_id, "seen": body.seen or ""}
    return context.redirect(request, "/approvals/decided", **query, back=validate_place(fields.get("back", "")))


@get("/approvals/decided", opt=READS)
async def show_decision(request: Req) -> Response[str]:
    """Show the decision about a call, and who made it. This view has no buttons that could be pressed by mistake."""
    context, caller = context_of(request), caller_of(request)
    id, call, seen, back = (request.query_params.get(name, "") for name in ("operation", "call", "seen", "back"))  # noqa: A001
    operation = await read_visible_operation(context.parts, caller, id)
    made = await find_decision(context.parts, caller, id, call, seen)
    if made is None:
        raise not_found_error("There is no decision about this call.")
    return context.render_page(
        request, "approvals/decided.html", made=made, operation=operation, back=validate_place(back), problem=None
    )


@get("/approvals/decisions", opt=READS)
async def show_decisions(request: Req) -> Response[str]:
    """Show the decisions that were made, newest first: who, when, about what, and why."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in (*DECIDED_FILTERS, "cursor")}
    if any(len(asked[name] or "") > LONGEST_FILTER for name in DECIDED_FILTERS):
        raise ApiError(422, "invalid", f"A filter can have at most {LONGEST_FILTER} characters.")
    since, until = parse_time_range(asked, await context.parts.store.now())
    stored = DecisionFilter(
        tenant_id=caller.tenant(asked["tenant"]),
        agent_id=asked["agent"],
        operation_id=asked["operation"],
        decided_by=asked["by"],
        since=since,
        until=until,
    )
    decision = next((each for each in ACTIONS if each == asked["decision"]), None)
    wanted = DecidedFilter(stored=stored, decision=decision, text=asked["text"])
    page = await find_all_decisions(context.parts, caller, wanted, cursor=asked["cursor"], limit=ROWS)
    return context.render_page(
        request,
        "approvals/decisions.html",
        page=page,
        asked=asked,
        periods=list(PERIODS.items()),
        is_filtered=any(asked[name] for name in DECIDED_FILTERS),
        tenants=await context.known_tenants(caller),
        agents=await context.known_agents(caller, asked["tenant"]),
    )


@get("/approvals/equal", opt={"scope": "approvals:decide"})
async def show_equal_calls(request: Req) -> Response[str]:
    """Show the calls that equal one that waits, to decide about several of them at once."""
    context, caller = context_of(request), caller_of(request)
    id, call, seen, back = (request.query_params.get(name, "") for name in ("operation", "call", "seen", "back"))  # noqa: A001
    operation = await read_visible_operation(context.parts, caller, id)
    waiting = await list_approvals_of(context.parts, operation)
    first = next((each for each in waiting if (each.tool_call_id, each.seen) == (call, seen)), None)
    if first is None:
        raise ApiError(409, "gone", "The call is decided already, or is another one by now. Go back to the list.")
    return await _render_equal_calls(request, first, {"back": validate_place(back)})


@post("/approvals/equal", opt={"scope": "approvals:decide"})
async def decide_equal_calls(request: Req) -> Response[str]:
    """Decide about the chosen ones of several equal calls, and show what happened to each."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    try:
        chosen = [msgspec.json.decode(each, type=ChosenCall) for each in await read_choices(request, "chosen")]
        first = msgspec.json.decode(fields.get("first", ""), type=ChosenCall)
    except msgspec.MsgspecError:
        raise ApiError(422, "invalid", "The form is incomplete. Go back to the list, and begin again.") from None
    mark, decision = fields.get("mark", ""), fields.get("decision", "")
    if not chosen:
        operation = await read_visible_operation(context.parts, caller, first.operation_id)
        waiting = await list_approvals_of(context.parts, operation)
        shown = next((each for each in waiting if each.tool_call_id == first.tool_call_id), None)
        if shown is None:
            raise ApiError(409, "gone", "The call is decided already. Go back to the list.")
        return await _render_equal_calls(request, shown, fields, problem="Choose at least one call.")
    results = await decide_about_each(context.parts, caller, chosen, decision, fields.get("reason", ""), mark)
    return context.render_page(
        request,
        "approvals/results.html",
        status=200 if not all(each.problem for each in results) else 409,
        results=results,
        stored=sum(not each.problem for each in results),
        decision=decision,
        back=validate_place(fields.get("back", "")),
    )


async def _render_equal_calls(
    request: Req, first: PendingApproval, fields: dict[str, str], *, problem: str = ""
) -> Response[str]:
    """Show equal calls with a form that decides about those that are chosen."""
    context, caller = context_of(request), caller_of(request)
    calls = await find_equal_calls(context.parts, caller, first)
    values = [
        msgspec.json.encode(ChosenCall(each.operation_id, each.tool_call_id, each.seen)).decode() for each in calls
    ]
    return context.render_page(
        request,
        "approvals/equal.html",
        status=422 if problem else 200,
        first=first,
        calls=list(zip(calls, values, strict=True)),
        mark=make_equal_mark(first),
        fields={"reason": "", "back": ""} | fields,
        problem=problem,
        hook_names=await find_hook_names(context.parts, caller, caller.tenant()),
    )


def _render_refusal(
    context: PageContext, request: Req, result: DecisionResult, body: DecisionBody, *, back: str
) -> Response[str]:
    """Refuse a form that is out of date, and show what became of the call."""
    return context.render_page(
        request,
        "approvals/decided.html",
        status=409,
        made=result.made,
        operation=result.operation,
        back=validate_place(back),
        problem=result.problem,
        chosen=body,
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


ROUTES = [
    show_approvals,
    stream_news,
    count_approvals,
    show_conversation,
    decide_call,
    show_decision,
    show_decisions,
    show_equal_calls,
    decide_equal_calls,
]
