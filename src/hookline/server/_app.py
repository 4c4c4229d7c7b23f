"""`create_app`: the HTTP API as an ASGI application."""

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
from hookline.server._callers import demand_scope
from hookline.server._cors import CrossOrigin
from hookline.server._description import read_description
from hookline.server._gate import Gate
from hookline.server._idempotency import Idempotency
from hookline.server._limits import BODY_SECONDS, Limits
from hookline.server._parts import Parts
from hookline.server._problems import answer_of
from hookline.server._rates import RateLimit, RateLimits
from hookline.server._request_hooks import RequestHooks
from hookline.server._text import TextRequest
from hookline.server.page import SHORTEST_KEY
from hookline.server.routes import OPTIONS, PUBLIC, ROUTES
from hookline.store import SqlStore, Worker

__all__ = ["MEBIBYTE", "app_of", "create_app"]

MEBIBYTE = 1024 * 1024
PAGE, PAGE_PATH = "hookline.server.page._page", "/page"
SESSION_KEY = "HOOKLINE_SESSION_KEY"
"""Names the variable that has the key of the page's sessions."""


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
) -> App:
    """Make the HTTP API, to be served by itself or mounted under any path of any ASGI application.

    It opens and closes nothing of what it is given. Each request passes, in this order: the origins that are allowed,
    the form of its address, the size limit, the API key, the rate limits, the hooks for `RequestCall`, and then its
    route. On the web page the session of who has signed in with a key takes the place of the key.

    What a connection may take before a request is complete (bytes and time of its headers, and how many connections
    there are) is for the server that runs it to limit, as `Server` does.

    Args:
        store: Where operations, deliveries and keys are; open for as long as there are requests.
        registry: The hook definitions; without it their routes answer with 503.
        log: What hooks did; without it its routes answer with 503.
        outbox: Told when deliveries are to be made again; without it a worker elsewhere finds them by itself.
        agents: Agents whose operations this process goes on with when a person has decided, as a `Worker` does; for as
            long as the application's lifespan is open, which is not so where it is mounted.
        hooks: Hooks for the requests of everybody, before those that are stored.
        allow_origins: Origins whose pages may ask (`"https://ops.example.com"`).
        rate_limit: How many requests each key may send, to this process; `None` for any number.
        tenant_rate_limit: How many requests all keys of a tenant may send together; five times `rate_limit` unless
            given, `None` for any number.
        max_body: Bytes that the body of a request may have.
        body_timeout: Seconds that a body may stand still.
        page: Whether the web page is there too, below `/page`.
        session_key: Signs who is signed in on the page: 32 random bytes or more, the same in all processes behind one
            address. Unless given, that of the environment variable `HOOKLINE_SESSION_KEY`; without one, people sign in
            again after a restart.
        allow_missing_hooks: Whether operations go on here without interceptors that they were started with, with a
            warning in the log; else they wait for a worker that has them.

    Raises:
        HookUsageError: If an argument makes no sense.
    """
    parts = Parts(store, registry=registry, log=log, outbox=outbox, hooks=hooks)
    return app_of(
        parts,
        agents=agents,
        allow_origins=allow_origins,
        rates=RateLimits(rate_limit, tenant_rate_limit),
        limits=Limits(max_body=max_body, body_timeout=body_timeout),
        page=page,
        session_key=session_key,
        allow_missing_hooks=allow_missing_hooks,
    )


def app_of(
    parts: Parts,
    *,
    agents: Sequence[Agent],
    allow_origins: Sequence[str],
    rates: RateLimits,
    limits: Limits,
    page: bool,
    session_key: bytes | None,
    allow_missing_hooks: bool,
) -> App:
    """See `create_app`."""
    session_key = _session_key(session_key)
    api: Any = litestar_of(parts, agents=agents, allow_missing_hooks=allow_missing_hooks)
    app: App = Idempotency(api, parts.store)
    app = RequestHooks(app, parts)
    if page:
        app = WithPage(app, import_module(PAGE).create_page(parts, session_key=session_key, rates=rates))
    app = Gate(
        app,
        parts,
        rates=rates,
        max_body=limits.max_body,
        body_timeout=limits.body_timeout,
        public=(*PUBLIC, "/") if page else PUBLIC,
        public_prefixes=(PAGE_PATH,) if page else (),
    )
    return CrossOrigin(app, allow_origins) if allow_origins else app


def _session_key(given: bytes | None) -> bytes | None:
    """The key that is given, or else that of the environment, if there is one.

    Raises:
        HookUsageError: If it is too short, without what it is: it is a secret.
    """
    name = "`session_key`" if given is not None else SESSION_KEY
    key = given if given is not None else os.environ.get(SESSION_KEY, "").encode() or None
    if key is not None and (not isinstance(key, bytes) or len(key) < SHORTEST_KEY):
        raise HookUsageError(f"{name} is {SHORTEST_KEY} random bytes or more, such as `openssl rand -hex 32` gives.")
    return key


def litestar_of(parts: Parts, *, agents: Sequence[Agent] = (), allow_missing_hooks: bool = False) -> Litestar:
    """What is behind the gate.

    Args:
        parts: What the server is made of.
        agents: Agents whose operations it goes on with.
        allow_missing_hooks: Whether also without interceptors that are missing.
    """
    return Litestar(
        [*OPTIONS, *ROUTES, read_description],
        before_request=demand_scope,
        request_class=TextRequest,
        exception_handlers={Exception: answer_of},
        state=State({"parts": parts}),
        openapi_config=None,
        request_max_body_size=None,
        logging_config=None,
        lifespan=[_working(parts, agents, allow_missing_hooks=allow_missing_hooks)] if agents else [],
    )


class WithPage:
    """The API, and the web page below its path. The page lets people in by itself."""

    def __init__(self, api: App, page: App) -> None:
        self._api, self._page = api, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered."""
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


def _working(
    parts: Parts, agents: Sequence[Agent], *, allow_missing_hooks: bool
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def working(_: Litestar) -> AsyncIterator[None]:
        registry = parts.known_registry
        hooks = () if registry is None else registry.hooks
        # The outbox asks controls too: with the secrets of their endpoints, which nobody else can open.
        async with (
            HookDispatcher(delivery=parts.outbox) as dispatcher,
            Worker(parts.store, agents, hooks=hooks, dispatcher=dispatcher, allow_missing_hooks=allow_missing_hooks),
        ):
            yield

    return working
