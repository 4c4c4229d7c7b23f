"""The files of the page: read once, compressed once, and kept by browsers until they change."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response

from hookline.server._callers import not_found

__all__ = ["Assets"]

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOREVER = "public, max-age=31536000, immutable"


class Asset(msgspec.Struct, frozen=True):
    """A file as it is sent."""

    media_type: str
    plain: bytes
    compressed: bytes
    version: str


class Assets:
    """The files of the page.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._assets = {path.name: _read(path) for path in folder.iterdir() if path.suffix in MEDIA_TYPES}

    def url(self, name: str) -> str:
        """The address of a file below that of all files; it changes when the file does."""
        return f"{name}?v={self._assets[name].version}"

    def answer(self, request: Request[Any, Any, Any], name: str) -> Response[bytes]:
        """Send a file.

        Raises:
            ApiError: 404.
        """
        asset = self._assets.get(name)
        if asset is None:
            raise not_found()
        headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(asset.plain, media_type=asset.media_type, headers=headers)
        return Response(asset.compressed, media_type=asset.media_type, headers=headers | {"Content-Encoding": "gzip"})


def _read(path: Path) -> Asset:
    plain = path.read_bytes()
    version = sha256(plain).hexdigest()[:12]
    return Asset(MEDIA_TYPES[path.suffix], plain, gzip.compress(plain, mtime=0), version)
