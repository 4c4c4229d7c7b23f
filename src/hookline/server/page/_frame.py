"""What all views of the page have in common: who looks, what they may, and how an answer is made."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import MediaType, Response
from litestar.datastructures import Cookie

from hookline.server._callers import Req
from hookline.server._parts import Parts
from hookline.server._problems import ApiError
from hookline.server.page._assets import Assets
from hookline.server.page._sessions import SESSION_SECONDS, Session, Sessions
from hookline.server.page._sign_outs import SignOuts
from hookline.server.page._templates import templates

__all__ = ["COOKIE", "NOTICES", "PREFIX", "Frame", "frame_of", "own_place"]

PREFIX = "/page"
COOKIE = "hookline_session"
NOTICES = {
    "on": "Switched on. It takes part in the next run.",
    "off": "Switched off. It takes no part in the next run.",
    "retried": "It is tried again now.",
    "replayed": "It is delivered again, with the same id.",
    "nothing": "There was nothing to do: somebody or something was quicker.",
    "enabled": "Deliveries go to the endpoint again.",
}
"""What is told after something was done. Only these: an address says which, and anybody may write addresses."""
VIEWS = (
    ("operations", "Operations", "o", "operations:read"),
    ("approvals", "Approvals", "a", "operations:read"),
    ("hooks", "Hooks", "h", "hooks:read"),
    ("logs", "Logs", "l", "hooks:read"),
    ("statistics", "Statistics", "s", "hooks:read"),
    ("deliveries", "Deliveries", "d", "operations:read"),
    ("endpoints", "Endpoints", "e", "operations:read"),
)
PLACE = re.compile(rf"/(?:{'|'.join(name for name, *_ in VIEWS)})(?:/[\w.~%-]+)?(?:\?[!-\[\]-~]*)?", re.ASCII)
LONGEST_PLACE = 2000


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What all views have in common.

    Attributes:
        parts: What the server is made of.
        sessions: Who is signed in.
        sign_outs: The sessions that were ended early.
        assets: The files of the page.
    """

    parts: Parts
    sessions: Sessions
    sign_outs: SignOuts
    assets: Assets
    environment: Any = msgspec.field(default_factory=templates)

    def root(self, request: Req) -> str:
        """Where the page begins."""
        return f"{request.scope['state'].get('hookline_root', '')}{PREFIX}"

    def text(self, request: Req, template: str, **values: Any) -> str:
        """A template, filled."""
        session: Session | None = request.scope["state"].get("hookline_session")
        caller = None if session is None else session.caller
        root = self.root(request)
        common = {
            "root": root,
            "asset": lambda name: f"{root}/static/{self.assets.url(name)}",
            "token": "" if session is None else self.sessions.token(session),
            "caller": caller,
            "views": [view for view in VIEWS if caller is not None and view[3] in caller.scopes],
            "may": lambda scope: caller is not None and scope in caller.scopes,
            "notice": NOTICES.get(request.query_params.get("notice", ""), ""),
            "path": request.scope["path"],
        }
        filled: str = self.environment.get_template(template).render(common | values)
        return filled

    def page(self, request: Req, template: str, *, status: int = 200, **values: Any) -> Response[str]:
        """A whole page."""
        text = self.text(request, template, **values)
        return Response(text, status_code=status, media_type=MediaType.HTML)

    def to(self, request: Req, place: str, /, **query: str) -> Response[str]:
        """Go somewhere else on the page, as an answer to a form."""
        location = f"{self.root(request)}{place}{'?' + urlencode(query) if query else ''}"
        return Response("", status_code=303, media_type=MediaType.TEXT, headers={"Location": location})

    def place(self, request: Req) -> str:
        """What a request asked for, to come back to it after signing in; `""` if that is no view of the page."""
        query = request.scope["query_string"].decode("latin-1")
        path = quote(request.scope["path"].removeprefix(PREFIX))
        return own_place(f"{path}?{query}" if query else path)

    def cookie(self, request: Req, session: Session | None) -> Cookie:
        """What makes a browser remember a session, or forget it."""
        return Cookie(
            key=COOKIE,
            value="" if session is None else self.sessions.cookie(session),
            path=self.root(request),
            max_age=0 if session is None else SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )

    async def holds(self, session: Session) -> bool:
        """Whether a session is still that of somebody who is signed in, and whose key has not ended.

        Raises:
            StoreUnavailableError: If that cannot be found out now.
        """
        caller = session.caller
        return caller is not None and await self.parts.keys.still(caller) and not await self.sign_outs.has(session)

    async def fields(self, request: Req) -> dict[str, str]:
        """The fields of a form, which must be one of this session and of this page.

        Raises:
            ApiError: 403.
        """
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise ApiError(403, "foreign_form", "The form came from another site.")
        given = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        session: Session | None = request.scope["state"].get("hookline_session")
        if session is None or not self.sessions.has_token(session, given.pop("token", "")):
            raise ApiError(403, "stale_form", "The form is too old, or not of this session. Load the page again.")
        return given


def own_place(text: str) -> str:
    """The same if it is the address of a view below `PREFIX`, else `""`: anybody may write a link to the sign-in."""
    return text if len(text) <= LONGEST_PLACE and PLACE.fullmatch(text) else ""


def frame_of(request: Req) -> Frame:
    """What all views have in common."""
    frame: Frame = request.app.state["frame"]
    return frame
