"""Refuse bytes that are no text: in paths, query strings, headers, JSON bodies and forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from litestar import Request
from litestar.datastructures import FormMultiDict

from hookline._paths import has_dot_segment, merge_slashes
from hookline.asgi import Scope
from hookline.server._problems import ApiError

__all__ = ["TextRequest", "check_text", "malformed", "normal_path"]

FORM = "application/x-www-form-urlencoded"
READ = frozenset((b"content-type", b"idempotency-key", b"if-match", b"if-none-match", b"last-event-id"))
"""Headers that the API reads as text. An `Authorization` of other bytes is no key (401), and an `X-Request-ID` is not
taken over. All others may hold any byte that HTTP allows; a proxy or a browser may add them in Latin-1."""


class TextRequest(Request[Any, Any, Any]):
    """A request whose body is refused with 400 where its bytes are no UTF-8."""

    async def json(self) -> Any:
        """Decode the body as JSON.

        Raises:
            ApiError: 400, if it is no UTF-8.
        """
        try:
            return await super().json()
        except UnicodeDecodeError:  # its position is one within a text, not within the body
            raise malformed("The body holds bytes that are not UTF-8.") from None

    async def form(self) -> FormMultiDict:
        """Decode the body as the fields of a form.

        Raises:
            ApiError: 400, if it is no UTF-8, or a form of another encoding.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind != FORM:
            raise malformed(f"Forms are sent as {FORM}.")
        if not _is_text(await self.body()):
            raise malformed("The form holds bytes that are not UTF-8.")
        return await super().form()


def malformed(detail: str) -> ApiError:
    """Return the error for a request that cannot be read."""
    return ApiError(400, "malformed", detail)


def normal_path(path: str) -> str:
    """Return the one form of a path that the router, hooks, logs and figures are shown.

    The router takes `//v1//keys/` for `/v1/keys`. It does not resolve dot segments, while a proxy in front may.

    Raises:
        ApiError: 400, if it has a segment `.` or `..`.
    """
    if has_dot_segment(path):
        raise malformed("The path has a segment '.' or '..'; resolve it first.")
    merged = merge_slashes(path)
    return merged if merged[:1] == "/" and (merged == "/" or merged[-1] != "/") else f"/{merged.strip('/')}"


def check_text(scope: Scope) -> None:
    """Refuse a path, a query string, and headers that the API reads, where their bytes are no text.

    Raises:
        ApiError: 400.
    """
    query = scope["query_string"]
    if "\x00" in scope["path"] or b"%00" in query:
        raise malformed("The address holds a character that no address has.")
    # A server replaces such bytes in `path`, so that two ids become one. `raw_path` is optional in ASGI.
    if not _is_text(scope.get("raw_path") or b"") or not _is_encodable(scope["path"]):
        raise malformed("The path holds bytes that are not UTF-8.")
    if not _is_text(query):
        raise malformed("The query string holds bytes that are not UTF-8.")
    wrong = _unreadable(scope["headers"])
    if wrong is not None:
        raise malformed(f"The header {wrong} holds bytes that are not ASCII.")


def _unreadable(lines: Iterable[tuple[bytes, bytes]]) -> str | None:
    return next((name.decode() for name, value in lines if not value.isascii() and name in READ), None)


def _is_text(encoded: bytes) -> bool:
    """Return whether percent-encoded bytes are UTF-8 once they are decoded."""
    if b"%" not in encoded and encoded.isascii():
        return True
    try:
        unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_encodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
