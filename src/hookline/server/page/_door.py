"""`Door`: what a request for the page passes first: who asks, their allowance, and the hooks for requests."""

from __future__ import annotations

import msgspec

from hookline.asgi import App, Message, Receive, Scope, Send
from hookline.errors import StoreUnavailableError
from hookline.server._problems import MEDIA_TYPE, ApiError
from hookline.server._rates import RateLimits, check_allowance
from hookline.server._request_hooks import RequestHooks
from hookline.server.page._frame import COOKIE, PREFIX, Frame

__all__ = ["Door"]

STATIC = f"{PREFIX}/static/"
UNHOOKED = (f"{PREFIX}/sign-in", f"{PREFIX}/sign-out")
"""Whom a hook keeps from everything can still sign out, and in with another key."""


class Door:
    """Finds out who is signed in, counts what they ask for, and leads it through the hooks, as that of a key is.

    The page finds in `scope["state"]`: `hookline_session`, if there is one, `hookline_caller`, if somebody is signed
    in, and `hookline_refused`, the error to show, if there is nothing else to be done.

    Args:
        page: What is behind it.
        frame: What all views of the page have in common.
        rates: How many requests somebody may send.
    """

    def __init__(self, page: App, frame: Frame, *, rates: RateLimits) -> None:
        self._page, self._frame, self._rates = page, frame, rates
        self._hooked = RequestHooks(page, frame.parts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        path, state = scope["path"], scope["state"]
        if path.startswith(STATIC):
            await self._page(scope, receive, send)
            return
        try:
            await self._admit(scope)
        except (ApiError, StoreUnavailableError) as error:
            state["hookline_refused"] = error
        if "hookline_refused" in state or "hookline_caller" not in state or path in UNHOOKED:
            await self._page(scope, receive, send)
            return
        before, answer = {**state}, _Answer(send)
        await self._hooked(scope, receive, answer.send)
        if answer.refused is not None:
            scope["state"] = before | {"hookline_refused": answer.refusal()}
            await self._page(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        state = scope["state"]
        session = self._frame.sessions.read(_cookie(state["hookline_cookies"]))
        if session is not None and session.caller is None:
            state["hookline_session"] = session
        elif session is not None and session.caller is not None and await self._frame.holds(session):
            state |= {"hookline_session": session, "hookline_caller": session.caller}
            check_allowance(self._rates.take(session.caller))
            return
        check_allowance(self._rates.take_address(scope))


class _Told(msgspec.Struct):
    """What problem details tell people."""

    detail: str = "A hook has refused this."


class _Answer:
    """An answer on its way to the browser. Problem details, by which hooks refuse, are held back for the page to show.

    Attributes:
        refused: How such an answer begins; `None` if there was none.
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

    def refusal(self) -> ApiError:
        """What was held back, as an error."""
        assert self.refused is not None
        try:
            told = msgspec.json.decode(self._body, type=_Told)
        except msgspec.MsgspecError:
            told = _Told()
        return ApiError(self.refused["status"], "denied", told.detail)


def _cookie(header: bytes) -> str | None:
    """The cookie of the page, among those that a browser sent."""
    pairs = (each.strip().partition("=") for each in header.decode("latin-1").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), None)
