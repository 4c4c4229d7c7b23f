"""Sessions of the page in signed cookies, and the tokens that protect its forms (CSRF)."""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from secrets import token_bytes, token_urlsafe
from time import time

import msgspec

from hookline.errors import HookUsageError
from hookline.server._callers import Caller

__all__ = ["SESSION_SECONDS", "PageSession", "SessionCookies"]

SESSION_SECONDS = 12 * 3600
"""Longest duration of a session."""
LONGEST = 4096
SHORTEST_KEY = 32


class PageSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a person on the page.

    Attributes:
        caller: The key with which the person has signed in; `None` before that.
        ends: When the session ends, in unix seconds.
        nonce: A unique random value.
    """

    caller: Caller | None
    ends: float
    nonce: str


class SessionCookies:
    """Creates, signs and reads sessions. A session is stored in its cookie only, not on the server.

    Args:
        key: The key that signs cookies, shared by processes that serve the same people; random by default, so that
            sessions end with the process.

    Raises:
        HookUsageError: If the key is too short.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and (not isinstance(key, bytes) or len(key) < SHORTEST_KEY):
            raise HookUsageError(f"`session_key` must have at least {SHORTEST_KEY} random bytes.")
        self._key = key or token_bytes(SHORTEST_KEY)

    def create(self, caller: Caller | None) -> PageSession:
        """Create a session.

        Args:
            caller: The key of the person; `None` for a person who is about to sign in.
        """
        return PageSession(caller=caller, ends=time() + SESSION_SECONDS, nonce=token_urlsafe(16))

    def cookie(self, session: PageSession) -> str:
        """Encode and sign a session as the value of its cookie."""
        text = urlsafe_b64encode(msgspec.json.encode(session)).decode().rstrip("=")
        return f"{text}.{self._sign('session', text)}"

    def read(self, cookie: str | None) -> PageSession | None:
        """Read a session from its cookie; `None` if the signature is wrong or the session has ended."""
        text, _, signature = (cookie or "")[:LONGEST].partition(".")
        if not text or not hmac.compare_digest(self._sign("session", text).encode(), signature.encode()):
            return None
        try:
            session = msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=PageSession)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            return None
        return session if session.ends > time() else None

    def token(self, session: PageSession) -> str:
        """Return the token that every form of a session carries."""
        return self._sign("form", session.nonce)

    def has_token(self, session: PageSession, given: str) -> bool:
        """Return whether a form's token is that of a session."""
        return hmac.compare_digest(self.token(session).encode(), given.encode("utf-8", "replace"))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}.{text}".encode("utf-8", "replace"), sha256).hexdigest()
