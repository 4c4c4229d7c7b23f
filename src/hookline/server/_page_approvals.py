"""The view of tool calls that wait for a person, and what the person decides about them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from litestar import Response, get, post
from litestar.response import Stream

from hookline.server._access import Req, caller_of
from hookline.server._approval_routes import DecisionBody, PendingApproval, decide, pending_approvals
from hookline.server._page_frame import frame_of
from hookline.server._page_operations import digest, pictures
from hookline.server._problems import ApiError
from hookline.server._stream_routes import event_stream

__all__ = ["ROUTES"]

OPERATIONS = 50
NOTICES = {"approve": "approved", "reject": "stopped", "rejectAndContinue": "rejected"}


@get("/approvals", opt={"scope": "operations:read"})
async def shown(request: Req) -> Response[str]:
    """Tool calls that wait for a person."""
    frame = frame_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("tenant", "cursor")}
    tenant_id = caller_of(request).tenant(asked["tenant"])
    page = await pending_approvals(frame.parts, tenant_id, cursor=asked["cursor"], limit=OPERATIONS)
    return frame.page(request, "approvals.html", page=page, asked=asked, seen=_name_of(page.items))


@get("/approvals/live", opt={"scope": "operations:read"})
async def news(request: Req) -> Stream:
    """Tells that the list is another one. It never changes by itself: nobody is to approve what moved to the button."""
    frame, caller = frame_of(request), caller_of(request)
    tenant_id, seen = caller.tenant(request.query_params.get("tenant") or None), request.query_params.get("seen")

    async def picture() -> str:
        page = await pending_approvals(frame.parts, tenant_id, cursor=None, limit=OPERATIONS)
        return frame.text(request, "approvals_news.html", changed=_name_of(page.items) != seen)

    return event_stream(request, pictures(request, picture))


@post("/approvals", opt={"scope": "approvals:decide"})
async def decided(request: Req) -> Response[str]:
    """Approve or reject a call."""
    frame, caller = frame_of(request), caller_of(request)
    fields = await frame.fields(request)
    given = {"toolCallId": fields.get("call"), "decision": fields.get("decision"), "reason": fields.get("reason", "")}
    try:
        body = msgspec.convert(given, DecisionBody)
    except msgspec.ValidationError as error:
        raise ApiError(422, "invalid", f"The decision cannot be used: {error}.") from None
    await decide(frame.parts, fields.get("operation", ""), body, tenant_id=caller.tenant(), actor=caller.actor)
    return frame.to(request, "/approvals", notice=NOTICES[body.decision])


def _name_of(calls: Sequence[PendingApproval]) -> str:
    """Names a list of calls."""
    return digest("\n".join(f"{each.operation_id} {each.tool_call_id}" for each in calls))


ROUTES = [shown, news, decided]
