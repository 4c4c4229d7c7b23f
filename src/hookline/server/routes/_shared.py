"""How routes are declared, and what many of them share: parameters, pages, and the errors that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, urlencode
from zlib import crc32

import msgspec
from litestar import Response, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from hookline.calls import CALLS
from hookline.events import HookType
from hookline.registry import POINTS
from hookline.server._callers import Req, Scope
from hookline.server._problems import MEDIA_TYPE, Problem
from hookline.store import Page

__all__ = [
    "LARGEST",
    "LATEST",
    "VISIBLE",
    "Cursor",
    "HookId",
    "Id",
    "IfMatch",
    "IfNoneMatch",
    "Limit",
    "LogPoint",
    "OperationId",
    "PointName",
    "Seconds",
    "Since",
    "TenantId",
    "Until",
    "Words",
    "described",
    "paged",
    "route",
    "tagged",
]

T = TypeVar("T")

VISIBLE = r"^[^\x00-\x1f\x7f]*$(?!\n)"
LATEST = 1e11
LARGEST = 2**53 - 1
"""The largest number that all who read JSON read as it is."""
_METHODS: dict[str, Any] = {"GET": get, "POST": post, "PUT": put, "PATCH": patch, "DELETE": delete}
_MEANINGS = {
    204: "It has ended, and there is nothing more to come.",
    304: "It has not changed.",
    400: "The request cannot be read.",
    401: "There is no valid API key with it.",
    403: "The key does not allow it, or a hook has refused it.",
    404: "There is nothing of that id, or it is somebody else's.",
    408: "The headers, or the body, did not come in time.",
    409: "It does not go with what is there, or the same request is under way.",
    412: "It was changed meanwhile.",
    413: "The body is too large.",
    422: "The request is not as it must be.",
    429: "Too many requests of this key, or of its tenant, or too many streams.",
    431: "The address and the headers are too large.",
    500: "Something went wrong in the server, or in a hook that had to judge the request.",
    503: "The database, or a part of this server, cannot be reached, or it has as many connections as it takes.",
}
ALWAYS = (400, 408, 431, 500, 503)
"""What any request may be answered with."""
WITH_KEY = (401, 403, 422, 429)
"""What a request may be answered with that needs a key."""

if TYPE_CHECKING:
    PointName: TypeAlias = str
    Logged: TypeAlias = str
else:
    PointName = Literal[tuple(POINTS)]
    Logged = Literal[(*(call.__name__ for call in CALLS), *(kind.value for kind in HookType))]

Id: TypeAlias = Annotated[str, PathParameter(min_length=1, max_length=400, pattern=VISIBLE)]
Words: TypeAlias = Annotated[str, msgspec.Meta(max_length=400, pattern=VISIBLE)]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=1000, description="How many at most.")]
Cursor: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=2000, pattern=VISIBLE, description="Where it begins: the cursor of the part before."
    ),
]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
TenantId: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="tenantId",
        max_length=400,
        pattern=VISIBLE,
        description="The tenant; '' is the system. Who does not see all may only name its own.",
    ),
]
HookId: TypeAlias = Annotated[
    str | None, QueryParameter(name="hookId", max_length=400, pattern=VISIBLE, description="Only of this hook.")
]
OperationId: TypeAlias = Annotated[
    str | None,
    QueryParameter(name="operationId", max_length=400, pattern=VISIBLE, description="Only of this operation."),
]
LogPoint: TypeAlias = Annotated[
    Logged | None, QueryParameter(name="point", description="At this point: a call, or an event.")
]
Since: TypeAlias = Annotated[
    float | None, QueryParameter(ge=0, le=LATEST, description="From this time on, in seconds since 1970.")
]
Until: TypeAlias = Annotated[
    float | None, QueryParameter(ge=0, le=LATEST, description="Before this time, in seconds since 1970.")
]
IfMatch: TypeAlias = Annotated[
    str | None, HeaderParameter(name="If-Match", max_length=1000, description="Only if that is its ETag.")
]
IfNoneMatch: TypeAlias = Annotated[
    str | None, HeaderParameter(name="If-None-Match", max_length=1000, description="Only if that is not its ETag.")
]


def route(
    method: str,
    path: str,
    *,
    scope: Scope | None,
    summary: str,
    errors: Iterable[int] = (),
    unchanged: bool = False,
    status_code: int = 200,
    **more: Any,
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Declare a route.

    Args:
        method: Its method.
        path: Its address.
        scope: What a key must allow; `None` if none is needed.
        summary: What it does.
        errors: Statuses that it may answer with, beside its own and those of all routes.
        unchanged: Whether it may answer with 304.
        status_code: Of its answer.
        more: What else the framework is to know.
    """
    statuses = {*errors, *ALWAYS, *(WITH_KEY if scope is not None else ()), *((304,) if unchanged else ())}
    if method in ("POST", "PUT", "PATCH"):
        statuses |= {413}
    if method == "POST":
        statuses |= {409}  # the request with that Idempotency-Key is under way
    if scope is not None and "{" in path:
        statuses |= {404}
    declared: Callable[[Callable[..., Any]], HTTPRouteHandler] = _METHODS[method](
        path,
        opt={"scope": scope},
        summary=summary,
        responses={status: described(status) for status in sorted(statuses)},
        security=[{"key": []}] if scope is not None else [{}],
        status_code=status_code,
        **more,
    )
    return declared


def described(status: int) -> ResponseSpec:
    """How the description of the API tells of an answer that is none of the usual ones."""
    if status in (204, 304):
        return ResponseSpec(data_container=None, description=_MEANINGS[status])
    return ResponseSpec(
        data_container=Problem, description=_MEANINGS[status], media_type=MEDIA_TYPE, generate_examples=False
    )


def paged(request: Req, page: Page[T]) -> Response[Page[T]]:
    """A part of a list, with a link to the next one (RFC 8288)."""
    headers = {}
    if page.cursor is not None:
        query = [pair for pair in parse_qsl(request.scope["query_string"].decode("latin-1")) if pair[0] != "cursor"]
        where = quote(f"{request.scope['state']['hookline_root']}{request.scope['path']}")
        headers["Link"] = f'<{where}?{urlencode([*query, ("cursor", page.cursor)])}>; rel="next"'
    return Response(page, headers=headers)


def tagged(content: T, revision: int, given: str | None = None) -> Response[T]:
    """An answer that a client may keep, ask for again by its tag, and change if it has not changed.

    Args:
        content: What is answered.
        revision: Of that.
        given: The tags that the client has already.
    """
    # Encoded here, so that it is done once, for the tag and for the answer. A revision is not enough: what stands in a
    # file has none, and what is said of a definition may differ between processes.
    encoded: Any = msgspec.json.encode(content)
    tag = f'"{revision}-{crc32(encoded):08x}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if given is not None:
        tags = [each.strip().removeprefix("W/") for each in given.split(",")]
        if "*" in tags or tag in tags:
            return Response(None, status_code=304, headers=headers)  # type: ignore[arg-type]
    return Response(encoded, headers=headers, media_type="application/json")
