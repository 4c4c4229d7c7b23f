"""Static files of the page: read and compressed once, and cached by browsers until they change."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response

from hookline.server._callers import not_found_error

__all__ = ["Assets"]

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOREVER = "public, max-age=31536000, immutable"


class Asset(msgspec.Struct, frozen=True):
    """A static file, plain and compressed."""

    media_type: str
    plain: bytes
    compressed: bytes
    version: str


class Assets:
    """The static files of the page.

    Args:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._assets = {path.name: _read_asset(path) for path in folder.iterdir() if path.suffix in MEDIA_TYPES}

    def url(self, name: str) -> str:
        """Return the address of a file, relative to the static files; it changes when the file changes."""
        return f"{name}?v={self._assets[name].version}"

    def answer(self, request: Request[Any, Any, Any], name: str) -> Response[bytes]:
        """Send a file.

        Raises:
            ApiError: 404, if there is no such file.
        """
        asset = self._assets.get(name)
        if asset is None:
            raise not_found_error()
        headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(asset.plain, media_type=asset.media_type, headers=headers)
        return Response(asset.compressed, media_type=asset.media_type, headers=headers | {"Content-Encoding": "gzip"})


def _read_asset(path: Path) -> Asset:
    plain = path.read_bytes()
    version = sha256(plain).hexdigest()[:12]
    return Asset(MEDIA_TYPES[path.suffix], plain, gzip.compress(plain, mtime=0), version)
