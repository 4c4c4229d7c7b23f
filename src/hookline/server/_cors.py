"""Answer pages of other origins that are allowed to use the API (CORS).

Litestar's `CORSConfig` works inside of its application, behind the gate: preflight requests carry no API key and would
be refused there, and pages could not read the refusals (401, 429) of the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from hookline.asgi import App, Message, Receive, Scope, Send
from hookline.errors import HookUsageError

__all__ = ["CrossOrigin"]

METHODS = b"GET, POST, PUT, PATCH, DELETE"
HEADERS = b"authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, x-request-id"
EXPOSED = b"etag, link, location, retry-after, ratelimit-limit, ratelimit-remaining, ratelimit-reset, x-request-id"


class CrossOrigin:
    """ASGI middleware that lets pages of other origins use the API with an API key, never with cookies.

    Args:
        app: The application behind it.
        origins: The allowed origins (`"https://ops.example.com"`).

    Raises:
        HookUsageError: If one is no valid origin.
    """

    def __init__(self, app: App, origins: Sequence[str]) -> None:
        for origin in origins:
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
                raise HookUsageError(
                    f"`allow_origins` must be origins such as 'https://ops.example.com'; got {origin!r:.200}."
                )
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight request, or add CORS headers to the application's response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        allowed = origin if origin in self._origins else None
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            lines = [(b"vary", b"origin"), (b"content-length", b"0")]
            if allowed is not None:
                lines += [
                    (b"access-control-allow-origin", allowed),
                    (b"access-control-allow-methods", METHODS),
                    (b"access-control-allow-headers", HEADERS),
                    (b"access-control-max-age", b"600"),
                ]
            await send({"type": "http.response.start", "status": 204, "headers": lines})
            await send({"type": "http.response.body", "body": b""})
            return

        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                lines = [*message.get("headers", ()), (b"vary", b"origin")]
                if allowed is not None:
                    lines += [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", EXPOSED)]
                message = {**message, "headers": lines}
            await send(message)

        await self._app(scope, receive, add_headers)
