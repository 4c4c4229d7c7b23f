"""Normalize the path of a request, once for the router, hooks, logs and metrics."""

from __future__ import annotations

from hookline.asgi import has_dot_segment, merge_slashes
from hookline.server._text import malformed_error

__all__ = ["normalize_path"]


def normalize_path(path: str) -> str:
    """Normalize a path, so that the router, hooks, logs and metrics all see the same one.

    The router treats `//v1//keys/` as `/v1/keys`. It does not resolve dot segments, while a proxy in front may.

    Raises:
        ApiError: 400, if the path has a segment `.` or `..`.
    """
    if has_dot_segment(path):
        raise malformed_error("The path has a segment '.' or '..'; resolve it before you send it.")
    merged = merge_slashes(path)
    return merged if merged[:1] == "/" and (merged == "/" or merged[-1] != "/") else f"/{merged.strip('/')}"
