"""`PageGate`: middleware of the page that reads the session, limits rates, and runs the hooks for requests."""

from __future__ import annotations

import msgspec

from hookline.asgi import App, Message, Receive, Scope, Send
from hookline.errors import StoreUnavailableError
from hookline.server._problems import MEDIA_TYPE, ApiError
from hookline.server._rates import RateLimits, check_allowance
from hookline.server._request_hooks import RequestHooks
from hookline.server.page._context import COOKIE, PREFIX, PageContext

__all__ = ["PageGate"]

STATIC = f"{PREFIX}/static/"
UNHOOKED = (f"{PREFIX}/sign-in", f"{PREFIX}/sign-out")
"""Paths without hooks, so that a person whom a hook refuses everything can still sign out, or in with another key."""


class PageGate:
    """ASGI middleware that reads the session of a request, limits its rate, and runs it through the request hooks.

    The page finds in `scope["state"]`: `hookline_session`, if there is one, `hookline_caller`, if a person is signed
    in, and `hookline_refused`, the error to show, if the request was refused.

    Args:
        page: The application behind it.
        context: The context of the page's views.
        rates: The rate limits.
    """

    def __init__(self, page: App, context: PageContext, *, rates: RateLimits) -> None:
        self._page, self._context, self._rates = page, context, rates
        self._hooked = RequestHooks(page, context.parts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with its session or with the error to show."""
        path, state = scope["path"], scope["state"]
        if path.startswith(STATIC):
            await self._page(scope, receive, send)
            return
        try:
            await self._admit(scope)
        except (ApiError, StoreUnavailableError) as error:
            state["hookline_refused"] = error
        else:
            if "hookline_caller" in state:
                self._context.outage.end()
        if "hookline_refused" in state or "hookline_caller" not in state or path in UNHOOKED:
            await self._page(scope, receive, send)
            return
        before, answer = {**state}, _HeldAnswer(send)
        await self._hooked(scope, receive, answer.send)
        if answer.refused is not None:
            scope["state"] = before | {"hookline_refused": answer.to_error()}
            await self._page(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        state = scope["state"]
        session = self._context.sessions.read(_cookie(state["hookline_cookies"]))
        if session is not None and session.caller is None:
            state["hookline_session"] = session
        elif session is not None and session.caller is not None and await self._context.is_signed_in(session):
            caller = await self._context.parts.keys.refresh(session.caller) or session.caller
            state |= {"hookline_session": session, "hookline_caller": caller}
            check_allowance(self._rates.take(caller))
            return
        check_allowance(self._rates.take_address(scope))


class _ProblemDetail(msgspec.Struct):
    """The part of problem details that is shown to people."""

    detail: str = "A hook denied this."


class _HeldAnswer:
    """Forwards a response, but holds back problem details of a hook's refusal, which the page shows instead.

    Attributes:
        refused: The start of such a response; `None` if there was none.
    """

    def __init__(self, send: Send) -> None:
        self.refused: Message | None = None
        self._send, self._body = send, b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and (b"content-type", MEDIA_TYPE.encode()) in message.get(
            "headers", ()
        ):
            self.refused = message
        elif self.refused is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")

    def to_error(self) -> ApiError:
        """Convert the response that was held back into an error."""
        assert self.refused is not None
        try:
            problem = msgspec.json.decode(self._body, type=_ProblemDetail)
        except msgspec.MsgspecError:
            problem = _ProblemDetail()
        return ApiError(self.refused["status"], "denied", problem.detail)


def _cookie(header: bytes) -> str | None:
    """Return the page's cookie from the `Cookie` header."""
    pairs = (each.strip().partition("=") for each in header.decode("latin-1").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), None)
