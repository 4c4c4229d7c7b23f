"""`PageContext`: what the views of the page share: rendering, redirects, sessions and forms."""

from __future__ import annotations

import re
from functools import lru_cache
from time import monotonic, time
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from litestar import MediaType, Response
from litestar.datastructures import Cookie
from markupsafe import Markup

from hookline.server._callers import Caller, Req, Scope
from hookline.server._parts import ServerParts
from hookline.server.page._assets import Assets
from hookline.server.page._sessions import SESSION_SECONDS, PageSession, SessionCookies
from hookline.server.page._shared_work import SharedWork
from hookline.server.page._sign_outs import SignOuts
from hookline.server.page._templates import page_environment

__all__ = ["COOKIE", "NOTICES", "PREFIX", "VIEWS", "PageContext", "context_of", "validate_place"]

PREFIX = "/page"
COOKIE = "hookline_session"
NOTICES = {
    "on": "Enabled from the next run on.",
    "off": "Disabled from the next run on.",
    "retried": "The delivery will be tried now.",
    "replayed": "It will be delivered again, with the same id.",
    "nothing": "Nothing to do: the delivery has changed in the meantime.",
    "enabled": "The endpoint is enabled again.",
    "interrupted": "The interruption was asked for.",
    "retry": "The operation was started anew. A worker takes it.",
    "created": "The hook is stored. New runs use it from now on, unless it is disabled.",
    "saved": "Saved. New runs use it from now on.",
    "deleted": "Deleted. You can restore it here.",
    "reverted": "Restored, as a new revision. New runs use it from now on.",
    "ordered": "The order is stored. New runs use it from now on.",
    "enforced": "It is enforced from the next run on.",
    "shadowed": "It is in shadow from the next run on.",
    "left_out": "Disabled for this tenant, from its next run on.",
    "taken_in": "Enabled again for this tenant, from its next run on.",
    "revoked": "Revoked. Within a second, no server accepts the key any more.",
    "secret-revoked": "Revoked. Within a second, nothing is signed with the secret any more.",
}
"""Notices after a form was sent. The address names one of them, so that a crafted link cannot show another text."""


class View(NamedTuple):
    """A view of the navigation.

    Attributes:
        name: Its path.
        title: Its name for people.
        key: The key that leads to it after `g`.
        scope: The scope that it needs.
        group: The group of views that it stands in.
    """

    name: str
    title: str
    key: str
    scope: Scope
    group: str


VIEWS = (
    View("overview", "Overview", "v", "operations:read", "operations"),
    View("operations", "Operations", "o", "operations:read", "operations"),
    View("approvals", "Approvals", "a", "operations:read", "operations"),
    View("hooks", "Hooks", "h", "hooks:read", "hooks"),
    View("logs", "Executions", "l", "hooks:read", "hooks"),
    View("statistics", "Statistics", "s", "hooks:read", "hooks"),
    View("budgets", "Budgets", "b", "operations:read", "hooks"),
    View("deliveries", "Deliveries", "d", "operations:read", "webhooks"),
    View("endpoints", "Endpoints", "e", "operations:read", "webhooks"),
    View("keys", "Keys", "k", "hooks:admin", "server"),
    View("audit", "Audit", "u", "hooks:admin", "server"),
    View("settings", "Settings", "t", "hooks:admin", "server"),
)
PLACE = re.compile(rf"/(?:{'|'.join(view.name for view in VIEWS)})(?:/[\w.~%-]+)?(?:\?[!-\[\]-~]*)?", re.ASCII)
LONGEST_PLACE = 2000


REMEMBERED_PARTS = 500
"""How many parts of pages are cached: by view, and by the scopes of keys."""
CACHED_SECONDS = 1.0
"""Seconds after a failure for which a request may succeed without the database, since keys and sessions are cached."""


class Outage:
    """The present outage of the database.

    Attributes:
        since: When a request has first failed, in unix seconds; `None` while the database works.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self._failed_at = 0.0

    def begin(self) -> None:
        """Note that the database could not be reached."""
        self._failed_at = monotonic()
        if self.since is None:
            self.since = time()

    def end(self) -> None:
        """Note that a request was admitted, which needs the database or what it has said within a second."""
        if self.since is not None and monotonic() - self._failed_at > CACHED_SECONDS:
            self.since = None


class PageContext(msgspec.Struct, frozen=True, kw_only=True):
    """Renders pages and reads forms and sessions, for all views.

    Attributes:
        parts: The parts of the server.
        sessions: Signs and reads session cookies.
        sign_outs: The sessions that were ended early.
        assets: The static files.
        outage: Since when the database cannot be reached.
        shared: Work that live views of several people share.
    """

    parts: ServerParts
    sessions: SessionCookies
    sign_outs: SignOuts
    assets: Assets
    outage: Outage = msgspec.field(default_factory=Outage)
    shared: SharedWork = msgspec.field(default_factory=SharedWork)
    environment: Any = msgspec.field(default_factory=page_environment)

    def root(self, request: Req) -> str:
        """Return the path under which the page is served."""
        return f"{request.scope['state'].get('hookline_root', '')}{PREFIX}"

    def render_for_all(self, request: Req, template: str, **values: Any) -> str:
        """Render a template that is the same for all who get these values: it knows no caller, token or notice."""
        root = self.root(request)
        filled: str = self.environment.get_template(template).render({"root": root} | values)
        return filled

    def render(self, request: Req, template: str, **values: Any) -> str:
        """Render a template."""
        session: PageSession | None = request.scope["state"].get("hookline_session")
        caller = None if session is None else session.caller
        root, path = self.root(request), request.scope["path"]
        views = tuple(view for view in VIEWS if caller is not None and view.scope in caller.scopes)
        active = next((view.name for view in VIEWS if path.startswith(f"{PREFIX}/{view.name}")), "")
        common = {
            "root": root,
            "asset": lambda name: f"{root}/static/{self.assets.url(name)}",
            "token": "" if session is None else self.sessions.token(session),
            "caller": caller,
            "views": views,
            "navigation": render_part("navigation.html", root, views, active),
            "shortcuts": render_part("shortcuts.html", root, views),
            "may": lambda scope: caller is not None and scope in caller.scopes,
            "notice": NOTICES.get(request.query_params.get("notice", ""), ""),
        }
        filled: str = self.environment.get_template(template).render(common | values)
        return filled

    def render_page(self, request: Req, template: str, *, status: int = 200, **values: Any) -> Response[str]:
        """Render a template as a response."""
        text = self.render(request, template, **values)
        return Response(text, status_code=status, media_type=MediaType.HTML)

    def redirect(self, request: Req, place: str, /, **query: str) -> Response[str]:
        """Redirect to another view, as the response to a form."""
        location = f"{self.root(request)}{place}{'?' + urlencode(query) if query else ''}"
        return Response("", status_code=303, media_type=MediaType.TEXT, headers={"Location": location})

    def redirect_back(self, request: Req, back: str, default: str, **query: str) -> Response[str]:
        """Redirect to the view that a form was in, with its filter.

        Args:
            request: The request.
            back: The address of the view, as the form has it.
            default: The address without a filter, for a form without `back`.
            **query: Parameters to add to the address, or to replace in it.
        """
        path, _, asked = (validate_place(back) or default).partition("?")
        return self.redirect(request, path, **dict(parse_qsl(asked)) | query)

    def current_place(self, request: Req) -> str:
        """Return the view that a request asked for, to return to it after signing in; `""` if it is none."""
        query = request.scope["query_string"].decode("latin-1")
        path = quote(request.scope["path"].removeprefix(PREFIX))
        return validate_place(f"{path}?{query}" if query else path)

    def cookie(self, request: Req, session: PageSession | None) -> Cookie:
        """Build the cookie that stores a session in the browser, or deletes it."""
        return Cookie(
            key=COOKIE,
            value="" if session is None else self.sessions.cookie(session),
            path=self.root(request),
            max_age=0 if session is None else SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )

    async def is_signed_in(self, session: PageSession) -> bool:
        """Return whether a session is signed in, was not ended, and has a key that is still valid.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        caller = session.caller
        return caller is not None and await self.parts.keys.still(caller) and not await self.sign_outs.contains(session)

    async def known_tenants(self, caller: Caller) -> list[str]:
        """Return the tenants of the newest operations, for a caller who sees all tenants; `[]` for others."""
        return await self.parts.summaries.names("tenant_id", None) if caller.sees_all else []

    async def known_agents(self, caller: Caller, tenant: str | None) -> list[str]:
        """Return the agents of the newest operations of a tenant; of all that the caller may see without one."""
        return await self.parts.summaries.names("agent_id", caller.tenant(tenant))


@lru_cache(REMEMBERED_PARTS)
def render_part(template: str, root: str, views: tuple[View, ...], active: str = "") -> Markup:
    """Render a part that is the same in many pages: it takes a third of the time of a small page."""
    return Markup(page_environment().get_template(template).render(root=root, views=views, active=active))


def validate_place(text: str) -> str:
    """Return a path if it is that of a view, else `""`, so that a crafted link cannot redirect to another site."""
    return text if len(text) <= LONGEST_PLACE and PLACE.fullmatch(text) else ""


def context_of(request: Req) -> PageContext:
    """Return the context of the page that handles a request."""
    context: PageContext = request.app.state["context"]
    return context
