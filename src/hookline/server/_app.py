"""`create_app`: build the HTTP API as an ASGI application."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any, Literal

from litestar import Litestar
from litestar.datastructures import State

from hookline.asgi import App, Receive, Scope, Send
from hookline.delivery import Outbox
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook
from hookline.registry import ExecutionLog, Registry
from hookline.runtime import Agent
from hookline.server._callers import require_scope
from hookline.server._cors import CrossOrigin
from hookline.server._description import read_description
from hookline.server._gate import RequestGate
from hookline.server._idempotency import Idempotency
from hookline.server._limits import BODY_SECONDS, ServerLimits
from hookline.server._parts import ServerParts
from hookline.server._problems import build_error_response
from hookline.server._rates import RateLimit, RateLimits
from hookline.server._request_hooks import RequestHooks
from hookline.server._settings import RequestRate, ServerSettings, SizeLimits
from hookline.server._text import TextRequest
from hookline.server.page import SHORTEST_KEY
from hookline.server.routes import OPTIONS, PUBLIC, ROUTES, parse_signatures
from hookline.store import SqlStore, Worker

__all__ = ["MEBIBYTE", "build_app", "create_app"]

MEBIBYTE = 1024 * 1024
PAGE, PAGE_PATH = "hookline.server.page._page", "/page"
SESSION_KEY = "HOOKLINE_SESSION_KEY"
"""Environment variable that holds the key of the page's sessions."""


def create_app(
    store: SqlStore,
    *,
    registry: Registry | None = None,
    log: ExecutionLog | None = None,
    outbox: Outbox | None = None,
    agents: Sequence[Agent] = (),
    hooks: Sequence[AnyHook] = (),
    allow_origins: Sequence[str] = (),
    rate_limit: RateLimit | None = RateLimit(),  # noqa: B008
    tenant_rate_limit: RateLimit | Literal["auto"] | None = "auto",
    max_body: int = MEBIBYTE,
    body_timeout: float = BODY_SECONDS,
    page: bool = True,
    session_key: bytes | None = None,
    allow_missing_hooks: bool = False,
    trace_url: str | None = None,
) -> App:
    """Build the HTTP API, to be served by itself or mounted under any path of any ASGI application.

    The application opens and closes none of its arguments. Each request passes, in this order: the allowed origins, the
    check of its path, the size limit, the API key, the rate limits, the hooks for `RequestCall`, and its route. On the
    web page, the session of a person who has signed in with a key takes the place of the key.

    Limits of a connection before a request is complete (bytes and time of headers, number of connections) are left to
    the server that runs the application; `Server` has them.

    Args:
        store: The store of operations, deliveries and keys; it has to be open while there are requests.
        registry: The registry of hook definitions; without it, its routes answer with 503.
        log: The log of hook executions; without it, its routes answer with 503.
        outbox: The outbox whose signing secrets the API administers; it delivers while it is open.
        agents: Agents whose operations this process resumes when a person has decided, retries, and ends when their
            interruption was asked for, like a `Worker`, while the application's lifespan is open; mounted applications
            have no lifespan.
        hooks: Hooks for all requests, before the stored ones.
        allow_origins: Origins whose pages may use the API (`"https://ops.example.com"`).
        rate_limit: Requests that each key may send to this process; `None` for any number.
        tenant_rate_limit: Requests that all keys of a tenant may send together; five times `rate_limit` by default,
            `None` for any number.
        max_body: Largest body of a request, in bytes.
        body_timeout: Seconds for which a body may stall.
        page: Whether to serve the web page too, below `/page`.
        session_key: Signs the sessions of the page: 32 random bytes or more, the same in all processes behind one
            address; by default, the environment variable `HOOKLINE_SESSION_KEY`. Without a key, people sign in again
            after a restart.
        allow_missing_hooks: Whether to resume operations without interceptors that they were started with, with a
            warning in the log; otherwise they wait for a worker that has them.
        trace_url: The address of a trace in your tracing system, with `{trace_id}` in it; the page links to it.

    Raises:
        HookUsageError: If an argument is invalid.
    """
    parts = ServerParts(
        store, registry=registry, log=log, outbox=outbox, hooks=hooks, agents=agents, trace_url=trace_url
    )
    return build_app(
        parts,
        agents=agents,
        allow_origins=allow_origins,
        rates=RateLimits(rate_limit, tenant_rate_limit),
        limits=ServerLimits(max_body=max_body, body_timeout=body_timeout),
        page=page,
        session_key=session_key,
        allow_missing_hooks=allow_missing_hooks,
    )


def build_app(
    parts: ServerParts,
    *,
    agents: Sequence[Agent],
    allow_origins: Sequence[str],
    rates: RateLimits,
    limits: ServerLimits,
    page: bool,
    session_key: bytes | None,
    allow_missing_hooks: bool,
) -> App:
    """Build the API and the page over existing parts, with all their middleware."""
    session_key = _choose_session_key(session_key)
    parts.settings = ServerSettings(
        limits=SizeLimits.from_limits(limits),
        key_rate=RequestRate.from_limit(rates.key),
        tenant_rate=RequestRate.from_limit(rates.tenant),
        agents=[agent.id for agent in agents],
        allow_origins=list(allow_origins),
        allow_missing_hooks=allow_missing_hooks,
        has_page=page,
        has_session_key=session_key is not None,
        request_hooks=len(parts.hooks),
    )
    api: Any = build_litestar(parts, agents=agents, allow_missing_hooks=allow_missing_hooks)
    app: App = Idempotency(api, parts.store)
    app = RequestHooks(app, parts)
    if page:
        app = PageRouter(app, import_module(PAGE).create_page(parts, session_key=session_key, rates=rates))
    app = RequestGate(
        app,
        parts,
        rates=rates,
        max_body=limits.max_body,
        body_timeout=limits.body_timeout,
        public=(*PUBLIC, "/") if page else PUBLIC,
        public_prefixes=(PAGE_PATH,) if page else (),
    )
    return CrossOrigin(app, allow_origins) if allow_origins else app


def _choose_session_key(given: bytes | None) -> bytes | None:
    """Return the given session key, else the environment's; `None` if there is none.

    Raises:
        HookUsageError: If the key is too short. The error never contains the key.
    """
    name = "`session_key`" if given is not None else SESSION_KEY
    key = given if given is not None else os.environ.get(SESSION_KEY, "").encode() or None
    if key is not None and (not isinstance(key, bytes) or len(key) < SHORTEST_KEY):
        raise HookUsageError(
            f"{name} must have {SHORTEST_KEY} random bytes or more; create one with `openssl rand -hex 32`."
        )
    return key


def build_litestar(parts: ServerParts, *, agents: Sequence[Agent] = (), allow_missing_hooks: bool = False) -> Litestar:
    """Build the Litestar application with the routes of the API.

    Args:
        parts: The parts of the server.
        agents: Agents whose operations it resumes.
        allow_missing_hooks: Whether to resume operations without their missing interceptors.
    """
    handlers = [*OPTIONS, *ROUTES, read_description]
    parse_signatures(handlers)
    return Litestar(
        handlers,
        before_request=require_scope,
        request_class=TextRequest,
        exception_handlers={Exception: build_error_response},
        state=State({"parts": parts}),
        openapi_config=None,
        request_max_body_size=None,
        logging_config=None,
        lifespan=[_worker_lifespan(parts, agents, allow_missing_hooks=allow_missing_hooks)] if agents else [],
    )


class PageRouter:
    """Routes requests to the web page or to the API. The page authenticates people by itself."""

    def __init__(self, api: App, page: App) -> None:
        self._api, self._page = api, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the page or to the API."""
        path = scope["path"] if scope["type"] == "http" else ""
        if f"{path}/".startswith(f"{PAGE_PATH}/"):
            await self._page(scope, receive, send)
        elif path == "/":
            where = f"{scope['state']['hookline_root']}{PAGE_PATH}/".encode()
            headers = [(b"location", where), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._api(scope, receive, send)


def _worker_lifespan(
    parts: ServerParts, agents: Sequence[Agent], *, allow_missing_hooks: bool
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def run_worker(_: Litestar) -> AsyncIterator[None]:
        registry = parts.known_registry
        hooks = () if registry is None else registry.hooks
        # Controls are asked through the outbox, since it has the secrets of their endpoints.
        async with (
            HookDispatcher(delivery=parts.outbox) as dispatcher,
            Worker(parts.store, agents, hooks=hooks, dispatcher=dispatcher, allow_missing_hooks=allow_missing_hooks),
        ):
            yield

    return run_worker
