"""Declare routes, and what they share: parameters, pages, entity tags and descriptions of errors."""

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
    "describe_status",
    "page_response",
    "parse_signatures",
    "route",
    "tagged_response",
]

T = TypeVar("T")
P = TypeVar("P", bound=Page[Any])

VISIBLE = r"^[^\x00-\x1f\x7f]*$(?!\n)"
LATEST = 1e11
LARGEST = 2**53 - 1
"""The largest integer that every JSON parser reads exactly."""
_METHODS: dict[str, Any] = {"GET": get, "POST": post, "PUT": put, "PATCH": patch, "DELETE": delete}
_MEANINGS = {
    204: "The operation has ended, and there are no more events.",
    304: "The object has not changed.",
    400: "The request cannot be parsed.",
    401: "The request has no valid API key.",
    403: "The key lacks a scope, or a hook denied the request.",
    404: "The object does not exist, or belongs to another tenant.",
    408: "The headers or the body did not arrive in time.",
    409: "The request conflicts with the stored state, or the same request is still in progress.",
    412: "The object was changed in the meantime.",
    413: "The body is too large.",
    422: "The request is invalid.",
    429: "Too many requests with this key or by its tenant, or too many streams.",
    431: "The address and the headers are too large.",
    500: "Internal error, or a hook that decides about the request failed.",
    503: "The database cannot be reached, a part of the server is missing, or the server has too many connections.",
    504: "The change is stored, but some processes have not confirmed it in time.",
}
ALWAYS = (400, 408, 431, 500, 503)
"""Statuses of errors that any request may get."""
WITH_KEY = (401, 403, 422, 429)
"""Statuses of errors that a request with a key may get."""

if TYPE_CHECKING:
    PointName: TypeAlias = str
    Logged: TypeAlias = str
else:
    PointName = Literal[tuple(POINTS)]
    Logged = Literal[(*(call.__name__ for call in CALLS), *(kind.value for kind in HookType))]

Id: TypeAlias = Annotated[str, PathParameter(min_length=1, max_length=400, pattern=VISIBLE)]
Words: TypeAlias = Annotated[str, msgspec.Meta(max_length=400, pattern=VISIBLE)]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=1000, description="Largest number of items.")]
Cursor: TypeAlias = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=2000, pattern=VISIBLE, description="The cursor of the previous page."),
]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
TenantId: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="tenantId",
        max_length=400,
        pattern=VISIBLE,
        description="The tenant; `''` is the system. A key of a tenant can only name that tenant.",
    ),
]
HookId: TypeAlias = Annotated[
    str | None,
    QueryParameter(name="hookId", max_length=400, pattern=VISIBLE, description="Return only those of this hook."),
]
OperationId: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="operationId", max_length=400, pattern=VISIBLE, description="Return only those of this operation."
    ),
]
LogPoint: TypeAlias = Annotated[
    Logged | None, QueryParameter(name="point", description="Return only those at this call or event.")
]
Since: TypeAlias = Annotated[
    float | None,
    QueryParameter(ge=0, le=LATEST, description="Return only those at or after this time, in unix seconds."),
]
Until: TypeAlias = Annotated[
    float | None, QueryParameter(ge=0, le=LATEST, description="Return only those before this time, in unix seconds.")
]
IfMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=1000,
        description="Make the change only if the object has this ETag; otherwise return 412.",
    ),
]
IfNoneMatch: TypeAlias = Annotated[
    str | None,
    HeaderParameter(name="If-None-Match", max_length=1000, description="Return 304 if the object has this ETag."),
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
        method: The HTTP method.
        path: The path.
        scope: The scope that a key has to have; `None` if no key is needed.
        summary: What the route does.
        errors: Statuses of errors that it may answer with, besides those of all routes.
        unchanged: Whether it may answer with 304.
        status_code: The status of its response.
        more: Further arguments for Litestar.
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
        responses={status: describe_status(status) for status in sorted(statuses)},
        security=[{"key": []}] if scope is not None else [{}],
        status_code=status_code,
        **more,
    )
    return declared


def describe_status(status: int) -> ResponseSpec:
    """Describe a status for the OpenAPI description."""
    if status in (204, 304):
        return ResponseSpec(data_container=None, description=_MEANINGS[status])
    return ResponseSpec(
        data_container=Problem, description=_MEANINGS[status], media_type=MEDIA_TYPE, generate_examples=False
    )


def parse_signatures(handlers: Iterable[HTTPRouteHandler]) -> None:
    """Have handlers keep their parsed signatures, which the copies that each application makes of them then share."""
    for handler in handlers:
        handler.parsed_fn_signature  # noqa: B018  (a property that parses it once)


def page_response(request: Req, page: P) -> Response[P]:
    """Build the response for a page, with a link to the next page (RFC 8288)."""
    headers = {}
    if page.cursor is not None:
        query = [pair for pair in parse_qsl(request.scope["query_string"].decode("latin-1")) if pair[0] != "cursor"]
        where = quote(f"{request.scope['state']['hookline_root']}{request.scope['path']}")
        headers["Link"] = f'<{where}?{urlencode([*query, ("cursor", page.cursor)])}>; rel="next"'
    return Response(page, headers=headers)


def tagged_response(content: T, revision: int, given: str | None = None) -> Response[T]:
    """Build a response with an `ETag`, or 304 if the client has it already.

    Args:
        content: The content of the response.
        revision: The revision of the content.
        given: The `If-None-Match` of the request.
    """
    # Encoded here, once for both the tag and the response. The revision alone is no tag: a definition in a file has
    # none, and the `problem` of a definition may differ between processes.
    encoded: Any = msgspec.json.encode(content)
    tag = f'"{revision}-{crc32(encoded):08x}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if given is not None:
        tags = [each.strip().removeprefix("W/") for each in given.split(",")]
        if "*" in tags or tag in tags:
            return Response(None, status_code=304, headers=headers)  # type: ignore[arg-type]
    return Response(encoded, headers=headers, media_type="application/json")
