"""The view of one operation: its conversation, hooks, people, sub-agents and events; interrupt and retry."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, TypeAlias
from urllib.parse import quote

import msgspec
from litestar import MediaType, Response, get, post
from litestar.params import PathParameter
from litestar.response import Stream
from markupsafe import Markup

from hookline.calls import Message
from hookline.errors import StateFormatError
from hookline.events import OnError
from hookline.registry import ExecutionRow
from hookline.runtime import is_compacted
from hookline.server._actors import describe_actors
from hookline.server._callers import Caller, Req, caller_of, not_found_error
from hookline.server._problems import ApiError
from hookline.server.page._context import PageContext, context_of
from hookline.server.page._conversation import (
    CallView,
    StepView,
    build_steps,
    count_whole_steps,
    text_view,
)
from hookline.server.page._forms import read_form
from hookline.server.page._hook_names import find_hook_names
from hookline.server.page._operations import MOST_MARKS, call_mark, digest, stream_renderings
from hookline.server.page._waterfall import read_events, waterfall_body
from hookline.server.routes import (
    Id,
    MadeDecision,
    check_events_visible,
    explain_no_retry,
    find_decisions,
    interrupt_stored_operation,
    list_approvals_of,
    read_visible_operation,
    retry_stored_operation,
    stream_response,
)
from hookline.store import LIVE, ConversationHead, EventPart, StoredMessage, StoredOperation

__all__ = ["ROUTES"]

EVENTS = 200
"""Events that one page of the conversation is built from, at most."""
OPENING = 20
"""Messages of the input that are shown."""
MESSAGES = 50
LAST_EVENTS = 20
"""Number of last events among which the error of a failed operation is looked for."""
MOST_EVENTS = 10_000
MOST_EXECUTIONS, SHOWN_EXECUTIONS = 5000, 1000
MOST_DECISIONS = 50
LONGEST_RAW = 8 * 1024 * 1024
"""Bytes of the longest event or message that is shown by itself."""
TROUBLES, MOST_TROUBLES = ("denied", "failed", "interrupted", "asked", "reject", "rejectAndContinue"), 12
LATEST = "latest"
Number: TypeAlias = Annotated[int, PathParameter(ge=1, le=2**53 - 1)]
READS, MANAGES = {"scope": "operations:read"}, {"scope": "operations:manage"}


class Opening(msgspec.Struct, kw_only=True):
    """The first messages of an operation.

    Attributes:
        messages: The instructions and the input, as far as they are still there.
        hidden: Number of further messages of the input.
        is_compacted: Whether older messages were replaced by a summary.
        problem: Why the state cannot be read.
    """

    messages: list[StoredMessage] = []
    hidden: int = 0
    is_compacted: bool = False
    problem: str = ""


class Window(msgspec.Struct, kw_only=True):
    """The part of the conversation that a page shows.

    Attributes:
        parts: The events.
        steps: The steps that they tell of.
        after: The number of the event before the first one.
        next: The number after which the next page begins; `None` on the last one.
    """

    parts: list[EventPart]
    steps: list[StepView]
    after: int
    next: int | None

    @property
    def troubles(self) -> list[tuple[str, CallView]]:
        """The calls that a person looks for first, each with the place where it is."""
        found = [
            (f"step-{step.index + 1}-{place}", call)
            for step in self.steps
            for place, call in enumerate(step.calls, 1)
            if call.status in TROUBLES
        ]
        return found[:MOST_TROUBLES]


@get("/operations/{id:str}", opt=READS)
async def show_operation(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show one operation: what was said and done, step by step."""
    context, caller = context_of(request), caller_of(request)
    parts = context.parts
    operation = await parts.store.operation(id)
    if operation is None:
        await check_events_visible(parts, caller, id)
        window = await _read_window(context, request, id, None)
        return context.render_page(request, "operations/log.html", id=id, operation=None, window=window, hooks={})
    caller.check_visible(operation.tenant_id)
    decisions = await find_decisions(parts, caller, id)
    calls = await list_approvals_of(parts, operation)
    there = ".".join(call_mark(each) for each in calls[:MOST_MARKS])
    window = await _read_window(context, request, id, operation, decisions)
    facts = await _render_facts(context, request, operation, there, operation.events)
    hooks = await find_hook_names(context.parts, caller, operation.tenant_id)
    return context.render_page(
        request,
        "operations/operation.html",
        id=id,
        operation=operation,
        calls=calls,
        there=there,
        back=context.current_place(request),
        decisions=decisions[-MOST_DECISIONS:],
        deciders={each.event_number: each for each in decisions if each.event_number is not None},
        facts=Markup(facts),
        seen=digest(facts),
        window=window,
        opening=await _read_opening(context, operation) if window.after == 0 else None,
        hooks=hooks,
        hook_names=hooks,
        is_own_page=True,
        no_retry=explain_no_retry(parts, operation),
        retry_key=secrets.token_hex(8),
        is_live=operation.status in LIVE,
    )


@get("/operations/{id:str}/live", opt=READS)
async def stream_operation(request: Req, id: Id) -> Stream:  # noqa: A002
    """Stream the summary of an operation whenever it changes."""
    context, caller = context_of(request), caller_of(request)
    await read_visible_operation(context.parts, caller, id)
    there = request.query_params.get("calls", "")
    shown = _parse_number(request.query_params.get("events"))

    async def render() -> str:
        operation = await read_visible_operation(context.parts, caller, id)
        return await _render_facts(context, request, operation, there, shown)

    return stream_response(request, stream_renderings(request, render, only=id, seen=request.query_params.get("seen")))


@get("/operations/{id:str}/steps", opt=READS)
async def show_steps(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show the first steps of an operation, to be folded in where another one has called it."""
    context, caller = context_of(request), caller_of(request)
    operation = await read_visible_operation(context.parts, caller, id)
    decisions = await find_decisions(context.parts, caller, id)
    return context.render_page(
        request,
        "operations/steps.html",
        id=id,
        operation=operation,
        window=await _read_window(context, request, id, operation, decisions),
        hooks=await find_hook_names(context.parts, caller, operation.tenant_id),
        is_nested=True,
    )


@get("/operations/{id:str}/messages", opt=READS)
async def show_messages(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show the stored conversation of an operation: the messages as the model reads them now."""
    context = context_of(request)
    operation = await read_visible_operation(context.parts, caller_of(request), id)
    after = _parse_number(request.query_params.get("after"))
    found = await context.parts.store.messages_of(id, after=after, limit=MESSAGES + 1)
    return context.render_page(
        request,
        "operations/messages.html",
        id=id,
        operation=operation,
        messages=found[:MESSAGES],
        after=after,
        more=found[MESSAGES - 1].number if len(found) > MESSAGES else None,
    )


@get("/operations/{id:str}/messages/{number:int}", opt=READS)
async def show_message(request: Req, id: Id, number: Number) -> Response[str]:  # noqa: A002
    """Show one message whole, as text."""
    parts = context_of(request).parts
    await read_visible_operation(parts, caller_of(request), id)
    found = await parts.store.messages_of(id, after=number - 1, limit=1, longest=LONGEST_RAW)
    if not found:
        raise not_found_error("There is no such message, or no longer.")
    if found[0].is_cut:
        raise _too_long_error()
    return Response(found[0].content, media_type=MediaType.TEXT)


@get("/operations/{id:str}/events/{number:int}", opt=READS)
async def show_event(request: Req, id: Id, number: Number) -> Response[str]:  # noqa: A002
    """Show one event whole, as JSON."""
    parts = context_of(request).parts
    await check_events_visible(parts, caller_of(request), id)
    found, _ = await parts.store.event_parts_of(id, after=number - 1, limit=1, longest=LONGEST_RAW, most=LONGEST_RAW)
    if not found or found[0].number != number:
        raise not_found_error("There is no such event.")
    if found[0].wire is None:
        raise _too_long_error()
    text = msgspec.json.format(found[0].wire, indent=2).decode("utf-8", "replace")
    return Response(text, media_type=MediaType.TEXT)


@get("/operations/{id:str}/waterfall.json", opt=READS)
async def read_waterfall(request: Req, id: Id) -> Response[bytes]:  # noqa: A002
    """Return the waterfall of an operation as JSON."""
    context = context_of(request)
    operation = await read_visible_operation(context.parts, caller_of(request), id)
    entries = await context.parts.store.events_of(id, limit=MOST_EVENTS)
    rows, more = await _read_executions(context, caller_of(request), id, most=MOST_EXECUTIONS)
    now = operation.updated_at if operation.status not in LIVE else await context.parts.store.now()
    names = await find_hook_names(context.parts, caller_of(request), operation.tenant_id)
    body = waterfall_body(entries, rows, names=names, now=now, truncated=more or len(entries) >= MOST_EVENTS)
    return Response(msgspec.json.encode(body), media_type="application/json")


@post("/operations/{id:str}/interrupt", opt=MANAGES)
async def interrupt_operation(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Ask for the interruption of an operation."""
    context = context_of(request)
    await read_form(request)
    operation = await interrupt_stored_operation(context.parts, caller_of(request), id)
    return context.redirect(request, f"/operations/{_segment(operation.operation_id)}", notice="interrupted")


@post("/operations/{id:str}/retry", opt=MANAGES)
async def retry_operation(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Start an operation anew, once for each form."""
    context = context_of(request)
    fields = await read_form(request)
    operation = await retry_stored_operation(
        context.parts, caller_of(request), id, key=fields.get("key", "") or secrets.token_hex(8)
    )
    return context.redirect(request, f"/operations/{_segment(operation.operation_id)}", notice="retry")


async def _read_window(
    context: PageContext,
    request: Req,
    id: str,  # noqa: A002
    operation: StoredOperation | None,
    decisions: Sequence[MadeDecision] = (),
) -> Window:
    """Read the part of the conversation that the address names, with all that belongs to it."""
    store = context.parts.store
    asked = request.query_params.get("after")
    after = _parse_number(asked)
    if asked == LATEST and operation is not None:
        after = max(0, operation.events - EVENTS)
    parts, more = await store.event_parts_of(id, after=after, limit=EVENTS)
    if more:
        parts = parts[: count_whole_steps(parts)]
    if asked == LATEST and after > 0:
        begins = next((place for place, part in enumerate(parts) if part.type == "beforeStep"), 0)
        parts = parts[begins:]
        after = parts[0].number - 1 if parts else after
    following = parts[-1].number if more and parts else None
    if operation is None:
        return Window(parts=parts, steps=build_steps(parts), after=after, next=following)
    head = await _read_head(context, operation)
    since = parts[0].time_unix_nano / 1e9 - 1 if parts and after > 0 else None
    until = parts[-1].time_unix_nano / 1e9 + 1 if parts and more else None
    rows, _ = await _read_executions(context, caller_of(request), id, most=SHOWN_EXECUTIONS, since=since, until=until)
    steps = build_steps(parts, rows=rows, decisions=decisions)
    if steps:
        its = min(step.index for step in steps), max(step.index for step in steps)
        steps = build_steps(
            parts,
            model_calls=await store.model_calls_of(id, steps=its),
            rows=rows,
            decisions=decisions,
            children=await store.sub_agents_of(operation),
            running={} if head is None else head.children,
        )
        if not more and steps[-1].duration_ms is None and operation.status in LIVE and head is not None:
            await _add_last_message(context, operation, head, steps[-1])
    return Window(parts=parts, steps=steps, after=after, next=following)


async def _read_head(context: PageContext, operation: StoredOperation) -> ConversationHead | None:
    try:
        return await context.parts.store.conversation_head(operation.operation_id)
    except StateFormatError:
        return None


async def _add_last_message(
    context: PageContext, operation: StoredOperation, head: ConversationHead, step: StepView
) -> None:
    """Add what the model has said in a step that has not ended, of which no event tells yet."""
    last = await context.parts.store.messages_of(operation.operation_id, after=max(head.messages - 1, 0), limit=1)
    if not last or last[0].role != "assistant" or not last[0].tool_calls:
        return
    step.content = text_view(last[0].content) if last[0].content else None
    for request in last[0].tool_calls:
        call = step.find(request.tool_call_id)
        if call is None:
            call = CallView(tool_call_id=request.tool_call_id, toolset=request.toolset, tool_name=request.tool_name)
            step.calls.append(call)
        call.args = call.args or request.args


async def _read_opening(context: PageContext, operation: StoredOperation) -> Opening:
    """Read the instructions and the input of an operation."""
    store, id = context.parts.store, operation.operation_id  # noqa: A001
    try:
        head = await store.conversation_head(id)
        found = await store.messages_of(id, limit=OPENING)
    except StateFormatError as error:
        return Opening(problem=str(error))
    if head is None:
        return Opening()
    if is_compacted([Message(role=each.role, content=each.content) for each in found]):
        asked = [each for each in found if each.role == "user" and each.content.startswith(operation.prompt)]
        system = [each for each in found if each.role == "system"]
        return Opening(messages=[*system, *asked[-1:]], is_compacted=True)
    begin = found[: head.said_from]
    if head.said_from == head.messages:  # a hook has continued it, or the state does not say where the input ends
        begin = begin[: next((at for at, each in enumerate(begin) if each.role in ("assistant", "tool")), len(begin))]
        return Opening(messages=begin)
    return Opening(messages=begin, hidden=max(0, head.said_from - len(begin)))


async def _render_facts(
    context: PageContext, request: Req, operation: StoredOperation, there: str, shown_events: int
) -> str:
    """Render the summary of an operation, with its error if it failed, and the number of new waiting calls.

    The calls and the conversation themselves are not updated live, so that nobody decides about a call, or reads a
    line, that has just moved.
    """
    parts, caller = context.parts, caller_of(request)
    failure = await _find_failure(context, operation) if operation.status == "error" else None
    waiting = [call_mark(each) for each in await list_approvals_of(parts, operation)]
    more = len({*waiting} - {*there.split(".")})
    trace = None
    if operation.trace_id and parts.trace_url:
        trace = parts.trace_url.replace("{trace_id}", operation.trace_id)
    asked_by = "" if operation.interrupt_asked_at is None else operation.interrupt_asked_by or ""
    return context.render(
        request,
        "operations/facts.html",
        operation=operation,
        failure=failure,
        waiting=len(waiting),
        more=more,
        new_events=max(0, operation.events - shown_events),
        trace=trace,
        interrupted_by=(await describe_actors(parts, caller, [asked_by]))[asked_by],
        has_agent=operation.agent_id in parts.agents,
        retries=await parts.store.retries_of(operation),
        is_live=operation.status in LIVE,
    )


async def _find_failure(context: PageContext, operation: StoredOperation) -> OnError | None:
    """Find the error of a failed operation among its last events."""
    last = await context.parts.store.events_of(
        operation.operation_id, after=max(operation.events - LAST_EVENTS, 0), limit=LAST_EVENTS
    )
    return next((event for event in read_events(reversed(last)) if isinstance(event, OnError)), None)


async def _read_executions(
    context: PageContext,
    caller: Caller,
    id: Id,  # noqa: A002
    *,
    most: int,
    since: float | None = None,
    until: float | None = None,
) -> tuple[list[ExecutionRow], bool]:
    """Read the log of an operation's hook executions, and return whether rows were left out."""
    log = context.parts.known_log
    if log is None or "hooks:read" not in caller.scopes:
        return [], False
    rows: list[ExecutionRow] = []
    cursor = None
    while len(rows) < most:
        page = await log.logs(caller.tenant(), operation_id=id, since=since, until=until, cursor=cursor, limit=1000)
        rows += page.items
        cursor = page.cursor
        if cursor is None:
            return rows, False
    return rows, True


def _too_long_error() -> ApiError:
    return ApiError(413, "too_long", f"It is longer than the page shows ({LONGEST_RAW // 1024**2} MiB).")


def _segment(text: str) -> str:
    return quote(text, safe="")


def _parse_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


ROUTES = [
    show_operation,
    stream_operation,
    show_steps,
    show_messages,
    show_message,
    show_event,
    read_waterfall,
    interrupt_operation,
    retry_operation,
]
