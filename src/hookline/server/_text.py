"""Refuse requests whose paths, query strings, headers, JSON bodies or forms are no valid text (UTF-8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from litestar import Request
from litestar.datastructures import FormMultiDict

from hookline.asgi import Scope
from hookline.server._problems import ApiError

__all__ = ["TextRequest", "check_text", "malformed_error"]

FORM = "application/x-www-form-urlencoded"
READ = frozenset((b"content-type", b"idempotency-key", b"if-match", b"if-none-match", b"last-event-id"))
"""Headers that the API reads as text. An `Authorization` with other bytes is an invalid key (401), and such an
`X-Request-ID` is ignored. All other headers may hold any bytes that HTTP allows; proxies and browsers add Latin-1."""


class TextRequest(Request[Any, Any, Any]):
    """A request whose body is refused with 400 if it is not UTF-8."""

    async def json(self) -> Any:
        """Decode the body as JSON.

        Raises:
            ApiError: 400, if it is not UTF-8.
        """
        try:
            return await super().json()
        except UnicodeDecodeError:  # its position is one within a text, not within the body
            raise malformed_error("The body is not valid UTF-8.") from None

    async def form(self) -> FormMultiDict:
        """Decode the body as the fields of a form.

        Raises:
            ApiError: 400, if it is not UTF-8, contains a NUL character, or has another media type.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind != FORM:
            raise malformed_error(f"Send forms as {FORM}.")
        body = await self.body()
        if not _is_text(body):
            raise malformed_error("The form is not valid UTF-8.")
        if b"\0" in body or b"%00" in body:
            raise malformed_error("The form contains a NUL character.")
        return await super().form()


def malformed_error(detail: str) -> ApiError:
    """Build the error for a request that cannot be parsed."""
    return ApiError(400, "malformed", detail)


def check_text(scope: Scope) -> None:
    """Raise if the path, the query string or a header that the API reads is no valid text.

    Raises:
        ApiError: 400, if one is not.
    """
    query = scope["query_string"]
    if "\x00" in scope["path"] or b"%00" in query:
        raise malformed_error("The URL contains a NUL character.")
    # Servers replace invalid bytes in `path`, so that two ids could become one. `raw_path` is optional in ASGI.
    if not _is_text(scope.get("raw_path") or b"") or not _is_encodable(scope["path"]):
        raise malformed_error("The path is not valid UTF-8.")
    if not _is_text(query):
        raise malformed_error("The query string is not valid UTF-8.")
    wrong = _unreadable(scope["headers"])
    if wrong is not None:
        raise malformed_error(f"The header {wrong} contains bytes that are not ASCII.")


def _unreadable(lines: Iterable[tuple[bytes, bytes]]) -> str | None:
    return next((name.decode() for name, value in lines if not value.isascii() and name in READ), None)


def _is_text(encoded: bytes) -> bool:
    """Return whether percent-encoded bytes decode to valid UTF-8."""
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
