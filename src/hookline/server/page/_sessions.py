"""Sessions of the page: who is signed in, in a signed cookie, and the tokens that forms carry."""

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

__all__ = ["SESSION_SECONDS", "Session", "Sessions"]

SESSION_SECONDS = 12 * 3600
"""How long a session lasts at most."""
LONGEST = 4096
SHORTEST_KEY = 32


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who looks at the page.

    Attributes:
        caller: Whose key they have signed in with; `None` before that.
        ends: When it ends, in seconds since 1970.
        nonce: Tells it apart from all others.
    """

    caller: Caller | None
    ends: float
    nonce: str


class Sessions:
    """Makes sessions and finds out whether one is genuine. All is in the cookie; only what was ended early is kept.

    Args:
        key: Signs them. Processes that serve the same people share it; unless given, sessions end with the process.

    Raises:
        HookUsageError: If the key is too short.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and (not isinstance(key, bytes) or len(key) < SHORTEST_KEY):
            raise HookUsageError(f"`session_key` is at least {SHORTEST_KEY} random bytes.")
        self._key = key or token_bytes(SHORTEST_KEY)

    def begin(self, caller: Caller | None) -> Session:
        """A new session.

        Args:
            caller: Whose key it is for; `None` for somebody who is about to sign in.
        """
        return Session(caller=caller, ends=time() + SESSION_SECONDS, nonce=token_urlsafe(16))

    def cookie(self, session: Session) -> str:
        """What the browser keeps of a session."""
        text = urlsafe_b64encode(msgspec.json.encode(session)).decode().rstrip("=")
        return f"{text}.{self._signed('session', text)}"

    def read(self, cookie: str | None) -> Session | None:
        """The session that a browser sent; `None` if that is none of ours, or it has ended."""
        text, _, signature = (cookie or "")[:LONGEST].partition(".")
        if not text or not hmac.compare_digest(self._signed("session", text).encode(), signature.encode()):
            return None
        try:
            session = msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Session)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            return None
        return session if session.ends > time() else None

    def token(self, session: Session) -> str:
        """What every form of a session carries."""
        return self._signed("form", session.nonce)

    def has_token(self, session: Session, given: str) -> bool:
        """Whether a form is one of that session."""
        return hmac.compare_digest(self.token(session).encode(), given.encode("utf-8", "replace"))

    def _signed(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}.{text}".encode("utf-8", "replace"), sha256).hexdigest()
